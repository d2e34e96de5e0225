"""What processes of other users get of a cluster on this machine: nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachefs.client.http import HttpClient
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.errors import AccessDenied
from cachefs.core.model import ContentId, UfsSpec
from cachefs.core.specs import Security
from cachefs.launcher import tokens
from cachefs.launcher.state import StateHome
from cachefs.network.socket_owners import ForeignListener, check_caller, check_listener
from tests.services.cluster import ClusterFailed, Machine
from tests.services.intruder import NOBODY, Request, ask
from tests.services.processes import is_running, wait_until

WAIT_S = 10.0
_KEPT: list[socket.socket] = []


def as_nobody(work: Callable[[], None]) -> Callable[[], None]:
    """Runs it in a process of another user; gives what ends that process."""
    "".encode("idna")  # the modules of names are loaded while they can be read
    done, release = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            work()
            os.write(done[1], b"1")
            os.close(release[1])
            os.read(release[0], 1)
        finally:
            os._exit(0)
    os.close(done[1])
    os.close(release[0])
    assert os.read(done[0], 1) == b"1", "the process of the other user failed"
    os.close(done[0])

    def end() -> None:
        os.close(release[1])
        os.waitpid(pid, 0)

    return end


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(WAIT_S)
        yield made


def test_another_users_process_is_refused(listener: socket.socket) -> None:
    end = as_nobody(lambda: _KEPT.append(socket.create_connection(listener.getsockname())))
    try:
        accepted, peer = listener.accept()
        with accepted, pytest.raises(AccessDenied, match=f"not user {NOBODY}"):
            check_caller(accepted.getsockname(), peer)
    finally:
        end()


def test_another_users_listener_is_refused(listener: socket.socket) -> None:
    """It may have taken the port of a master that does not run."""
    address = listener.getsockname()
    listener.close()
    check_listener(address)  # no process listens
    end = as_nobody(lambda: _KEPT.append(socket.create_server(address)))
    try:
        with pytest.raises(ForeignListener, match=f"a process of user {NOBODY} listens"):
            check_listener(address)
        with (
            socket.create_connection(address) as made,
            pytest.raises(ForeignListener, match=f"a process of user {NOBODY} listens"),
        ):
            check_listener(address, made.getsockname())
    finally:
        end()


# ---- a cluster of processes ----------------------------------------------------------------------

SECRET = b"only root may read this"
MSGPACK = {"Content-Type": "application/msgpack"}
INTRUDER = "e" * 32  # the id of its worker


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Root's; what `cachefs up` started on it is ended."""
    made = Machine("machine", tmp_path / "machine", {})
    try:
        yield made
    finally:
        made.close()
        made.run("down")


class Running:
    """A cluster of root's with a source that only root may read, one file of which is cached."""

    def __init__(self, machine: Machine, *options: str) -> None:
        self.machine = machine
        self.home = StateHome(machine.root / ".cache" / "cachefs")
        source = machine.root / "source"
        source.mkdir(0o700)
        (source / "shadow").write_bytes(SECRET)
        up = machine.json("up", "--workers", "1", "--cache-size", "64MiB", *options)
        self.master, self.worker = (one["url"] for one in up["processes"])
        machine.run("ufs", "add", f"file://{source}", "/data")
        self.mountpoint = machine.mount(up["mount"] + "data")
        assert (self.mountpoint / "shadow").read_bytes() == SECRET
        self.content_id = machine.json("stat", str(self.mountpoint / "shadow"))["content_id"]

    def client(self) -> HttpClient:
        return HttpClient(self.master, tokens.find(self.home, self.master) or Security())


def call(url: str, body: m.Message) -> Request:
    return Request(url, "POST", c.CALL_PATH, MSGPACK, c.encode(body))


