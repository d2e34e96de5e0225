"""[S-deadline] Every system call on a mount ends within `--origin-deadline`, whatever the origin
does with a request: it refuses it, is silent, or stops or drips in the middle of a body."""

from __future__ import annotations

import errno
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.conftest import Bucket, Node
from tests.integration.dataset import body
from tests.services.cluster import Cluster
from tests.services.hanging_disk import hanging_disk
from tests.services.processes import wait_until
from tests.services.proxy import FaultProxy, drip_body, hang, stall_body

MIB = 1 << 20
DEADLINE_S = 2.0
SLACK_S = 5.0  # 2 s are promised; the rest is for a busy machine
OPTIONS = ("--origin-deadline", f"{DEADLINE_S:g}s")
SMALL = 200_000


def failed_after(call: Callable[[], object]) -> float:
    """How long a call took to raise EIO, in seconds. Fails where it succeeds."""
    began_s = time.monotonic()
    with pytest.raises(OSError) as caught:
        call()
    assert caught.value.errno == errno.EIO
    return time.monotonic() - began_s


def opened(path: Path) -> None:
    os.close(os.open(path, os.O_RDONLY))


def check_all(calls: dict[str, Callable[[], object]]) -> None:
    """Makes all calls at once. Each must fail within the deadline."""
    with ThreadPoolExecutor(len(calls)) as threads:
        took_s = dict(zip(calls, threads.map(failed_after, calls.values()), strict=True))
    print("\n", took_s)
    assert all(took < DEADLINE_S + SLACK_S for took in took_s.values()), took_s


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Set at the end, so that what hangs goes on."""
    event = threading.Event()
    yield event
    event.set()


def test_bodies_of_large_files_stop(node: Node, bucket: Bucket, proxy: FaultProxy) -> None:
    """In the middle of the first page, and of a later one."""
    bucket.fill({"stalls": body(1, 24 * MIB), "drips": body(2, 24 * MIB)})
    mounted = node.mount(bucket.url, *bucket.options, *OPTIONS)
    node.allowed_log.append("WARNING")
    proxy.script(stall_body(300_000), method="GET", key="stalls", times=None)
    proxy.script(drip_body(1024, 300_000), method="GET", key="drips", times=None)
    files = {name: os.open(mounted / name, os.O_RDONLY) for name in ("stalls", "drips")}
    calls: dict[str, Callable[[], object]] = {}
    for name, fd in files.items():
        for offset in (0, 16 * MIB + 5):
            calls[f"{name} at {offset}"] = functools.partial(os.pread, fd, MIB, offset)
    check_all(calls)
    for fd in files.values():
        os.close(fd)


def test_bodies_of_small_files_stop(node: Node, bucket: Bucket, proxy: FaultProxy) -> None:
    """First by the threads that bring small files, then by the process that does."""
    bucket.fill(
        {f"{kind}{n}": body(n, SMALL) for kind in ("good", "stalls", "drips") for n in (0, 1, 2)}
    )
    mounted = node.mount(bucket.url, *bucket.options, *OPTIONS)
    node.allowed_log.append("WARNING")
    stalls = proxy.script(stall_body(100), method="GET", key="stalls", times=None)
    drips = proxy.script(drip_body(1024), method="GET", key="drips", times=None)
    check_all({name: functools.partial(opened, mounted / name) for name in ("stalls0", "drips0")})
    for n in (0, 1, 2):
        assert (mounted / f"good{n}").read_bytes() == body(n, SMALL)
    names = "stalls1", "stalls2", "drips1", "drips2"
    check_all({name: functools.partial(opened, mounted / name) for name in names})
    assert stalls.hits >= 3
    assert drips.hits >= 3


def test_an_origin_that_is_slow_and_goes_on_sending(
    node: Node, bucket: Bucket, proxy: FaultProxy
) -> None:
    """All files together take longer than the deadline; no call fails while pages come."""
    size, names = 3 * MIB, [f"slow{n}" for n in range(6)]
    bucket.fill({name: body(n, size) for n, name in enumerate(names)})
    mounted = node.mount(bucket.url, *bucket.options, *OPTIONS)
    assert sorted(os.listdir(mounted)) == names
    began_s = time.monotonic()
    proxy.rate_bytes_per_s = 4 * MIB
    with ThreadPoolExecutor(len(names)) as threads:
        found = [*threads.map(lambda name: (mounted / name).read_bytes(), names)]
    assert time.monotonic() - began_s > DEADLINE_S + 1.0  # else this shows nothing
    assert found == [body(n, size) for n in range(len(names))]


def test_an_origin_that_is_silent(
    node: Node, bucket: Bucket, proxy: FaultProxy, gate: threading.Event
) -> None:
    """Names that are not known, and bytes that are not cached. The second system call that asks
    for a name that is known needs no more than the first one."""
    bucket.fill({"small": body(1, SMALL), "large": body(2, 32 * MIB), "a/b/c": b"x"})
    mounted = node.mount(bucket.url, *bucket.options, "--sync-interval", "1s", *OPTIONS)
    node.allowed_log.append("WARNING")
    assert sorted(os.listdir(mounted)) == ["a", "large", "small"]
    old_at_s = time.monotonic() + 1.5
    proxy.script(hang(gate), times=None)
    wait_until(lambda: time.monotonic() > old_at_s, "the names are old")
    check_all(
        {
            "open of a small file": lambda: opened(mounted / "small"),
            "read of a large file": lambda: (mounted / "large").read_bytes(),
            "stat": lambda: os.stat(mounted / "none"),
            "stat below": lambda: os.stat(mounted / "a" / "b" / "c"),
            "readdir": lambda: os.listdir(mounted / "a"),
        }
    )


def test_a_load_job_leaves_readers_their_deadline(
    node: Node, bucket: Bucket, proxy: FaultProxy, gate: threading.Event
) -> None:
    """The job's requests hang. What they do not hang on reads at once."""
    names = [f"load/{n:03}" for n in range(300)]
    bucket.fill({**dict.fromkeys(names, b"loaded"), "other": body(2, SMALL)})
    mounted = node.mount(bucket.url, *bucket.options, *OPTIONS)
    node.allowed_log.append("WARNING")
    assert sorted(os.listdir(mounted)) == ["load", "other"]
    assert len(os.listdir(mounted / "load")) == len(names)
    proxy.script(hang(gate), method="GET", key="load/", times=None)
    node.ok("load", mounted / "load")
    proxy.wait_until(lambda seen: sum(map(seen.requests_by_key.__getitem__, names)) >= 40, 20)
    began_s = time.monotonic()
    assert (mounted / "other").read_bytes() == body(2, SMALL)
    assert time.monotonic() - began_s < DEADLINE_S + SLACK_S
    check_all({name: (mounted / name).read_bytes for name in names[::60]})


