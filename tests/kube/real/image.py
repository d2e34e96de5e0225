"""The container image of the tests: busybox, users, and empty directories at which pods mount the
machine's /usr, its Python and the clone."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import Final

from tests.kube.real.programs import BUSYBOX

NAME: Final = "localhost/base"
TAGS: Final = ("1", "2")  # the same image: a roll-out needs a name that changes
PAUSE: Final = ["/busybox", "sleep", "1000000000"]  # what holds a pod's namespaces
_DIRECTORIES: Final = ("data", "dev", "etc", "proc", "root", "run", "sys", "tmp", "usr", "var")
_LINKS: Final = ("bin", "lib", "lib64", "sbin")  # into /usr, as on the machine
_FILES: Final = {
    "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n",
    "etc/group": b"root:x:0:\nuser:x:1000:\n",
}
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(path: Path) -> None:
    """Writes a docker archive, which `ctr images import` reads."""
    layer = _layer(BUSYBOX.read_bytes())
    config = json.dumps(
        {
            "architecture": _ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {"Entrypoint": PAUSE, "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(layer)}"]},
        }
    ).encode()
    config_name, names = f"{_digest(config)}.json", [f"{NAME}:{tag}" for tag in TAGS]
    listed = {"Config": config_name, "RepoTags": names, "Layers": ["layer.tar"]}
    with tarfile.open(path, "w") as archive:
        _add(archive, config_name, config)
        _add(archive, "layer.tar", layer)
        _add(archive, "manifest.json", json.dumps([listed]).encode())


def _layer(busybox: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in _DIRECTORIES:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(entry)
        for name in _LINKS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(entry)
        for name, data in _FILES.items():
            _add(archive, name, data)
        _add(archive, "busybox", busybox, 0o755)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
