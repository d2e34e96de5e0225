"""Opens, maps, evictions, replacements and deaths against the real kernel.

What must hold, in any order: an open file and a mapping have the bytes of the version that was
opened, to the last; an open has those of the origin's version; nothing fails but with ESTALE, and
that only for bytes of a file that was replaced at the origin meanwhile. An open file keeps its
attributes. Never EIO, never a mix.

Hypothesis draws the histories and prints the one that fails, with its seed.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.services.kernel_mount import KernelMount
from tests.services.statx import asked_attributes

MIB = 1 << 20
SIZES = {"small": 110 << 10, "tiny": 5, "big": 9 * MIB + 4097, "other": 8 * MIB + 1}
HISTORIES = int(os.environ.get("CACHEFS_TEST_HISTORIES", "16"))  # a second each
STEPS = 40
CACHE_BYTES = 64 * MIB  # of which one history fills a third: most evict
OP_S = 20.0  # of one operation while who serves is killed
FIRST_MTIME_S = 1_700_000_000


class Version(NamedTuple):
    """What an origin's name was at some time."""

    path: str
    number: int
    data: bytes


class Open:
    """A file descriptor, and what must be read from it."""

    def __init__(self, fd: int, version: Version) -> None:
        self.fd = fd
        self.version = version
        self.attributes = asked_attributes(fd)


class Mapped:
    """A mapping, and what must be in it."""

    def __init__(self, memory: mmap.mmap, version: Version) -> None:
        self.memory = memory
        self.version = version


def content(path: str, number: int) -> bytes:
    """Versions of a file have its size, or a page more."""
    size = SIZES[os.path.basename(path)] + (number % 3 == 2) * 4096
    return random.Random(f"{os.path.basename(path)} {number}").randbytes(size)


