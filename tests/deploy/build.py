"""Builds the image's layer on a base: `unshare --mount python -m tests.deploy.build BASE TARGET`.

It does what the Dockerfile says. Each stage is an overlay on the base, so that what the last stage
adds is a layer. Its mounts end with its mount namespace. For root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.deploy.dockerfile import Copy, Run, Stage, parse

ROOT: Final = Path(__file__).resolve().parents[2]
DOCKERFILE: Final = ROOT / "deploy" / "docker" / "Dockerfile"
BASE: Final = "base"
STEP_S: Final = 600.0
# What a build takes from the machine, as an image builder does: names, authorities, pip's settings.
_BOUND: Final = ("/dev", "/proc", "/etc/resolv.conf", "/etc/ssl/certs")
_PASSED: Final = ("PIP_CERT", "PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT", "https_proxy", "HTTPS_PROXY")


def build(base: Path, target: Path) -> Path:
    """Returns the directory with what the last stage adds to the base."""
    made: dict[str, Path] = {}
    for stage in parse(DOCKERFILE.read_text(), {"BASE": BASE}):
        assert stage.base == BASE, stage.base
        made[stage.name] = _overlay(base, target / stage.name)
        for step, directory in stage.steps:
            _take(step, directory, made[stage.name], made)
    return target / stage.name / "upper"


def _overlay(base: Path, place: Path) -> Path:
    for name in ("upper", "work", "root"):
        (place / name).mkdir(parents=True)
    options = f"lowerdir={base},upperdir={place}/upper,workdir={place}/work"
    root = place / "root"
    _run("mount", "-t", "overlay", "overlay", "-o", options, str(root))
    return root


def _take(step: Copy | Run, directory: str, root: Path, made: dict[str, Path]) -> None:
    below = root / directory.lstrip("/")
    below.mkdir(parents=True, exist_ok=True)
    if isinstance(step, Run):
        return _run_inside(root, directory, step.text)
    context = made[step.stage] if step.stage else ROOT
    target = below / step.target if not step.target.startswith("/") else root / step.target[1:]
    for source in step.sources:
        _copy(context / source.lstrip("/"), target, is_into=step.target.endswith("/"))


def _copy(source: Path, target: Path, *, is_into: bool) -> None:
    """Copies a file, or what is in a directory, as COPY does. Bytecode stays: it is no source."""
    if source.is_dir():
        ignore = shutil.ignore_patterns("__pycache__") if source.is_relative_to(ROOT) else None
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=ignore)
        return
    if is_into:
        target.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def _run_inside(root: Path, directory: str, text: str) -> None:
    for name in _BOUND:
        if not os.path.ismount(root / name[1:]):
            _run("mount", "--bind", name, str(root / name[1:]))
    environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
    environment["PATH"] = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    _run("chroot", str(root), "sh", "-euc", f"cd {directory}; {text}", environment=environment)
    for name in reversed(_BOUND):
        _run("umount", str(root / name[1:]))


def _run(*command: str, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=STEP_S,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.returncode}\n{done.stdout}")


def last_stage() -> Stage:
    """Returns the stage that is run."""
    return parse(DOCKERFILE.read_text(), {"BASE": BASE})[-1]


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))
