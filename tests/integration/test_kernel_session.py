"""The kernel session on real mounts: listings, signals, many open files, passthrough, takeover."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cachefs.core import messages as m
from cachefs.core.model import ROOT_INO
from cachefs.core.mountinfo import read_mounts
from cachefs.fuse.kernel.table import TakeoverTable
from tests.services.kernel_mount import KernelMount
from tests.services.processes import wait_until
from tests.services.statx import asked_attributes

MIB = 1 << 20
SMALL = random.Random(1).randbytes(110 << 10)
BIG = random.Random(2).randbytes(20 * MIB + 77)
AT_ONCE_S = 15.0  # what is not interrupted waits for ever
_libc = ctypes.CDLL(None, use_errno=True)


class Place:
    """A source in memory, and mounts of it."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root = root
        self.origin = root / "origin"
        self.origin.mkdir()
        self._stack = stack

    def put(self, name: str, data: bytes, mtime_s: int = 1_700_000_000) -> None:
        """Another object under the name."""
        aside = self.root / "aside"
        aside.write_bytes(data)
        os.utime(aside, (mtime_s, mtime_s))
        aside.rename(self.origin / name)

    def mount(self, name: str = "", **options: Any) -> KernelMount:
        root = self.root / name
        root.mkdir(exist_ok=True)
        return self._stack.enter_context(KernelMount(self.origin, root, **options))


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root, ExitStack() as stack:
        place = Place(Path(root), stack)
        place.put("small", SMALL)
        place.put("big", BIG)
        yield place


def warm(mount: KernelMount, name: str) -> None:
    """Reads a file, and waits until the kernel is given it."""
    (mount.path / name).read_bytes()

    def passes_through() -> bool:
        before = mount.facts()["passthrough_opens"]
        with open(mount.path / name, "rb"):
            return bool(mount.facts()["passthrough_opens"] > before)

    wait_until(passes_through, f"{name} is read by the kernel itself")


def drop_caches() -> None:
    Path("/proc/sys/vm/drop_caches").write_text("2")


