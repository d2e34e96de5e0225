"""The library against a real bucket over TLS: with a mount and without one, as root and as an
ordinary user, after fork and spawn, while its server is killed and while objects are replaced."""

from __future__ import annotations

import concurrent.futures
import errno
import io
import json
import mmap
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachefs.cli.commands.umount import SERVER_END_S
from cachefs.client.blocking import BlockingClient
from cachefs.core import messages as m
from cachefs.fuse.listing_prefetch import MISSES
from cachefs.launcher.state import StateHome, read_pointer
from cachefs.library.cache_file import CacheFile
from cachefs.library.library import Library
from cachefs.library.mount_table import MountTable
from cachefs.library.shared_socket import SharedSocket
from cachefs.library.tree import Tree
from tests.integration.conftest import Bucket, Node
from tests.integration.dataset import body, digest, images
from tests.services.processes import is_running, wait_until
from tests.services.proxy import FaultProxy, hang

MIB = 1 << 20
NOBODY = 65534
READER = Path(__file__).with_name("library_reader.py")
LIMIT_S = 60.0


@pytest.fixture
def files() -> dict[str, bytes]:
    return {
        **images(300, size=3_000),
        "shards/big.tar": body(1000, 20 * MIB + 12345),
        "shards/exact.bin": body(1001, 8 * MIB),
        "empty": b"",
        "notes/läs mig.txt": "hyvää päivää\n".encode() * 3,
    }


@pytest.fixture
def mounted(node: Node, bucket: Bucket, proxy: FaultProxy, files: dict[str, bytes]) -> Path:
    bucket.fill(files)
    return node.mount(bucket.url, *bucket.options, "--sync-interval", "1h")


@pytest.fixture
def library() -> Iterator[Library]:
    """A library of the test's own, which leaves no descriptor open."""
    before = own_fds()
    made = Library()
    yield made
    made.close()
    assert not own_fds() - before


@pytest.fixture
def tree(node: Node, mounted: Path, library: Library) -> Tree:
    return Tree(str(mounted), {"home": str(node.state)}, lambda: library)


def own_fds() -> Counter[str]:
    """What the descriptors of the library lead to: cache files, `pub/`, memfds, the table of
    mounts. Those of a socket are counted by the server. Former tests may have left some, too."""
    links = (link_of(fd) for fd in os.listdir("/proc/self/fd"))
    return Counter(link for link in links if re.search("/cache/|mountinfo|memfd", link))


