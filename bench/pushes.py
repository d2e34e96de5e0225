"""Events of an S3 store cost the master <= 200 us of CPU a change, which is 20 % of a core at
1,000 changes/s, and 95 of 100 changes are seen through a mount of another node within a second by
webhook, and within 3 s by a queue of SQS.

The store is versitygw, with the queue moto. The CPU is measured while a sender posts events of
objects that really were replaced, at 1,000 changes/s, in messages of 1, 10 and 100 events, one
after the other or by several connections at once, as stores post them; and while the master reads
as many messages, each with one event, of a queue that has ten in a reply (`bench/queue_origin.py`),
and of moto's, which is slow. The time to the new bytes is measured
with the store's own events, from the end of the PUT.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import select
import statistics
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from bench.harness import Lab, main
from bench.machine import cpu_s
from bench.mounts import BenchFailed
from bench.origin import REPOSITORY
from bench.report import Result
from connectors.credential import DIRECTORY_VARIABLE
from tests.services.cluster import Cluster
from tests.services.moto_s3 import event_queue, moto_s3, sqs_client
from tests.services.processes import wait_until
from tests.services.versitygw import ACCESS_KEY, SECRET_KEY, versitygw

SECRET: Final = "the-secret-of-the-bench"  # noqa: S105
PER_S: Final = 1000
SENDERS: Final = ((1, 1), (1, 16), (10, 4), (100, 1))  # events in a message, and connections
BARS: Final = SENDERS[1:]
CPU_US: Final = 200.0
SEEN_S: Final = 1.0
QUEUE_SEEN_S: Final = 3.0
WEBHOOK: Final = "webhook:hook"
PUTS_AT_ONCE: Final = 8
LIMIT_S: Final = 60.0


def run(lab: Lab, result: Result) -> None:
    credentials = lab.root / "credentials"
    (credentials / "hook").mkdir(parents=True)
    (credentials / "hook" / "webhook_secret").write_text(SECRET)
    variables = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        DIRECTORY_VARIABLE: str(credentials),
    }
    webhooks(lab, result, variables)
    full_queue(lab, result, variables)
    queues(lab, result)


def full_queue(lab: Lab, result: Result, variables: dict[str, str]) -> None:
    """Measures the CPU of the master for messages of one change each, of which a queue delivers ten
    in a reply, as SQS does."""
    changes = lab.size(3000, 1000)
    with (
        versitygw(lab.root / "with-queue") as server,
        Cluster(lab.root / "full-queue", variables) as cluster,
    ):
        cluster.start(2)
        server.client().create_bucket(Bucket="bucket")
        mount, _ = shown(cluster, server, "/cpu", changes, "none")
        replace(server, changes, b"xx")
        with queue_origin(changes, "cpu/") as (url, ends):
            at = ("--master", cluster.master.url)
            before_s, began_s = cpu_s([cluster.master.pid]), time.monotonic()
            cluster.master.run("ufs", "set", "/cpu", "--push", f"sqs:{url}", *at)
            ends()
            wall_s = time.monotonic() - began_s
            time.sleep(2.0)  # what the master does later is counted, too
            used_us = (cpu_s([cluster.master.pid]) - before_s) / changes * 1e6
        wait_until(lambda: all_have(mount, 2), "every change is seen", LIMIT_S)
    title = f"{changes:,} messages, {PER_S:,} a second, of a queue with ten in a reply"
    result.table(title, "CPU us each", "changes/s").add(used_us, changes / wall_s)
    result.bar(
        "CPU of a change, 1 a message, by a queue with ten in a reply", used_us, CPU_US, "us"
    )


@contextlib.contextmanager
def queue_origin(messages: int, prefix: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """Runs a queue; yields its URL, and what waits until all messages are deleted."""
    command = [sys.executable, "-m", "bench.queue_origin", "--messages", str(messages)]
    command += ["--rate", str(PER_S), "--prefix", prefix]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = process.stdout

        def ends() -> None:
            if not select.select([lines], [], [], LIMIT_S)[0] or not lines.readline():
                raise BenchFailed("the queue's messages were not deleted in time")

        try:
            yield json.loads(lines.readline())["url"], ends
        finally:
            process.stdin.close()


def queues(lab: Lab, result: Result) -> None:
    with moto_s3(lab.root / "moto") as server:
        client = server.client()
        client.create_bucket(Bucket="bucket")
        feed = f"sqs:{event_queue(server, 'bucket')}"
        with Cluster(lab.root / "queues", server.credentials()) as cluster:
            cluster.start(2)
            seen = "from a PUT to its bytes in both nodes, by a queue"
            changes = lab.size(100, 20)
            time_to_bytes(cluster, server, result, changes, feed, (seen, QUEUE_SEEN_S))
            backlog(cluster, server, result, lab.size(300, 100))


def backlog(cluster: Cluster, server: Any, result: Result, changes: int) -> None:
    """Measures the CPU of the master for messages of a queue, each of one change."""
    sender, name = sqs_client(server), "backlog"
    queue = sender.create_queue(QueueName=name)["QueueUrl"]
    mount, _ = shown(cluster, server, "/cpu", changes, "none")
    client = server.client()
    for number in range(changes):
        put(client, f"cpu/{number}", b"xx")
        send(sender, queue, number)
    at = ("--master", cluster.master.url)
    before_s, began_s = cpu_s([cluster.master.pid]), time.monotonic()
    cluster.master.run("ufs", "set", "/cpu", "--push", f"sqs:{queue}", *at)
    wait_until(lambda: all_have(mount, 2), "every change is seen", 300)
    wall_s = time.monotonic() - began_s
    used_us = (cpu_s([cluster.master.pid]) - before_s) / changes * 1e6
    table = result.table(
        f"{changes:,} messages of a queue, one change each", "CPU us each", "changes/s"
    )
    table.add(used_us, changes / wall_s)
    result.bar("CPU of a change in a queue", used_us, CPU_US, "us")
    result.notes.append(
        f"moto sends about {changes / wall_s:.0f} messages a second: all of them took"
        f" {changes / wall_s * used_us / 1e4:.1f} % of a core."
    )


def send(sender: Any, queue: str, number: int) -> None:
    record = {"s3": {"bucket": {"name": "bucket"}, "object": {"key": f"cpu/{number}"}}}
    sender.send_message(QueueUrl=queue, MessageBody=json.dumps({"Records": [record]}))


def webhooks(lab: Lab, result: Result, variables: dict[str, str]) -> None:
    with Cluster(lab.root / "cluster", variables) as cluster:
        cluster.start(2)
        url = f"{cluster.master.url}/api/v1/sources/events?path=/im"
        own = f"{url}&secret={urllib.parse.quote(SECRET)}"
        with (
            versitygw(lab.root / "pushing", events_url=own) as pushing,
            versitygw(lab.root / "silent") as silent,
        ):
            seen = "from a PUT to its bytes in both nodes, by webhook"
            changes = lab.size(300, 40)
            time_to_bytes(cluster, pushing, result, changes, WEBHOOK, (seen, SEEN_S))
            cpu(cluster, silent, url, result, lab.size(3000, 300))


def time_to_bytes(
    cluster: Cluster, server: Any, result: Result, changes: int, feed: str, bar: tuple[str, float]
) -> None:
    text, seen_s = bar
    mounts = shown(cluster, server, "/im", changes, feed)
    client, delays = server.client(), []
    for number in range(changes):
        body = b"second %d" % number
        client.put_object(Bucket="bucket", Key=f"im/{number}", Body=body)
        began_s = time.monotonic()
        paths = [mount / str(number) for mount in mounts]
        wait_until(functools.partial(all_hold, paths, body), "seen", LIMIT_S)
        delays.append(time.monotonic() - began_s)
    slow_s = statistics.quantiles(delays, n=20)[-1]
    table = result.table(text, "changes", "median ms", "p95 ms")
    table.add(changes, statistics.median(delays) * 1000, slow_s * 1000)
    result.bar(f"95 of 100 changes, {text}", slow_s, seen_s, "s")


def cpu(cluster: Cluster, server: Any, url: str, result: Result, changes: int) -> None:
    mount, _ = shown(cluster, server, "/cpu", changes, WEBHOOK)
    parts = urllib.parse.urlsplit(url.replace("/im", "/cpu"))
    title = f"{changes:,} changes, {PER_S:,} a second"
    table = result.table(title, "events a message", "connections", "CPU us each", "changes/s")
    for turn, (size, connections) in enumerate(SENDERS):
        body = b"x" * (turn + 2)
        replace(server, changes, body)
        time.sleep(1.0)
        before_s, began_s = cpu_s([cluster.master.pid]), time.monotonic()
        post(parts, changes, size, connections)
        wall_s = time.monotonic() - began_s
        time.sleep(2.0)  # what the master does later is counted, too
        used_us = (cpu_s([cluster.master.pid]) - before_s) / changes * 1e6
        table.add(size, connections, used_us, changes / wall_s)
        wait_until(functools.partial(all_have, mount, len(body)), "every change is seen", LIMIT_S)
        if (size, connections) in BARS:
            by = f"{connections} connections" if connections > 1 else "one connection"
            result.bar(f"CPU of a change, {size} a message, {by}", used_us, CPU_US, "us")


def shown(cluster: Cluster, server: Any, path: str, changes: int, feed: str) -> list[Path]:
    """Adds a source with `changes` objects; returns the mounts of both nodes, which read it."""
    client = server.client()
    if feed == WEBHOOK:
        client.create_bucket(Bucket="bucket")
    with ThreadPoolExecutor(PUTS_AT_ONCE) as pool:
        list(pool.map(lambda n: put(client, f"{path[1:]}/{n}", b"1"), range(changes)))
    options = ("--endpoint-url", server.endpoint_url, "--sync-interval", "1h", "--push", feed)
    cluster.add_ufs(f"s3://bucket{path}", path, *options)
    mounts = [worker.mount(cluster.path(path), name=path[1:]) for worker in cluster.workers]
    for mount in mounts:
        if len(os.listdir(mount)) != changes:
            raise BenchFailed(f"{path} is not complete")
    return mounts


def all_have(mount: Path, size: int) -> bool:
    return all(path.stat().st_size == size for path in mount.iterdir())


def all_hold(paths: list[Path], body: bytes) -> bool:
    return all(path.read_bytes() == body for path in paths)


def replace(server: Any, changes: int, body: bytes) -> None:
    client = server.client()
    with ThreadPoolExecutor(PUTS_AT_ONCE) as pool:
        list(pool.map(lambda n: put(client, f"cpu/{n}", body), range(changes)))


def put(client: Any, key: str, body: bytes) -> None:
    client.put_object(Bucket="bucket", Key=key, Body=body)


def post(url: urllib.parse.SplitResult, changes: int, size: int, connections: int) -> None:
    """Posts the events over so many connections, `size` a message. Each waits for its answers."""
    messages, began_s = iter(range(0, changes, size)), time.monotonic()

    def send_all(_: int) -> None:
        assert url.hostname is not None
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=LIMIT_S)
        for first in messages:
            time.sleep(max(0.0, began_s + first / PER_S - time.monotonic()))
            post_one(
                connection, f"{url.path}?{url.query}", range(first, min(first + size, changes))
            )
        connection.close()

    with ThreadPoolExecutor(connections) as pool:
        list(pool.map(send_all, range(connections)))


def post_one(connection: http.client.HTTPConnection, target: str, numbers: range) -> None:
    records = [
        {"s3": {"bucket": {"name": "bucket"}, "object": {"key": f"cpu/{number}"}}}
        for number in numbers
    ]
    headers = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
    connection.request("POST", target, json.dumps({"Records": records}), headers)
    reply = connection.getresponse()
    if reply.read() and reply.status != http.client.NO_CONTENT:
        raise BenchFailed(f"the master refused events: {reply.status}")


if __name__ == "__main__":
    main(run)
