"""A second installation of this code that says that it is of another version: an environment of its
own, whose interpreter `python -I` imports a copy of the packages."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cachefs", "connectors", "master", "worker")


@dataclass(frozen=True)
class Installation:
    """`program`: the words that start its command line."""

    version: str
    python: Path

    @property
    def program(self) -> list[str | Path]:
        return [self.python, "-I", "-m", "cachefs.cli.main"]


def install(directory: Path, version: str) -> Installation:
    """Returns an installation in a directory, with the libraries of this interpreter."""
    copy = directory / "code"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "cachefs" / "__init__.py").write_text(f'__version__ = "{version}"\n')
    venv.create(directory / "env", symlinks=True, with_pip=False)
    release = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = directory / "env" / "lib" / release / "site-packages"
    libraries = sysconfig.get_path("purelib")
    (packages / "other.pth").write_text(f"{copy}\n{libraries}\n")
    return Installation(version, directory / "env" / "bin" / "python")