def link_of(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:  # of the listing itself
        return ""


def server_pid(node: Node, mounted: Path) -> int:
    return next(one["pid"] for one in node.processes(mounted) if one["role"] == "server")


# ---- names and bytes -----------------------------------------------------------------------------


def test_a_batch_lists_the_directories_of_its_names(
    tree: Tree, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: Counter[str] = Counter()
    send = SharedSocket.send

    def counted(shared: SharedSocket, exchange: Any, body: m.Message, *rest: Any) -> int:
        sent[type(body).__name__] += 1
        return send(shared, exchange, body, *rest)

    monkeypatch.setattr(SharedSocket, "send", counted)
    names = [name for name in files if "/" in name]
    folders = {name.rpartition("/")[0] for name in names}
    assert tree.read_batch(["empty"]) == [b""]  # the server says for how long names are valid
    missing = [f"{folder}/missing" for folder in folders]
    found = tree.read_batch([*missing, *names], on_error="return")
    assert all(isinstance(one, FileNotFoundError) for one in found[: len(folders)])
    assert found[len(folders) :] == [files[name] for name in names]
    assert sent["ListDir"] <= len(folders) + 1
    assert sent["Lookup"] <= 1 + (MISSES + 2) * len(folders)  # 300 names otherwise


def test_names_and_bytes(tree: Tree, files: dict[str, bytes], proxy: FaultProxy) -> None:
    """[S-library] Names and bytes are those of the source."""
    found = {os.fsdecode(one.path): one.size for one in tree.walk() if one.is_file}
    assert found == {name: len(data) for name, data in files.items()}
    names = sorted(files)
    assert tree.read_batch(names) == [files[name] for name in names]
    requests = proxy.counters().requests.total()
    assert tree.read_batch(names) == [files[name] for name in names]
    assert proxy.counters().requests.total() == requests, "warm files need no request"
    assert [one.name for one in tree.list_dir("shards")] == [b"big.tar", b"exact.bin"]
    assert tree.stat("shards").is_directory
    assert tree.root.ino == tree.stat("").ino


def test_ranges(tree: Tree, files: dict[str, bytes]) -> None:
    big = files["shards/big.tar"]
    pairs = [(0, 1), (MIB - 1, MIB + 1), (-5, None), (None, 7), (15 * MIB, 19 * MIB), (9, 9)]
    ranges = [("shards/big.tar", start, stop) for start, stop in pairs]
    for _ in range(2):  # of a partial file, then of a complete one
        assert tree.read_ranges(ranges) == [big[start:stop] for start, stop in pairs]
        tree.read("shards/big.tar")


def test_each_error_has_its_file(tree: Tree, files: dict[str, bytes]) -> None:
    """[S-library-errors] In a batch each in its place, or the first one is raised."""
    bad = ["no", "train", "empty/x", "x" * 300, "../up"]
    good = "train/n00/img_00000.jpg"
    got = tree.read_batch([*bad, good], on_error="return")
    numbers = [errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EOPNOTSUPP]
    assert [one.errno for one in got[:-1]] == numbers
    assert [one.filename for one in got[:-1]] == [f"{tree.url}/{name}" for name in bad]
    assert got[-1] == files[good]
    with pytest.raises(FileNotFoundError) as caught:
        tree.read_batch([good, "no"])
    assert caught.value.filename == f"{tree.url}/no"
    before = own_fds()
    with pytest.raises(FileNotFoundError):
        tree.open_batch([good, "no"])
    assert not own_fds() - before


def test_file_objects(tree: Tree, files: dict[str, bytes]) -> None:
    big = files["shards/big.tar"]
    with tree.open("shards/big.tar") as file:
        assert not file.complete
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
        assert file.seek(-10, os.SEEK_END) == len(big) - 10
        assert file.read() == big[-10:]
        assert file.read() == b""
        buffer = bytearray(3 * MIB)
        file.seek(5)
        assert file.readinto(buffer) == len(buffer)
        assert buffer == big[5 : 5 + len(buffer)]
        assert file.tell() == 5 + len(buffer)
        view = file.view()
    assert view == big
    with io.BufferedReader(tree.open("notes/läs mig.txt")) as lines:
        assert lines.readlines() == files["notes/läs mig.txt"].splitlines(keepends=True)
    tree.read("shards/exact.bin")
    with tree.open("shards/exact.bin") as file:
        assert file.complete
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            assert mapped[:] == files["shards/exact.bin"]
    with pytest.raises(ValueError):
        file.read()
    with tree.open("empty") as file:
        assert file.read() == b""
        assert bytes(file.view()) == b""


def test_files_that_the_cache_has_no_room_for(
    node: Node, bucket: Bucket, proxy: FaultProxy, library: Library
) -> None:
    files = {**images(200, size=400_000), "big": body(7, 30 * MIB)}
    bucket.fill(files)
    path = node.mount(bucket.url, *bucket.options, "--cache-size", "24MiB")
    tree = Tree(str(path), {"home": str(node.state)}, lambda: library)
    for _ in range(2):
        assert tree.read_batch(list(files)) == list(files.values())
    with tree.open("big") as file:
        assert file.readall() == files["big"]


def test_a_new_mount_is_seen(tmp_path: Path) -> None:
    before = own_fds()
    table = MountTable()
    assert table.current().at(str(tmp_path)) is None
    version = table.version
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], check=True)
    try:
        found = wait_until(lambda: table.current().at(str(tmp_path)), "it is seen")
        assert found.fstype == "tmpfs"
        assert table.version > version
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    wait_until(lambda: table.current().at(str(tmp_path)) is None, "its end is seen")
    table.close()
    assert not own_fds() - before


