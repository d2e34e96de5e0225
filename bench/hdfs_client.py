"""Reads of HDFS by hdfs-native alone, without a file system: what the mount is compared with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import xxhash

from bench.readers import Done, Spec, add, names_of

PIECE_BYTES: Final = 4 << 20  # the fastest size of a range


def hdfs_ranges(spec: Spec) -> tuple[float, Done]:
    """Reads one file from its start to its end, in ranges of 4 MiB."""

    def pieces(reader: Any) -> Iterator[bytes]:
        for start in range(0, len(reader), PIECE_BYTES):
            yield reader.read_range(start, min(PIECE_BYTES, len(reader) - start))

    return _whole_file(spec, pieces)


def hdfs_stream(spec: Spec) -> tuple[float, Done]:
    """Reads one file from its start to its end, in packets of its DataNode."""
    return _whole_file(spec, lambda reader: reader.read_range_stream(0, len(reader)))


def _whole_file(spec: Spec, pieces: Callable[[Any], Iterator[bytes]]) -> tuple[float, Done]:
    """The checksum is taken after the clock stops."""
    client, ((name, expected),) = _client(spec), names_of(spec).items()
    started = time.monotonic()
    found = list(pieces(client.read(f"{spec.bucket}/{name}")))
    wall_s = time.monotonic() - started
    digest = xxhash.xxh3_64()
    for piece in found:
        digest.update(piece)
    wrong = [] if digest.hexdigest() == expected else [name]
    return wall_s, Done(sum(map(len, found)), 1, wrong)


def hdfs_files(spec: Spec) -> tuple[float, Done]:
    """Reads every file, whole, by threads."""
    client, names = _client(spec), names_of(spec)

    def fetch(name: str) -> Done:
        reader = client.read(f"{spec.bucket}/{name}")
        body = reader.read_range(0, len(reader))
        right = xxhash.xxh3_64_hexdigest(body) == names[name]
        return Done(len(body), 1, [] if right else [name])

    with ThreadPoolExecutor(spec.readers) as pool:
        started = time.monotonic()
        parts = list(pool.map(fetch, names))
        wall_s = time.monotonic() - started
    return wall_s, add(parts)


def _client(spec: Spec) -> Any:
    """Returns a client that has connected."""
    from hdfs_native import Client

    client = Client(spec.endpoint_url)
    client.get_file_info(spec.bucket)
    return client


KINDS: Final[dict[str, Callable[[Spec], tuple[float, Done]]]] = {
    "hdfs_ranges": hdfs_ranges,
    "hdfs_stream": hdfs_stream,
    "hdfs_files": hdfs_files,
}
