"""The demo's data set: image-sized files in class folders and one large shard, with checksums."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import xxhash

CLASSES = ("cat", "crane", "dog", "llama", "newt", "wren")
IMAGES = 600
IMAGE_BYTES = 110 << 10
SHARD = "shards/train-00000.tar"
SHARD_BYTES = 128 << 20
SEED = 20


def checksum(data: bytes | bytearray | memoryview) -> str:
    """Returns the xxh3 of some bytes: fast enough to check everything that is read."""
    return xxhash.xxh3_128_hexdigest(data)


@dataclass(frozen=True)
class Dataset:
    """The files below `root`: relative names, and the checksum of each file's bytes."""

    root: Path
    images: dict[str, str]
    shard: dict[str, str]
    image_bytes: int

    @property
    def files(self) -> dict[str, str]:
        return self.images | self.shard

    @property
    def total_bytes(self) -> int:
        return self.image_bytes + SHARD_BYTES


def _write(path: Path, data: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return checksum(data)


def make_dataset(root: Path) -> Dataset:
    """Writes the files: always the same bytes, which do not compress."""
    rng = random.Random(SEED)
    images = {}
    image_bytes = 0
    for number in range(IMAGES):
        name = f"images/{CLASSES[number % len(CLASSES)]}/{number:05}.jpg"
        data = rng.randbytes(rng.randrange(IMAGE_BYTES * 4 // 5, IMAGE_BYTES * 6 // 5))
        images[name] = _write(root / name, data)
        image_bytes += len(data)
    block = rng.randbytes(8 << 20)
    shard = b"".join(bytes([i]) + block[1:] for i in range(SHARD_BYTES // len(block)))
    return Dataset(root, images, {SHARD: _write(root / SHARD, shard)}, image_bytes)
