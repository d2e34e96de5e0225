"""Peers that fail in every way: what is read is right, comes in time, and from the origin last."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cachefs.core import access
from cachefs.core import cluster as c
from cachefs.core.errors import (
    AccessDenied,
    Archived,
    CacheFSError,
    OriginError,
    Stale,
    Throttled,
    Unreachable,
)
from cachefs.core.messages import Done
from cachefs.core.model import PAGE_BYTES
from cachefs.core.placement import Member
from tests.services.loading import fetch
from tests.unit.worker.rig import MIB, NAMESPACE, open_reader, read, run, until
from tests.unit.worker_peers.nodes import SOON, TIMES, Cluster, Node
from tests.unit.worker_peers.scripted_peer import ScriptedPeer, scripted
from worker.fill import attempts
from worker.peers import peer_health
from worker.peers import server as peer_server

SIZE = 6 * MIB + 77
TOKEN = "t" * 32


@contextlib.contextmanager
def owner_that(cluster: Cluster, behaviour: str, ino: int = 1) -> Iterator[ScriptedPeer]:
    """The owner of the file is a scripted peer; the real nodes are the others."""
    with scripted(cluster.rig.data[ino], behaviour) as peer:
        cluster.owner(ino).url = peer.url
        cluster.set_view(range(len(cluster.nodes)))
        yield peer


def readers(cluster: Cluster, ino: int = 1) -> list[Node]:
    return cluster.others(cluster.owner(ino))


async def blocked_read(cluster: Cluster, reader: Node) -> asyncio.Future[bytes]:
    """Starts to read the file 1; returns when the origin holds its request back."""
    cluster.rig.origin.script.block("read")
    reading = asyncio.ensure_future(read(reader.worker, 1))
    await asyncio.to_thread(cluster.rig.origin.script.wait_blocked, "read")
    return reading


@pytest.mark.parametrize("behaviour", ["silent", "busy", "gone", "no_sums", "lie", "cut"])
def test_a_bad_owner_costs_time_and_nothing_else(tmp_path: Path, behaviour: str) -> None:
    async def script() -> None:
        times = SOON if behaviour == "silent" else TIMES  # on a busy machine all are a bit silent
        cluster = Cluster(tmp_path, 3, times=times)
        cluster.rig.put(1, SIZE)
        async with cluster.running():
            with owner_that(cluster, behaviour) as peer:
                first, second = readers(cluster)
                started = time.monotonic()
                reads = (read(node.worker, 1) for node in (first, second))
                for data in await asyncio.gather(*reads):
                    assert data == cluster.rig.data[1]
                status = first.source.status()
                assert (status["failures"] > 0) == (behaviour not in ("busy", "lie"))
                assert status["hedges"] == 0, "the next in rank is no replica"
                limit_s = times.probe_after_s + times.silence_s + 5
                assert time.monotonic() - started < limit_s
                assert cluster.body_bytes <= SIZE, "the origin was read twice"
                assert bool(peer.doubts) == (behaviour == "lie"), "was it told of its bytes?"

    run(script())


def test_what_came_before_a_body_broke_off_is_kept(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 2)
        cluster.rig.put(1, SIZE)
        async with cluster.running():
            with owner_that(cluster, "cut"):
                (reader,) = readers(cluster)
                await fetch(reader.worker, NAMESPACE, 1)
                assert await read(reader.worker, 1) == cluster.rig.data[1]
                assert cluster.body_bytes == SIZE - 2 * PAGE_BYTES
                assert reader.worker.status()["peer_bytes"] == 2 * PAGE_BYTES

    run(script())


def test_a_stopped_owner_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_health, "FIRST_PAUSE_S", peer_health.LONGEST_PAUSE_S)

    async def script() -> None:
        cluster = Cluster(tmp_path, 2, times=SOON)
        for ino in range(1, 30):
            cluster.rig.put(ino, 1000)
        async with cluster.running():
            with owner_that(cluster, "silent") as peer:
                (reader,) = readers(cluster)
                mine = [n for n in range(1, 30) if cluster.owner(n) is cluster.owner(1)]
                await read(reader.worker, 1)
                requests = peer.requests
                assert requests
                for ino in mine[1:4]:
                    assert await read(reader.worker, ino) == cluster.rig.data[ino]
                assert peer.requests == requests

    run(script())


def test_a_slow_owner_is_hedged_by_the_other_replica(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 3, replicas=2)
        cluster.rig.put(1, SIZE)
        async with cluster.running():
            ranked = [member.id for member in cluster.nodes[0].ring.owners(1, 0, 2)]
            replica = next(node for node in cluster.nodes if node.id == ranked[1])
            await fetch(replica.worker, NAMESPACE, 1)
            before = cluster.body_bytes
            with owner_that(cluster, "silent"):
                (reader,) = [node for node in cluster.nodes if node.id not in ranked]
                started = time.monotonic()
                assert await read(reader.worker, 1) == cluster.rig.data[1]
                assert time.monotonic() - started < TIMES.silence_s, "it waited for the silent one"
                assert reader.source.status()["hedges"] > 0
                assert cluster.body_bytes == before

    run(script())


def test_a_replica_gets_its_copy_from_the_first_owner(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 3, replicas=2)
        cluster.rig.put(1, SIZE)
        async with cluster.running() as nodes:
            for data in await asyncio.gather(*(read(node.worker, 1) for node in nodes)):
                assert data == cluster.rig.data[1]
            assert cluster.body_bytes == SIZE

    run(script())


# ---- damage ----


def flip(node: Node, name: str, offset: int) -> None:
    """A bit of the node's cache file."""
    (path,) = (node.cluster._directory / str(node.number) / "tier" / "files").glob(f"*/{name}")
    fd = os.open(path, os.O_RDWR)
    byte = os.pread(fd, 1, offset)[0]
    os.pwrite(fd, bytes([byte ^ 4]), offset)
    os.close(fd)


