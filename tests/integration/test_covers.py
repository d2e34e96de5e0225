"""Frozen directories of real mounts: readers while covers come and go and while processes die,
mount namespaces, every way to unmount."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.cli.session import attached, find_target
from cachefs.core import messages as m
from cachefs.core.mountinfo import Mount, read_mounts
from cachefs.launcher.state import StateHome
from tests.integration.conftest import Node, is_mounted
from tests.services.namespaces import with_mount
from tests.services.processes import is_running, stop, wait_until
from tests.services.unmounting import unmount

HERE = Path(__file__).parent
FILES = 60
ROLES = ("client", "supervisor", "server")
KILLED = r"ended unexpectedly|connection to the server is lost|cannot connect|lost the supervisor"
MOST_BETWEEN_S = 0.3  # two kills
CYCLES = 25  # of freeze and thaw; the benchmark has a thousand
UNMOUNTS = {
    "umount": ["umount"],
    "umount -l": ["umount", "-l"],
    "umount -R": ["umount", "-R"],
    "fusermount3 -u": ["fusermount3", "-u"],
    "fusermount3 -uz": ["fusermount3", "-uz"],
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for folder in ("train/a", "train/b", "other"):
        directory = tmp_path / "source" / folder
        directory.mkdir(parents=True)
        for number in range(FILES):
            (directory / f"f{number}").write_text(f"x{number}")
    return tmp_path / "source"


@pytest.fixture
def mnt(node: Node, source: Path) -> Path:
    return node.mount(f"file://{source}", "--sync-interval", "20s", "--transport", "kernel")


def covers(mnt: Path) -> list[Mount]:
    mounts = read_mounts()
    mount = mounts.at(str(mnt))
    return [] if mount is None else mounts.covers_of(mount)


def freeze(node: Node, path: Path) -> None:
    view = json.loads(node.ok("freeze", path, "--wait", "--json"))
    assert view["state"] == "covered", view


@contextlib.contextmanager
def reading(tmp_path: Path, *kinds: tuple[str, Path, Path]) -> Iterator[None]:
    """Readers that run until the end of the block, and were right all the time."""
    stop = tmp_path / "stop"
    stop.unlink(missing_ok=True)
    readers = []
    for kind, directory, source in kinds:
        if kind in ("fd", "cwd"):
            command = [HERE / "dir_reader.py", kind, directory, stop]
        else:
            command = [HERE / "reader.py", kind, directory, source, stop, "1"]
        readers.append(
            subprocess.Popen(
                [sys.executable, *map(str, command)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "reading\n", reader.communicate()
        yield
    finally:
        stop.touch()
        said = [reader.communicate(timeout=60) for reader in readers]
    for reader, (out, err) in zip(readers, said, strict=True):
        assert (reader.returncode, err) == (0, ""), (reader.args, out, err)
        assert '"wrong": "' not in out, out


def every_kind(mnt: Path, source: Path) -> list[tuple[str, Path, Path]]:
    kinds = ["open", "hold", "map", "walk", "stat"]
    return [
        *((kind, mnt / "train", source / "train") for kind in kinds),
        ("fd", mnt / "train" / "a", source),
        ("cwd", mnt / "train" / "b", source),
    ]


def test_readers_while_a_directory_is_covered_and_uncovered(
    node: Node, mnt: Path, source: Path, tmp_path: Path
) -> None:
    target = find_target(str(mnt / "train"), StateHome(str(node.state)))
    laid = 0
    with (
        reading(tmp_path, *every_kind(mnt, source)),
        attached(target.record) as session,
    ):
        for _ in range(CYCLES):
            views = session.call(m.Freeze(session.namespace, b"train", True), m.ViewTable).views
            laid += views[0].state == "covered"
            assert views[0].state == "covered", views
            session.call(m.Thaw(session.namespace, b"train"), m.Done)
            assert covers(mnt) == []
    assert laid == CYCLES


@pytest.mark.parametrize("path", ["", "train"])
def test_readers_while_each_process_is_killed(
    node: Node, mnt: Path, source: Path, tmp_path: Path, path: str
) -> None:
    """At random moments; `bench.native_covers` kills more often. A change afterwards waits for no
    client: each process knows the covers, or finds them in the kernel's mounts."""
    node.allowed_log.append(KILLED)
    seed = random.randrange(1 << 20)
    print("seed", seed)
    rng, clock = random.Random(seed), threading.Event()
    freeze(node, mnt / path)
    with reading(tmp_path, *every_kind(mnt, source)):
        for role in [*rng.sample(ROLES, len(ROLES)), *rng.sample(ROLES, len(ROLES))]:
            kill(node, mnt, role)
            clock.wait(rng.uniform(0, MOST_BETWEEN_S))
    freeze(node, mnt / path)
    (source / "train" / "a" / "f1").write_text("changed")
    node.ok("sync", "-R", mnt)
    assert (mnt / "train" / "a" / "f1").read_text() == "changed"