def test_in_a_cluster(
    cluster: Cluster, bucket: Bucket, proxy: FaultProxy, gate: threading.Event
) -> None:
    """The owner, who asks the origin, and then this node: together one deadline. A name is asked
    for by the master."""
    files = [f"{n}" for n in range(8)]
    bucket.fill(
        {name: body(1, SMALL) for name in files} | {"large": body(2, 24 * MIB), "d/f": b"x"}
    )
    cluster.master.command += OPTIONS
    cluster.start(2, *OPTIONS)
    cluster.add_ufs(bucket.url, "/data", *bucket.options)
    mounted = cluster.mount(0, "/data")
    cluster.wait_until_met()
    assert sorted(os.listdir(mounted)) == [*files, "d", "large"]
    proxy.script(hang(gate), times=None)
    fd = os.open(mounted / "large", os.O_RDONLY)
    reads = {f"read at {at}": functools.partial(os.pread, fd, 100, at) for at in (0, 16 * MIB)}
    opens = {name: functools.partial(opened, mounted / name) for name in files}
    check_all({**reads, **opens, "stat": functools.partial(os.stat, mounted / "d" / "f")})
    os.close(fd)


def test_a_directory_whose_disk_hangs(node: Node, tmp_path: Path) -> None:
    """The threads that are in it end when it answers again; nobody waits for them."""
    with hanging_disk(tmp_path) as disk:
        (disk.below / "d").mkdir()
        for name in ("small", "other", "d/unknown"):
            (disk.below / name).write_bytes(body(1, SMALL))
        mounted = node.mount(f"file://{disk.path}", *OPTIONS)
        node.allowed_log.append("WARNING")
        assert sorted(os.listdir(mounted)) == ["d", "other", "small"]
        disk.hang()
        check_all(
            {
                "open": lambda: opened(mounted / "small"),
                "stat": lambda: os.stat(mounted / "d" / "unknown"),
                "readdir": lambda: os.listdir(mounted / "d"),
            }
        )
        disk.go_on()
        wait_until(lambda: (mounted / "other").read_bytes() == body(1, SMALL), "it reads again")
        node.umount(mounted)
