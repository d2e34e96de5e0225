"""HDFS without a server: sources, configuration, errors, deadlines, ids, pages."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cachefs.core import errors
from cachefs.core.errors import BadConfig
from cachefs.core.model import Fingerprint, Kind, UfsSpec
from connectors.base import Entry
from connectors.bounds import MAX_TIME_NS
from connectors.deadline import bounded
from connectors.hdfs import client as client_module
from connectors.hdfs.client import CALL_S, HdfsClient, NoAnswer
from connectors.hdfs.connections import Address, end_connections, resolve
from connectors.hdfs.connector import HdfsConnector
from connectors.hdfs.deadlines import (
    AFTER_S,
    AGAIN_S,
    SLOW_AFTER_S,
    SLOWLY_S,
    Deadlines,
    TimedCall,
)
from connectors.hdfs.errors import classify
from connectors.hdfs.listing import HdfsListing, listing_key
from connectors.hdfs.name_services import find_name_nodes, read_configuration
from connectors.hdfs.options import HdfsOptions
from connectors.hdfs.owners import KEPT_S, MOST_KNOWN, UNKNOWN, Ids, user_id
from connectors.pages import Pages
from connectors.registry import check_options, normalise
from tests.services.hdfs import site
from tests.services.processes import wait_until

SERVICE = {
    "dfs.nameservices": "ns",
    "dfs.ha.namenodes.ns": "a, b",
    "dfs.namenode.rpc-address.ns.a": "one:8020",
    "dfs.namenode.rpc-address.ns.b": "two:8021",
}


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("hdfs://nn:8020/a/b/", "hdfs://nn:8020/a/b"),
        ("hdfs://nn:8020", "hdfs://nn:8020"),
        ("HDFS://name_service/", "hdfs://name_service"),
        ("hdfs://10.0.0.1/a%41", "hdfs://10.0.0.1/a%41"),
    ],
)
def test_normal_form(url: str, normal: str) -> None:
    assert normalise(url) == normal
    assert normalise(normal) == normal


@pytest.mark.parametrize(
    "url",
    [
        "hdfs:///a", "hdfs://", "hdfs://user@nn:8020/a", "hdfs://nn:0/a", "hdfs://nn:70000",
        "hdfs://nn:x/a", "hdfs://nn:8020/a//b", "hdfs://nn/../a", "hdfs://nn/a:b",
    ],
)  # fmt: skip
def test_bad_sources(url: str) -> None:
    with pytest.raises(BadConfig) as caught:
        normalise(url)
    assert caught.value.remedy


def test_options(tmp_path: Path) -> None:
    check_options(UfsSpec("hdfs://nn/a", {"conf_dir": str(tmp_path), "user": "alice"}))
    for bad in ({"conf_dir": str(tmp_path / "no")}, {"user": "a/b"}, {"users": "alice"}):
        with pytest.raises(BadConfig) as caught:
            check_options(UfsSpec("hdfs://nn/a", bad))
        assert caught.value.remedy


def test_name_nodes(tmp_path: Path) -> None:
    (tmp_path / "hdfs-site.xml").write_text(site(SERVICE))
    found = read_configuration(str(tmp_path))
    assert found == SERVICE
    assert find_name_nodes("ns", found) == ("hdfs://ns", (("one", 8020), ("two", 8021)))
    assert find_name_nodes("host", found) == ("hdfs://host:8020", (("host", 8020),))
    assert find_name_nodes("ns:9000", found) == ("hdfs://ns:9000", (("ns", 9000),))
    assert read_configuration("") == {}
    with pytest.raises(BadConfig, match="without an address"):
        find_name_nodes("ns", {"dfs.ha.namenodes.ns": "a"})


@pytest.mark.parametrize("text", ["", "<configuration>", "no xml", "\0"])
def test_a_bad_configuration_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "core-site.xml").write_text(text)
    with pytest.raises(BadConfig, match="cannot be read") as caught:
        read_configuration(str(tmp_path))
    assert "core-site.xml" in caught.value.one_line()


def java(name: str, message: str = "said so") -> RuntimeError:
    return RuntimeError(f'RPCError("{name}", "{message}\\n\\tat org.apache.Some.trace(1)")')


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError("/a"), errors.NotFound),
        (ConnectionRefusedError("refused"), errors.Unreachable),
        (OSError("failed to lookup address information"), errors.Unreachable),
        (OSError("No route to host (os error 113)"), errors.Unreachable),
        (java("org.apache.hadoop.security.AccessControlException"), errors.AccessDenied),
        (java("org.apache.hadoop.ipc.StandbyException"), errors.Unavailable),
        (java("org.apache.hadoop.hdfs.server.namenode.SafeModeException"), errors.Unavailable),
        (java("org.apache.hadoop.ipc.RetriableException"), errors.Unavailable),
        (java("org.apache.hadoop.fs.ParentNotDirectoryException"), errors.NotFound),
        (java("org.apache.hadoop.fs.InvalidPathException"), errors.NotFound),
        (java("java.lang.NullPointerException"), errors.OriginError),
        (RuntimeError('DataTransferError("All DataNodes failed: []")'), errors.Unreachable),
        (RuntimeError('SASLError("no ticket")'), errors.CredentialsMissing),
        (RuntimeError("OS can't spawn worker thread: Resource temp"), errors.Unreachable),
        (RuntimeError("something else"), errors.OriginError),
    ],
)
def test_errors(error: Exception, kind: type[errors.CacheFSError]) -> None:
    found = classify(error, "/a")
    assert type(found) is kind
    assert found.path == "/a"
    assert "\n" not in found.one_line()
    assert "Some.trace" not in found.one_line()


@pytest.mark.parametrize(
    ("limit_s", "kind"),
    [(CALL_S, NoAnswer), (CALL_S / 2, errors.DeadlineExceeded)],
)
def test_a_namenode_that_never_answers_is_not_reached(
    limit_s: float, kind: type[errors.CacheFSError]
) -> None:
    """A caller that has less time learns nothing of the NameNode."""
    client, call = HdfsClient("127.0.0.1:9", HdfsOptions()), TimedCall(0.0, 0)
    call.is_overdue = True
    reset = OSError("Connection reset by peer (os error 104)")
    found = client._failure(reset, "/a", call, limit_s)
    assert type(found) is kind
    assert (found.code == errors.Unreachable.code) == (limit_s == CALL_S)
    assert not found.retryable


def test_addresses_are_resolved_again_after_failed_connections_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name server that is silent would delay the call after each lookup of an absent name."""
    resolved = []

    def resolve(hosts: object) -> frozenset[Address]:
        resolved.append(hosts)
        return frozenset({("127.0.0.1", 9)})

    monkeypatch.setattr(client_module, "resolve", resolve)
    monkeypatch.setattr(HdfsClient, "_open", lambda _: SimpleNamespace())
    client = HdfsClient("127.0.0.1:9", HdfsOptions())

    def fails(error: Exception) -> None:
        def act(_: object) -> None:
            raise error

        with pytest.raises(errors.CacheFSError):
            client.call("/a", act)

    with contextlib.closing(client):
        fails(FileNotFoundError("/a"))
        fails(PermissionError("/a"))
        fails(RuntimeError('DataTransferError("All DataNodes failed: []")'))
        fails(ConnectionRefusedError("refused"))
        assert len(resolved) == 1
        fails(FileNotFoundError("/a"))
        assert len(resolved) == 2