@pytest.mark.parametrize("complete", [True, False])
def test_a_byte_flipped_in_a_peers_copy_is_found_and_mended(tmp_path: Path, complete: bool) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 3)
        cluster.rig.put(1, 12 * MIB)
        async with cluster.running():
            owner, (reader, _) = cluster.owner(1), readers(cluster)
            if complete:
                await fetch(owner.worker, NAMESPACE, 1)
            else:
                opened = await open_reader(owner.worker, 1)
                await opened.at(2 * MIB, 2 * MIB)
                opened.close()
            await until(lambda: owner.worker.status()["fills_in_flight"] == 0)
            flip(owner, cluster.rig.name(1), 3 * MIB + 5)
            assert await read(reader.worker, 1) == cluster.rig.data[1]
            # A slow machine may have asked for it twice before its owner heard of the first.
            assert sum(node.source.status()["wrong_pages"] for node in cluster.nodes) in (1, 2)
            assert owner.worker.status()["bad_pages"] == 1
            assert await read(owner.worker, 1) == cluster.rig.data[1], "the owner kept it"

    run(script())


def test_a_doubt_about_sound_pages_changes_nothing(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 1)
        cluster.rig.put(1, SIZE)
        async with cluster.running() as nodes:
            await fetch(nodes[0].worker, NAMESPACE, 1)
            key = cluster.rig.content(1).key
            answer = await call(nodes[0], c.Doubt(key, [0, 3, 500]))
            assert answer == Done()
            assert await nodes[0].worker.cached_bytes(cluster.rig.content(1)) == SIZE

    run(script())


# ---- the one who brings it ----


def test_what_a_filler_that_dies_had_not_brought_is_brought_by_another(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 3)
        cluster.rig.put(1, 1000)
        async with cluster.running():
            owner, (reader, _) = cluster.owner(1), readers(cluster)
            reading = await blocked_read(cluster, reader)
            await owner.server.stop()
            cluster.rig.origin.script.unblock()
            assert await reading == cluster.rig.data[1]

    run(script())


