"""Directories that are known by their path."""

from __future__ import annotations

from cachefs.core.model import Inode, Kind
from worker.names.resolved_paths import MOST, ResolvedPaths

DATA, TRAIN = Inode(2, Kind.DIRECTORY), Inode(3, Kind.DIRECTORY)


def test_the_nearest_known_directory_and_the_names_from_there() -> None:
    known = ResolvedPaths()
    assert known.nearest(b"") == (None, [])
    assert known.nearest(b"data/x") == (None, [b"data", b"x"])
    known.put(b"data", DATA)
    known.put(b"data/train", TRAIN)
    assert known.nearest(b"data") == (DATA, [])
    assert known.nearest(b"data/val/x") == (DATA, [b"val", b"x"])
    assert known.nearest(b"data/train/x") == (TRAIN, [b"x"])
    assert known.nearest(b"database") == (None, [b"database"])


def test_a_name_that_leads_elsewhere_is_forgotten_with_all_below() -> None:
    known = ResolvedPaths()
    known.put(b"data", DATA)
    known.put(b"data/train", TRAIN)
    known.forget(b"train")
    assert known.nearest(b"data/train") == (DATA, [b"train"])
    known.put(b"data/train", TRAIN)
    known.forget(b"data")
    assert known.nearest(b"data/train") == (None, [b"data", b"train"])


def test_the_number_is_bounded() -> None:
    known = ResolvedPaths()
    for n in range(MOST + 1):
        known.put(b"%d" % n, DATA)
    assert known.nearest(b"0") == (None, [b"0"])
    assert known.nearest(b"1") == (DATA, [])
    known.clear()
    assert known.nearest(b"1") == (None, [b"1"])