@pytest.mark.parametrize("reply", [FileNotFoundError("/a"), PermissionError("/a")])
def test_a_reply_that_comes_while_other_calls_are_interrupted_is_one(
    monkeypatch: pytest.MonkeyPatch, reply: Exception
) -> None:
    monkeypatch.setattr(HdfsClient, "_open", lambda _: SimpleNamespace())
    monkeypatch.setattr(Deadlines, "may_try_again", lambda *_: True)
    client, attempts = HdfsClient("127.0.0.1:9", HdfsOptions()), []

    def act(_: object) -> None:
        attempts.append(reply)
        if len(attempts) > 1:
            pytest.fail("asked again")
        raise reply

    with contextlib.closing(client), pytest.raises((errors.NotFound, errors.AccessDenied)):
        client.call("/a", act)


def test_a_name_server_that_is_silent_holds_no_call_beyond_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = threading.Event()

    def resolve(hosts: object) -> frozenset[Address]:
        assert go_on.wait(30)
        return frozenset({("127.0.0.1", 9)})

    monkeypatch.setattr(client_module, "resolve", resolve)
    monkeypatch.setattr(HdfsClient, "_open", lambda _: SimpleNamespace())
    client = HdfsClient("nn.example:9", HdfsOptions())
    with contextlib.closing(client):
        for _ in range(3):
            with bounded(time.monotonic() + 0.05), pytest.raises(errors.DeadlineExceeded):
                client.call("/a", lambda _: pytest.fail("the library would look the name up"))
        assert sum(each.name == "hdfs-lookup" for each in threading.enumerate()) == 1
        go_on.set()
        assert client.call("/a", lambda _: "found") == "found"


class PanicException(BaseException):
    """What the library raises where its Rust code panics."""


def no_client(*_: object) -> None:
    raise PanicException("OS can't spawn worker thread: Resource temporarily unavailable")