# ---- threads and processes -----------------------------------------------------------------------


def test_threads_share_a_connection(
    node: Node, mounted: Path, tree: Tree, files: dict[str, bytes]
) -> None:
    names = sorted(files)

    def read(number: int) -> bool:
        mine = names[number:] + names[:number]
        return tree.read_batch(mine) == [files[name] for name in mine]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(24)))
    assert [one["pid"] for one in node.status(mounted)["libraries"]] == [os.getpid()]


def read_in_child(tree: Tree, names: list[str], out: Any) -> None:
    out.send([digest(data) for data in tree.read_batch(names)])
    out.send(os.getpid())
    out.poll(LIMIT_S)


@pytest.mark.parametrize("how", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_children_connect_by_themselves(
    how: str, node: Node, mounted: Path, library: Library, files: dict[str, bytes]
) -> None:
    """[S-library-processes] A forked child, whose parent has requests in flight, and a spawned one,
    which gets the tree as a pickle. Both read, and so does the parent, on connections of their
    own."""
    names = sorted(files)
    where = str(mounted), {"home": str(node.state)}
    tree = Tree(*where, lambda: library)
    half = tree.open("shards/big.tar")
    assert half.pread(10, 0) == files["shards/big.tar"][:10]
    ended = threading.Event()

    def keep_reading() -> int:
        rounds = 0
        while not ended.is_set():
            assert tree.read_batch(names[:50]) == [files[name] for name in names[:50]]
            rounds += 1
        return rounds

    context: Any = multiprocessing.get_context(how)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(keep_reading)
        ours, theirs = context.Pipe()
        child = context.Process(target=read_in_child, args=(tree, names, theirs))
        child.start()
        theirs.close()
        try:
            assert ours.recv() == [digest(files[name]) for name in names]
            pids = {ours.recv(), os.getpid()}
            assert {one["pid"] for one in node.status(mounted)["libraries"]} == pids
        finally:
            ended.set()
            ours.send("end")
            child.join(LIMIT_S)
        assert reading.result(LIMIT_S) > 0
    assert half.readall() == files["shards/big.tar"]
    half.close()


# ---- servers that end, objects that change -------------------------------------------------------


def test_a_killed_server_is_not_seen(
    node: Node, mounted: Path, tree: Tree, files: dict[str, bytes]
) -> None:
    """[S-library-server] Programs wait for the next one."""
    node.allowed_log += ["connection to the server is lost", "cannot connect to the server"]
    names = sorted(files)
    ended = threading.Event()

    def keep_reading(number: int) -> int:
        rounds = 0
        while not ended.is_set():
            mine = names[number::4]
            assert tree.read_batch(mine) == [files[name] for name in mine]
            with tree.open("shards/big.tar") as file:
                file.seek(rounds * MIB)
                assert file.read(MIB) == files["shards/big.tar"][rounds * MIB :][:MIB]
            rounds = (rounds + 1) % 20
        return rounds

    def frees() -> bool:
        return node.run("free", mounted / "shards").returncode == 0

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(keep_reading, number) for number in range(4)]
        try:
            for _ in range(3):
                pid = server_pid(node, mounted)
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda pid=pid: not is_running(pid), "the server has ended")
                wait_until(frees, "the next server runs")
        finally:
            ended.set()
        for reader in readers:
            reader.result(LIMIT_S)


def test_a_partial_file_survives_its_server(
    node: Node, mounted: Path, tree: Tree, files: dict[str, bytes]
) -> None:
    node.allowed_log += ["connection to the server is lost", "cannot connect to the server"]
    big = files["shards/big.tar"]
    with tree.open("shards/big.tar") as file:
        assert file.read(10) == big[:10]
        os.kill(server_pid(node, mounted), signal.SIGKILL)
        assert file.read() == big[10:]


