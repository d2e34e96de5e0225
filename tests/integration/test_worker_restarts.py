"""What a worker finds again: after a clean end, after SIGKILL at any moment, after a crash of the
machine, with 100,000 files."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import xxhash

from cachefs.core.errors import InUse
from cachefs.core.model import PAGE_BYTES, ContentId, NamespaceId
from cachefs.core.pages import page_count, range_bytes
from tests.services.loading import fetch
from tests.unit.worker.rig import (
    LIMIT_S,
    MIB,
    NAMESPACE,
    Rig,
    only,
    open_reader,
    read,
    run,
    spec_of,
    until,
)
from worker.cache.cache import Cache
from worker.store import filesystem
from worker.store.changes import PutFile
from worker.store.directory import TierDirectory
from worker.store.records import FileRecord
from worker.store.writer import Writer
from worker.tier.config import WorkerConfig

SMALL = 110 << 10


def test_a_restart_finds_everything(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 200 * MIB)
        for n in range(1, 20):
            rig.put(n, SMALL + n)
        rig.put(20, 50 * MIB)
        async with rig.worker() as worker:
            for n in range(1, 20):
                await read(worker, n)
            reader = await open_reader(worker, 20)
            await reader.at(30 * MIB, 10)
            await reader.at(40 * MIB, 10)
            reader.close()
            used = worker.status()["tiers"][0]["cached_bytes"]
        before = rig.origin.script.body_bytes
        async with rig.worker() as worker:
            tier = worker.status()["tiers"][0]
            assert (tier["cached_bytes"], tier["files"]) == (used, 20)
            assert len(only(worker).contents.order) == 20
            for n in range(1, 20):
                assert await read(worker, n) == rig.data[n]
            reader = await open_reader(worker, 20)
            assert await reader.at(30 * MIB + 5, 10) == rig.data[20][30 * MIB + 5 : 30 * MIB + 15]
            reader.close()
            assert rig.origin.script.body_bytes == before
            assert await read(worker, 20) == rig.data[20]
        assert rig.origin.script.body_bytes == before + 48 * MIB

    run(script())


def test_two_workers_never_share_a_directory(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        async with rig.worker():
            with pytest.raises(InUse, match=str(os.getpid())):
                await Cache.start(
                    rig.config, [spec_of(rig.config)], rig._service, lambda ns, key: rig.origin
                )

    run(script())


def test_the_order_of_eviction_survives(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 200 * MIB, eviction="lru")
        for n in range(1, 11):
            rig.put(n, SMALL)
        async with rig.worker() as worker:
            for n in (3, 1, 2, 10, 9, 8, 7, 6, 5, 4):
                rig.wall_s += 10
                await fetch(worker, NAMESPACE, n)
            rig.wall_s += 10
            worker.used([rig.name(3), "junk", "00" * 36], SMALL)
        async with rig.worker() as worker:
            keys = [key.hex() for key in only(worker).contents.order.candidates(100)]
            assert keys == [rig.name(n) for n in (1, 2, 10, 9, 8, 7, 6, 5, 4, 3)]

    run(script())


# ---- a crash of the machine ----------------------------------------------------------------------


def reboot(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(filesystem, "boot_id", lambda: number.to_bytes(16, "big"))


def place(rig: Rig, ino: int) -> Path:
    name = rig.name(ino)
    return rig.tier / "files" / name[-2:] / name


def test_after_a_crash_of_the_machine_what_was_not_synced_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 200 * MIB)
        synced, good, torn, lost, partial = 1, 2, 3, 4, 5
        rig.put(synced, SMALL)
        rig.put(good, 3 * MIB)
        rig.put(torn, 5 * MIB + 9)
        rig.put(lost, SMALL)
        rig.put(partial, 40 * MIB)
        reboot(monkeypatch, 1)
        async with rig.worker() as worker:
            await fetch(worker, NAMESPACE, synced)
            await only(worker).housekeeping.sync()
            for n in (good, torn, lost):
                await fetch(worker, NAMESPACE, n)
            reader = await open_reader(worker, partial)
            for page in (10, 20):
                await reader.at(page * PAGE_BYTES, 10)
            reader.close()
            assert rig.published() == {rig.name(n) for n in (synced, good, torn, lost)}
        with open(place(rig, torn), "r+b") as file:
            file.seek(2 * MIB + 1000)
            file.write(bytes(5000))
            file.seek(5 * MIB)
            file.write(b"x")
        with open(place(rig, partial), "r+b") as file:
            file.seek(20 * MIB)
            file.write(bytes(4096))
        os.unlink(place(rig, lost))
        reboot(monkeypatch, 2)
        before = rig.origin.script.body_bytes
        async with rig.worker() as worker:
            assert rig.published() == set()
            assert await read(worker, synced) == rig.data[synced]
            assert await read(worker, good) == rig.data[good]
            assert rig.origin.script.body_bytes == before
            assert worker.status()["verified_files"] == 1, "what was synced needs none"
            assert await read(worker, torn) == rig.data[torn]
            assert rig.origin.script.body_bytes == before + PAGE_BYTES + 9, "the bad pages"
            assert await read(worker, lost) == rig.data[lost]
            reader = await open_reader(worker, partial)
            for page in (10, 20):
                offset = page * PAGE_BYTES
                assert await reader.at(offset, 4096) == rig.data[partial][offset : offset + 4096]
            reader.close()
            assert worker.status()["bad_pages"] == 3
            assert rig.origin.script.body_bytes == before + 2 * PAGE_BYTES + 9 + SMALL
            await fetch(worker, NAMESPACE, torn)
            assert rig.published() == {rig.name(n) for n in (synced, good, torn, lost)}
        async with rig.worker() as worker:  # verified once is enough
            assert await read(worker, torn) == rig.data[torn]
            assert worker.status()["verified_files"] == 0

    run(script())


def test_what_stays_doubtful_is_verified_after_later_boots_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        rig.put(1, SMALL)
        rig.put(2, SMALL)
        for boot in range(1, 4):
            reboot(monkeypatch, boot)
            async with rig.worker() as worker:
                if boot == 1:
                    await fetch(worker, NAMESPACE, 1)
                await fetch(worker, NAMESPACE, 2)
                if boot == 2:
                    await only(worker).housekeeping.sync()  # does not bless what boot 1 left
        with open(place(rig, 1), "r+b") as file:
            file.write(b"flipped")
        reboot(monkeypatch, 4)
        async with rig.worker() as worker:
            assert await read(worker, 1) == rig.data[1]
            assert worker.status()["bad_pages"] == 1
            assert await read(worker, 2) == rig.data[2]
            assert worker.status()["verified_files"] == 1

    run(script())


# ---- SIGKILL -------------------------------------------------------------------------------------

_FILLER = """
import asyncio, sys, threading
sys.path.insert(0, {repo!r})
from pathlib import Path
from tests.unit.worker.rig import spec_of, MIB, NAMESPACE, Rig, read
import time