def test_calls_without_a_thread_fail_and_later_ones_have_a_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, refused = threading.Thread.start, ["hdfs-lookup", "hdfs-deadlines"]

    def start_unless_refused(thread: threading.Thread) -> None:
        if thread.name in refused:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_unless_refused)
    monkeypatch.setattr(client_module, "resolve", lambda _: frozenset({("127.0.0.1", 9)}))
    with contextlib.closing(HdfsClient("nn.example:9", HdfsOptions())) as client:
        while refused:
            with pytest.raises(errors.Unreachable, match="no thread can be started"):
                client.call("/a", lambda _: pytest.fail("it would have no deadline"))
            del refused[0]
        monkeypatch.setattr(client_module, "Client", no_client)
        with pytest.raises(errors.Unreachable, match="can start no thread"):
            client.call("/a", lambda _: None)
        monkeypatch.setattr(client_module, "Client", lambda *_: SimpleNamespace())
        assert client.call("/a", lambda _: "found") == "found"
        assert any(each.name == "hdfs-deadlines" for each in threading.enumerate())


def test_what_a_namenode_says_is_shown() -> None:
    said = 'Permission denied: user=eve, access=READ, inode=\\"/a\\":root:x:drwx------'
    found = classify(java("org.apache.hadoop.security.AccessControlException", said), "/a")
    assert 'user=eve, access=READ, inode="/a"' in found.cause


def test_names_are_ordered_by_signed_bytes() -> None:
    assert listing_key("ü".encode()) < listing_key(b"a") < listing_key(b"b")


@dataclass
class Status:
    """What the library tells of a name."""

    path: str
    isdir: bool = False


class FakeClient:
    """Lists names, and fails after a number of them, once for each number in `fails_after`."""

    def __init__(self, names: list[str], fails_after: list[int]) -> None:
        self.names = sorted(names, key=lambda name: listing_key(name.encode()))
        self.fails_after = fails_after

    def list_status(self, path: str) -> Iterator[Status]:
        stop = self.fails_after.pop(0) if self.fails_after else None
        for number, name in enumerate(self.names):
            if number == stop:
                raise ConnectionResetError("the NameNode is gone")
            yield Status(f"{path}/{name}")