def test_an_owner_without_origin_is_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that the origin failed: the reader asks the origin itself."""
    monkeypatch.setattr(attempts, "pause_s", lambda *_, **__: None)  # nobody tries again

    async def script() -> None:
        cluster = Cluster(tmp_path, 2)
        cluster.rig.put(1, 1000)
        async with cluster.running():
            (reader,) = readers(cluster)
            cluster.rig.origin.script.fail("read", None, Unreachable("down"), times=1)
            assert await read(reader.worker, 1) == cluster.rig.data[1]
            assert reader.source.status()["fallbacks"] == 1

    run(script())


def cut_off(node: Node) -> None:
    """As if nothing of the origin reached that node, for a while."""
    now = time.monotonic()
    node.reach.ended(Unreachable.code, now - 5.0, now)


def test_an_owner_that_is_cut_off_is_passed_by_all_and_the_next_in_rank_fills(
    tmp_path: Path,
) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 4)
        cluster.rig.put(1, SIZE)
        async with cluster.running():
            owner = cluster.owner(1)
            cut_off(owner)
            assert owner.reach.may_try(time.monotonic()), "a request of before tries the way"
            found = await asyncio.gather(*(read(node.worker, 1) for node in readers(cluster)))
            assert found == 3 * [cluster.rig.data[1]]
            assert cluster.body_bytes == SIZE, "once for all"
            assert owner.worker.status()["origin_bytes"] == 0
            assert sum(node.source.status()["cut_off"] for node in readers(cluster)) > 0
            assert [node.source.status()["failures"] for node in readers(cluster)] == [0, 0, 0]

    run(script())


def test_an_owner_that_is_cut_off_gets_what_the_next_in_rank_has(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 3)
        cluster.rig.put(1, SIZE)
        async with cluster.running():
            owner = cluster.owner(1)
            cut_off(owner)
            owner.reach.may_try(time.monotonic())
            assert await read(readers(cluster)[0].worker, 1) == cluster.rig.data[1]
            cut_off(owner)
            assert await read(owner.worker, 1) == cluster.rig.data[1]
            assert owner.worker.status()["origin_bytes"] == 0
            assert cluster.body_bytes == SIZE

    run(script())


def test_an_owner_says_that_it_is_cut_off_while_its_fill_goes_on(tmp_path: Path) -> None:
    """The reader's time is short."""

    async def script() -> None:
        cluster = Cluster(tmp_path, 2)
        cluster.rig.put(1, 1000)
        async with cluster.running():
            owner, (reader,) = cluster.owner(1), readers(cluster)
            reading = await blocked_read(cluster, reader)
            cut_off(owner)
            await until(lambda: reader.source.status()["fallbacks"] == 1)
            assert owner.worker.status()["fills_in_flight"] == 1
            cluster.rig.origin.script.unblock()
            assert await reading == cluster.rig.data[1]
            assert owner.server.status()["failed"] == 1

    run(script())


@pytest.mark.parametrize("error", [AccessDenied, Archived, OriginError])
def test_what_the_origin_replies_to_the_owner_is_replied_to_the_reader(
    tmp_path: Path, error: type[CacheFSError]
) -> None:
    """The origin is asked once, however many workers there are."""

    async def script() -> None:
        cluster = Cluster(tmp_path, 4)
        cluster.rig.put(1, 1000)
        async with cluster.running():
            cluster.rig.origin.script.fail("read", None, error("not this one"))
            with pytest.raises(error, match="not this one"):
                await read(readers(cluster)[0].worker, 1)
            assert cluster.rig.origin.script.calls["read"] == 1

    run(script())


def test_a_refusal_is_passed_by_where_the_owner_has_read_nothing_lately(tmp_path: Path) -> None:
    """Its credentials may be the wrong ones, and those of others the right ones."""

    async def script() -> None:
        cluster = Cluster(tmp_path, 4)
        cluster.rig.put(1, 1000)
        async with cluster.running():
            cluster.rig.origin.script.fail("read", None, AccessDenied("you may not"))
            now = time.monotonic()
            cluster.owner(1).reach.ended(AccessDenied.code, now, now)
            assert await read(readers(cluster)[0].worker, 1) == cluster.rig.data[1]

    run(script())


def test_a_file_that_was_replaced_is_compared_by_its_owner_alone(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 4)
        cluster.rig.put(1, 1000)
        async with cluster.running():
            cluster.rig.origin.put(b"dir/1", b"another version")
            with pytest.raises(Stale):
                await read(readers(cluster)[0].worker, 1)
            assert cluster.rig.origin.script.calls["read"] == 1

    run(script())


def test_an_origin_that_throttles_is_asked_by_the_owner_alone(tmp_path: Path) -> None:
    """Until the deadline of one fill, and no longer."""

    async def script() -> None:
        cluster = Cluster(tmp_path, 4, origin_deadline_s=1.0)
        cluster.rig.put(1, 1000)
        async with cluster.running():
            cluster.rig.origin.script.fail("read", None, Throttled("slow down"), times=1_000_000)
            began = time.monotonic()
            with pytest.raises(Throttled):
                await read(readers(cluster)[0].worker, 1)
            assert time.monotonic() - began < 10.0
            asked = [node for node in cluster.nodes if node.server.status()["requests"]]
            assert asked == [cluster.owner(1)]
            assert [node.source.status()["fallbacks"] for node in readers(cluster)] == [0, 0, 0]

    run(script())