class Held:
    """The node's server stopped by a signal: what asks it waits."""

    def __init__(self, mount: KernelMount) -> None:
        self._pid = mount.client.welcome.pid

    def __enter__(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        os.kill(self._pid, signal.SIGCONT)


# ---- names ----


@pytest.mark.parametrize(("sync_interval_s", "names"), [(60.0, 10_000), (0.0, 200)])
def test_many_names_with_their_attributes(place: Place, sync_interval_s: float, names: int) -> None:
    directory = place.origin / "many"
    directory.mkdir()
    sizes = {f"name-{number:05}.jpg": number % 97 for number in range(names)}
    for name, size in sizes.items():
        (directory / name).write_bytes(b"x" * size)
    mount = place.mount(sync_interval_s=sync_interval_s)
    for _ in range(3):
        drop_caches()
        mount.distrust_names()
        with os.scandir(mount.path / "many") as entries:
            found = {entry.name: entry.stat().st_size for entry in entries}
        assert found == sizes
        listed = os.listdir(mount.path / "many")
        assert len(listed) == len(sizes)
        assert set(listed) == set(sizes)
    if sync_interval_s:
        before = mount.facts()["lookups"]
        drop_caches()
        command = ["find", mount.path / "many", "-size", "+1"]
        subprocess.run(command, check=True, capture_output=True)
        assert mount.facts()["lookups"] - before < 10, "attributes come with the names"


def test_a_lookup_that_hangs_holds_up_no_change_elsewhere(place: Place) -> None:
    """The kernel invalidates no name of that directory meanwhile, but still answers known ones."""
    for name in ("a", "b"):
        (place.origin / name).mkdir()
        (place.origin / name / "known").touch()
    mount = place.mount(sync_interval_s=3600.0)
    a, b = mount.path / "a", mount.path / "b"
    inos = [directory.stat().st_ino for directory in (a, b)]
    done = threading.Event()

    def ask_again() -> None:
        while not done.is_set():
            os.stat(b / "known")

    def count(what: str) -> int:
        return int(mount.facts()[what])

    for directory in (a, b):
        os.stat(directory / "known")
    with ThreadPoolExecutor(2) as pool, Held(mount):
        waits, lookups = count("waits"), count("lookups")
        pool.submit(os.path.exists, a / "new")
        wait_until(lambda: count("waits") > waits, "the lookup waits")
        for ino in inos:
            mount.name_changed(ino, "known")
        pool.submit(ask_again)
        try:
            wait_until(lambda: count("lookups") > lookups + 1, "the kernel asks for b/known")
            os.stat(a / "known")
        finally:
            done.set()


def test_what_is_in_a_directory_that_changes_stays(place: Place) -> None:
    """A mount below it, and the working directory of a program: its mode may have changed."""
    (place.origin / "directory" / "below").mkdir(parents=True)
    mount = place.mount(sync_interval_s=3600.0)
    directory, small = mount.path / "directory", mount.path / "small"
    below, script = str(directory / "below"), "import os; input(); print(os.getcwd())"
    small.stat()
    subprocess.run(["mount", "-t", "tmpfs", "below", below], check=True)
    try:
        with subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as program:
            lookups = mount.facts()["lookups"]
            for name in ("directory", "small"):
                mount.name_changed(ROOT_INO, name)
            wait_until(
                lambda: small.exists() and mount.facts()["lookups"] > lookups,
                "the kernel asks for the second name",
            )
            assert program.communicate("\n", 20)[0] == f"{directory}\n"
        assert os.listdir(directory) == ["below"]
        assert read_mounts().at(below) is not None
    finally:
        subprocess.run(["umount", "-q", below], check=False)


# ---- signals ----

PRELUDE = """
import ctypes, os, signal, sys, threading
path = os.fsencode(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(4096)
# Handled, and without SA_RESTART: a system call returns EINTR, which Python would not let us see.
handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
class Action(ctypes.Structure):
    _fields_ = [('handler', ctypes.c_void_p), ('mask', ctypes.c_ulong * 16),
                ('flags', ctypes.c_int), ('restorer', ctypes.c_void_p)]
handled = (signal.SIGINT, signal.SIGUSR1, signal.SIGWINCH, signal.SIGCHLD)
for number in handled:
    action = Action(ctypes.cast(handler, ctypes.c_void_p).value)
    assert libc.sigaction(number, ctypes.byref(action), None) == 0
def say(text):
    os.write(1, text.encode() + b'\\n')
def when_told(work):
    say(str(threading.get_native_id()))
    os.read(0, 1)
    result = work()
    say('done' if result >= 0 else 'errno %d' % ctypes.get_errno())
"""
OPENS = PRELUDE + "when_told(lambda: libc.open(path, os.O_RDONLY))"
READS = (
    PRELUDE
    + """
fd = os.open(path, os.O_RDONLY)
read = lambda: libc.pread(fd, buffer, 4096, ctypes.c_long(9 << 20))
def run():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
    when_told(read)
signal.pthread_sigmask(signal.SIG_BLOCK, handled)  # the thread that opened takes no signal
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""
)
PROGRAMS = pytest.mark.parametrize(
    "program", [OPENS, READS], ids=["open", "read by another thread"]
)


class Waiting:
    """A program of which a thread waits for a file that the server cannot give now."""

    def __init__(self, mount: KernelMount, program: str) -> None:
        self.path = mount.path / ("small" if program is OPENS else "big")
        self.data = SMALL if program is OPENS else BIG
        os.stat(self.path)
        command = [sys.executable, "-c", program, str(self.path)]
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.thread = int(self.line())

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self.popen.kill()
        self.popen.communicate(timeout=20)

    def line(self, limit_s: float = 20.0) -> bytes:
        """What it says next; nothing within the limit: b""."""
        assert self.popen.stdout is not None
        if not select.select([self.popen.stdout], [], [], limit_s)[0]:
            return b""
        return self.popen.stdout.readline().strip()

    def go(self) -> None:
        """Lets it wait for the file system."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(b"x")
        self.popen.stdin.flush()
        wchan = Path(f"/proc/{self.popen.pid}/task/{self.thread}/wchan")
        names = ("request_wait_answer", "folio_wait_bit_common")
        wait_until(lambda: wchan.read_text() in names, "it waits for the file system")

    def signal(self, number: signal.Signals) -> None:
        assert _libc.tgkill(self.popen.pid, self.thread, int(number)) == 0


@PROGRAMS
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_ends_a_cold_wait_at_once_and_the_fill_goes_on(
    place: Place, program: str, number: signal.Signals
) -> None:
    mount = place.mount()
    with Waiting(mount, program) as waiting:
        with Held(mount):
            waiting.go()
            began = time.monotonic()
            waiting.signal(number)
            assert waiting.line() == b"errno %d" % errno.EINTR
            assert time.monotonic() - began < AT_ONCE_S
        assert waiting.path.read_bytes() == waiting.data


@PROGRAMS
@pytest.mark.parametrize("number", [signal.SIGWINCH, signal.SIGCHLD])
def test_signals_that_end_nothing_do_not_end_a_wait(
    place: Place, program: str, number: signal.Signals
) -> None:
    mount = place.mount()
    with Waiting(mount, program) as waiting:
        with Held(mount):
            waiting.go()
            waiting.signal(number)
            assert waiting.line(limit_s=0.3) == b"", "a file that was not opened is said to be"
        assert waiting.line() == b"done"


@PROGRAMS
def test_a_signal_after_one_that_ends_nothing(place: Place, program: str) -> None:
    """The kernel tells of the first one only."""
    mount = place.mount()
    with Waiting(mount, program) as waiting, Held(mount):
        waiting.go()
        waiting.signal(signal.SIGWINCH)
        waiting.signal(signal.SIGINT)
        assert waiting.line() == b"errno %d" % errno.EINTR


@PROGRAMS
def test_who_is_killed_while_it_waits_ends_at_once(place: Place, program: str) -> None:
    mount = place.mount()
    with Waiting(mount, program) as waiting, Held(mount):
        waiting.go()
        began = time.monotonic()
        waiting.popen.kill()
        waiting.popen.wait(20)
        assert time.monotonic() - began < AT_ONCE_S


@PROGRAMS
def test_a_signal_after_a_takeover(place: Place, program: str) -> None:
    """The request comes again to a process that has not heard of its caller."""
    mount = place.mount()
    with Waiting(mount, program) as waiting:
        with Held(mount):
            waiting.go()
            mount.kill()
        mount.succeed()
        assert waiting.line() == b"done"
        assert waiting.path.read_bytes() == waiting.data


# ---- many open files ----

OPENERS = """
import os, sys
directory, count = sys.argv[1], int(sys.argv[2])
paths = [os.path.join(directory, name) for name in sorted(os.listdir(directory))]
fds = [os.open(paths[number % len(paths)], os.O_RDONLY) for number in range(count)]
while True:
    os.write(1, b'ready\\n')
    if not os.read(0, 1):
        break
    for number, fd in enumerate(fds):
        assert os.pread(fd, 100, 0) == os.path.basename(paths[number % len(paths)]).encode()
"""


class Openers:
    """Programs that hold files open and read all of them when told."""

    def __init__(self, directory: Path, files: int) -> None:
        hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1 << 20)
        each = min(files // 4, hard - 100)
        shares = [each] * (files // each) + [files % each]
        self.popens = [
            subprocess.Popen(
                [sys.executable, "-c", OPENERS, str(directory), str(share)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard)),
            )
            for share in shares
        ]

    def __enter__(self) -> Openers:
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        for popen in self.popens:
            popen.kill()
            popen.communicate(timeout=20)

    def wait(self) -> None:
        for popen in self.popens:
            assert popen.stdout is not None
            assert popen.stdout.readline() == b"ready\n"

    def read_all(self) -> None:
        for popen in self.popens:
            assert popen.stdin is not None
            popen.stdin.write(b"x")
            popen.stdin.flush()
        self.wait()


def test_a_hundred_thousand_open_files(place: Place) -> None:
    """They are the kernel's: the process that serves has a descriptor for none, and a successor
    has them all."""
    directory = place.origin / "many"
    directory.mkdir()
    names = [f"name-{number:04}" for number in range(1000)]
    for name in names:
        (directory / name).write_text(name)
    mount = place.mount()
    for name in names:  # cold: filled whole
        assert (mount.path / "many" / name).read_text() == name
    with Openers(mount.path / "many", 100_000) as openers:
        facts = mount.facts()
        assert facts["open_files"] == len(names)
        assert facts["descriptors"] < 64
        assert open_handles(mount) == 100_000
        openers.read_all()
        assert mount.facts()["reads"] == facts["reads"], "nobody asks for what the kernel has"
        began = time.monotonic()
        mount.kill()
        openers.read_all()
        mount.succeed()
        assert time.monotonic() - began < 30.0
        facts = mount.facts()
        assert facts["open_files"] == len(names)
        assert facts["descriptors"] < 64
        assert (mount.path / "many" / names[0]).read_text() == names[0]
    wait_until(lambda: open_handles(mount) == 0, "every handle is released")
    assert mount.facts()["open_files"] == 0


def open_handles(mount: KernelMount) -> int:
    """As a successor would find them."""
    table = TakeoverTable(os.dup(mount.table.fd))
    try:
        return len(table)
    finally:
        table.close()


# ---- passthrough ----


def read_in_every_way(path: Path, data: bytes) -> None:
    assert path.read_bytes() == data
    with open(path, "rb", buffering=0) as file:
        for offset in range(0, len(data), 3 * 4096 + 1):
            assert os.pread(file.fileno(), 777, offset) == data[offset : offset + 777]
        for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
            with mmap.mmap(file.fileno(), len(data), flags, mmap.PROT_READ) as mapped:
                assert mapped[:] == data
    assert subprocess.run(["cat", path], check=True, capture_output=True).stdout == data


def test_of_warm_files_no_byte_is_asked_for(place: Place) -> None:
    mount = place.mount()
    for name, data in (("small", SMALL), ("big", BIG)):
        warm(mount, name)
        before = mount.facts()
        read_in_every_way(mount.path / name, data)
        after = mount.facts()
        assert after["reads"] == before["reads"]
        assert after["cached_opens"] == before["cached_opens"]
    assert mount.facts()["why_not"] == ""


def test_without_passthrough_the_same_bytes_are_asked_for(place: Place) -> None:
    mount = place.mount(why_not="switched off")
    for _ in range(2):
        for name, data in (("small", SMALL), ("big", BIG)):
            read_in_every_way(mount.path / name, data)
    facts = mount.facts()
    assert facts["passthrough_opens"] == 0
    assert facts["reads"] > 0
    assert facts["why_not"] == "switched off"
    mount.kill()
    mount.succeed()
    read_in_every_way(mount.path / "big", BIG)


def test_two_mounts_of_one_source_share_what_is_warm(place: Place) -> None:
    first = place.mount("first")
    second = place.mount("second", home=first.home)
    warm(first, "big")
    before = second.facts()["reads"]
    with open(second.path / "big", "rb") as theirs, open(first.path / "big", "rb") as ours:
        assert second.facts()["passthrough_opens"] == 1
        assert theirs.read() == ours.read() == BIG
        freed = first.free("big")
        assert (freed.files, freed.busy_files) == (1, 1)
        first.kill()
        read_in_every_way(second.path / "big", BIG)
        first.succeed()
        read_in_every_way(first.path / "big", BIG)
        theirs.seek(0)
        assert theirs.read() == BIG
    assert second.facts()["reads"] == before, "its file was open all along"


@pytest.mark.parametrize("kills", [False, True])
def test_what_is_freed_while_it_is_open_and_mapped_can_be_read(place: Place, kills: bool) -> None:
    mount = place.mount()
    warm(mount, "big")
    with open(mount.path / "big", "rb") as opened:
        mapped = mmap.mmap(opened.fileno(), len(BIG), mmap.MAP_SHARED, mmap.PROT_READ)
        for _ in range(3):
            mount.free("big")
            if kills:
                mount.kill()
                mount.succeed()
            read_in_every_way(mount.path / "big", BIG)
        opened.seek(0)
        assert opened.read() == BIG
    mount.free("big")
    read_in_every_way(mount.path / "big", BIG)
    assert mapped[:] == BIG, "the mapping outlives its handle, its cache file and its client"
    mapped.close()


def cached_bytes(mount: KernelMount, name: str) -> int:
    state = m.CacheState(mount.namespace, [os.stat(mount.path / name).st_ino])
    reply = mount.client.call(state)
    assert isinstance(reply, m.CacheStateReply)
    return reply.cached_bytes[0]


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_what_the_kernel_reads_is_not_evicted(place: Place, how: str) -> None:
    """The server does not know who has it open; a lease does."""
    for number in range(16):
        place.put(f"other-{number}", random.Random(number).randbytes(6 * MIB))
    mount = place.mount(cache_size_bytes=64 * MIB)
    warm(mount, "big")
    opened = open(mount.path / "big", "rb", buffering=0)  # noqa: SIM115
    mapped = mmap.mmap(opened.fileno(), len(BIG), mmap.MAP_SHARED, mmap.PROT_READ)
    if how == "mapped":
        opened.close()
    else:
        mapped.close()

    def read_others() -> None:
        for number in range(16):
            data = (mount.path / f"other-{number}").read_bytes()
            assert data == random.Random(number).randbytes(6 * MIB)

    read_others()
    assert sum(cached_bytes(mount, f"other-{number}") for number in range(16)) < 64 * MIB
    assert cached_bytes(mount, "big") == len(BIG)
    before = mount.facts()["reads"]
    assert (mapped[:] if how == "mapped" else opened.read(len(BIG))) == BIG
    read_in_every_way(mount.path / "big", BIG)
    assert mount.facts()["reads"] == before
    opened.close()
    mapped.close()

    def is_evicted() -> bool:
        read_others()
        return cached_bytes(mount, "big") == 0

    wait_until(is_evicted, "once nobody reads it, it can be evicted")


# ---- takeover ----


def test_a_reader_of_a_warm_file_notices_nothing(place: Place) -> None:
    mount = place.mount()
    warm(mount, "big")
    with open(mount.path / "big", "rb", buffering=0) as opened:
        mount.kill()
        assert opened.read(len(BIG)) == BIG
        mount.succeed()
        assert os.pread(opened.fileno(), 100, 5) == BIG[5:105]


def test_requests_wait_for_the_successor(place: Place) -> None:
    """One of each kind, asked of nobody."""
    mount = place.mount()
    (place.origin / "dir").mkdir()
    (place.origin / "dir" / "file").write_bytes(b"in a directory")
    opened = os.open(mount.path / "big", os.O_RDONLY)
    listing = os.scandir(mount.path)
    works: list[Callable[[], object]] = [
        lambda: os.pread(opened, 1000, 19 * MIB) == BIG[19 * MIB :][:1000],
        lambda: (mount.path / "small").read_bytes() == SMALL,
        lambda: os.listdir(mount.path / "dir") == ["file"],
        lambda: (mount.path / "dir" / "file").read_bytes() == b"in a directory",
        lambda: sorted(entry.name for entry in listing) == ["big", "dir", "small"],
        lambda: os.statvfs(mount.path).f_bsize > 0,
    ]
    mount.kill()
    with ThreadPoolExecutor(len(works)) as pool:
        waiting = [pool.submit(work) for work in works]
        assert wait(waiting, 0.1).done == set()
        for _ in range(3):  # the first successors die with what was sent again
            mount.succeed()
            mount.kill()
        mount.succeed()
        assert [one.result(20) for one in waiting] == [True] * len(works)
    os.close(opened)
    listing.close()


@pytest.mark.parametrize("why_not", ["", "switched off"], ids=["passthrough", "cached"])
@pytest.mark.parametrize("how", ["removed", "replaced"])
@pytest.mark.parametrize("deaths", [0, 2])
def test_an_open_file_that_lost_its_name_keeps_its_attributes_and_bytes(
    place: Place, why_not: str, how: str, deaths: int
) -> None:
    """[S-open-handles] Two deaths of the client: the second one had adopted the file."""
    mount = place.mount(sync_interval_s=0.0, why_not=why_not)
    if not why_not:
        warm(mount, "big")
    with open(mount.path / "big", "rb", buffering=0) as opened:
        before = asked_attributes(opened.fileno())
        assert os.pread(opened.fileno(), len(BIG), 0) == BIG
        if how == "removed":
            (place.origin / "big").unlink()
        else:
            place.put("big", SMALL, mtime_s=1_700_000_100)
        for _ in range(deaths):
            mount.kill()
            mount.succeed()
        names = ["small"] if how == "removed" else ["big", "small"]
        assert [(path.name, path.stat().st_size) for path in sorted(mount.path.iterdir())] == [
            (name, len(SMALL)) for name in names
        ]
        requests = mount.facts()["requests"]
        end = len(BIG) - 100
        assert os.pread(opened.fileno(), 200, end) == BIG[end:], "the kernel asks for the size"
        assert asked_attributes(opened.fileno()) == before
        assert mount.facts()["requests"] > requests
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(opened.fileno(), len(BIG), 0) == BIG, "the cache still has it"
    if how == "replaced":
        assert (mount.path / "big").read_bytes() == SMALL


def test_retired_and_succeeded_under_readers(place: Place) -> None:
    """An upgrade: who retires leaves what it has not answered."""
    for number in range(12):
        place.put(f"cold-{number}", random.Random(number).randbytes(9 * MIB))
    mount = place.mount()

    def read(number: int) -> bool:
        data = (mount.path / f"cold-{number}").read_bytes()
        return data == random.Random(number).randbytes(9 * MIB)

    with ThreadPoolExecutor(4) as pool:
        reading = [pool.submit(read, number) for number in range(12)]
        for _ in range(5):
            mount.retire()
            mount.succeed()
        assert [one.result(40) for one in reading] == [True] * 12


def test_a_mount_that_has_gone_ends_its_process(place: Place) -> None:
    mount = place.mount()
    process = mount.process
    assert _libc.umount2(os.fsencode(mount.path), 0) == 0
    assert process.popen.wait(20) == 0


def test_a_successor_of_a_mount_that_has_gone_ends(place: Place) -> None:
    mount = place.mount()
    mount.kill()
    mount.abort()
    mount.process = mount._start(resend=True)
    assert mount.process.popen.wait(20) == 0, mount.log.read_text()
