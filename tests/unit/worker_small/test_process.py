"""The process that reads small files itself, with a server in the test: it writes what it says, has
nothing that it does not need, and ends with its server."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pycurl
import pytest
import xxhash

import cachefs
from connectors.fetch.request import Get as Request
from tests.services.small_origin import SmallOrigin
from tests.unit.worker.rig import run, until
from worker.fill.small import engine as module
from worker.fill.small.engine import Engine, Run, spawn
from worker.fill.small.wire import Got
from worker.store.filesystem import allocated_bytes

DATA = {b"a": b"1", b"b/c": os.urandom(110_000), b"d": os.urandom(1 << 20)}


@pytest.fixture
def origin() -> Iterator[SmallOrigin]:
    with SmallOrigin() as made:
        yield made


def request(port: int, path: bytes, etag: str, size: int) -> Request:
    url = f"http://127.0.0.1:{port}/{path.decode()}"
    return Request(url, (), size, {pycurl.PROXY: ""}, (("etag", etag),))


class Files:
    """Reads of an engine, and what became of them, by their paths."""

    def __init__(self, engine: Engine, origin: SmallOrigin) -> None:
        self.engine = engine
        self.files = {path: tempfile.TemporaryFile() for path in DATA}  # noqa: SIM115
        self.told: dict[bytes, Got | None] = {}
        self._origin = origin
        self._etags = {path: origin.connector.put(path, data).etag for path, data in DATA.items()}

    def start(self, path: bytes, etag: str = "") -> None:
        asked = request(
            self._origin.port, path, etag or self._etags[path], len(DATA.get(path, b"xyz"))
        )
        fd = self.files[path].fileno()
        self.engine.start(asked, fd, lambda got: self.told.update({path: got}))

    async def one(self, path: bytes, etag: str = "") -> Got:
        self.start(path, etag)
        await until(lambda: path in self.told)
        got = self.told.pop(path)
        assert got is not None
        return got

    def bytes_of(self, path: bytes) -> bytes:
        return os.pread(self.files[path].fileno(), 2 << 20, 0)

    @property
    def pid(self) -> int:
        assert self.engine._run is not None
        assert isinstance(self.engine._run.child, subprocess.Popen)
        return self.engine._run.child.pid


def with_process(origin: SmallOrigin, script: Callable[[Files], Awaitable[None]]) -> None:
    """No descriptor and no process may be left."""

    async def whole() -> None:
        files = Files(engine := Engine(), origin)
        try:
            assert engine.launch()
            engine.attend()
            await until(lambda: engine.is_ready)
            await script(files)
        finally:
            run = engine._run
            assert await asyncio.to_thread(engine.close, 10.0)
            ended = [child for child in engine._ending if isinstance(child, subprocess.Popen)]
            assert all(child.returncode is not None for child in ended), "one is not reaped"
            await until(lambda: engine._run is None)
            assert run is None or run.child.wait(0) is not None
            await until(lambda: origin.connections == 0)
            for file in files.files.values():
                file.close()

    run(whole())


def test_files_are_written_and_told_of(origin: SmallOrigin) -> None:
    async def script(files: Files) -> None:
        for path, data in DATA.items():
            got = await files.one(path)
            assert files.bytes_of(path) == data
            assert (got.code, got.errno, got.came_bytes) == ("", 0, len(data))
            assert got.checksum == xxhash.xxh3_64_intdigest(data)
            assert got.allocated_bytes == allocated_bytes(files.files[path].fileno())
        assert origin.served == [*DATA]

    with_process(origin, script)


@pytest.mark.parametrize("fault", ["404", "cut-at-once", "other-version", "other-length"])
def test_what_does_not_come_is_not_written(origin: SmallOrigin, fault: str) -> None:
    async def script(files: Files) -> None:
        origin.fault(b"b/c", fault)
        got = await files.one(b"b/c")
        assert got.code in ("unreachable", "origin-error")
        assert files.bytes_of(b"b/c") == b""
        assert not (await files.one(b"b/c")).code, "the next one comes"

    with_process(origin, script)


def test_an_answer_that_is_cut_is_counted(origin: SmallOrigin) -> None:
    async def script(files: Files) -> None:
        origin.fault(b"d", "cut")
        got = await files.one(b"d")
        assert got.code == "unreachable"
        assert len(DATA[b"d"]) // 2 - 200 < got.came_bytes < len(DATA[b"d"]) // 2
        assert files.bytes_of(b"d") == b""

    with_process(origin, script)


def test_a_file_system_that_refuses_the_bytes(origin: SmallOrigin) -> None:
    async def script(files: Files) -> None:
        resource.prlimit(files.pid, resource.RLIMIT_FSIZE, (5000, -1))
        got = await files.one(b"b/c")
        assert (got.errno, got.code, got.came_bytes) == (errno.EFBIG, "", len(DATA[b"b/c"]))
        assert got.allocated_bytes == allocated_bytes(files.files[b"b/c"].fileno()) > 0
        assert not (await files.one(b"a")).errno

    with_process(origin, script)


def test_where_no_descriptors_are_left(origin: SmallOrigin) -> None:
    async def script(files: Files) -> None:
        used = {int(fd.name) for fd in Path(f"/proc/{files.pid}/fd").iterdir()}
        free = next(number for number in itertools.count() if number not in used)
        before = resource.prlimit(files.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(files.pid, resource.RLIMIT_NOFILE, (free + 1, before[1]))
        for path in DATA:
            files.start(path)
        await until(lambda: len(files.told) == len(DATA))
        codes = sorted(got.code for got in files.told.values() if got is not None)
        assert codes == ["too-many-open-files", "too-many-open-files", "unreachable"]
        files.told.clear()
        resource.prlimit(files.pid, resource.RLIMIT_NOFILE, before)
        assert not (await files.one(b"a")).code

    with_process(origin, script)


def test_it_has_nothing_of_its_servers(
    origin: SmallOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "topsecret")
    with tempfile.TemporaryFile() as other:
        os.set_inheritable(other.fileno(), True)
        name = os.readlink(f"/proc/self/fd/{other.fileno()}")

        async def script(files: Files) -> None:
            proc = Path(f"/proc/{files.pid}")
            assert b"topsecret" not in (proc / "environ").read_bytes()
            assert name not in [os.readlink(fd) for fd in (proc / "fd").iterdir()]
            await files.one(b"a")
            file = os.readlink(f"/proc/self/fd/{files.files[b'a'].fileno()}")
            kept = [os.readlink(fd) for fd in (proc / "fd").iterdir()]
            assert file not in kept, "it is closed when it is told of"

        with_process(origin, script)


def test_it_runs_on_all_cpus_while_the_server_keeps_to_one(origin: SmallOrigin) -> None:
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(every)})
    try:

        async def script(files: Files) -> None:
            assert os.sched_getaffinity(files.pid) == module._CPUS

        with_process(origin, script)
    finally:
        os.sched_setaffinity(0, every)
    assert every == module._CPUS


def test_a_signal_for_all_does_not_end_it(origin: SmallOrigin) -> None:
    async def script(files: Files) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(files.pid, number)
        assert not (await files.one(b"a")).code

    with_process(origin, script)


def test_it_ends_with_its_server() -> None:
    run = Run(spawn)
    run.sock.close()  # as the end of the server does
    assert run.child.wait(10.0) == 0
    run.close()


def test_another_version_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cachefs, "__version__", "0.0.0")
    run = Run(spawn)
    assert run.child.wait(10.0) == 1
    assert run.sock.recv(100) == b""
    run.close()


def test_reads_under_way_are_told_of_its_death(origin: SmallOrigin) -> None:
    async def script(files: Files) -> None:
        origin.hold()
        for path in DATA:
            files.start(path)
        await asyncio.to_thread(origin.wait_held, len(DATA))
        os.kill(files.pid, signal.SIGKILL)
        await until(lambda: len(files.told) == len(DATA))
        assert files.told == dict.fromkeys(DATA)
        origin.go_on()
        assert all(files.bytes_of(path) == b"" for path in DATA)

    with_process(origin, script)


def test_a_stopped_one_is_replaced(origin: SmallOrigin) -> None:
    """What it was at is told of only when it can write no more."""

    async def script(files: Files) -> None:
        now_s = time.monotonic()
        files.engine._clock = lambda: now_s
        files.engine._run.heard_s = now_s  # type: ignore[union-attr]
        os.kill(files.pid, signal.SIGSTOP)
        files.start(b"a")
        for _ in range(3):
            now_s += 11
            files.engine.look()
        assert files.told == {}
        await until(lambda: files.told == {b"a": None})
        assert files.engine.launch()
        files.engine.attend()
        await until(lambda: files.engine.is_ready)
        files.told.clear()
        assert not (await files.one(b"a")).code

    with_process(origin, script)
