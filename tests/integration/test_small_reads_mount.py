"""Many small files by many readers through a real mount: cut connections, errors and deaths of the
server cost requests, never a wrong byte."""

from __future__ import annotations

import concurrent.futures
import errno
import os
import random
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

from connectors.fetch.request import AT_ONCE
from tests.integration.conftest import Bucket, Node
from tests.integration.dataset import digests, expected, images
from tests.services.processes import is_running, wait_until
from tests.services.proxy import Counters, FaultProxy, cut_body, status

FILES = 300
READERS = 16
SEED = random.SystemRandom().getrandbits(32)


@pytest.fixture
def rng() -> random.Random:
    print(f"seed {SEED}")
    return random.Random(SEED)


@pytest.fixture
def files(bucket: Bucket) -> dict[str, bytes]:
    made = images(FILES)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda item: bucket.put(*item), made.items()))
    return made


def read_all(mounted: Path, files: dict[str, bytes], rng: random.Random) -> list[str]:
    """Names of the files that were not right."""
    names = rng.sample(sorted(files), len(files))
    with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
        right = list(pool.map(lambda name: (mounted / name).read_bytes() == files[name], names))
    return [name for name, is_right in zip(names, right, strict=True) if not is_right]


def server_of(node: Node, mounted: Path) -> int:
    pids: list[int] = [p["pid"] for p in node.processes(mounted) if p["role"] == "server"]
    return pids[0]


def counts_connections(node: Node, mounted: Path, proxy: FaultProxy) -> bool:
    """Returns whether the figures of the source are those of its server."""
    made = proxy.counters().connections
    origin = node.status(mounted)["sources"][0]["origin"]
    handshakes = made if proxy.endpoint_url.startswith("https:") else 0
    return (origin["connections"], origin["handshakes"]) == (made, handshakes)


def test_small_files_come_once_with_few_connections(
    node: Node, bucket: Bucket, proxy: FaultProxy, files: dict[str, bytes], rng: random.Random
) -> None:
    mounted = node.mount(bucket.url, *bucket.options)
    assert sum(len(names) for _, _, names in os.walk(mounted)) == FILES
    first = sorted(files)[0]
    assert (mounted / first).read_bytes() == files[first]
    before = proxy.counters()
    assert read_all(mounted, files, rng) == []
    seen = proxy.counters()
    assert seen.object_bytes == sum(map(len, files.values()))
    asked = seen.requests_by_key - before.requests_by_key
    del asked[""]  # a busy machine takes so long that directories are listed again
    assert asked == Counter(files.keys() - {first}), "each file is asked for once"
    # Those of the threads before anything was learned, and those of the one.
    assert seen.connections - before.connections <= READERS + AT_ONCE, "they are kept"
    cache = node.status(mounted)["cache"]
    assert cache["origin_bytes"] == seen.object_bytes
    wait_until(lambda: counts_connections(node, mounted, proxy), "each connection is counted")
    assert digests(mounted) == expected(files)
    assert proxy.counters().object_bytes == seen.object_bytes


def test_cut_connections_cost_a_file_each(
    node: Node, bucket: Bucket, proxy: FaultProxy, files: dict[str, bytes], rng: random.Random
) -> None:
    mounted = node.mount(bucket.url, *bucket.options)
    node.allowed_log.append("cut|again|retry|early")
    cuts = 20
    armed = [
        proxy.script(cut_body(rng.randrange(30_000)), method="GET", key=name)
        for name in rng.sample(sorted(files), cuts)
    ]
    assert read_all(mounted, files, rng) == []
    assert sum(one.hits for one in armed) == cuts
    most = sum(map(len, files.values())) + cuts * max(map(len, files.values()))
    assert proxy.counters().object_bytes <= most
    assert node.status(mounted)["cache"]["origin_bytes"] <= most
    assert digests(mounted) == expected(files)