def test_the_worker_uncovers_for_a_client_that_hangs(node: Node, mnt: Path, source: Path) -> None:
    """The client does not take that for an unmount of its mount point when it runs again."""
    node.allowed_log.append(r"a client has not removed its cover")
    freeze(node, mnt)
    running = pids(node, mnt)
    stopped = [running["supervisor"], running["client"]]
    for pid in stopped:
        stop(pid)
    try:
        (source / "train" / "a" / "f1").write_text("changed")
        node.ok("sync", "-R", mnt)
        assert covers(mnt) == []
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert (mnt / "train" / "a" / "f1").read_text() == "changed"
    freeze(node, mnt)
    assert pids(node, mnt) == running
    assert (mnt / "train" / "a" / "f1").read_text() == "changed"


@pytest.mark.parametrize("role", ["client", "server"])
def test_a_cover_below_the_root_returns_after_a_kill(
    node: Node, mnt: Path, source: Path, tmp_path: Path, role: str
) -> None:
    """The kernel removes it, as it distrusts all names. Readers by path notice nothing."""
    node.allowed_log.append(KILLED)
    freeze(node, mnt / "train")
    kinds = [(kind, mnt / "train", source / "train") for kind in ("open", "walk", "stat")]
    with reading(tmp_path, *kinds):
        kill(node, mnt, role)
        wait_until(lambda: node.logs().count("covers: covered train") >= 2, "a new cover")
        wait_until(lambda: len(covers(mnt)) == 1, "the cover is laid")


def kill(node: Node, mnt: Path, role: str) -> None:
    """Kills the process of a role, and waits for its successor: a mount whose client and supervisor
    die together ends."""
    pid = wait_until(lambda: pids(node, mnt).get(role), f"a {role}")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: pids(node, mnt).get(role, pid) != pid, f"a successor of the {role}")
    wait_until(lambda: len(pids(node, mnt)) == len(ROLES), f"all processes run after the {role}")


def pids(node: Node, mnt: Path) -> dict[str, int]:
    """The processes of a mount that run, by role; none while the server does not answer."""
    try:
        found = {process["role"]: process["pid"] for process in node.processes(mnt)}
    except AssertionError:
        return {}
    return {role: pid for role, pid in found.items() if is_running(pid)}


def test_a_change_is_shown_when_sync_returns(node: Node, mnt: Path, source: Path) -> None:
    freeze(node, mnt / "train")
    for number in range(5):
        (source / "train" / "a" / "f1").write_text(f"version {number}")
        (source / "train" / "b" / f"new{number}").write_text("n")
        (source / "train" / "b" / f"f{number}").unlink()
        node.ok("sync", "-R", mnt / "train")
        assert (mnt / "train" / "a" / "f1").read_text() == f"version {number}"
        names = set(os.listdir(mnt / "train" / "b"))
        assert f"new{number}" in names
        assert f"f{number}" not in names


def test_an_upgrade_keeps_a_cover_of_the_root(node: Node, mnt: Path) -> None:
    freeze(node, mnt)
    before = [cover.mount_id for cover in covers(mnt)]
    node.ok("mount", "--upgrade", mnt)
    assert [cover.mount_id for cover in covers(mnt)] == before
    node.ok("thaw", mnt)
    assert covers(mnt) == []
    assert (mnt / "train" / "a" / "f1").read_text() == "x1"


def everything_ended(mnt: Path, pids: set[int]) -> bool:
    left = [mount for mount in read_mounts() if mount.mountpoint.startswith(str(mnt))]
    return not left and not covers(mnt) and not any(is_running(pid) for pid in pids)


