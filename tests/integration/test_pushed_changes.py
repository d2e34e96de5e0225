"""Changes that a store pushes: versitygw's webhook to a master, seen through mounts of two nodes;
and senders that are none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import statistics
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from cachefs.core import cluster as c
from cachefs.core.model import UfsSpec
from cachefs.core.ufs import MAX_PUSHED
from cachefs.network import unauthenticated
from connectors.credential import DIRECTORY_VARIABLE
from master.push.webhook_secrets import WebhookSecrets
from master.server.admin import app
from master.server.admin.routes import MAX_EVENTS_BYTES
from tests.integration.test_admin_api import ALL, TOKENS, Api, api
from tests.services.cluster import Cluster
from tests.services.http_master import run
from tests.services.processes import wait_until
from tests.services.s3_server import S3Server
from tests.services.versitygw import ACCESS_KEY, SECRET_KEY, versitygw

SECRET = "the-secret-of-the-tests"  # noqa: S105
EVENTS = "/sources/events?path=/im"
CHANGES = 40
LIMIT_S = 20.0
SEEN_S = 10.0  # 95 of 100 changes, on a busy machine; the bench has the bar of a second


def message(*keys: str, bucket: str = "bucket") -> dict[str, Any]:
    records = [{"s3": {"bucket": {"name": bucket}, "object": {"key": key}}} for key in keys]
    return {"Records": records}


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of credentials, with one named `hook`."""
    directory = tmp_path / "credentials"
    (directory / "hook").mkdir(parents=True)
    (directory / "hook" / "webhook_secret").write_text(SECRET)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(directory))
    return directory


# ---- senders -------------------------------------------------------------------------------------


async def listening(it: Api) -> None:
    """A source at /im that accepts events."""
    await it.cluster.add(b"/im", {b"f": b"1"}, token=ALL)
    body = {"push": "webhook:hook"}
    status, row = await it("PATCH", "/sources?path=/im", body, ALL)
    assert status == 200, row
    assert row["push"] == "webhook:hook"


def test_a_sender_needs_the_secret_of_the_source(tmp_path: Path, secrets: Path) -> None:
    async def work() -> None:
        async with api(tmp_path, TOKENS) as it:
            await it.cluster.add(b"/silent", {b"f": b"1"}, token=ALL)
            assert (await it("POST", EVENTS, message("im/f"), SECRET))[0] == 403, "no source yet"
            await listening(it)
            for path in (EVENTS, f"{EVENTS}&secret=wrong", EVENTS.replace("/im", "/silent")):
                assert (await it("POST", path, message("im/f")))[0] == 403
            assert (await it("POST", EVENTS, message("im/f"), ALL))[0] == 403, "a token is none"
            assert (await it("GET", EVENTS, None, SECRET))[0] == 405
            assert (await it("GET", "/status", None, SECRET))[0] == 401, "it opens nothing else"
            assert (await it("POST", EVENTS, message("im/f"), SECRET))[0] == 204
            assert (await it("POST", f"{EVENTS}&secret={SECRET}", {}))[0] == 204, "of a test"
            _, page = await it("GET", "/sources", None, ALL)
            (row,) = [one for one in page["items"] if one["path"] == "/im"]
            assert row["pushed"] == 1
            assert SECRET not in str(page)

    run(work())


