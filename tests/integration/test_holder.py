"""The holder's process: descriptors outlive who deposits them, and nobody else gets them."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cachefs.core.model import UfsSpec
from cachefs.core.specs import ClientSpec, DepositRef, Held
from cachefs.fuse.deposits import HolderClient, kept_name
from cachefs.fuse.supervisor.held_mount import HeldMount
from cachefs.holder import __main__ as holder_main
from cachefs.holder.holdings import MAX_ENTRIES
from cachefs.holder.protocol import MAX_BYTES, SOCKET_NAME, Datagram, receive, send
from tests.services.pods import HolderProcess

LIMIT_S = 10.0
MOST_KIB = 12 << 10
TURNS = 10_000


class Holder(HolderProcess):
    """A holder that a test talks to."""

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(LIMIT_S)
        sock.connect(str(self.directory / SOCKET_NAME))
        return sock

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.popen.pid}/fd"))

    def rss_kib(self) -> int:
        lines = Path(f"/proc/{self.popen.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])

    def end(self, number: signal.Signals = signal.SIGTERM) -> str:
        """Ends it; returns what it wrote to standard error."""
        self.popen.send_signal(number)
        return self.popen.communicate(timeout=LIMIT_S)[1]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Holder]]:
    started: list[Holder] = []

    def make(directory: Path = tmp_path / "holder") -> Holder:
        started.append(Holder(directory))
        return started[-1]

    yield make
    for one in started:
        one.popen.kill()
        one.popen.communicate()


def call(sock: socket.socket, *request: object) -> Datagram:
    send(sock, Datagram(*request))  # type: ignore[arg-type]
    reply = receive(sock)
    assert reply is not None
    return reply


def file_of(data: bytes) -> int:
    fd = os.memfd_create("test")
    os.write(fd, data)
    return fd


def put(sock: socket.socket, key: str, data: bytes) -> Datagram:
    fd = file_of(data)
    try:
        return call(sock, "PUT", key, b"about " + data, (fd,))
    finally:
        os.close(fd)


def claim(sock: socket.socket, key: str) -> bytes:
    """Claims a key; returns the bytes of the file that was deposited under it."""
    assert call(sock, "CLAIM", key, b"name").verb == "OK"
    reply = call(sock, "GET", key)
    assert reply.verb == "ENTRY"
    (fd,) = reply.fds
    try:
        return os.pread(fd, 100, 0)
    finally:
        os.close(fd)


def test_descriptors_outlive_who_deposits_them(start: Callable[..., Holder]) -> None:
    holder = start()
    assert holder.greeting == "ready\n"
    with holder.connect() as first:
        assert put(first, "mount.1", b"one").verb == "OK"
        assert put(first, "mount.2", b"two").verb == "OK"
    with holder.connect() as second:
        assert call(second, "LIST").data == b"mount.1 \nmount.2 "
        assert claim(second, "mount.2") == b"two"
        with holder.connect() as third:
            assert claim(third, "mount.2") == b"two"
            assert receive(second) == Datagram("HANDOVER", "mount.2")
        assert call(second, "DROP", "mount.2").verb == "OK"
        assert call(second, "CLAIM", "mount.2").verb == "NONE"
        assert claim(second, "mount.1") == b"one"


def test_a_claimant_that_is_killed_leaves_its_key_free(
    start: Callable[..., Holder],
) -> None:
    holder = start()
    with holder.connect() as watcher, holder.connect() as other:
        assert call(watcher, "WATCH").verb == "KEYS"
        put(other, "m", b"x")
        assert receive(watcher) == Datagram("PUT", "m")
        ready, claimed = os.pipe()
        with holder.connect() as claimant:
            pid = os.fork()
            if not pid:
                try:
                    os.write(claimed, claim(claimant, "m"))
                    signal.pause()
                finally:
                    os._exit(1)
        assert os.read(ready, 10) == b"x"
        os.close(ready)
        os.close(claimed)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert receive(watcher) == Datagram("CLAIM", "m", b"name")
        assert receive(watcher) == Datagram("FREE", "m")


def test_memory_and_descriptors_stay_flat(start: Callable[..., Holder]) -> None:
    holder = start()
    fd = file_of(b"x")
    with holder.connect() as sock:
        for number in range(200):  # until memory has been reused
            assert call(sock, "PUT", f"warm{number}", bytes(1000), (fd, fd)).verb == "OK"
            assert call(sock, "DROP", f"warm{number}").verb == "OK"
        before = holder.descriptors(), holder.rss_kib()
        for number in range(TURNS):
            assert call(sock, "PUT", f"key{number}", bytes(1000), (fd, fd)).verb == "OK"
            assert call(sock, "DROP", f"key{number}").verb == "OK"
        assert holder.descriptors() == before[0]
        assert holder.rss_kib() <= before[1] + 64
        assert holder.rss_kib() <= MOST_KIB
    os.close(fd)


def test_it_holds_as_many_as_it_promises(start: Callable[..., Holder]) -> None:
    holder = start()
    fd = file_of(b"x")
    with holder.connect() as sock:
        for number in range(MAX_ENTRIES):
            key = f"{number:x}".rjust(100, "k")
            assert call(sock, "PUT", key, bytes(2000), (fd, fd)).verb == "OK"
            assert call(sock, "CLAIM", key, bytes(b"n" * 99)).verb == "OK"
        assert len(call(sock, "LIST").data.splitlines()) == MAX_ENTRIES
        assert call(sock, "PUT", "more", b"", (fd, fd)).verb == "ERROR"
    os.close(fd)


def test_every_mount_may_have_a_claimant_and_its_successor(start: Callable[..., Holder]) -> None:
    """Also with the usual limit of descriptors, of which each entry needs two."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    try:
        holder = start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    fd = file_of(b"x")
    with ExitStack() as stack:
        stack.callback(os.close, fd)
        watcher = stack.enter_context(holder.connect())
        for number in range(MAX_ENTRIES):
            former, next = (stack.enter_context(holder.connect()) for _ in range(2))
            key = f"k{number}"
            assert call(former, "PUT", key, b"", (fd, fd)).verb == "OK"
            for one in (former, next):
                assert call(one, "CLAIM", key, b"name").verb == "OK"
            assert receive(former) == Datagram("HANDOVER", key)
        assert len(call(watcher, "LIST").data.splitlines()) == MAX_ENTRIES