def test_closing_does_not_wait_for_a_silent_peer(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 2, times=TIMES._replace(silence_s=20.0, probe_after_s=20.0))
        cluster.rig.put(1, 1000)
        async with cluster.running():
            with owner_that(cluster, "silent") as peer:
                (reader,) = readers(cluster)
                reading = asyncio.ensure_future(read(reader.worker, 1))
                await until(lambda: peer.requests > 0)
                started = time.monotonic()
                await reader.worker.close()
                assert time.monotonic() - started < 10.0
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    run(script())


def test_a_peer_that_was_restarted_is_asked_on_a_new_connection(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 2)
        inos = [cluster.rig.put(n, 1000) for n in range(1, 20)]
        async with cluster.running() as nodes:
            mine = [ino for ino in inos if cluster.owner(ino) is nodes[0]]
            assert await read(nodes[1].worker, mine[0]) == cluster.rig.data[mine[0]]
            port = int(nodes[0].url.rpartition(":")[2])
            await nodes[0].server.stop()
            assert await nodes[0].server.start("127.0.0.1", port) == port
            assert await read(nodes[1].worker, mine[1]) == cluster.rig.data[mine[1]]
            assert nodes[1].source.status()["failures"] == 0
            assert nodes[1].worker.status()["origin_bytes"] == 0

    run(script())


# ---- the server ----


async def get(node: Node, path: str, **headers: str) -> tuple[int, bytes]:
    def ask() -> tuple[int, bytes]:
        request = urllib.request.Request(node.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as err:
            with err:
                return err.code, err.read()

    return await asyncio.to_thread(ask)


async def call(node: Node, body: c.Have | c.Offer | c.Doubt | c.Drop | c.WorkerStatus) -> c.Answer:
    def ask() -> bytes:
        kind = {"Content-Type": "application/msgpack"}
        request = urllib.request.Request(node.url + c.CALL_PATH, c.encode(body), kind)
        with urllib.request.urlopen(request, timeout=10) as reply:
            return bytes(reply.read())

    return c.decode_answer(await asyncio.to_thread(ask))


def test_what_is_here_is_served_without_a_master_and_in_any_epoch(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 2)
        cluster.rig.put(1, SIZE)
        async with cluster.running() as nodes:
            for node in nodes:
                await fetch(node.worker, NAMESPACE, 1)
            cluster.rig.attached = False
            path = f"{c.DATA_PATH}/{cluster.rig.name(1)}?ino=1&first=1&end=3&epoch=0"
            for node in nodes:
                for way in ("", "&have=1", "&next=1"):
                    status, body = await get(node, path + way)
                    assert (status, body) == (200, cluster.rig.data[1][MIB : 3 * MIB])

    run(script())


def test_an_address_that_is_taken_leaves_nothing_behind(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 2)
        async with cluster.running() as nodes:
            await nodes[0].server.stop()
            before = {task.get_name() for task in asyncio.all_tasks()}
            with pytest.raises(OSError, match="in use"):
                await nodes[0].server.start("127.0.0.1", int(nodes[1].url.rpartition(":")[2]))
            assert {task.get_name() for task in asyncio.all_tasks()} == before

    run(script())


def test_questions_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 1)
        cluster.rig.put(1, SIZE)
        cluster.rig.put(2, SIZE)
        async with cluster.running() as nodes:
            name = cluster.rig.name(1)
            for question in (
                "zz?first=0&end=1",
                name,
                f"{name}?first=1&end=1",
                f"{name}?first=-1&end=1",
                f"{name}?first=0&end=9",
                f"{name}?first=255&end=257",
                f"{name}?first=x&end=1",
            ):
                status, _ = await get(nodes[0], f"{c.DATA_PATH}/{question}")
                assert status == 400, question
            whole = f"{c.DATA_PATH}/{name}?first=0&end=1"
            other = msgspec.structs.replace(cluster.rig.space.origins[1], size=5)
            other = msgspec.structs.replace(other, content=cluster.rig.content(2))
            for header in (
                "",
                "?",
                "AAAA",
                base64.b64encode(msgspec.msgpack.encode(other)).decode(),
            ):
                headers = {c.ORIGIN_HEADER: header} if header else {}
                assert (await get(nodes[0], whole, **headers))[0] == 400, header
            assert (await get(nodes[0], f"{c.DATA_PATH}/{name}?first=0&end=1&have=1"))[0] == 404
            assert (await get(nodes[0], "/healthz"))[0] == 200

    run(script())