async def main():
    rig = Rig(Path({directory!r}), 400 * MIB, seed={seed})
    slow = threading.Event()
    rig.origin.script._wait = lambda verb: slow.wait(0.002) and None
    fill(rig)
    print("ready", flush=True)
    async with rig.worker() as worker:
        rounds = [read(worker, ino) for ino in rig.data]
        rounds += [fetch(worker, NAMESPACE, ino) for ino in rig.data]
        if {free}:
            rounds += [worker.free([rig.content(ino)]) for ino in rig.data]
        await asyncio.gather(*rounds, return_exceptions=True)
    print("done", flush=True)

def fill(rig):
    for ino in range(1, 30):
        rig.put(ino, rig.random.randrange(1, 3 * MIB))
    rig.put(50, 60 * MIB + 5)
    rig.put(51, 20 * MIB)

asyncio.run(main())
"""


def the_same_files(directory: Path, seed: int) -> Rig:
    rig = Rig(directory, 400 * MIB, seed=seed)
    for ino in range(1, 30):
        rig.put(ino, rig.random.randrange(1, 3 * MIB))
    rig.put(50, 60 * MIB + 5)
    rig.put(51, 20 * MIB)
    return rig


def fill_and_kill(directory: Path, seed: int, after_s: float, *, free: bool) -> None:
    """A process that fills the tier, killed at some moment after it began."""
    repo = str(Path(__file__).parents[2])
    program = _FILLER.format(repo=repo, directory=str(directory), seed=seed, free=free)
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(after_s)  # the moment of the kill is what is varied
        child.send_signal(signal.SIGKILL)


def check_records(rig: Rig) -> int:
    """Every recorded page is right, every published file is whole, totals add up. Returns the bytes
    recorded."""
    by_name = {rig.name(ino): data for ino, data in rig.data.items()}
    tier = TierDirectory.take(str(rig.tier))
    try:
        recorded = 0
        records = tier.index.scan(b"", 1000)
        for key, record in records:
            data = by_name[key.hex()]
            assert record.size == len(data)
            bits = tier.index.bits(key, record.size)
            sums = tier.index.sums(key, record.size, 0, page_count(record.size))
            cached = (rig.tier / "files" / key.hex()[-2:] / key.hex()).read_bytes()
            for page, checksum in sums.items():
                right = data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]
                assert xxhash.xxh3_64_intdigest(right) == checksum
                assert cached[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] == right
                recorded += range_bytes(record.size, page, page + 1)
            assert record.complete <= (bits == (1 << -(-record.size // PAGE_BYTES)) - 1)
        totals = tier.index.totals()
        assert totals.files == len(records)
        assert totals.allocated_bytes == sum(record.allocated_bytes for _, record in records)
        for name in rig.published():
            assert (rig.tier / "pub" / name).read_bytes() == by_name[name]
            assert tier.index.get(bytes.fromhex(name)) is not None
        return recorded
    finally:
        tier.close()


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("attempt", range(4))
def test_sigkill_at_any_moment(tmp_path: Path, attempt: int, free: bool) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    after_s = random.Random(seed).uniform(0.0, 0.25)
    print(f"seed {seed}, killed after {after_s:.3f} s")
    fill_and_kill(tmp_path, seed, after_s, free=free)
    rig = the_same_files(tmp_path, seed)
    if not (rig.tier / "TIER").exists():
        return  # killed before it began
    recorded = check_records(rig)
    print(f"{recorded} bytes were recorded")

    async def script() -> None:
        async with rig.worker() as worker:
            for ino in rig.data:
                assert await read(worker, ino) == rig.data[ino]
                await fetch(worker, NAMESPACE, ino)
            await until(lambda: worker.status()["tiers"][0]["live_files"] == 0)
            assert rig.published() == {rig.name(ino) for ino in rig.data}
            await only(worker).housekeeping.sweep()
            total = sum(len(data) for data in rig.data.values())
            assert rig.origin.script.body_bytes == total - recorded, "only what was not recorded"
            cached = worker.status()["tiers"][0]["cached_bytes"]
            assert cached == sum(-(-len(data) // 4096) * 4096 for data in rig.data.values())

    run(script())


def test_files_without_a_record_are_swept(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        rig.put(1, SMALL)
        rig.put(2, 20 * MIB)
        async with rig.worker() as worker:
            await fetch(worker, NAMESPACE, 1)
            reader = await open_reader(worker, 2)
            await reader.at(0, 10)
            reader.close()
        orphan = ContentId(NAMESPACE, 77, 0, 5).name
        folder = rig.tier / "files" / orphan[-2:]
        folder.mkdir(exist_ok=True)
        (folder / orphan).write_bytes(b"left by a crash")
        (folder / "notes.txt").write_text("not ours")
        with open(place(rig, 2), "r+b") as file:  # a torn page that nobody recorded
            file.seek(15 * MIB)
            file.write(bytes(8192))
        async with rig.worker() as worker:
            await only(worker).housekeeping.sweep()  # the one after the start may be at it, too
            await until(lambda: not (folder / orphan).exists())
            assert (folder / "notes.txt").exists()
            assert await read(worker, 1) == rig.data[1]
            real = sum(os.stat(place(rig, n)).st_blocks * 512 for n in (1, 2))
            await until(lambda: only(worker).contents.ledger.cached_bytes == real)
            await until(lambda: only(worker).disk.directory.index.totals().allocated_bytes == real)

    run(script())


# ---- size ----------------------------------------------------------------------------------------


def test_100_000_cached_files_are_taken_over_at_once(tmp_path: Path) -> None:
    tier = TierDirectory.take(str(tmp_path / "tier"))
    writer = Writer(tier.index)
    record = FileRecord(SMALL, '"0123456789abcdef0123456789abcdef"', 1, 112 << 10, True, 5)
    keys = [
        bytes.fromhex(ContentId(NamespaceId(b"n" * 16), n, 0, n * 0x9E3779B97F4A7C15 % 2**64).name)
        for n in range(100_000)
    ]
    for start in range(0, len(keys), 5000):
        some = keys[start : start + 5000]
        writer.write([PutFile(key, record, {0: n}) for n, key in enumerate(some)])
    writer.close()
    tier.close()

    async def script() -> None:
        config = WorkerConfig(str(tmp_path / "tier"), 1 << 40)
        started = time.monotonic()
        worker = await Cache.start(config, [spec_of(config)], lambda ns: None, lambda ns, key: None)  # type: ignore[arg-type, return-value]
        took_s = time.monotonic() - started
        assert not only(worker)._space.order_loaded.is_set(), "its order comes later"
        assert worker.status()["tiers"][0]["files"] == 100_000
        await asyncio.wait_for(only(worker)._space.order_loaded.wait(), LIMIT_S)
        loaded_s = time.monotonic() - started
        assert len(only(worker).contents.order) == 100_000
        await worker.close()
        print(f"taken over in {took_s:.3f} s, order known after {loaded_s:.2f} s")

    asyncio.run(script())
