"""Syncs on demand over a master's HTTP: who may begin, see and stop which, and what mounts hear."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.errors import AccessDenied, NotFound
from cachefs.core.model import NamespaceId
from cachefs.core.syncs import Change, ChangeKind
from tests.services.http_master import Cluster, cluster, run

OPERATOR = "operators-token-1"
READER = "reading-everything"
TEAM = "limited-to-team-a"
TOKENS = f"""
{OPERATOR}
{READER} read-only name=reader
{TEAM} path=/team-a name=team-a
"""


async def ended(it: Cluster, started: m.SyncReply) -> m.SyncReply:
    while True:
        reply = await it.ask(m.GetSync(it.namespace, started.sync.sync), m.SyncReply)
        if reply.sync.state != "running":
            return reply
        await asyncio.sleep(0)


def test_a_sync_over_http_and_the_events_of_what_it_changed(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            root = await it.add(b"/data", {b"f": b"1", b"g": b"2"})
            start = m.StartSync(it.namespace, b"/data", recursive=True)
            await ended(it, await it.ask(start, m.SyncReply))
            seq = (await it.ask(c.Greeting(), c.Greeted)).seq
            origin = it.origins["s3://bucket/data"]
            origin.put(b"f", b"other")
            origin.delete(b"g")
            dry = m.StartSync(it.namespace, b"/data", recursive=True, dry_run=True)
            expected = [Change(ChangeKind.GONE, b"data/g"), Change(ChangeKind.REPLACED, b"data/f")]
            found = await ended(it, await it.ask(dry, m.SyncReply))
            assert sorted(found.changes, key=lambda change: change.kind.value) == expected
            assert (await it.ask(c.Greeting(), c.Greeted)).seq == seq
            found = await ended(it, await it.ask(start, m.SyncReply))
            assert sorted(found.changes, key=lambda change: change.kind.value) == expected
            events = await it.ask(c.GetEvents(it.namespace, seq), c.Events)
            names = {entry for event in events.events for entry in event.entries}
            assert names == {(root.ino, b"f"), (root.ino, b"g")}
            assert found.sync.seq == events.seq

    run(work())


def test_a_token_syncs_what_it_may_write_and_sees_no_other_sync(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, TOKENS) as it:
            it.token = OPERATOR
            await it.add(b"/team-a", {b"f": b"1"})
            await it.add(b"/team-b", {b"secret": b"2"})
            other = await it.ask(m.StartSync(it.namespace, b"/team-b"), m.SyncReply)
            for path in (b"/", b"/team-b", b""):
                for dry_run in (True, False):
                    start = m.StartSync(it.namespace, path, dry_run=dry_run)
                    with pytest.raises(AccessDenied):
                        await it.ask(start, m.SyncReply, TEAM)
            start = m.StartSync(it.namespace, b"/team-a")
            with pytest.raises(AccessDenied):
                await it.ask(start, m.SyncReply, READER)
            look = m.GetSync(it.namespace, other.sync.sync, stop=True)
            with pytest.raises(AccessDenied):
                await it.ask(look, m.SyncReply, READER)
            start = m.StartSync(it.namespace, b"/team-b", dry_run=True)
            dry = await it.ask(start, m.SyncReply, READER)
            look = m.GetSync(it.namespace, dry.sync.sync, stop=True)
            assert (await it.ask(look, m.SyncReply, READER)).sync.dry_run
            for stop in (True, False):
                look = m.GetSync(it.namespace, other.sync.sync, stop=stop)
                with pytest.raises(NotFound):
                    await it.ask(look, m.SyncReply, TEAM)
            assert (await ended(it, other)).sync.state == "done", "nobody else stopped it"
            it.token = TEAM
            own = await it.ask(m.StartSync(it.namespace, b"/team-a/"), m.SyncReply)
            assert (await ended(it, own)).sync.state == "done"

    run(work())


def test_numbers_of_a_master_before_and_other_namespaces_are_not_found(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            await it.add(b"/data", {b"f": b"1"})
            start = m.StartSync(it.namespace, b"/data")
            before = await it.ask(start, m.SyncReply)
            with pytest.raises(NotFound):
                await it.ask(m.StartSync(NamespaceId(b"o" * 16), b"/data"), m.SyncReply)
            await it.restart()
            with pytest.raises(NotFound, match="no such sync"):
                await it.ask(m.GetSync(it.namespace, before.sync.sync), m.SyncReply)

    run(work())