@pytest.mark.parametrize(
    ("path", "how"),
    [
        ("", "umount"),
        ("", "umount -l"),
        ("", "umount -R"),
        ("", "fusermount3 -u"),
        ("", "fusermount3 -uz"),
        ("train", "umount -l"),
        ("train", "umount -R"),
        ("train", "fusermount3 -uz"),
    ],
)
def test_others_unmount(node: Node, mnt: Path, path: str, how: str) -> None:
    freeze(node, mnt / path)
    pids = {process["pid"] for process in node.processes(mnt)}
    unmount(mnt, UNMOUNTS[how])
    wait_until(lambda: everything_ended(mnt, pids), "the mount ends with its covers")


@pytest.mark.parametrize("path", ["", "train"])
@pytest.mark.parametrize("options", [(), ("--lazy",)])
def test_cachefs_umount(node: Node, mnt: Path, path: str, options: tuple[str, ...]) -> None:
    freeze(node, mnt / path)
    node.umount(mnt, *options)
    assert not is_mounted(mnt)
    assert not [mount for mount in read_mounts() if mount.mountpoint.startswith(str(mnt))]


def test_a_former_mount_leaves_the_cover_of_the_next_one(
    node: Node, mnt: Path, source: Path
) -> None:
    """[S-umount] It ends with its last open file, when another mount is there, which is covered."""
    former = pids(node, mnt)["client"]
    with open(mnt / "train" / "a" / "f1"):
        node.ok("umount", "--lazy", mnt)
        node.mount(f"file://{source}", "--sync-interval", "20s", "--transport", "kernel")
        freeze(node, mnt)
        before = covers(mnt)
        assert len(before) == 1
    wait_until(lambda: not is_running(former), "the former mount's client ends")
    assert covers(mnt) == before


