"""Mount, remount, share, stop, die: processes and state over the life of a mount."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cachefs.core.model import UfsSpec
from cachefs.launcher.processes import client_log
from cachefs.launcher.state import StateHome, read_pointer
from tests.integration.conftest import Bucket, Node, is_mounted
from tests.integration.dataset import body, digest, digests, expected, images
from tests.services.commands import CACHEFS
from tests.services.namespaces import with_mount
from tests.services.processes import (
    children,
    is_running,
    next_child,
    stop,
    wait_until,
    waits,
)
from tests.services.proxy import FaultProxy
from tests.services.unmounting import unmount

MIB = 1 << 20


def test_mount_says_that_it_is_ready(node: Node, bucket: Bucket) -> None:
    bucket.put("a/b", b"x")
    mountpoint = node.mountpoint()
    node.mountpoints.append(mountpoint)
    said = node.ok("mount", f"{bucket.url}/a", mountpoint, *bucket.options)
    assert said.strip() == f"OK, {bucket.url}/a is ready at {mountpoint}"
    assert os.listdir(mountpoint) == ["b"]
    roles = sorted(process["role"] for process in node.processes(mountpoint))
    assert roles == ["client", "server", "supervisor"]
    node.umount(mountpoint)


def test_a_remount_is_warm_and_keeps_inode_numbers(node: Node, bucket: Bucket) -> None:
    """[S-inodes] Inode numbers and cached bytes outlive the processes."""
    files = {**images(20), "big": body(7, 12 * MIB)}
    bucket.fill(files)
    mounted = node.mount(bucket.url, *bucket.options)
    assert digests(mounted) == expected(files)
    inodes = {name: (mounted / name).stat().st_ino for name in files}
    node.umount(mounted)
    mounted = node.mount(bucket.url, *bucket.options)
    assert {name: (mounted / name).stat().st_ino for name in files} == inodes
    assert digests(mounted) == expected(files)
    cache = node.status(mounted)["cache"]
    assert cache["origin_bytes"] == 0
    node.umount(mounted)


def test_killed_everywhere_and_mounted_again(node: Node, bucket: Bucket) -> None:
    files = images(20)
    bucket.fill(files)
    mounted = node.mount(bucket.url, *bucket.options)
    assert digests(mounted) == expected(files)
    node.wait_until_recorded(mounted)
    node.kill_all(mounted)
    mounted = node.mount(bucket.url, *bucket.options)  # clears its own dead mount
    assert digests(mounted) == expected(files)
    assert node.status(mounted)["cache"]["origin_bytes"] == 0
    node.umount(mounted)


def test_a_second_mount_joins_the_server(node: Node, bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("a", b"x" * 1000)
    first = node.mount(bucket.url, *bucket.options)
    second = node.mount(bucket.url, *bucket.options, name="mnt2")
    servers = {
        process["pid"]
        for mounted in (first, second)
        for process in node.processes(mounted)
        if process["role"] == "server"
    }
    assert len(servers) == 1
    assert (first / "a").read_bytes() == (second / "a").read_bytes()
    assert node.status(second)["cache"]["origin_bytes"] == 1000
    node.umount(first)
    assert (second / "a").read_bytes() == b"x" * 1000
    node.umount(second)
    assert not any(is_running(pid) for pid in servers)


def test_another_source_joins_by_cache_directory(
    node: Node, bucket: Bucket, tmp_path: Path
) -> None:
    bucket.put("a", b"from the bucket")
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_bytes(b"from the disk")
    cache = tmp_path / "cache"
    first = node.mount(bucket.url, *bucket.options, "--cache-dir", cache)
    second = node.mount(f"file://{source}", "--cache-dir", cache, name="mnt2")
    assert (first / "a").read_bytes() == b"from the bucket"
    assert (second / "a").read_bytes() == b"from the disk"
    servers = {
        p["pid"] for m in (first, second) for p in node.processes(m) if p["role"] == "server"
    }
    assert len(servers) == 1
    node.umount(first)
    node.umount(second)


def _end(node: Node, mounted: Path, act: object) -> None:
    pids = [process["pid"] for process in node.processes(mounted)]
    act()  # type: ignore[operator]
    wait_until(lambda: not any(is_running(pid) for pid in pids), "all processes end")
    assert not is_mounted(mounted)


def test_sigterm_unmounts(node: Node, bucket: Bucket) -> None:
    bucket.put("a", b"x")
    for role in ("client", "server"):
        mounted = node.mount(bucket.url, *bucket.options)
        pid = next(p["pid"] for p in node.processes(mounted) if p["role"] == role)
        _end(node, mounted, lambda pid=pid: os.kill(pid, signal.SIGTERM))


def test_umount_by_the_system_ends_everything(node: Node, bucket: Bucket) -> None:
    bucket.put("a", b"x")
    for command in (["umount"], ["umount", "-l"], ["fusermount3", "-u"]):
        mounted = node.mount(bucket.url, *bucket.options)
        _end(node, mounted, lambda c=command, m=mounted: unmount(m, c))


def test_lazy_umount_lets_an_open_file_finish(node: Node, bucket: Bucket) -> None:
    data = body(3, 3 * MIB)
    bucket.put("a", data)
    mounted = node.mount(bucket.url, *bucket.options)
    pids = [process["pid"] for process in node.processes(mounted)]
    with (mounted / "a").open("rb") as file:
        assert file.read(10) == data[:10]
        node.ok("umount", "--lazy", mounted)
        assert not is_mounted(mounted)
        assert file.read() == data[10:]
    wait_until(
        lambda: not any(is_running(pid) for pid in pids), "processes end after the last close"
    )


def test_a_busy_mount_names_its_users(node: Node, bucket: Bucket) -> None:
    bucket.put("a", b"x")
    mounted = node.mount(bucket.url, *bucket.options)
    with (mounted / "a").open("rb"):
        line = node.fails("umount", mounted)
        assert str(os.getpid()) in line
    assert is_mounted(mounted)
    node.umount(mounted)


def test_a_mount_that_another_namespace_has_is_named(node: Node, tmp_path: Path) -> None:
    """[S-umount] Unmounting it here does not end it there; what is said there to do does."""
    source = tmp_path / "source"
    source.mkdir()
    mounted = node.mount(f"file://{source}")
    pids = [process["pid"] for process in node.processes(mounted)]
    command = with_mount(mounted, "sh", "-c", "echo there; read line")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"there\n"
        done = node.run("umount", mounted)
        assert done.returncode == 0, "unmounted here, which is what was asked for"
        line = done.stderr.strip()
        assert line.startswith("cachefs: warning: ")
        assert not is_mounted(mounted)
        assert f"another mount namespace still has the mount: sh (pid {other.pid})" in line
        assert all(map(is_running, pids))
        remedy = f"nsenter -t {other.pid} -m umount {mounted}"
        assert remedy in line
        subprocess.run(remedy.split(), check=True)
        wait_until(lambda: not any(map(is_running, pids)), "all processes end")


def test_foreground_ends_with_an_interrupt(node: Node, bucket: Bucket) -> None:
    bucket.put("a", b"x")
    mountpoint = node.mountpoint()
    node.mountpoints.append(mountpoint)
    command = [str(Path(sys.executable).parent / "cachefs"), "mount", "-f", bucket.url]
    with subprocess.Popen(
        [*command, str(mountpoint), *bucket.options],
        env=node.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as front:
        wait_until(lambda: is_mounted(mountpoint), "the mount comes")
        wait_until(lambda: os.listdir(mountpoint) == ["a"], "it answers")
        pids = [process["pid"] for process in node.processes(mountpoint)]
        front.send_signal(signal.SIGINT)
        _, errors = front.communicate(timeout=20)
    assert front.returncode == 0, errors
    assert not is_mounted(mountpoint)
    wait_until(lambda: not any(is_running(pid) for pid in pids), "all processes end")


def test_foreground_goes_on_where_nobody_reads_its_output(node: Node, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    mountpoint = node.mountpoint()
    node.mountpoints.append(mountpoint)
    read, write = os.pipe()
    os.close(read)
    command = [str(CACHEFS), "mount", "-f", f"file://{tmp_path / 'source'}", str(mountpoint)]
    with (
        (tmp_path / "log").open("w") as errors,
        subprocess.Popen(command, env=node.environment, stdout=write, stderr=errors) as front,
    ):
        os.close(write)
        output = Path(f"/proc/{front.pid}/fd/1")
        wait_until(lambda: output.readlink() == Path(os.devnull), "it has no output any more")
        front.send_signal(signal.SIGTERM)
        front.wait(30)
    assert not is_mounted(mountpoint)


def test_fstab_helper(node: Node, bucket: Bucket) -> None:
    """`mount -t cachefs` by its helper, as an fstab line would."""
    bucket.put("a", b"x")
    mountpoint = node.mountpoint()
    node.mountpoints.append(mountpoint)
    helper = Path(sys.executable).parent / "mount.cachefs"
    options = f"rw,nofail,_netdev,endpoint_url={bucket.endpoint_url},file-mode=0600"
    subprocess.run(
        [helper, bucket.url, mountpoint, "-o", options],
        env=node.environment,
        check=True,
        timeout=60,
    )
    assert (mountpoint / "a").read_bytes() == b"x"
    assert (mountpoint / "a").stat().st_mode & 0o777 == 0o600
    node.umount(mountpoint)


def test_the_server_dies_and_the_mount_goes_on(node: Node, bucket: Bucket) -> None:
    files = images(10)
    bucket.fill(files)
    mounted = node.mount(bucket.url, *bucket.options)
    node.allowed_log.append(r"server|connection")
    some = sorted(files)[:5]
    assert [digest((mounted / name).read_bytes()) for name in some] == [
        digest(files[name]) for name in some
    ]
    pid = next(p["pid"] for p in node.processes(mounted) if p["role"] == "server")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid), "the server is dead")
    assert digests(mounted) == expected(files)
    node.umount(mounted)


def test_killed_in_the_middle_of_a_fill(node: Node, bucket: Bucket, proxy: FaultProxy) -> None:
    """Every byte right after it, and only pages that were under way fetched again."""
    size = 64 * MIB
    data = body(11, size)
    bucket.put("big", data)
    mounted = node.mount(bucket.url, *bucket.options)
    reader_done = threading.Event()
    proxy.rate_bytes_per_s = 24 * MIB

    def recorded() -> int:
        """What a SIGKILL leaves of what came, once that is 40 MiB."""
        cache = node.status(mounted)["cache"]
        fetched = int(cache["origin_bytes"])
        return fetched if fetched >= 40 * MIB and not cache["tiers"][0]["commits_waiting"] else 0

    def read() -> None:
        try:
            (mounted / "big").read_bytes()
        except OSError:
            pass  # the mount died under it
        finally:
            reader_done.set()

    threading.Thread(target=read, daemon=True).start()
    fetched = wait_until(recorded, "40 MiB are recorded")
    node.kill_all(mounted)
    proxy.rate_bytes_per_s = None
    subprocess.run(["umount", "-l", str(mounted)], check=False)
    assert reader_done.wait(20)
    mounted = node.mount(bucket.url, *bucket.options)
    assert digest((mounted / "big").read_bytes()) == digest(data)
    again = node.status(mounted)["cache"]["origin_bytes"]
    assert again <= size - fetched + 33 * MIB, "kept nothing of the first fill"
    node.umount(mounted)


class Start(NamedTuple):
    """`cachefs mount` before the start of its client, which begins with `go_on`."""

    command: subprocess.Popen[str]
    server: int
    go_on: Callable[[], None]


@contextlib.contextmanager
def starting(node: Node, source: Path, mountpoint: Path) -> Iterator[Start]:
    """Starts `cachefs mount`, and holds it up once its server runs: what its client writes to
    standard error goes into a named pipe, which opens when the test reads it."""
    node.mountpoints.append(mountpoint)
    home, spec = StateHome(str(node.state)), UfsSpec(f"file://{source}")
    errors = Path(client_log(home, spec, str(mountpoint))).with_suffix(".err")
    os.mkfifo(errors)
    line = [str(CACHEFS), "mount", spec.url, str(mountpoint)]
    with contextlib.ExitStack() as stack:
        pipes: dict[str, Any] = dict.fromkeys(["stdout", "stderr"], subprocess.PIPE)
        command = subprocess.Popen(line, env=node.environment, text=True, **pipes)
        stack.enter_context(command)
        stack.callback(command.kill)

        def go_on() -> None:
            stack.callback(os.close, os.open(errors, os.O_RDONLY))
            errors.unlink()

        wait_until(lambda: "fifo_open" in waits(command.pid), "the client is next")
        pointer = read_pointer(home.source_dir(spec))
        assert pointer is not None
        yield Start(command, pointer.pid, go_on)


def test_a_server_that_is_killed_before_the_client_connects_is_replaced(
    node: Node, tmp_path: Path
) -> None:
    node.allowed_log.append(r"server|client")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_bytes(b"x")
    mountpoint = node.mountpoint()
    with starting(node, tmp_path / "source", mountpoint) as start:
        os.kill(start.server, signal.SIGKILL)
        start.go_on()
        said, errors = start.command.communicate(timeout=60)
    assert (start.command.returncode, errors) == (0, ""), said
    assert (mountpoint / "a").read_bytes() == b"x"
    node.umount(mountpoint)


def test_what_a_terminated_command_has_started_ends_with_it(node: Node, tmp_path: Path) -> None:
    """systemd sends SIGTERM to the command of a mount that takes too long."""
    node.allowed_log.append(r"client")  # the server may end before it has connected
    (tmp_path / "source").mkdir()
    mountpoint = node.mountpoint()
    with starting(node, tmp_path / "source", mountpoint) as start:
        stop(start.server)  # the mount does not come before the signal
        before = children(start.command.pid)
        start.go_on()
        client = next_child(start.command.pid, before)
        start.command.terminate()
        os.kill(start.server, signal.SIGCONT)
        assert start.command.wait(60)
    assert not is_running(client)
    assert not is_running(start.server)
    assert not is_mounted(mountpoint)


def test_commands_at_the_same_time_mount_once(node: Node, tmp_path: Path) -> None:
    """[S-one-mount]"""
    (tmp_path / "source").mkdir()
    mountpoint = node.mountpoint()
    with starting(node, tmp_path / "source", mountpoint) as start:
        refused = node.fails("mount", f"file://{tmp_path}", mountpoint)
        start.go_on()
        assert start.command.wait(60) == 0
    assert "another command mounts there" in refused
    node.umount(mountpoint)
    assert not is_mounted(mountpoint)