def attacks(it: Running) -> list[Request]:
    """Everything that gives a byte, a name or a place in the cluster; what changes something goes
    last."""
    with it.client() as client:
        namespace = client.call(c.Greeting(), c.Greeted).namespace
        found = client.call(m.Resolve(namespace, b"data/shadow"), m.Found).inode
    assert found is not None
    key = ContentId.parse(it.content_id).key
    json = {"Content-Type": "application/json"}
    source = b'{"path": "/theirs", "url": "file:///etc"}'
    data = f"{c.DATA_PATH}/{it.content_id}?first=0&end=1&have=1"
    return [
        Request(it.worker, "GET", data),
        Request(it.master, "GET", "/metrics"),
        Request(it.worker, "GET", "/metrics"),
        Request(it.master, "GET", "/api/v1/sources"),
        call(it.worker, c.Have([key])),
        call(it.worker, c.WorkerStatus()),
        call(it.master, c.Greeting()),
        call(it.master, m.Resolve(namespace, b"data/shadow")),
        call(it.master, c.Locate(namespace, [found.ino])),
        call(it.master, c.GetView()),
        call(it.master, c.MasterStatus()),
        call(it.master, c.Register(INTRUDER, "http://127.0.0.1:1", 1e9)),
        call(it.master, c.AddUfs(b"/mine", UfsSpec("file:///etc"))),
        Request(it.master, "POST", "/api/v1/sources", json, source),
        call(it.worker, c.Offer("w", "http://127.0.0.1:1", 1, [(key, 0)])),
        call(it.worker, c.Drop([key])),
        call(it.master, c.RemoveUfs(b"/data")),
    ]


@pytest.mark.parametrize("options", [(), ("--no-token",)])
def test_another_user_gets_nothing_and_changes_nothing(
    machine: Machine, options: tuple[str, ...]
) -> None:
    it = Running(machine, *options)
    asked = attacks(it)
    for request, (status, body) in zip(asked, ask(*asked), strict=True):
        assert status in (401, 403), f"{request}: {status} {body!r}"
        assert SECRET not in body
    assert ask(Request(it.master, "GET", "/healthz")) == [(200, b"ok\n")]
    assert [one["path"] for one in machine.json("ufs", "ls")] == ["/data"]
    assert INTRUDER not in [one["id"] for one in machine.json("workers")["workers"]]
    own = ask(*asked, uid=os.getuid())
    if options:  # the requests are right: it is who asks that is wrong
        # 410: the worker has heard of the intruder's epoch before the offer of the one before came.
        assert {status for status, _ in own} <= {200, 201, 410}
        assert SECRET in own[0][1]
    else:
        assert {status for status, _ in own} <= {401, 403}


def test_the_token_of_this_machine_is_private_and_found(machine: Machine) -> None:
    it = Running(machine)
    security = tokens.find(it.home, it.master)
    assert security is not None
    path = Path(security.token_file)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    secret = path.read_text().strip()
    for name, text in machine.logs().items():
        assert secret not in text, name
    for process in Path("/proc").glob("[0-9]*"):
        for part in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                assert secret.encode() not in (process / part).read_bytes(), process
    elsewhere = ["--home", str(machine.root / "elsewhere")]
    with pytest.raises(ClusterFailed, match="a token is needed"):
        machine.run("workers", "--master", it.master, *elsewhere)
    machine.run("workers", "--master", it.master, *elsewhere, "--token-file", path)


def test_a_process_that_takes_a_masters_port_gets_no_token(machine: Machine) -> None:
    """Another user listens where root's master was: no command and no worker presents it."""
    it = Running(machine, "--log-level", "debug")
    master = machine.json("up")["processes"][0]["pid"]
    os.kill(master, signal.SIGKILL)
    wait_until(lambda: not is_running(master), "the master ends")
    port = int(it.master.rpartition(":")[2])
    heard = machine.root / "heard"
    file = os.open(heard, os.O_WRONLY | os.O_CREAT)
    end = as_nobody(lambda: listen_and_write(port, file))
    try:
        with pytest.raises(ClusterFailed, match=f"a process of user {NOBODY} listens at"):
            machine.run("workers")
        (log,) = it.home.path.glob("clusters/*/nodes/worker-1/log/server.log")
        said = f"a process of user {NOBODY} listens"
        wait_until(lambda: said in log.read_text(), "the worker says why it has no master")
        assert heard.read_bytes() == b""
    finally:
        end()
        os.close(file)


def listen_and_write(port: int, file: int) -> None:
    """What connects is accepted; what it sends is written into a file."""
    listener = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            os.write(file, connection.recv(4096))
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
