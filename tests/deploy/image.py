"""The image of CacheFS on a Debian base: built once for its inputs, as directories for an overlay,
and as an archive that container runtimes import."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.deploy.build import ROOT, last_stage
from tests.deploy.dockerfile import Copy, parse
from tests.services.namespaces import without_mounts

CACHE_HOME: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
TOOLS: Final = CACHE_HOME / "cachefs-tools"
NAME: Final = "localhost/cachefs"
BUILD_S: Final = 900.0
KEPT: Final = 4  # builds, those of other clones too: more than run at once
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_MOUNTED: Final = """\
set -eu
root=$1; lower=$2; binds=$3; shift 3
mount -t overlay overlay -o "lowerdir=$lower" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/dev"
for name in null zero urandom fuse; do
    touch "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
for bind in $binds; do
    mkdir "$root/tmp/${bind##*/}"
    mount --bind "$bind" "$root/tmp/${bind##*/}"
done
exec chroot "$root" "$@"
"""


class Image(NamedTuple):
    """The base and what the image adds to it, as directories."""

    base: Path
    added: Path

    @property
    def size_bytes(self) -> int:
        return sum(_allocated(one) for one in self)


def _allocated(directory: Path) -> int:
    done = subprocess.run(
        ["du", "-sB1", directory], check=True, stdout=subprocess.PIPE, text=True, timeout=BUILD_S
    )
    return int(done.stdout.split()[0])


# ---- building ------------------------------------------------------------------------------------


@functools.cache
def built() -> Image:
    """Returns the image of this clone. A build that has the same inputs is used again."""
    script = str(ROOT / "scripts" / "image-base")
    done = subprocess.run([script], check=True, stdout=subprocess.PIPE, text=True, timeout=BUILD_S)
    base = Path(done.stdout.strip())
    target = TOOLS / f"image-{inputs_hash(base)}"
    with _locked():
        if target.exists():
            os.utime(target)
        else:
            _build(base, target)
        _forget_older()
    return Image(base, target)


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    TOOLS.mkdir(parents=True, exist_ok=True)
    with open(TOOLS / "image.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(base: Path, target: Path) -> None:
    print(f"Building the image in {TOOLS} (a minute or two, once for its sources)", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=TOOLS, prefix="build.") as work:
        command = [sys.executable, "-m", "tests.deploy.build", str(base), work]
        subprocess.run(without_mounts(*command), check=True, cwd=ROOT, timeout=BUILD_S)
        Path(work, last_stage().name, "upper").rename(target)


def _forget_older() -> None:
    images = sorted(TOOLS.glob("image-*"), key=lambda path: path.stat().st_mtime)
    for path in images[:-KEPT]:
        shutil.rmtree(path)


def inputs_hash(base: Path) -> str:
    """Returns the hash of all that the Dockerfile copies, and of itself."""
    found = hashlib.sha256(base.name.encode())
    for path in sorted(_inputs()):
        found.update(f"{path.relative_to(ROOT)}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:12]


def _inputs() -> Iterator[Path]:
    dockerfile = ROOT / "deploy" / "docker" / "Dockerfile"
    yield dockerfile
    for stage in parse(dockerfile.read_text(), {}):
        for step, _ in stage.steps:
            if isinstance(step, Copy) and not step.stage:
                for source in step.sources:
                    yield from _files(ROOT / source)


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for one in path.rglob("*"):
        if one.is_file() and "__pycache__" not in one.parts:
            yield one


# ---- running -------------------------------------------------------------------------------------


def inside(
    image: Image, root: Path, *command: str, user: int, binds: tuple[Path, ...] = ()
) -> list[str]:
    """Returns what runs a command in the image: its root read-only, /tmp in memory, each of `binds`
    below /tmp, no capability for another user than root. `root` is an empty directory."""
    lower, bound = f"{image.added}:{image.base}", " ".join(map(str, binds))
    stage = last_stage()
    words = ["env", "-i", *(f"{key}={value}" for key, value in stage.environment.items())]
    limits = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]
    if user:
        limits.append("--bounding-set=-all")
    arguments = [str(root), lower, bound, *limits, *words, *command]
    return without_mounts("sh", "-c", _MOUNTED, "sh", *arguments)


# ---- archives ------------------------------------------------------------------------------------


def write_archive(image: Image, path: Path, *tags: str) -> None:
    """Writes a docker archive, which `ctr images import` reads: the image under some tags."""
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        layers = [_layer(place, Path(work, f"{place.name}.tar")) for place in image]
        config = json.dumps(_config([_digest(layer) for layer in layers])).encode()
        config_name = f"{hashlib.sha256(config).hexdigest()}.json"
        listed = {
            "Config": config_name,
            "RepoTags": [f"{NAME}:{tag}" for tag in tags],
            "Layers": [layer.name for layer in layers],
        }
        with tarfile.open(path, "w") as archive:
            _add(archive, config_name, config)
            for layer in layers:
                archive.add(layer, layer.name)
            _add(archive, "manifest.json", json.dumps([listed]).encode())


def _config(digests: list[str]) -> dict[str, object]:
    stage = last_stage()
    return {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {
            "Entrypoint": stage.entry_point,
            "Env": [f"{key}={value}" for key, value in stage.environment.items()],
            "User": stage.user,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{one}" for one in digests]},
    }


def _layer(directory: Path, path: Path) -> Path:
    command = ["tar", "--numeric-owner", "--sort=name", "-C", str(directory), "-cf", str(path), "."]
    subprocess.run(command, check=True, timeout=BUILD_S)
    return path


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))