def test_sizes_and_times_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The NameNode sends 64 bits without a sign. Such a file is hidden, a time clamped."""
    most = 2**64 - 1
    facts = {"owner": "root", "group": "root", "permission": 0o176644, "modification_time": most}
    named = {"big": (False, most), "file": (False, 5), "dir": (True, most)}
    statuses = {
        f"/{name}": SimpleNamespace(path=f"/{name}", isdir=isdir, length=length, **facts)
        for name, (isdir, length) in named.items()
    }
    client = SimpleNamespace(
        list_status=lambda path: iter(statuses.values()), get_file_info=statuses.__getitem__
    )
    source = HdfsConnector("nn:8020", "", HdfsOptions())
    monkeypatch.setattr(source._client, "call", lambda path, act: act(client))
    [page] = source.list_dir(b"")
    assert page.hidden == 1
    assert {entry.name for entry in page.entries} == {b"file", b"dir"}
    for entry in page.entries:
        assert entry == source.stat(entry.name)
        assert entry.mode == 0o644
        assert max(entry.fingerprint.mtime_ns, entry.names_changed_ns) == MAX_TIME_NS
    with pytest.raises(errors.NotFound, match="impossible size"):
        source.stat(b"big")
    source.close()


def test_a_listing_goes_on_after_errors_and_repeats_nothing() -> None:
    names = [f"n{number:04}" for number in range(3500)] + ["ä", "ö", "ü"]
    client: Any = FakeClient(names, [0, 1500, 1, 2999, 3502])
    listing = HdfsListing("/d", lambda status, name: Entry(name, Fingerprint(Kind.FILE, 1)))
    pages = Pages(lambda _: (listing.take(client), None if listing.is_done else listing))
    found, failures = [], 0
    while True:
        try:
            found += [entry.name.decode() for entry in next(pages).entries]
        except ConnectionResetError:
            failures += 1
        except StopIteration:
            break
    assert (sorted(found), failures) == (sorted(names), 5)


def test_a_call_is_interrupted_until_it_ends() -> None:
    ends, seen = threading.Event(), []

    def interrupt() -> None:
        seen.append(True)
        if len(seen) == 3:
            ends.set()

    deadlines = Deadlines(interrupt)
    late, early = deadlines.begin(0.05), deadlines.begin(30.0)
    assert ends.wait(10.0)
    assert (late.is_overdue, early.is_overdue) == (True, False)
    assert not deadlines.may_try_again(late)
    assert deadlines.may_try_again(early)
    deadlines.end(late)
    deadlines.end(early)
    count = len(seen)
    with deadlines_closed(deadlines):
        assert len(seen) <= count + 1


def test_each_attempt_that_an_interrupt_for_another_call_ends_is_tried_again() -> None:
    """Also the second one that the same interrupt ends: a retry connects while it runs. As an
    error, it would be tried again by the caller, with a whole deadline."""
    runs, go_on = threading.Event(), threading.Event()

    now_s = 0.0  # set by the interrupt, from which on the clock stands

    def interrupt() -> None:
        nonlocal now_s
        now_s = time.monotonic()
        runs.set()
        assert go_on.wait(10.0)

    deadlines = Deadlines(interrupt, lambda: now_s or time.monotonic())
    late, early = deadlines.begin(0.05), deadlines.begin(30.0)
    assert runs.wait(10.0)
    assert [deadlines.may_try_again(early) for _ in range(3)] == [True] * 3
    deadlines.end(late)
    go_on.set()
    wait_until(lambda: deadlines._disturbs_until_s < float("inf"), "the interrupt has ended")
    assert deadlines.may_try_again(early), "the attempt started while it ran"
    assert deadlines.may_try_again(early), "this one may use a connection that is ending"
    now_s += AFTER_S
    assert deadlines.may_try_again(early)
    assert not deadlines.may_try_again(early), "this one started later"
    deadlines.end(early)
    deadlines.close()


def test_interrupts_are_slow_once_they_free_no_call_any_more() -> None:
    """Many calls end one after another where the machine is busy: each waits for the fast pace."""
    now_s = 0.0
    deadlines = Deadlines(lambda: None, lambda: now_s)
    first, second, later = (TimedCall(due_s, 0) for due_s in (1.0, 1.0, 100.0))
    deadlines._calls |= {first, second, later}
    now_s = 1.0 + SLOW_AFTER_S - 0.1
    assert deadlines._wait() == AGAIN_S
    deadlines.end(first)
    now_s += SLOW_AFTER_S - 0.1
    assert deadlines._wait() == AGAIN_S
    deadlines.end(later)  # which was in time, and tells nothing
    now_s += 0.2
    assert deadlines._wait() == SLOWLY_S


@contextlib.contextmanager
def deadlines_closed(deadlines: Deadlines) -> Iterator[None]:
    thread = deadlines._thread
    deadlines.close()
    deadlines.close()
    assert thread is None or not thread.is_alive()
    yield


def test_an_earlier_deadline_is_not_overslept() -> None:
    overdue = threading.Event()
    deadlines = Deadlines(overdue.set)
    calls = [deadlines.begin(60.0), deadlines.begin(0.05)]
    assert overdue.wait(10.0)
    for call in calls:
        deadlines.end(call)
    deadlines.close()


def test_ended_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as other:
        address = server.getsockname()
        with socket.create_connection(address) as client, server.accept()[0] as accepted:
            client.settimeout(10.0)
            assert end_connections({("127.0.0.1", 1)}) == 0
            assert end_connections({address}) == 1
            assert client.recv(1) == b""
            assert accepted.recv(1) == b""
        assert other.fileno() >= 0


def test_a_connection_that_is_not_established_ends() -> None:
    """Its server has as many connections as it wants, so the kernel waits for an answer."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        address = server.getsockname()
        waiting = [stack.enter_context(socket.socket()) for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(address)
        threads = [threading.Thread(target=_connect, args=(address,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_until(lambda: _ended({address}, threads), "the calls have ended", 10.0)


def _connect(address: tuple[str, int]) -> None:
    with socket.socket() as own, contextlib.suppress(OSError):
        own.connect(address)
        own.recv(1)


def _ended(addresses: set[tuple[str, int]], threads: list[threading.Thread]) -> bool:
    end_connections(addresses)
    return not any(thread.is_alive() for thread in threads)


def test_addresses() -> None:
    assert ("127.0.0.1", 8020) in resolve([("localhost", 8020), ("no-such-host.invalid", 1)])


def test_ids_are_remembered_for_a_while() -> None:
    now, asked = [100.0], []

    def look_up(name: str) -> int:
        asked.append(name)
        return len(asked)

    ids = Ids(look_up, lambda: now[0])
    assert [ids.id_of("a"), ids.id_of("b"), ids.id_of("a")] == [1, 2, 1]
    now[0] += KEPT_S + 1
    assert ids.id_of("a") == 3
    for number in range(MOST_KNOWN + 10):
        ids.id_of(str(number))
    assert len(ids._known) <= MOST_KNOWN


@pytest.mark.parametrize(("name", "number"), [("root", 0), ("nobody-here", UNKNOWN), ("\0", -1)])
def test_users(name: str, number: int) -> None:
    assert user_id(name) == number
