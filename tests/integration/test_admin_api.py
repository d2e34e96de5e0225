"""The admin API of a master over HTTP: who may ask what, how it refuses, how lists have pages."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.admin import API, JSON_TYPE, MAX_BODY_BYTES, PROBLEM_TYPE
from master.server.admin import app, files
from tests.services.http_master import Cluster, cluster, run, worker

ALL = "a" * 32
READ = "r" * 32
VISION = "v" * 32
TOKENS = f"{ALL}\n{READ} name=dash read-only\n{VISION} name=vision path=/im\n"
KEYS = {b"train/%d" % n: b"x" * n for n in range(1, 6)}


class Workers:
    """Have the pages `have` of every file; `gone` does not answer, a disk of `partial` does not."""

    have = b"\x01"
    gone = ""
    partial = ""

    async def ask(self, url: str, call: c.Have | c.Drop) -> c.Answer:
        if url == self.gone:
            return m.Failure("unavailable", "its disk failed")
        if isinstance(call, c.Have):
            return c.Had([self.have for _ in call.contents], incomplete=url == self.partial)
        return c.Dropped(len(call.contents), 7, 0)


class Api:
    """JSON with one master."""

    def __init__(self, made: Cluster, workers: Workers) -> None:
        self.cluster = made
        self.workers = workers

    async def __call__(
        self, method: str, path: str, body: Any = None, token: str = "", **headers: str
    ) -> tuple[int, Any]:
        """The status and the body, of which the type is right."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        if method in ("POST", "PATCH"):
            sent.setdefault("Content-Type", JSON_TYPE)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        stream = None if data is None else io.BytesIO(data)
        async with self.cluster.session.request(
            method, API + path, data=stream, headers=sent
        ) as reply:
            self.headers = reply.headers
            text = await reply.read()
            if reply.status >= 400:
                assert reply.content_type == PROBLEM_TYPE
                problem = json.loads(text)
                assert problem["status"] == reply.status
                assert problem["cause"]
                assert problem["code"]
                return reply.status, problem
            return reply.status, json.loads(text) if text else None

    async def pages(self, path: str, limit: int) -> list[Any]:
        """All items of a list, and that no page is longer."""
        found: list[Any] = []
        next = ""
        while True:
            joint = "&" if "?" in path else "?"
            status, page = await self("GET", f"{path}{joint}limit={limit}{next}")
            assert status == 200
            assert len(page["items"]) <= limit
            found += page["items"]
            if page["next"] is None:
                return found
            next = f"&next={page['next']}"


@contextlib.asynccontextmanager
async def api(directory: Path, tokens: str = "") -> AsyncIterator[Api]:
    workers = Workers()
    async with cluster(directory, tokens, peers=workers) as made:
        made.token = ALL if tokens else ""
        await made.add(b"/im", KEYS)
        for n in range(3):
            await made.ask(worker(f"worker{n}", 20000 + n), c.Registered)
        await made.ask(c.Walk(made.namespace, 1), c.Walked)
        yield Api(made, workers)


def test_lists_have_pages(tmp_path: Path) -> None:
    async def go() -> None:
        async with api(tmp_path) as ask:
            for n in range(4):
                await ask.cluster.add(b"/more%d" % n, {})
            sources = [one["path"] for one in await ask.pages("/sources", 2)]
            assert sources == ["/im", "/more0", "/more1", "/more2", "/more3"]
            workers = await ask.pages("/workers", 1)
            assert [one["id"] for one in workers] == ["worker0", "worker1", "worker2"]
            found = await ask.pages("/locations?path=/im", 2)
            assert sorted(one["path"] for one in found) == [f"/im/train/{n}" for n in range(1, 6)]
            assert {len(one["blocks"][0]["cached"]) for one in found} == {3}
            _, usage = await ask("GET", "/usage?path=/im/train")
            assert (usage["files"], usage["size_bytes"], usage["cached_bytes"]) == (5, 15, 15)
            for limit in ("0", "1001", "x", "1.5"):
                assert (await ask("GET", f"/sources?limit={limit}"))[0] == 400

    run(go())