def test_a_replaced_object_is_never_mixed(
    node: Node, mounted: Path, tree: Tree, bucket: Bucket, files: dict[str, bytes]
) -> None:
    """[S-library-bytes] The open file ends with ESTALE where its bytes are not here; an open gets
    the new ones."""
    node.allowed_log.append("")
    old, new = files["shards/big.tar"], body(2000, len(files["shards/big.tar"]))
    with tree.open("shards/big.tar") as file:
        assert file.read(10) == old[:10]
        bucket.put("shards/big.tar", new)
        node.ok("sync", mounted / "shards")
        with pytest.raises(OSError) as caught:
            compare_pieces(file, old)
        assert caught.value.errno == errno.ESTALE
    assert tree.read("shards/big.tar") == new
    small = "train/n00/img_00000.jpg"
    assert tree.read(small) == files[small]
    bucket.put(small, b"another")
    node.ok("sync", mounted / "train/n00")
    assert tree.read(small) == b"another"
    bucket.delete(small)
    node.ok("sync", mounted / "train/n00")
    with pytest.raises(FileNotFoundError):
        tree.read(small)


def compare_pieces(file: CacheFile, data: bytes) -> None:
    for position in range(0, len(data), MIB):
        assert file.pread(MIB, position) == data[position : position + MIB]


def test_an_object_replaced_behind_the_cache(
    node: Node, mounted: Path, tree: Tree, bucket: Bucket, files: dict[str, bytes]
) -> None:
    """The name still leads to the old object when the batch opens it: the new bytes are read."""
    node.allowed_log.append("")
    name = "train/n01/img_00001.jpg"
    assert tree.stat(name).size == len(files[name])
    bucket.put(name, b"replaced")
    assert tree.read_batch([name, "empty"]) == [b"replaced", b""]


def test_an_unmount_does_not_end_the_programs(
    node: Node, mounted: Path, tree: Tree, library: Library, files: dict[str, bytes]
) -> None:
    """The command does not wait for the server, which ends after the last program."""
    name = "train/n02/img_00002.jpg"
    assert tree.read(name) == files[name]
    with tree.open("shards/big.tar") as file:
        pid = server_pid(node, mounted)
        took = time.monotonic()
        node.ok("umount", mounted)
        assert time.monotonic() - took < SERVER_END_S / 2
        assert file.read() == files["shards/big.tar"]
    with pytest.raises(FileNotFoundError, match="not under a CacheFS mount"):
        tree.read(name)
    library.close()
    wait_until(lambda: not is_running(pid), "the server has ended")


# ---- without a mount -----------------------------------------------------------------------------


