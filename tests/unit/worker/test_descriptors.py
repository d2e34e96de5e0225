"""A worker that may open no more files: readers get ENFILE, and the disk is not blamed for it."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from cachefs.core.errors import BadConfig, TooManyOpenFiles
from tests.services.descriptors import no_descriptor_left
from tests.unit.worker.rig import MIB, Rig, open_reader, read, run, until
from worker.runtime import process_limits


@pytest.mark.parametrize("size_bytes", [110 << 10, 12 * MIB])
def test_a_lack_of_descriptors_is_no_fault_of_the_disk(tmp_path: Path, size_bytes: int) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 200 * MIB)
        for ino in range(1, 4):
            rig.put(ino, size_bytes)
        async with rig.worker() as worker:
            assert await read(worker, 1) == rig.data[1]
            await until(lambda: rig.name(1) in rig.published())
            with no_descriptor_left():
                for _ in range(3):
                    with pytest.raises((TooManyOpenFiles, OSError)) as raised:
                        await read(worker, 2)
                    known = process_limits.classified(raised.value)  # type: ignore[arg-type]
                    assert isinstance(known, TooManyOpenFiles)
                    assert known.errno == errno.ENFILE
            tier = worker.status()["tiers"][0]
            assert (tier["state"], tier["cause"]) == ("normal", "")
            assert worker.status()["errors"].keys() <= {"too-many-open-files"}
            for ino in (2, 3):
                assert await read(worker, ino) == rig.data[ino]
            await until(lambda: rig.name(3) in rig.published())

    run(script())


def test_an_open_file_is_read_from_the_cache_once_there_are_descriptors_again(
    tmp_path: Path,
) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 200 * MIB)
        rig.put(1, 12 * MIB)
        async with rig.worker() as worker:
            readers = [await open_reader(worker, 1)]
            start = rig.data[1][:4096]
            assert await readers[0].at(0, 4096) == start
            with no_descriptor_left():
                readers.append(await open_reader(worker, 1))
                with pytest.raises(OSError, match="Too many open files"):
                    await readers[1].at(0, 4096)
            fetched_bytes = rig.origin.script.body_bytes
            assert await readers[1].at(0, 4096) == start
            assert rig.origin.script.body_bytes == fetched_bytes
            for reader in readers:
                reader.close()

    run(script())


def test_a_limit_that_is_too_low_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    with pytest.raises(BadConfig) as refused:
        process_limits.allow_many_descriptors()
    assert "only 256 files may be open" in refused.value.one_line()
    assert "ulimit -Hn" in refused.value.one_line()


def test_other_errors_are_left_as_they_are() -> None:
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    assert process_limits.classified(error) is error