def test_a_datagram_that_is_too_long_leaves_no_descriptor(
    start: Callable[..., Holder],
) -> None:
    holder = start()
    fd = file_of(b"x")
    with holder.connect() as sock:
        assert call(sock, "LIST").verb == "KEYS"
        before = holder.descriptors()
        reply = call(sock, "PUT", "long", bytes(MAX_BYTES), (fd, fd))
        assert reply.verb == "ERROR"
        assert call(sock, "PUT", "many", b"", (fd,) * 9).verb == "ERROR"
        sock.send(b"\xff\xfe no text")
        answer = receive(sock)
        assert answer is not None
        assert answer.verb == "ERROR"
        assert holder.descriptors() == before
        assert call(sock, "LIST").data == b""
    os.close(fd)


def test_a_watcher_that_does_not_read_is_closed_and_hinders_nobody(
    start: Callable[..., Holder],
) -> None:
    holder = start()
    with holder.connect() as watcher, holder.connect() as sock:
        watcher.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        call(watcher, "WATCH")
        before = holder.descriptors()
        fd = file_of(b"x")
        for _ in range(TURNS):
            assert call(sock, "PUT", "k", b"", (fd,)).verb == "OK"
            assert call(sock, "DROP", "k").verb == "OK"
            if holder.descriptors() < before:
                break
        os.close(fd)
        assert holder.descriptors() == before - 1