def test_a_plain_umount_of_others_is_refused_below_a_covered_directory(
    node: Node, mnt: Path
) -> None:
    freeze(node, mnt / "train")
    for command in (["umount", mnt], ["fusermount3", "-u", mnt]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode
        assert "busy" in done.stderr
    assert len(covers(mnt)) == 1
    assert (mnt / "train" / "a" / "f1").read_text() == "x1"


def test_a_busy_cover_names_its_users(node: Node, mnt: Path) -> None:
    freeze(node, mnt / "train")
    with open(mnt / "train" / "a" / "f1"):
        assert f"(pid {os.getpid()})" in node.fails("umount", mnt)
        assert len(covers(mnt)) == 1
    node.umount(mnt)


@contextlib.contextmanager
def namespace(kind: str, mnt: Path) -> Iterator[int]:
    """A process in a mount namespace of its own, which has no mount of FUSE but `mnt`."""
    command = with_mount(mnt, "sh", "-c", "echo up; exec sleep 600", propagation=kind)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as popen:
        assert popen.stdout is not None
        assert popen.stdout.readline() == "up\n"
        try:
            yield popen.pid
        finally:
            popen.kill()


def device_in(pid: int, path: Path) -> str:
    command = ["nsenter", "-t", str(pid), "-m", "stat", "-c", "%Hd:%Ld", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_files_of_a_cover_need_no_order(node: Node, mnt: Path, tmp_path: Path) -> None:
    """Their inode numbers are not those of the mount."""
    names = tmp_path / "names"
    names.write_text("train/a/f1\nother/f1\nother/f2\n")
    freeze(node, mnt / "train")
    assert "2 files are announced" in node.ok("order", mnt, "--files-from", names)
    names.write_text("f1\nf2\n")
    assert "native" in node.ok("order", mnt / "train" / "a", "--files-from", names)


# ---- bind mounts of covered directories ----


def run_in(pid: int, *command: str | Path) -> str:
    """Runs a command among the mounts of a process."""
    line = ["nsenter", "-t", str(pid), "-m", *map(str, command)]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout


@contextlib.contextmanager
def bound(source: Path, target: Path, pid: int = 0, how: str = "--bind") -> Iterator[Path]:
    """A bind mount, in the mount namespace of a process."""
    target.mkdir(exist_ok=True) if source.is_dir() else target.touch()
    run_in(pid or os.getpid(), "mount", how, source, target)
    try:
        yield target
    finally:
        run_in(pid or os.getpid(), "umount", "-l", target)


@pytest.mark.parametrize("path", ["", "train"])
def test_a_bind_mount_of_a_covered_directory_follows_changes(
    node: Node, mnt: Path, source: Path, tmp_path: Path, path: str
) -> None:
    """[S-views-bind] It is native at first, then shows what the mount shows; its readers see no
    error meanwhile."""
    freeze(node, mnt / path)
    with (
        bound(mnt / "train", tmp_path / "bind") as bind,
        bound(mnt / "train" / "b" / "f2", tmp_path / "file") as file,
    ):
        assert device_in(os.getpid(), bind / "a") == device_in(os.getpid(), mnt / "train" / "a")
        kinds = [(kind, bind, source / "train") for kind in ("open", "walk", "stat")]
        with reading(tmp_path, *kinds):
            node.ok("thaw", mnt / path)
        assert device_in(os.getpid(), bind / "a") == device_in(os.getpid(), mnt / "train" / "a")
        assert file.read_text() == "x2"
        (source / "train" / "a" / "f1").write_text("changed")
        (source / "train" / "b" / "new").write_text("new")
        node.ok("sync", "-R", mnt)
        assert (bind / "a" / "f1").read_text() == "changed"
        assert (bind / "b" / "new").read_text() == "new"
        assert len([one for one in read_mounts() if one.mountpoint == str(bind)]) == 1


@pytest.mark.parametrize("kind", ["private", "slave", "shared"])
def test_a_bind_mount_in_another_namespace_follows_changes(
    node: Node, mnt: Path, source: Path, tmp_path: Path, kind: str
) -> None:
    """[S-views-bind] As a container's volume."""
    freeze(node, mnt / "train")
    with namespace(kind, mnt) as pid, bound(mnt / "train", tmp_path / "bind", pid) as bind:
        (source / "train" / "a" / "f1").write_text("changed")
        node.ok("sync", "-R", mnt)
        assert run_in(pid, "cat", bind / "a" / "f1") == "changed"
        node.ok("thaw", mnt / "train")
        assert run_in(pid, "cat", bind / "a" / "f1") == "changed"


def test_a_recursive_bind_mount_of_the_mount_follows_changes(
    node: Node, mnt: Path, source: Path, tmp_path: Path
) -> None:
    """[S-views-bind]"""
    freeze(node, mnt / "train")
    with bound(mnt, tmp_path / "bind", how="--rbind") as bind:
        file = bind / "train" / "a" / "f1"
        assert device_in(os.getpid(), file) == device_in(os.getpid(), mnt / "train" / "a" / "f1")
        (source / "train" / "a" / "f1").write_text("changed")
        node.ok("sync", "-R", mnt)
        assert file.read_text() == "changed"


def test_a_bind_mount_that_cannot_be_replaced_shows_nothing(
    node: Node, mnt: Path, source: Path, tmp_path: Path
) -> None:
    """[S-views-bind] Another mount is below it."""
    node.allowed_log.append(r"cannot be replaced: other mounts are below it")
    freeze(node, mnt / "train")
    with bound(mnt / "train", tmp_path / "bind") as bind, bound(source / "other", bind / "a"):
        (source / "train" / "b" / "f1").write_text("changed")
        node.ok("sync", "-R", mnt)
        assert (mnt / "train" / "b" / "f1").read_text() == "changed"
        assert os.listdir(bind) in ([], ["a"])
    freeze(node, mnt / "train")
    assert (mnt / "train" / "b" / "f1").read_text() == "changed"


@pytest.mark.parametrize("path", ["", "train"])
@pytest.mark.parametrize("kind", ["private", "slave", "shared"])
def test_mount_namespaces(node: Node, mnt: Path, path: str, kind: str) -> None:
    file = mnt / "train" / "a" / "f1"
    with namespace(kind, mnt) as before:
        fuse = device_in(before, file)
        freeze(node, mnt / path)
        if kind == "private":
            assert device_in(before, file) == fuse, "right, and slower"
        with namespace(kind, mnt) as meanwhile:
            assert device_in(meanwhile, file) != fuse
            node.ok("thaw", mnt / path)
            for pid in (before, meanwhile):
                assert device_in(pid, file) == fuse