def test_a_reply_has_so_many_blocks_and_then_cached_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand sparse files have 262 million."""

    async def go() -> None:
        async with api(tmp_path) as ask:
            monkeypatch.setattr(files, "MOST_BLOCKS", 3)
            for have, blocks in ((b"\0", [1, 1, 1, 0, 0]), (b"\1", [1] * 5)):
                ask.workers.have = have
                _, found = await ask("GET", "/locations?path=/im/train")
                assert [len(one["blocks"]) for one in found["items"]] == blocks
            _, checks = await ask("GET", "/checks?path=/im/train")
            assert (checks["files"], checks["cached_pages"], checks["copies"]) == (5, 5, 15)

    run(go())


def test_usage_counts_the_directories_that_were_never_listed(tmp_path: Path) -> None:
    async def go() -> None:
        async with api(tmp_path) as ask:
            _, usage = await ask("GET", "/usage?path=/im")
            assert usage["unlisted_directories"] == 0
            root = await ask.cluster.add(b"/new", {b"a/x": b"1", b"b/y": b"2"})
            _, usage = await ask("GET", "/usage?path=/new")
            assert (usage["files"], usage["unlisted_directories"]) == (0, 1)
            await ask.cluster.ask(m.ListDir(ask.cluster.namespace, root.ino), m.Listing)
            _, usage = await ask("GET", "/usage?path=/new")
            assert (usage["files"], usage["unlisted_directories"]) == (0, 2)

    run(go())


def test_a_worker_that_does_not_answer_is_named(tmp_path: Path) -> None:
    async def go() -> None:
        async with api(tmp_path) as ask:
            ask.workers.gone = "http://127.0.0.1:20001"
            _, usage = await ask("GET", "/usage?path=/im")
            assert usage["silent"] == ["worker1: its disk failed"]
            _, freed = await ask("POST", "/free", {"path": "/im"})
            assert (freed["files"], freed["silent"]) == (10, usage["silent"])

    run(go())


def test_a_worker_with_a_silent_disk_is_named_and_counted(tmp_path: Path) -> None:
    async def go() -> None:
        async with api(tmp_path) as ask:
            _, whole = await ask("GET", "/usage?path=/im")
            ask.workers.partial = "http://127.0.0.1:20001"
            _, usage = await ask("GET", "/usage?path=/im")
            assert usage == {**whole, "silent": ["worker1: a disk of its cache does not answer"]}

    run(go())


def test_a_token_of_a_path_is_told_no_address_of_a_worker(tmp_path: Path) -> None:
    async def go() -> None:
        async with api(tmp_path, TOKENS) as ask:
            ask.workers.gone = "http://127.0.0.1:20001"
            for path in ("/locations?path=/im", "/usage?path=/im"):
                _, told = await ask("GET", path, token=VISION)
                assert told["silent"] == ["worker1: it does not answer"]
                _, told = await ask("GET", path, token=READ)
                assert told["silent"] == ["worker1: its disk failed"]

    run(go())


def test_jobs_are_resources(tmp_path: Path) -> None:
    async def go() -> None:
        async with api(tmp_path) as ask:
            body = {"paths": ["/im/train"], "priority": "high"}
            status, made = await ask("POST", "/jobs", body, Idempotency_Key="k1")
            assert status == 201
            assert ask.headers["Location"] == f"{API}/jobs/{made['job']}"
            again = await ask("POST", "/jobs", body, Idempotency_Key="k1")
            assert again[1]["job"] == made["job"]
            path = f"/jobs/{made['job']}"
            _, job = await ask("GET", path)
            assert (job["paths"], job["settings"]["priority"]) == (["/im/train"], "high")
            assert (await ask("DELETE", path))[0] == 409
            _, stopped = await ask("POST", f"{path}/stop")
            assert stopped["state"] == "stopped"
            assert [one["job"] for one in await ask.pages("/jobs", 1)] == [made["job"]]
            _, failures = await ask("GET", f"{path}/failures")
            assert failures == {"items": [], "next": None}
            assert (await ask("GET", "/jobs/999"))[0] == 404
            assert (await ask("POST", f"{path}/explode"))[0] == 404
            assert (await ask("POST", "/jobs", body, Idempotency_Key="a b"))[0] == 400
            assert (await ask("POST", "/jobs", {"paths": []}))[0] == 400
            assert (await ask("POST", "/jobs", {**body, "bandwidht": 1}))[0] == 400

    run(go())


def test_a_sync_says_what_changed(tmp_path: Path) -> None:
    async def go() -> None:
        async with api(tmp_path) as ask:
            ask.cluster.origins["s3://bucket/im"].put(b"train/new\xff", b"y")
            body = {"path": "/im", "recursive": True}
            status, sync = await ask("POST", "/syncs", body)
            assert status == 201
            changes, place = [], "0"
            while place is not None:
                _, sync = await ask("GET", f"/syncs/{sync['sync']}?next={place}")
                changes += sync["changes"]
                place = sync["next"]
            assert sync["state"] == "done"
            assert [(one["kind"], one["path"]) for one in changes] == [
                ("added", "/im/train/new%FF")
            ]
            _, usage = await ask("GET", "/usage?path=/im/train/new%25FF")
            assert usage["files"] == 1

    run(go())


def test_tokens_let_do_here_what_they_let_do_elsewhere(tmp_path: Path) -> None:
    async def go() -> None:
        async with api(tmp_path, TOKENS) as ask:
            await ask.cluster.add(b"/other", {b"x": b"y"})
            assert (await ask("GET", "/status"))[0] == 401
            assert ask.headers["WWW-Authenticate"] == "Bearer"
            assert (await ask("GET", "/status", token="z" * 32))[0] == 401
            may = {"path": "/im/train", "url": "s3://bucket/im"}
            for token, path, status in (
                (READ, "/sources", 200),
                (READ, "/usage?path=/other", 200),
                (VISION, "/usage?path=/im", 200),
                (VISION, "/usage?path=/other", 403),
                (VISION, "/policies?path=/other", 403),
                (VISION, "/sources", 403),
                (VISION, "/workers", 403),
                (VISION, "/locations?path=/im", 200),
                (VISION, "/locations?path=/other", 403),
                (VISION, "/checks?path=/im", 403),
                (READ, "/jobs", 200),
                (VISION, "/jobs", 200),
                (VISION, "/status", 403),
                (ALL, "/locations?path=/im", 200),
            ):
                assert (await ask("GET", path, token=token))[0] == status, (token, path)
            for token, method, path, body, status in (
                (READ, "POST", "/free", {"path": "/im"}, 403),
                (READ, "POST", "/jobs", {"paths": ["/im"]}, 403),
                (READ, "POST", "/sources", may, 403),
                (READ, "DELETE", "/workers/worker0", None, 403),
                (READ, "PATCH", "/policies?path=/im", {"set": {"ttl_s": 5}}, 403),
                (VISION, "POST", "/free", {"path": "/other"}, 403),
                (VISION, "POST", "/free", {"path": "/im"}, 200),
                (VISION, "POST", "/jobs", {"paths": ["/other"]}, 403),
                (VISION, "PATCH", "/policies?path=/im/train", {"set": {"ttl_s": 5}}, 200),
            ):
                assert (await ask(method, path, body, token))[0] == status, (token, method, path)
            async with ask.cluster.session.get(f"{API}/openapi.json") as reply:
                assert reply.status == 200

    run(go())


def test_browsers_are_kept_out(tmp_path: Path) -> None:
    """No page of another site can write (its request would need a leave that nobody gives), nor
    read by a name that it had resolved to this machine."""

    async def go() -> None:
        async with api(tmp_path) as ask:
            body = {"path": "/im"}
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
                assert (await ask("POST", "/free", body, Content_Type=kind))[0] == 415
            status, _ = await ask("OPTIONS", "/free", Origin="http://evil.example")
            assert status == 405
            assert not [name for name in ask.headers if name.lower().startswith("access-control")]
            port = ask.cluster.port
            for host, status in (
                ("evil.example", 421),
                (f"evil.example:{port}", 421),
                (f"127.0.0.1.evil.example:{port}", 421),
                (f"localhost:{port}", 200),
                (f"[::1]:{port}", 200),
                ("127.0.0.2", 200),
            ):
                assert (await ask("GET", "/status", Host=host))[0] == status, host

    run(go())


def test_what_is_wrong_is_refused_with_one_problem(tmp_path: Path) -> None:
    async def go() -> None:
        async with api(tmp_path) as ask:
            assert (await ask("GET", "/nothing"))[0] == 404
            assert (await ask("PUT", "/jobs"))[0] == 405
            assert ask.headers["Allow"] == "GET, POST"
            for data in (b"", b"{", b"[]", b"\xff", b'{"path":' + b"[" * 100_000, b"null"):
                assert (await ask("POST", "/free", data))[0] == 400, data[:20]
            for path in ("im", "/a%25", "/..", "/%2500"):
                assert (await ask("GET", f"/policies?path={path}"))[0] == 400, path
            assert (await ask("GET", "/policies?path=/a&path=/b"))[0] == 400
            assert (await ask("GET", "/policies?path=/&what=1"))[0] == 400
            assert (await ask("GET", f"/status?namespace={'0' * 32}"))[0] == 404
            huge = 1 << 70
            change = {"set": {"quota_bytes": huge}}
            assert (await ask("PATCH", "/policies?path=/im", change))[0] == 400
            status, problem = await ask("POST", "/free", {"path": "/gone"})
            assert (status, problem["code"], problem["path"]) == (404, "not-found", "/gone")

    run(go())


def test_bodies_are_bounded(tmp_path: Path) -> None:
    async def go() -> None:
        async with api(tmp_path) as ask:
            body = b'{"path": "' + b"x" * MAX_BODY_BYTES + b'"}'
            assert (await ask("POST", "/free", body))[0] == 413

    run(go())


def test_so_many_requests_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with api(tmp_path) as ask:
            monkeypatch.setattr(app, "MOST_REQUESTS", 0)
            status, problem = await ask("GET", "/status")
            assert (status, problem["code"]) == (429, "throttled")
            monkeypatch.undo()
            assert (await ask("GET", "/status"))[0] == 200

    run(go())


@pytest.mark.parametrize("change", [{"draining": True}, {"draining": False}])
def test_workers_are_drained(tmp_path: Path, change: dict[str, bool]) -> None:
    async def go() -> None:
        async with api(tmp_path) as ask:
            status, row = await ask("PATCH", "/workers/worker1", change)
            assert status == 200
            assert row["state"] == ("draining" if change["draining"] else "serving")
            assert (await ask("GET", "/workers/worker"))[0] == 404
            assert (await ask("GET", "/workers/127.0.0.1:20002"))[1]["id"] == "worker2"

    run(go())