def test_connections_cut_all_at_once(
    node: Node, bucket: Bucket, proxy: FaultProxy, files: dict[str, bytes], rng: random.Random
) -> None:
    """Three times, while they are read: at most what each of the readers was at comes again."""
    mounted = node.mount(bucket.url, *bucket.options)
    node.allowed_log.append("cut|again|retry|early|reset|unreachable")
    proxy.latency_s = 0.01
    times = 3

    def reached(count: int) -> None:
        def are(seen: Counters) -> bool:
            return seen.object_bytes > count

        proxy.wait_until(are, 60)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_all, mounted, files, rng)
        for part in range(1, times + 1):
            reached(part * sum(map(len, files.values())) // (times + 1))
            proxy.cut_connections()
        assert reading.result(120) == []
    largest = max(map(len, files.values()))
    # A reader has one file in flight. Another thread reads what the one for small files cannot.
    most = sum(map(len, files.values())) + times * READERS * largest
    assert proxy.counters().object_bytes <= most
    assert digests(mounted) == expected(files)


def test_throttling_is_not_seen(
    node: Node, bucket: Bucket, proxy: FaultProxy, files: dict[str, bytes], rng: random.Random
) -> None:
    mounted = node.mount(bucket.url, *bucket.options)
    node.allowed_log.append("retry|again|SlowDown|Internal")
    armed = [
        proxy.script(status(number, code=code), method="GET", key=r"\.jpg$", nth=nth, times=4)
        for number, code, nth in [(503, "SlowDown", 5), (500, "InternalError", 100)]
    ]
    assert read_all(mounted, files, rng) == []
    assert all(one.hits == 4 for one in armed)
    assert node.status(mounted)["cache"]["origin_bytes"] == sum(map(len, files.values()))


def test_replaced_and_deleted_among_others(
    node: Node, bucket: Bucket, files: dict[str, bytes], rng: random.Random
) -> None:
    """Names that the node knows already: their open gives the new bytes, or ENOENT."""
    mounted = node.mount(bucket.url, *bucket.options, "--sync-interval", "1h")
    node.allowed_log.append("changed at its origin|no such")
    for directory, _, names in os.walk(mounted):
        for name in names:
            os.stat(os.path.join(directory, name))
    first, *others = rng.sample(sorted(files), 21)
    assert (mounted / first).read_bytes() == files[first]
    replaced, gone = others[:10], others[10:]
    for name in replaced:
        files[name] = rng.randbytes(len(files[name]))
        bucket.put(name, files[name])
    for name in gone:
        bucket.delete(name)
        del files[name]
    for name in gone[:3]:
        with pytest.raises(OSError) as caught:
            (mounted / name).read_bytes()
        assert caught.value.errno in (errno.ENOENT, errno.ESTALE)
    assert read_all(mounted, files, rng) == []


def test_the_server_is_killed_while_they_are_read(
    node: Node, bucket: Bucket, proxy: FaultProxy, files: dict[str, bytes], rng: random.Random
) -> None:
    """Readers wait for the next one and get every byte; so does who mounts anew afterwards."""
    mounted = node.mount(bucket.url, *bucket.options, "--transport", "kernel")
    node.allowed_log.append(r"client|supervisor|server|connection|took over|killed|died|lost")
    total = sum(map(len, files.values()))
    proxy.latency_s = 0.01
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_all, mounted, files, rng)
        proxy.wait_until(lambda seen: seen.object_bytes > total // 3, 60)
        server = server_of(node, mounted)
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: not is_running(server), "the server is dead")
        assert reading.result(120) == []
    proxy.latency_s = 0.0
    node.umount(mounted)
    mounted = node.mount(bucket.url, *bucket.options)
    assert digests(mounted) == expected(files)


def test_everything_is_killed_and_mounted_again(
    node: Node, bucket: Bucket, proxy: FaultProxy, files: dict[str, bytes], rng: random.Random
) -> None:
    """What the index had is warm, the rest comes again, and nothing wrong is in either."""
    mounted = node.mount(bucket.url, *bucket.options)
    total = sum(map(len, files.values()))
    proxy.latency_s = 0.01
    stop = threading.Event()

    def read_until_dead(names: list[str]) -> list[str]:
        wrong = []
        for name in names:
            if stop.is_set():
                break
            try:
                if (mounted / name).read_bytes() != files[name]:
                    wrong.append(name)
            except OSError:
                break
        return wrong

    with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
        readers = [
            pool.submit(read_until_dead, rng.sample(sorted(files), FILES)) for _ in range(READERS)
        ]
        proxy.wait_until(lambda seen: seen.object_bytes > total // 2, 60)
        stop.set()
        node.kill_all(mounted)
        assert [reader.result(60) for reader in readers] == [[]] * READERS
    proxy.latency_s = 0.0
    node.allowed_log.append(r"client|supervisor|server|connection|took over|killed|died|lost")
    mounted = node.mount(bucket.url, *bucket.options)
    assert read_all(mounted, files, rng) == []
    assert digests(mounted) == expected(files)


REFUSAL_BYTES = 2 << 20
MEMORY_BYTES = 64 << 20  # of 150 requests at once, then again by threads: 64 KiB of each refusal


def anonymous_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) << 10


def test_large_bodies_of_refusals_take_no_memory(
    node: Node, bucket: Bucket, proxy: FaultProxy, files: dict[str, bytes]
) -> None:
    """300 MB and more are offered to the loop and to the threads, which request refused files
    again."""
    mounted = node.mount(bucket.url, *bucket.options, "--files-ahead", "0")
    node.allowed_log.append("access denied|AccessDenied")
    names = sorted(files)
    assert (mounted / names[0]).read_bytes() == files[names[0]]
    proxy.latency_s = 0.05  # so that all are on their way at once
    half = FILES // 2

    def read(name: str) -> bool:
        try:
            return (mounted / name).read_bytes() == files[name]
        except PermissionError:
            return False

    with concurrent.futures.ThreadPoolExecutor(half) as pool:
        assert all(pool.map(read, names[:half]))
        server = server_of(node, mounted)
        before = anonymous_bytes(server)
        refusal = status(403, code="AccessDenied", message="x" * REFUSAL_BYTES)
        armed = proxy.script(refusal, method="GET", key=".", times=None)
        assert not any(pool.map(read, names[half:]))
        assert armed.hits > half, "some were refused to the loop, and then to a thread"
        assert armed.hits * REFUSAL_BYTES > 300e6
        assert anonymous_bytes(server) - before < MEMORY_BYTES
        proxy.clear()
        assert all(pool.map(read, names[half:]))
