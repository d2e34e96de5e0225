"""The admin API's handlers for sources, workers and status."""

from __future__ import annotations

from cachefs.core import admin as a
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.admin_sources import NewSource, Source, SourceAdded, SourceChange, Sources
from cachefs.core.errors import NotFound
from cachefs.core.model import UfsSpec
from master.push.s3_events import objects
from master.server.admin.at import At, Reply, page_of


async def about(at: At) -> a.About:
    greeted = await at.ask(c.Greeting(), c.Greeted)
    return a.About(
        greeted.version, greeted.namespace.hex(), greeted.protocol, greeted.epoch, at.namespaces
    )


async def status(at: At) -> a.ClusterStatus:
    return a.ClusterStatus((await at.ask(c.MasterStatus(), c.MasterStatusReply)).status)


async def list_sources(at: At) -> Sources:
    rows = (await at.ask(c.ListUfs(), c.UfsTable)).rows
    return Sources(*page_of([Source.of(row) for row in rows], lambda one: one.path, at.query))


async def add_source(at: At) -> Reply:
    body: NewSource = at.body
    path = a.bytes_of(body.path)
    spec = UfsSpec(body.url, body.options)
    call = c.AddUfs(b"/" + path, spec, body.sync_interval_s, body.push)
    added = await at.ask(call, c.UfsAdded)
    return Reply(SourceAdded(a.text_of(path), body.url, added.root.ino, added.warning), 201)


async def change_source(at: At) -> Source:
    body: SourceChange = at.body
    path = b"/" + a.bytes_of(at.query.path)
    call = c.SetUfs(
        path, body.options, tuple(body.unset), body.sync_interval_s, body.push, body.push_interval_s
    )
    return Source.of((await at.ask(call, c.UfsChanged)).row)


async def admit_events(at: At) -> None:
    """Raises AccessDenied unless the sender knows the secret of the source."""
    await at.backend.admit_store(*_path_and_secret(at))


async def push_events(at: At) -> Reply:
    """Takes events of the source at a path. Stores cannot present a token of the cluster: the
    source's secret stands in the URL, or in the header of a token."""
    await at.ask(c.PushEvents(*_path_and_secret(at), objects(at.body)), m.Done)
    return Reply(None, 204)


def lose_events(at: At) -> None:
    """Records that events were refused: their sender may not send them again."""
    path, _ = _path_and_secret(at)
    at.backend.lose_events(path)


def _path_and_secret(at: At) -> tuple[bytes, str]:
    return b"/" + a.bytes_of(at.query.path), at.query.secret or at.secret


async def remove_source(at: At) -> Reply:
    path = b"/" + a.bytes_of(at.query.path)
    await at.ask(c.RemoveUfs(path, at.query.force), m.Done)
    return Reply(None, 204)


async def list_workers(at: At) -> a.Workers:
    table = await at.ask(c.ListWorkers(), c.WorkerTable)
    rows, following = page_of(table.rows, lambda row: row.id, at.query)
    return a.Workers(
        [a.Worker.of(row) for row in rows],
        table.view.epoch,
        [member.id for member in table.view.members],
        bool(table.view.before),
        following,
    )


async def show_worker(at: At) -> a.Worker:
    """Returns the worker by its id, a unique start of it, or its address. Raises NotFound."""
    rows = (await at.ask(c.ListWorkers(), c.WorkerTable)).rows
    name: str = at.params.worker
    exact = [row for row in rows if name in (row.id, row.url, row.url.partition("://")[2])]
    found = exact or [row for row in rows if row.id.startswith(name)]
    if len(found) != 1:
        how_many = f"{len(found)} workers match" if found else "no worker matches"
        raise NotFound(f"{how_many} {name!r}", remedy="GET /api/v1/workers lists them")
    return a.Worker.of(found[0])


async def change_worker(at: At) -> a.Worker:
    worker = (await show_worker(at)).id
    await at.ask(c.Drain(worker, undo=not at.body.draining), m.Done)
    return await show_worker(at)


async def remove_worker(at: At) -> Reply:
    await at.ask(c.RemoveWorker((await show_worker(at)).id), m.Done)
    return Reply(None, 204)
