"""The data that benches read: created once below one folder that an S3 server serves as buckets.

Every 4 KiB page of the big file starts with its number, every small file with a unique number, so
that no misplaced page or file is taken for another. Checksums are xxh3 of whole files.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash

MIB = 1 << 20
PAGE_BYTES = 4096
SMALL_BYTES = 110 << 10
PER_FOLDER = 1000
STAMP = struct.Struct("<Q")


@dataclass(frozen=True)
class Dataset:
    """One bucket. `checksums` (a JSON file): name -> xxh3 of the whole file, in hex."""

    bucket: str
    folder: Path
    names: list[str]
    size_bytes: int
    checksums: Path

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}"


class Datasets:
    """Creates data sets on first use; `root/objects` is the server's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: dict[str, Dataset] = {}
        self._template = random.Random(7).randbytes(2 * MIB)

    def big(self, size_mib: int) -> Dataset:
        """Returns one file of random bytes, `data.bin`."""
        return self._once(f"bench-big-{size_mib}", lambda folder: self._big(folder, size_mib))

    def sparse(self, size_mib: int) -> Dataset:
        """Returns one file, `data.bin`, with one data page per MiB; the rest are holes."""
        return self._once(f"bench-sparse-{size_mib}", lambda folder: _sparse(folder, size_mib))

    def sparse_files(self, count: int, size_mib: int) -> Dataset:
        """Returns several sparse files, in folders `0`, `1`, …"""

        def make(folder: Path) -> dict[str, str]:
            checksums = {}
            for number in range(count):
                part = folder / str(number)
                part.mkdir()
                (digest,) = _sparse(part, size_mib).values()
                checksums[f"{number}/data.bin"] = digest
            return checksums

        return self._once(f"bench-sparse-{count}-of-{size_mib}", make)

    def numbered(self, count: int, size_mib: int, filler_mib: int) -> Dataset:
        """Returns sparse files `many/0000.bin`, … that differ in each MiB (see `numbered_stamp`),
        and a file `filler/data.bin` that is a little larger than `filler_mib`."""

        def make(folder: Path) -> dict[str, str]:
            (folder / "filler").mkdir()
            _sparse(folder / "filler", filler_mib + 256)
            (folder / "many").mkdir()
            checksums = {"filler/data.bin": ""}
            for number in range(count):
                path = folder / f"many/{number:04d}.bin"
                with path.open("wb") as file:
                    file.truncate(size_mib * MIB)
                    for page in range(size_mib):
                        os.pwrite(
                            file.fileno(), STAMP.pack(numbered_stamp(number, page)), page * MIB
                        )
                _finish(path, f"{number}")
                checksums[f"many/{number:04d}.bin"] = ""
            return checksums

        return self._once(f"bench-numbered-{count}-{size_mib}-{filler_mib}", make)

    def small(self, count: int, size_bytes: int = SMALL_BYTES) -> Dataset:
        """Returns files of one size in folders of 1,000."""
        name = f"bench-{count}-files-of-{size_bytes}"
        return self._once(name, lambda folder: self._small(folder, count, size_bytes))

    def mixed(self, big_mib: int, cold_mib: int, count: int, cold_count: int) -> Dataset:
        """Returns folders `big` and `cold` with one `data.bin` each (that of `cold` sparse), and
        folders `small` and `cold_small` with files of 110 KiB."""

        def make(folder: Path) -> dict[str, str]:
            parts: dict[str, Callable[[Path], dict[str, str]]] = {
                "big": lambda part: self._big(part, big_mib),
                "cold": lambda part: _sparse(part, cold_mib),
                "small": lambda part: self._small(part, count, SMALL_BYTES),
                "cold_small": lambda part: self._small(part, cold_count, SMALL_BYTES),
            }
            checksums: dict[str, str] = {}
            for name, fill in parts.items():
                (folder / name).mkdir()
                made = fill(folder / name)
                checksums |= {f"{name}/{file}": digest for file, digest in made.items()}
            return checksums

        return self._once(f"bench-mixed-{big_mib}-{cold_mib}-{count}-{cold_count}", make)

    def training(self, count: int, big_count: int, big_mib: int) -> Dataset:
        """Returns a folder `small` with files of 110 KiB, and sparse files `big<n>/data.bin`."""

        def make(folder: Path) -> dict[str, str]:
            (folder / "small").mkdir()
            small = self._small(folder / "small", count, SMALL_BYTES)
            checksums = {f"small/{file}": digest for file, digest in small.items()}
            for number in range(big_count):
                (folder / f"big{number}").mkdir()
                made = _sparse(folder / f"big{number}", big_mib)
                checksums |= {f"big{number}/{file}": digest for file, digest in made.items()}
            return checksums

        return self._once(f"bench-training-{count}-{big_count}-{big_mib}", make)

    def _once(self, bucket: str, make: Callable[[Path], dict[str, str]]) -> Dataset:
        if bucket not in self._made:
            self._made[bucket] = self._make(bucket, make)
        return self._made[bucket]

    def _make(self, bucket: str, make: Callable[[Path], dict[str, str]]) -> Dataset:
        folder = self.root / "objects" / bucket
        folder.mkdir(parents=True)
        checksums = make(folder)
        index = self.root / f"{bucket}.json"
        index.write_text(json.dumps(checksums))
        size = sum((folder / name).stat().st_size for name in checksums)
        return Dataset(bucket, folder, list(checksums), size, index)

    def _big(self, folder: Path, size_mib: int) -> dict[str, str]:
        block, digest = bytearray(self._template[:MIB]), xxhash.xxh3_64()
        with (folder / "data.bin").open("wb") as file:
            for index in range(size_mib):
                for page in range(MIB // PAGE_BYTES):
                    number = index * (MIB // PAGE_BYTES) + page
                    STAMP.pack_into(block, page * PAGE_BYTES, number)
                file.write(block)
                digest.update(block)
        _finish(folder / "data.bin", digest.hexdigest())
        return {"data.bin": digest.hexdigest()}

    def _small(self, folder: Path, count: int, size_bytes: int) -> dict[str, str]:
        checksums = {}
        for number in range(count):
            path = folder / f"d{number // PER_FOLDER:03d}" / f"f{number:06d}.jpg"
            if number % PER_FOLDER == 0:
                path.parent.mkdir()
            start = number * 61 % MIB
            body = STAMP.pack(number) + self._template[start : start + size_bytes - STAMP.size]
            path.write_bytes(body)
            digest = xxhash.xxh3_64_hexdigest(body)
            _finish(path, digest)
            checksums[str(path.relative_to(folder))] = digest
        return checksums


def numbered_stamp(number: int, page: int) -> int:
    """Returns the first bytes of the MiB `page` of the file `number`; zeros follow."""
    return number << 32 | page + 1


def _sparse(folder: Path, size_mib: int) -> dict[str, str]:
    digest, holes = xxhash.xxh3_64(), bytes(MIB - STAMP.size)
    with (folder / "data.bin").open("wb") as file:
        file.truncate(size_mib * MIB)
        for index in range(size_mib):
            os.pwrite(file.fileno(), STAMP.pack(index + 1), index * MIB)
            digest.update(STAMP.pack(index + 1))
            digest.update(holes)
    _finish(folder / "data.bin", digest.hexdigest())
    return {"data.bin": digest.hexdigest()}


def _finish(path: Path, checksum: str) -> None:
    """Writes the attributes that the S3 server keeps beside an object; PUTs would take minutes."""
    etag = hashlib.md5(checksum.encode(), usedforsecurity=False).hexdigest()
    os.setxattr(path, "user.etag", f'"{etag}"'.encode())
    os.setxattr(path, "user.content-type", b"application/octet-stream")
