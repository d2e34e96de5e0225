"""The scrubber finds what has changed on the disk since it was written, and holds nothing up."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.services.loading import fetch
from tests.unit.worker.rig import (
    MIB,
    NAMESPACE,
    Rig,
    only,
    open_reader,
    read,
    recorded,
    run,
    scrubber_of,
    until,
)
from worker.cache.cache import Cache
from worker.store import on_disk
from worker.tier import scrub
from worker.tier.scrub import scrub_rate

FAST = 1 << 40  # bytes per second


def flip(rig: Rig, ino: int, offset: int) -> None:
    name = rig.name(ino)
    fd = os.open(rig.tier / "files" / name[-2:] / name, os.O_RDWR)
    byte = os.pread(fd, 1, offset)
    os.pwrite(fd, bytes([byte[0] ^ 4]), offset)
    os.close(fd)


async def loaded(rig: Rig, worker: Cache) -> None:
    for ino in rig.data:
        await fetch(worker, NAMESPACE, ino)


@pytest.mark.parametrize("offset", [0, 2 * MIB + 12345, 5 * MIB + 98], ids=["first", "mid", "last"])
@pytest.mark.parametrize("direct", [True, False], ids=["past-page-cache", "through-it"])
def test_a_flipped_bit_is_found_and_the_file_fetched_again(
    tmp_path: Path, offset: int, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[S-bit-flips] Wherever in the file it is."""
    if not direct:  # a file system that cannot

        def refuse(*_: object) -> None:
            raise OSError(errno.EINVAL, "no O_DIRECT here")

        fcntl = on_disk.fcntl.fcntl
        monkeypatch.setattr(
            on_disk.fcntl,
            "fcntl",
            lambda fd, what, flags: refuse() if flags else fcntl(fd, what, 0),
        )

    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        for ino, size in ((1, 5 * MIB + 99), (2, 110 << 10), (3, 1)):
            rig.put(ino, size)
        async with rig.worker() as worker:
            await loaded(rig, worker)
            scrubber = scrubber_of(only(worker), FAST)
            assert not await scrubber.step()
            assert worker.status()["bad_pages"] == 0
            assert worker.status()["scrubbed_bytes"] == sum(map(len, rig.data.values()))
            flip(rig, 1, offset)
            fetched = worker.status()["origin_bytes"]
            assert not await scrubber.step()
            assert worker.status()["bad_pages"] == 1
            assert rig.published() == {rig.name(2), rig.name(3)}
            assert await read(worker, 1) == rig.data[1]
            assert worker.status()["origin_bytes"] == fetched + 5 * MIB + 99
            await until(lambda: rig.name(1) in rig.published())
            assert not await scrubber.step()
            assert worker.status()["bad_pages"] == 1

    run(script())


def test_a_page_that_cannot_be_read_is_as_good_as_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "a bad sector")

    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, 2 * MIB)
        async with rig.worker() as worker:
            await loaded(rig, worker)
            with monkeypatch.context() as patch:
                patch.setattr(on_disk, "read", fail)
                await scrubber_of(only(worker), FAST).step()
            assert rig.published() == set()
            assert await read(worker, 1) == rig.data[1]

    run(script())


def test_partial_and_open_files_are_left_alone(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, 20 * MIB)
        rig.put(2, 9 * MIB)
        async with rig.worker() as worker:
            grant = await worker.open(NAMESPACE, 1)
            _, fd = await worker.ensure(grant.handle, 0, MIB)
            assert fd is None
            await until(lambda: worker.status()["fills_in_flight"] == 0)
            scrubber = scrubber_of(only(worker), FAST)
            await scrubber.step()
            assert worker.status()["scrubbed_bytes"] == 0
            assert grant.fd is not None
            os.close(grant.fd)
            worker.release(grant.handle)

    run(script())


def test_a_pass_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "BATCH_FILES", 4)

    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        for ino in range(1, 11):
            rig.put(ino, 1000)
        async with rig.worker() as worker:
            await loaded(rig, worker)
            scrubber = scrubber_of(only(worker), FAST)
            seen = []
            while await scrubber.step():
                seen.append(worker.status()["scrubbed_bytes"])
            assert seen == [4000, 8000]
            assert worker.status()["scrubbed_bytes"] == 10_000

    run(script())


def test_a_file_that_goes_meanwhile_is_no_fault(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        rig.put(1, 3 * MIB)
        async with rig.worker() as worker:
            await loaded(rig, worker)
            key = rig.content(1).key
            record = only(worker).disk.directory.index.get(key)
            assert record is not None
            await worker.free([rig.content(1)])
            assert await scrubber_of(only(worker), FAST).check(key, record) == 0
            assert worker.status()["bad_pages"] == 0

    run(script())


def test_rates() -> None:
    assert scrub_rate(-1, in_memory=True) == 0
    assert scrub_rate(-1, in_memory=False) > 0
    assert scrub_rate(7, in_memory=True) == 7
    assert scrub_rate(0, in_memory=False) == 0


def test_an_open_file_gets_no_page_that_a_peer_found_damaged(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        rig.put(1, 16 * MIB)
        async with rig.worker() as worker:
            assert await worker.serving.bring(NAMESPACE, 1, 0, 8, peers_only=False) == 8
            await recorded(worker)
            reader = await open_reader(worker, 1)
            assert not reader.grant.complete
            flip(rig, 1, 5 * MIB)
            assert await worker.serving.doubt(rig.content(1).key, [5])
            assert await reader.at(0, 16 * MIB) == rig.data[1]
            reader.close()

    run(script())