def run_reader(asked: dict[str, Any], environment: dict[str, str], *prefix: str) -> dict[str, Any]:
    command = [*prefix, sys.executable, str(READER)]
    done = subprocess.run(
        command,
        input=json.dumps(asked),
        env={**environment, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def end_servers(state: Path) -> None:
    """Ends the servers that a library started, and waits for their ends."""
    for directory in StateHome(str(state)).server_dirs():
        pointer = read_pointer(directory, owner=directory.stat().st_uid)
        if pointer is not None:
            with BlockingClient.connect(pointer.socket) as client:
                client.call(m.Detach("the test ends"))
            wait_until(lambda pid=pointer.pid: not is_running(pid), "the server has ended")


def test_without_a_mount(
    node: Node, bucket: Bucket, proxy: FaultProxy, files: dict[str, bytes]
) -> None:
    """The first program starts a server, the next one finds it."""
    bucket.fill(files)
    settings = {"endpoint_url": bucket.endpoint_url, "ca_bundle": str(bucket.ca_bundle)}
    asked = {"url": f"cachefs+{bucket.url}", "settings": settings, "names": sorted(files)}
    try:
        seen = run_reader(asked, node.environment)
        assert seen["batch"] == [digest(files[name]) for name in sorted(files)]
        assert seen["opened"] == seen["batch"][0]
        assert seen["found"] == sorted(files)
        assert (seen["left"], seen["modules"]) == (0, [])
        got = proxy.counters().object_bytes
        again = run_reader(asked, node.environment)
        assert again == seen
        assert proxy.counters().object_bytes == got, "the server was still running"
        mounted = node.mount(bucket.url, *bucket.options)
        assert (mounted / "empty").read_bytes() == b""
        node.umount(mounted)
    finally:
        end_servers(node.state)


def test_a_server_that_is_killed_without_a_mount(
    node: Node,
    bucket: Bucket,
    library: Library,
    files: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[S-library-server] The next call starts another one, and open files stay usable."""
    bucket.fill(files)
    for name, value in bucket.server.credentials().items():
        monkeypatch.setenv(name, value)
    settings = {"endpoint_url": bucket.endpoint_url, "home": str(node.state)}
    tree = Tree(f"cachefs+{bucket.url}", settings, lambda: library)
    big = files["shards/big.tar"]
    try:
        with tree.open("shards/big.tar") as file:
            assert file.read(10) == big[:10]
            (pid,) = [
                pointer.pid
                for directory in StateHome(str(node.state)).server_dirs()
                if (pointer := read_pointer(directory, owner=os.getuid())) is not None
            ]
            os.kill(pid, signal.SIGKILL)
            assert file.read() == big[10:]
        assert tree.read_batch(["empty", "shards/exact.bin"]) == [b"", files["shards/exact.bin"]]
    finally:
        end_servers(node.state)


def test_an_origin_that_is_silent_is_an_error_with_its_file(
    node: Node, bucket: Bucket, proxy: FaultProxy, library: Library, files: dict[str, bytes]
) -> None:
    """[S-library-errors] After the deadline, and what is cached is read at once."""
    bucket.fill(files)
    mounted = node.mount(bucket.url, *bucket.options, "--origin-deadline", "2s")
    tree = Tree(str(mounted), {"home": str(node.state)}, lambda: library)
    assert tree.read("shards/exact.bin") == files["shards/exact.bin"]
    names = ["train/n00/img_00000.jpg", "shards/exact.bin", "shards/big.tar"]
    assert len(tree.stat_batch(names)) == 3
    node.allowed_log.append("WARNING")
    gate = threading.Event()
    proxy.script(hang(gate), times=None)
    try:
        began_s = time.monotonic()
        small, exact, big = tree.read_batch(names, on_error="return")
        assert time.monotonic() - began_s < LIMIT_S
    finally:
        gate.set()
    assert exact == files["shards/exact.bin"]
    for error, name in ((small, names[0]), (big, names[2])):
        assert isinstance(error, OSError)
        assert error.errno in (errno.EIO, errno.ETIMEDOUT)
        assert error.filename == f"{mounted}/{name}"


def test_a_prefix_as_the_source(node: Node, bucket: Bucket, files: dict[str, bytes]) -> None:
    bucket.fill(files)
    url = f"{bucket.url}/train"
    settings = {"endpoint_url": bucket.endpoint_url, "source": url}
    asked = {"url": f"cachefs+{url}/n00", "settings": settings, "names": ["img_00000.jpg"]}
    try:
        seen = run_reader(asked, node.environment)
        assert seen["batch"] == [digest(files["train/n00/img_00000.jpg"])]
    finally:
        end_servers(node.state)


def test_an_ordinary_user_without_a_mount(
    tmp_path_factory: pytest.TempPathFactory,
    node: Node,
    bucket: Bucket,
    proxy: FaultProxy,
    files: dict[str, bytes],
) -> None:
    bucket.fill(files)
    home = Path(node.root.anchor, "tmp", f"library-{os.getpid()}")
    home.mkdir(mode=0o700)
    os.chown(home, NOBODY, NOBODY)
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    user += ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    settings = {"endpoint_url": bucket.endpoint_url, "ca_bundle": str(bucket.ca_bundle)}
    asked = {"url": f"cachefs+{bucket.url}", "settings": settings, "names": sorted(files)}
    try:
        seen = run_reader(asked, {**node.environment, "HOME": str(home)}, *user)
        assert seen["uid"] == NOBODY
        assert seen["batch"] == [digest(files[name]) for name in sorted(files)]
        assert seen["left"] == 0
    finally:
        end_servers(home / ".cache" / "cachefs")
        subprocess.run(["rm", "-rf", str(home)], check=True)
