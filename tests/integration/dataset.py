"""Small data sets with known bytes."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path


def body(seed: int, size: int) -> bytes:
    """`size` bytes that depend on `seed` alone and hold no long run of zeros."""
    return random.Random(seed).randbytes(size)


def images(count: int, size: int = 40_000, folders: int = 4) -> dict[str, bytes]:
    """Many small files in class folders."""
    return {
        f"train/n{i % folders:02d}/img_{i:05d}.jpg": body(i, size + i % 1000) for i in range(count)
    }


def digest(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def digests(root: Path) -> dict[str, str]:
    """Path below `root` -> checksum of every file there, read through the kernel."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): digest(path.read_bytes()) for path in files}


def expected(files: dict[str, bytes]) -> dict[str, str]:
    return {name: digest(data) for name, data in files.items()}