def test_another_user_gets_nothing(start: Callable[..., Holder]) -> None:
    holder = start()
    with holder.connect() as sock:
        put(sock, "k", b"secret")
    holder.directory.chmod(0o777)  # as if its directory did not keep them out
    (holder.directory / SOCKET_NAME).chmod(0o777)
    for above in holder.directory.parents[: len(holder.directory.parents) - 2]:
        above.chmod(above.stat().st_mode | 0o011)
    script = (
        "import os, socket; os.setuid(65534); s = socket.socket(socket.AF_UNIX,"
        f" socket.SOCK_SEQPACKET); s.connect({str(holder.directory / SOCKET_NAME)!r});"
        " s.send(b'CLAIM k\\n'); print(s.recv(1000))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, timeout=20,
        check=False,
    )  # fmt: skip
    assert "secret" not in done.stdout
    assert done.stdout == "b''\n" or "BrokenPipe" in done.stderr or "ConnectionReset" in done.stderr


def test_a_directory_of_others_a_link_and_a_second_holder_are_refused(
    start: Callable[..., Holder], tmp_path: Path
) -> None:
    holder = start()
    second = start(holder.directory)
    assert "another holder uses this directory" in second.popen.communicate()[1]
    with holder.connect() as sock:
        assert call(sock, "LIST").verb == "KEYS", "the first one goes on"
    (shared := tmp_path / "shared").mkdir(mode=0o755)
    assert "other users can use this directory" in start(shared).popen.communicate()[1]
    (link := tmp_path / "link").symlink_to(tmp_path / "holder")
    error = start(link).popen.communicate()[1]
    assert os.strerror(errno.ENOTDIR) in error or os.strerror(errno.ELOOP) in error


def test_a_killed_holder_is_followed_by_another_in_its_place(
    start: Callable[..., Holder],
) -> None:
    holder = start()
    with holder.connect() as sock:
        put(sock, "k", b"x")
        holder.end(signal.SIGKILL)
        with pytest.raises((OSError, AssertionError)):
            call(sock, "LIST")
    successor = start()
    assert successor.greeting == "ready\n"
    with successor.connect() as sock:
        assert call(sock, "LIST").data == b"", "who serves deposits again"


def test_a_name_that_is_cut_in_a_character_is_read(start: Callable[..., Holder]) -> None:
    """The holder keeps the end of a long name."""
    holder, name = start(), "\N{CYRILLIC SMALL LETTER YA}" * 20 + "x"
    path = str(holder.directory / SOCKET_NAME)
    with holder.connect() as sock, HolderClient(path, name) as claimant:
        put(sock, "m", b"x")
        assert claimant.claim("m")
        assert claimant.claimants() == {"m": kept_name(name)}


def test_a_limit_of_descriptors_that_cannot_be_set_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses a limit above fs.nr_open, also the present one."""

    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    monkeypatch.setattr(os, "umask", lambda mask: mask)  # that of this process stays
    monkeypatch.setattr(sys, "argv", ["cachefs.holder", str(tmp_path / "none" / "holder")])
    with pytest.raises(SystemExit, match="No such file or directory"):
        holder_main.main()


def test_a_claim_that_another_process_has_taken_is_not_taken_back(
    start: Callable[..., Holder],
) -> None:
    """By a supervisor that reports at that moment that its clients fail."""
    spec = ClientSpec("", "", UfsSpec("s3://b"), "/m")
    ref = DepositRef(start().path, "m", "name", "0:1")
    held = Held(file_of(b"a"), file_of(b"b"), b"")
    former, successor = HeldMount(spec, ref, held), HeldMount(spec, ref, held)
    assert former.claim()
    assert successor.claim()
    assert former.tell(is_failing=True)
    assert former.must_hand_over()
    assert not successor.must_hand_over(), "nobody would serve the mount"
    for each in (former, successor):
        each.close()
    for fd in (held.fuse_fd, held.table_fd):
        os.close(fd)
