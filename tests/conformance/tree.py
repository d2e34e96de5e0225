"""The tree that the suite of the transports reads."""

from __future__ import annotations

import os

from connectors.bounds import MAX_TIME_S
from tests.conformance.posix import GIB, MIB, body
from tests.unit.fuse.fake_node import FakeNode

# Complete here from the start; complete at the first open; read piece by piece; and at the edges.
FILES = {
    "warm": body(1, MIB + 77),
    "cold": body(2, 3 * MIB + 1),
    "partial": body(3, 9 * MIB + 4095),
    "page": body(4, 4096),
    "one": b"x",
    "empty": b"",
}
ODD_NAMES = [
    b"a b",
    b"100%25",
    b"#+&?*",
    b"line\nbreak",
    b"\xff\xfe",
    "\u00e4".encode(),
    b"n" * 255,
]
ODD_NAMES += [b"Case", b"case", "a\u0308".encode(), b"-", b"...", b" ", b"\\", b'"', b"~"]
SPARSE_BYTES = 5 * GIB + 11
SPARSE_PARTS = {0: b"first", 4 * GIB - 2: b"over", SPARSE_BYTES - 4: b"last"}
ENDS_OF_TIME = {"earliest": -MAX_TIME_S, "latest": MAX_TIME_S}


def plant(node: FakeNode) -> None:
    """The tree that tests of one module share, and only read."""
    for name, data in FILES.items():
        node.add_file(name, data, published=name not in ("cold", "partial"))
    node.add_sparse("sparse", SPARSE_BYTES, SPARSE_PARTS)
    node.add_file("old", b"1969", mtime_ns=-86_400_000_000_000 - 1)
    for name, seconds in ENDS_OF_TIME.items():
        node.add_file(name, b"odd", mtime_ns=seconds * 10**9)
    node.add_link("link", b"d/f00007")
    node.add_link("dangling", b"nowhere/at all")
    node.add_link("loop", b"loop")
    node.add_dir("d")
    for number in range(2500):
        node.add_file(f"d/f{number:05d}", b"", published=False)
    node.add_dir("odd")
    for name_ in ODD_NAMES:
        node.add_file("odd/" + os.fsdecode(name_), name_)
    for depth in range(1, 9):
        node.add_dir("/".join(["deep"] * depth))
    node.add_file("/".join(["deep"] * 8) + "/leaf", b"down here")
    node.add_file("script", b"#!/bin/sh\necho it runs\n")