class World(RuleBasedStateMachine):
    """A directory of its own on a mount that all histories share."""

    mount: KernelMount
    origin: Path
    numbers = iter(range(1 << 30))

    @initialize()
    def start(self) -> None:
        self.directory = f"history-{next(self.numbers)}"
        (self.origin / self.directory).mkdir()
        self.versions: dict[str, Version] = {}
        self.opens: list[Open] = []
        self.maps: list[Mapped] = []
        for name in SIZES:
            self.write(f"{self.directory}/{name}", 0)

    def teardown(self) -> None:
        for opened in getattr(self, "opens", []):
            os.close(opened.fd)
        for mapped in getattr(self, "maps", []):
            mapped.memory.close()

    # ---- the origin ----

    def write(self, path: str, number: int) -> None:
        """Another object under the name: written aside, renamed, with a time of its own."""
        version = Version(path, number, content(path, number))
        aside = self.origin / "aside"
        aside.write_bytes(version.data)
        os.utime(aside, (FIRST_MTIME_S + number, FIRST_MTIME_S + number))
        aside.rename(self.origin / path)
        self.versions[path] = version

    def is_current(self, version: Version) -> bool:
        return self.versions[version.path].number == version.number

    @contextlib.contextmanager
    def allowed(self, version: Version) -> Iterator[None]:
        """ESTALE (EFAULT from a mapping) of what was replaced, and nothing else."""
        try:
            yield
        except OSError as err:
            gone = err.errno in (errno.ESTALE, errno.EFAULT) and not self.is_current(version)
            if not gone:
                raise AssertionError(f"{version.path} version {version.number}: {err}") from err

    def path(self, path: str) -> Path:
        return self.mount.path / path

    # ---- what programs do ----

    def open_name(self, path: str, how: Path | None = None) -> None:
        version = self.versions[path]
        fd = os.open(how or self.path(path), os.O_RDONLY)
        self.opens.append(Open(fd, version))
        assert os.fstat(fd).st_size == len(version.data)

    def read_at(self, opened: Open, offset: int, size: int) -> None:
        expected = opened.version.data[offset : offset + size]
        with self.allowed(opened.version):
            data = os.pread(opened.fd, size, offset)
            if data and not self.is_current(opened.version) and len(data) < len(expected):
                # The kernel had a part of it, and the rest is gone: the next read gets the error.
                assert data == expected[: len(data)], "other bytes"
                return self.read_at(opened, offset + len(data), size - len(data))
            assert data == expected, "other bytes"

    def read_mapped(self, mapped: Mapped, offset: int, size: int) -> None:
        """Through a pipe, so that a page that cannot be had is EFAULT here and no SIGBUS."""
        with contextlib.ExitStack() as stack:
            read_fd, write_fd = os.pipe()
            stack.callback(os.close, read_fd)
            stack.callback(os.close, write_fd)
            view = stack.enter_context(memoryview(mapped.memory))
            part = stack.enter_context(view[offset : offset + min(size, 32 << 10)])
            stack.enter_context(self.allowed(mapped.version))
            count = os.write(write_fd, part)
            expected = mapped.version.data[offset : offset + count]
            assert count == 0 or os.read(read_fd, count) == expected, "other bytes"

    @rule(name=st.sampled_from(sorted(SIZES)))
    def open(self, name: str) -> None:
        self.open_name(f"{self.directory}/{name}")

    @precondition(lambda self: self.opens)
    @rule(data=st.data())
    def open_again_without_the_name(self, data: st.DataObject) -> None:
        opened = data.draw(st.sampled_from(self.opens))
        with self.allowed(opened.version):
            fd = os.open(f"/proc/self/fd/{opened.fd}", os.O_RDONLY)
            self.opens.append(Open(fd, opened.version))

    @precondition(lambda self: self.opens)
    @rule(data=st.data(), share=st.floats(0, 1.01), size=st.integers(1, 3 * MIB))
    def read(self, data: st.DataObject, share: float, size: int) -> None:
        opened = data.draw(st.sampled_from(self.opens))
        self.read_at(opened, int(share * len(opened.version.data)), size)

    @precondition(lambda self: self.opens)
    @rule(data=st.data())
    def read_everything(self, data: st.DataObject) -> None:
        opened = data.draw(st.sampled_from(self.opens))
        for offset in range(0, len(opened.version.data) + MIB, MIB):
            self.read_at(opened, offset, MIB)

    @precondition(lambda self: self.opens)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        opened = data.draw(st.sampled_from(self.opens))
        self.opens.remove(opened)
        os.close(opened.fd)

    @precondition(lambda self: self.opens)
    @rule(data=st.data(), shared=st.booleans(), closes=st.booleans())
    def map(self, data: st.DataObject, shared: bool, closes: bool) -> None:
        opened = data.draw(st.sampled_from(self.opens))
        flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
        size = len(opened.version.data)
        memory = mmap.mmap(opened.fd, size, flags, mmap.PROT_READ)
        self.maps.append(Mapped(memory, opened.version))
        if closes:
            self.opens.remove(opened)
            os.close(opened.fd)

    @precondition(lambda self: self.maps)
    @rule(data=st.data(), share=st.floats(0, 1), size=st.integers(1, 32 << 10))
    def read_map(self, data: st.DataObject, share: float, size: int) -> None:
        mapped = data.draw(st.sampled_from(self.maps))
        self.read_mapped(mapped, int(share * len(mapped.version.data)), size)

    @precondition(lambda self: self.maps)
    @rule(data=st.data())
    def unmap(self, data: st.DataObject) -> None:
        mapped = data.draw(st.sampled_from(self.maps))
        self.maps.remove(mapped)
        mapped.memory.close()

    @rule(name=st.sampled_from(sorted(SIZES)))
    def stat(self, name: str) -> None:
        path = f"{self.directory}/{name}"
        info = os.stat(self.path(path))
        assert info.st_size == len(self.versions[path].data)
        assert info.st_mtime == FIRST_MTIME_S + self.versions[path].number

    @precondition(lambda self: self.opens)
    @rule(data=st.data())
    def stat_open(self, data: st.DataObject) -> None:
        opened = data.draw(st.sampled_from(self.opens))
        assert asked_attributes(opened.fd) == opened.attributes

    @rule()
    def list_names(self) -> None:
        assert sorted(os.listdir(self.path(self.directory))) == sorted(SIZES)

    # ---- what happens to the cache, the kernel's and ours ----

    @rule(name=st.sampled_from(sorted(SIZES)))
    def replace(self, name: str) -> None:
        path = f"{self.directory}/{name}"
        self.write(path, self.versions[path].number + 1)

    @rule(name=st.sampled_from(["", *sorted(SIZES)]))
    def free(self, name: str) -> None:
        self.mount.free(f"{self.directory}/{name}".rstrip("/"))

    @precondition(lambda self: self.opens)
    @rule(data=st.data())
    def forget_pages(self, data: st.DataObject) -> None:
        opened = data.draw(st.sampled_from(self.opens))
        os.posix_fadvise(opened.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    @rule()
    def distrust_names(self) -> None:
        self.mount.distrust_names()

    @rule()
    def forget_names(self) -> None:
        Path("/proc/sys/vm/drop_caches").write_text("2")

    # ---- who serves ----

    @rule()
    def kill(self) -> None:
        self.mount.kill()
        self.mount.succeed()

    @rule()
    def upgrade(self) -> None:
        self.mount.retire()
        self.mount.succeed()

    @rule(data=st.data(), after_ms=st.integers(0, 30))
    def kill_under_way(self, data: st.DataObject, after_ms: int) -> None:
        """While something is under way, which notices nothing but the time."""
        name = data.draw(st.sampled_from(sorted(SIZES)))
        work: list[Callable[[], None]] = [lambda: self.open(name), lambda: self.stat(name)]
        if self.opens:
            opened = data.draw(st.sampled_from(self.opens))
            work += [
                lambda: self.read_at(opened, 0, len(opened.version.data)),
                lambda: self.open_name_again(opened),
            ]
        self.during(data.draw(st.sampled_from(work)), after_ms)

    def open_name_again(self, opened: Open) -> None:
        if self.is_current(opened.version):
            self.open_name(opened.version.path)

    def during(self, work: Callable[[], None], after_ms: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(work)
            wait([done], after_ms / 1000)
            self.mount.kill()
            self.mount.succeed()
            done.result(OP_S)

    @invariant()
    def still_serving(self) -> None:
        assert self.mount.process.popen.poll() is None, self.mount.log.read_text()[-3000:]


@pytest.fixture
def mount() -> Iterator[KernelMount]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        origin = Path(directory) / "origin"
        origin.mkdir()
        with KernelMount(
            origin,
            Path(directory),
            sync_interval_s=0.0,
            cache_size_bytes=CACHE_BYTES,
            limit_s=max(290.0, 3.0 * HISTORIES),
        ) as mount:
            World.mount, World.origin = mount, origin
            yield mount


@pytest.mark.timeout(300)
def test_any_history(mount: KernelMount) -> None:
    run_state_machine_as_test(
        World,
        settings=settings(
            max_examples=HISTORIES,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            phases=[Phase.generate],  # shrinking a history takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert mount.negotiated.passthrough, "this machine's kernel must have it"
    assert mount.facts()["why_not"] == ""
