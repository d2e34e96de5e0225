"""The directories of a node's tiers: owned here, replaced one by one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachefs.client.published import MOST_TIERS, PublishedDirs
from cachefs.core.owned_fd import own


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_directory_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    first, second, third = (os.open(tmp_path, os.O_RDONLY) for _ in range(3))
    dirs = PublishedDirs()
    dirs.replace(1, own(first))
    dirs.replace(0, own(second))
    assert [(known.tier, known.fd) for known in dirs.dirs] == [(0, second), (1, first)]
    before = dirs.of(1)
    dirs.replace(1, own(third))
    assert dirs.of(1) is not before
    assert not is_open(first)
    dirs.replace(0, None)
    assert [known.tier for known in dirs.dirs] == [1]
    assert dirs.of(0) is None
    dirs.close()
    assert not is_open(second)
    assert not is_open(third)
    assert dirs.dirs == ()


@pytest.mark.parametrize("tier", [-1, MOST_TIERS])
def test_a_tier_out_of_range_is_not_believed(tmp_path: Path, tier: int) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    dirs = PublishedDirs()
    dirs.replace(tier, own(fd))
    assert dirs.dirs == ()
    assert not is_open(fd)
