"""Pages of a file that stay in memory: no more than the limits of the process allow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worker.store.resident_pages import ResidentPages

PAGE = os.sysconf("SC_PAGESIZE")


def test_without_address_space_nothing_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    path.write_bytes(bytes(10 * PAGE))
    pages = ResidentPages(str(path), 1 << 62)
    pages.refresh()
    assert pages.resident_bytes == 0
    pages.close()


def test_a_refresh_reads_and_keeps_what_the_file_has_gained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.mdb"
    path.write_bytes(bytes(10 * PAGE))
    read: list[int] = []
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: read.append(offset))
    pages = ResidentPages(str(path), 20 * PAGE)
    for size_bytes, kept_bytes in ((10 * PAGE, 10 * PAGE), (12 * PAGE, 12 * PAGE)):
        os.truncate(path, size_bytes)
        for _ in range(2):
            pages.refresh()
            assert pages.resident_bytes == kept_bytes
    os.truncate(path, 99 * PAGE)
    pages.refresh()
    assert pages.resident_bytes == 20 * PAGE
    assert read == [0, 10 * PAGE, 12 * PAGE]
    pages.close()
    assert pages.resident_bytes == 0