def test_the_connection_of_a_sender_stays_open(
    tmp_path: Path, secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection without a right secret is closed after a while."""
    monkeypatch.setattr(unauthenticated, "UNAUTHENTICATED_TIMEOUT_S", 0.5)

    async def work() -> None:
        async with api(tmp_path, TOKENS) as it:
            await listening(it)
            for secret, is_open in ((SECRET, True), ("wrong", False)):
                reader, writer = await asyncio.open_connection("127.0.0.1", it.cluster.port)
                status = await post(reader, writer, secret)
                assert status == (204 if is_open else 403)
                assert await is_closed(reader, 1.0 if is_open else LIMIT_S) is not is_open
                if is_open:
                    assert await post(reader, writer, secret) == 204
                writer.close()

    run(work())


async def is_closed(reader: asyncio.StreamReader, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            return await reader.read(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


async def post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str) -> int:
    body = json.dumps(message("im/f")).encode()
    head = f"POST /api/v1{EVENTS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    reply = await reader.readuntil(b"\r\n\r\n")
    if found := re.search(rb"Content-Length: (\d+)", reply):
        await reader.readexactly(int(found[1]))
    return int(reply.split()[1])


def test_senders_without_the_secret_take_no_place_of_other_requests(
    tmp_path: Path, secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused before their body has arrived, and wait for nothing that others need."""
    may_end, check = threading.Event(), WebhookSecrets.check

    def check_later(*arguments: Any) -> None:
        may_end.wait(LIMIT_S)
        check(*arguments)

    head = b"POST /api/v1%b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Authorization: Bearer wrong-\xff\r\nContent-Length: 1000\r\n\r\n{"
    monkeypatch.setattr(app, "MOST_REQUESTS", 2)
    monkeypatch.setattr(app, "MOST_STRANGERS", 3)
    monkeypatch.setattr(WebhookSecrets, "check", check_later)

    async def work() -> None:
        async with api(tmp_path, TOKENS) as it:
            await listening(it)
            opened = [await asyncio.open_connection("127.0.0.1", it.cluster.port) for _ in range(4)]
            for _, writer in opened:
                writer.write(head % EVENTS.encode())
            async with asyncio.timeout(LIMIT_S / 4):
                lines = [asyncio.ensure_future(reader.readline()) for reader, _ in opened]
                await asyncio.wait(lines, return_when=asyncio.FIRST_COMPLETED)
                assert (await it("GET", "/status", None, ALL))[0] == 200
                may_end.set()
                found = sorted([(await line).split()[1] for line in lines])
            assert found == [b"403", b"403", b"403", b"429"]
            assert (await it("GET", "/status", None, ALL))[0] == 200
            for _, writer in opened:
                writer.close()

    run(work())


def test_what_senders_may_not_send(tmp_path: Path, secrets: Path) -> None:
    async def work() -> None:
        async with api(tmp_path, TOKENS) as it:
            await listening(it)
            huge = b" " * (MAX_EVENTS_BYTES + 1)
            assert (await it("POST", EVENTS, huge, SECRET))[0] == 413
            many = message(*(f"im/{number}" for number in range(MAX_PUSHED + 1)))
            assert (await it("POST", EVENTS, many, SECRET))[0] == 400
            for body in (b"", b"{", b"[]", b'{"Records": 1}', b"[" * 100_000):
                assert (await it("POST", EVENTS, body, SECRET))[0] == 400
            assert (await it("POST", EVENTS, {}, SECRET, Content_Type="text/plain"))[0] == 415
            odd = message("im/../x", "im/nul\0", "im/" + "f" * 300, "", bucket="bucket")
            assert (await it("POST", EVENTS, odd, SECRET))[0] == 204
            _, page = await it("GET", "/sources", None, ALL)
            assert page["items"][0]["pushed"] == 0

    run(work())


def test_refused_events_are_a_gap(
    tmp_path: Path, secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[S-push-webhook] Not those of a sender without the secret, who could make a gap at will."""
    many = message(*(f"im/{number}" for number in range(MAX_PUSHED + 1)))

    async def work() -> None:
        async with api(tmp_path, TOKENS) as it:
            await listening(it)

            async def is_trusted(
                body: object, secret: str = SECRET, most: int = 128, **headers: str
            ) -> bool:
                assert (await it("POST", EVENTS, message("im/f"), SECRET))[0] == 204
                monkeypatch.setattr(app, "MOST_REQUESTS", most)
                assert (await it("POST", EVENTS, body, secret, **headers))[0] >= 400
                monkeypatch.setattr(app, "MOST_REQUESTS", 128)
                (mount,) = it.cluster.master._tree.mounts()
                return mount.reported_since(time.time()) is not None

            assert await is_trusted(message("im/f"), "wrong")
            assert not await is_trusted(many)
            assert not await is_trusted(b" " * (MAX_EVENTS_BYTES + 1))
            assert not await is_trusted(b"{")
            assert not await is_trusted({}, Content_Type="text/plain")
            assert not await is_trusted(message("im/f"), most=0)

    run(work())


def test_100_mb_without_an_announced_length_are_not_read(tmp_path: Path, secrets: Path) -> None:
    async def work() -> None:
        async with api(tmp_path, TOKENS) as it:
            await listening(it)
            sent = 0

            async def pieces() -> AsyncIterator[bytes]:
                nonlocal sent
                for _ in range(100):
                    yield b" " * 1_000_000
                    sent += 1

            headers = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
            url = f"/api/v1{EVENTS}"
            with contextlib.suppress(aiohttp.ClientError):  # the reply, or the connection ends
                async with it.cluster.session.post(url, data=pieces(), headers=headers) as reply:
                    assert reply.status in (400, 413)
            assert sent < 50
            assert (await it("POST", EVENTS, message("im/f"), SECRET))[0] == 204

    run(work())


def test_an_event_is_answered_when_the_change_is_seen(tmp_path: Path, secrets: Path) -> None:
    async def work() -> None:
        async with api(tmp_path, TOKENS) as it:
            await listening(it)
            master = it.cluster.master
            assert (await master.resolve(b"im/train/1")).inode is not None
            it.cluster.origins["s3://bucket/im"].put(b"train/1", b"longer")
            assert (await it("POST", EVENTS, message("im/train/1"), SECRET))[0] == 204
            found = (await master.resolve(b"im/train/1")).inode
            assert found is not None
            assert found.size == 6
            await it.cluster.restart()
            (row,) = it.cluster.master.mounts.rows()
            assert row.push == "webhook:hook"

    run(work())


def test_a_webhook_without_its_secret_is_refused(tmp_path: Path, secrets: Path) -> None:
    """By each of the two calls, which then change nothing."""

    async def work() -> None:
        async with api(tmp_path, TOKENS) as it:
            await listening(it)
            body = {"push": "webhook:other"}
            status, refused = await it("PATCH", "/sources?path=/im", body, ALL)
            assert status == 502
            assert str(secrets / "other" / "webhook_secret") in str(refused)
            new = {"url": "s3://bucket/new", "path": "/new", "push": "webhook:other"}
            it.cluster.origins["s3://bucket/new"] = _origin()
            assert (await it("POST", "/sources", new, ALL))[0] == 502
            _, page = await it("GET", "/sources", None, ALL)
            assert [(row["path"], row["push"]) for row in page["items"]] == [
                ("/im", "webhook:hook")
            ]
            (secrets / "hook" / "webhook_secret").unlink()
            body = {"sync_interval_s": 60}
            assert (await it("PATCH", "/sources?path=/im", body, ALL))[0] == 200, "no new feed"

    run(work())


def test_only_stores_of_s3_have_webhooks(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path, TOKENS) as it:
            it.cluster.origins["file:///x"] = it.cluster.origins["s3://bucket/im"] = _origin()
            call = c.AddUfs(b"/x", UfsSpec("file:///x"))
            await it.cluster.ask(call, c.UfsAdded, ALL)
            for push in ("webhook:hook", "sqs:x", "webhook:../x", "webhook:"):
                assert (await it("PATCH", "/sources?path=/x", {"push": push}, ALL))[0] == 400

    run(work())


def _origin() -> Any:
    from tests.services.memory import MemoryConnector

    return MemoryConnector({b"f": b"1"})


# ---- a real store --------------------------------------------------------------------------------


@pytest.fixture
def pushed(tmp_path: Path, secrets: Path) -> Iterator[tuple[Cluster, S3Server]]:
    """A cluster of two nodes, and a store that posts its events to the master."""
    environment = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        DIRECTORY_VARIABLE: str(secrets),
    }  # fmt: skip
    with Cluster(tmp_path / "cluster", environment) as cluster:
        cluster.start(2)
        url = f"{cluster.master.url}/api/v1/sources/events?path=/im&secret={quote(SECRET)}"
        with versitygw(tmp_path / "store", events_url=url) as server:
            yield cluster, server


def test_both_nodes_see_a_change_long_before_the_interval_ends(
    pushed: tuple[Cluster, S3Server],
) -> None:
    """[S-push] [C-feed] [C-feed-events] The sync interval is an hour."""
    cluster, server = pushed
    client = server.client()
    client.create_bucket(Bucket="bucket")
    for number in range(CHANGES):
        client.put_object(Bucket="bucket", Key=f"im/{number}", Body=b"first")
    options = ("--endpoint-url", server.endpoint_url, "--sync-interval", "1h")
    cluster.add_ufs("s3://bucket/im", "/im", *options)
    at = ("--master", cluster.master.url)
    cluster.master.run("ufs", "set", "/im", "--push", "webhook:hook", *at)
    mounts = [cluster.mount(number, "/im") for number in range(2)]
    for mount in mounts:
        assert {path.read_bytes() for path in mount.iterdir()} == {b"first"}
    delays = []
    for number in range(CHANGES):
        body = b"second %d" % number
        client.put_object(Bucket="bucket", Key=f"im/{number}", Body=body)
        began_s = time.monotonic()
        for mount in mounts:
            path = mount / str(number)
            wait_until(lambda path=path, body=body: path.read_bytes() == body, "seen", LIMIT_S)
        delays.append(time.monotonic() - began_s)
    slow_s = statistics.quantiles(delays, n=20)[-1]
    print(f"seen by both nodes: median {statistics.median(delays):.3f} s, of 95 % {slow_s:.3f} s")
    assert slow_s < SEEN_S
    client.delete_object(Bucket="bucket", Key="im/0")
    client.put_object(Bucket="bucket", Key="im/d/new", Body=b"new")
    for mount in mounts:
        wait_until(lambda mount=mount: not (mount / "0").exists(), "it is gone", LIMIT_S)
        wait_until(lambda mount=mount: (mount / "d" / "new").is_file(), "it is there", LIMIT_S)
    (row,) = cluster.master.json("ufs", "ls", *at)
    assert row["pushed"] >= CHANGES + 2
    for machine in (cluster.master, *cluster.workers):
        assert SECRET not in machine.log_tail()