def test_calls_are_answered(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 1)
        cluster.rig.put(1, SIZE)
        cluster.rig.put(2, 20 * MIB)
        async with cluster.running() as nodes:
            node = nodes[0]
            keys = [cluster.rig.content(ino).key for ino in (1, 2)]
            await fetch(node.worker, NAMESPACE, 1)
            opened = await open_reader(node.worker, 2)
            await opened.at(9 * MIB, 100)
            had = await call(node, c.Have(keys))
            assert isinstance(had, c.Had)
            assert [int.from_bytes(bits, "little") for bits in had.pages] == [0x7F, 1 << 9]
            offer = c.Offer("w", "http://w", 3, [(keys[0], 0)])
            assert await call(node, offer) == Done()
            assert node.offers == [offer]
            status = await call(node, c.WorkerStatus())
            assert isinstance(status, c.WorkerStatusReply)
            assert status.status["used_bytes"] > 0
            assert await call(node, c.Drop(keys[:1])) == c.Dropped(1, 6 * MIB + 4096, 0)
            assert await node.worker.cached_bytes(cluster.rig.content(1)) == 0
            opened.close()

    run(script())


def test_more_than_it_takes_is_refused_for_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        monkeypatch.setattr(peer_server, "MOST_OF_ONE", 1)
        cluster = Cluster(tmp_path, 2)
        cluster.rig.put(1, 1000)
        async with cluster.running():
            owner, (reader,) = cluster.owner(1), readers(cluster)
            reading = await blocked_read(cluster, reader)
            path = f"{c.DATA_PATH}/{cluster.rig.name(1)}?first=0&end=1&have=1"
            assert (await get(owner, path))[0] == 503
            cluster.rig.origin.script.unblock()
            assert await reading == cluster.rig.data[1]

    run(script())


# ---- access ----


def test_tokens(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 2)
        tokens = f"{TOKEN}\n{'p' * 32} path=/a\n{'r' * 32} read-only"
        cluster.access = access.Access(access.parse_tokens(tokens, "tokens"))
        cluster.headers = {access.HEADER: access.header_of(TOKEN)}
        cluster.rig.put(1, SIZE)
        async with cluster.running():
            owner, (reader,) = cluster.owner(1), readers(cluster)
            assert await read(reader.worker, 1) == cluster.rig.data[1]
            assert reader.worker.status()["origin_bytes"] == 0
            path = f"{c.DATA_PATH}/{cluster.rig.name(1)}?first=0&end=1"
            for secret, expected in ((TOKEN, 200), ("p" * 32, 403), ("r" * 32, 403), ("x", 403)):
                headers = {access.HEADER: access.header_of(secret)}
                assert (await get(owner, path, **headers))[0] == expected
            assert (await get(owner, path))[0] == 403
            assert (await get(owner, "/metrics"))[0] == 403

    run(script())


def contexts(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Returns those of a server and of its peers."""
    cert, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert),
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(cert, key)
    return serving, ssl.create_default_context(cafile=str(cert))


def test_tls(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 2)
        cluster.tls = contexts(tmp_path)
        cluster.rig.put(1, SIZE)
        async with cluster.running():
            (reader,) = readers(cluster)
            assert await read(reader.worker, 1) == cluster.rig.data[1]
            assert reader.worker.status()["origin_bytes"] == 0

    run(script())


def test_a_fill_over_tls_that_takes_longer_than_a_silent_peer_may(tmp_path: Path) -> None:
    """The tickets that a server sends after the handshake are no reply: the reader probes the owner
    meanwhile."""

    async def script() -> None:
        cluster = Cluster(tmp_path, 2, times=SOON)
        cluster.tls = contexts(tmp_path)
        cluster.rig.put(1, SIZE)
        async with cluster.running():
            owner, (reader,) = cluster.owner(1), readers(cluster)
            cluster.rig.origin.script.block("read")
            reading = asyncio.ensure_future(read(reader.worker, 1))
            began = time.monotonic()
            await until(lambda: owner.server.counters.not_here >= 2)  # probes
            await until(lambda: time.monotonic() - began > SOON.silence_s + 0.2)
            cluster.rig.origin.script.unblock()
            assert await reading == cluster.rig.data[1]
            assert reader.source.status()["failures"] == 0
            assert cluster.body_bytes == SIZE

    run(script())


def test_a_member_that_left_is_forgotten(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 2)
        cluster.rig.put(1, 1000)
        async with cluster.running() as nodes:
            nodes[1].source.add_holder(b"k", 0, Member("gone", "http://127.0.0.1:1", 1.0))
            with owner_that(cluster, "gone"):
                (reader,) = readers(cluster)
                await read(reader.worker, 1)
                assert reader.source.status()["peers"]
                cluster.set_view([reader.number])
                assert not reader.source.status()["peers"]

    run(script())
