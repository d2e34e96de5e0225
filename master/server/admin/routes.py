"""The admin API's routes: the table that requests and the OpenAPI page use."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from cachefs.core import admin as a
from cachefs.core.admin_sources import NewSource, Source, SourceAdded, SourceChange, Sources
from cachefs.core.admin_syncs import NewSync, Sync
from master.push.s3_events import Notification
from master.server.admin import cluster, files, health, jobs, policies, queries
from master.server.admin.at import At

_PARAMETER: Final = re.compile(r"\{(\w+)\}")
MAX_EVENTS_BYTES: Final = 1 << 20  # of a body that any sender may send

Handler = Callable[[At], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Route:
    """A method of a path below `API`. `answers`: status -> type of the body (None: no body).
    `keyed`: accepts an Idempotency-Key."""

    method: str
    path: str
    summary: str
    handler: Handler
    answers: dict[int, type[msgspec.Struct] | None]
    query: type[queries.Params] = queries.Query
    body: type[msgspec.Struct] | None = None
    keyed: bool = False
    admit: Callable[[At], Awaitable[None]] | None = None  # in place of a token, before the body
    refused: Callable[[At], None] = lambda at: None  # called if an admitted request fails
    params: type[queries.Params] = field(init=False)
    tag: str = field(init=False)

    def __post_init__(self) -> None:
        params = queries.IN_PATHS[tuple(_PARAMETER.findall(self.path))]
        object.__setattr__(self, "params", params)
        object.__setattr__(self, "tag", self.path.split("/")[1] if self.path else "about")

    @property
    def max_body_bytes(self) -> int:
        return a.MAX_BODY_BYTES if self.admit is None else MAX_EVENTS_BYTES

    @property
    def writes(self) -> bool:
        return self.method != "GET"

    @property
    def operation(self) -> str:
        """The name of the operation in generated clients."""
        return self.handler.__name__


def _get(
    path: str,
    summary: str,
    handler: Handler,
    answer: type[msgspec.Struct],
    query: type[queries.Params] = queries.Query,
) -> Route:
    return Route("GET", path, summary, handler, {200: answer}, query)


ROUTES: Final[tuple[Route, ...]] = (
    _get("", "Who answers, and for which namespaces.", cluster.about, a.About),
    _get("/status", "What `cachefs status` shows.", cluster.status, a.ClusterStatus),
    _get("/health", "What is wrong now: errors first.", health.show, a.Health),
    # sources
    _get("/sources", "The sources, by path.", cluster.list_sources, Sources, queries.Page),
    Route(
        "POST",
        "/sources",
        "Show a source at a directory, which is made. The same source again changes nothing.",
        cluster.add_source,
        {201: SourceAdded},
        body=NewSource,
    ),
    Route(
        "PATCH",
        "/sources",
        "Change the options and the sync interval of the source at a path.",
        cluster.change_source,
        {200: Source},
        queries.AtPath,
        body=SourceChange,
    ),
    Route(
        "DELETE",
        "/sources",
        "Take the source at a path out of the namespace. Nothing is deleted at the origin.",
        cluster.remove_source,
        {204: None},
        queries.OfRemoval,
    ),
    Route(
        "POST",
        "/sources/events",
        "Events of a store about the source at a path, with the source's own secret.",
        cluster.push_events,
        {204: None},
        queries.OfPush,
        body=Notification,
        admit=cluster.admit_events,
        refused=cluster.lose_events,
    ),
    # workers
    _get("/workers", "The workers, by id.", cluster.list_workers, a.Workers, queries.Page),
    _get("/workers/{worker}", "One worker.", cluster.show_worker, a.Worker),
    Route(
        "PATCH",
        "/workers/{worker}",
        "Drain a worker, or let it own data again.",
        cluster.change_worker,
        {200: a.Worker},
        body=a.WorkerChange,
    ),
    Route(
        "DELETE",
        "/workers/{worker}",
        "Forget a worker that is lost or drained.",
        cluster.remove_worker,
        {204: None},
    ),
    # policies
    _get(
        "/policies",
        "What holds at a path, who says so, and what is said below.",
        policies.show_policy,
        a.PolicyAt,
        queries.AtPath,
    ),
    Route(
        "PATCH",
        "/policies",
        "Say something at a path, or leave it open again. In force when it is answered.",
        policies.change_policy,
        {200: a.PolicyAt},
        queries.AtPath,
        body=a.PolicyChange,
    ),
    Route(
        "DELETE",
        "/policies",
        "Say nothing at a path any more.",
        policies.unset_policies,
        {200: a.PolicyAt},
        queries.AtPath,
    ),
    _get(
        "/quotas",
        "Quotas that hold for a path or below it, and what counts against them.",
        policies.list_quotas,
        a.Quotas,
        queries.PathPage,
    ),
    # what is cached
    _get(
        "/usage",
        "How much there is at or below a path, and how much of it is cached.",
        files.show_usage,
        a.Usage,
        queries.PathNext,
    ),
    Route(
        "POST",
        "/free",
        "Drop what is cached at or below a path. Nothing is deleted at the origin.",
        files.free,
        {200: a.FreedBytes},
        body=a.FreeRequest,
    ),
    _get(
        "/locations",
        "Which workers own the blocks of files, and who has them.",
        files.list_locations,
        a.Locations,
        queries.PathPage,
    ),
    _get(
        "/checks",
        "Is what is cached where it belongs?",
        files.list_checks,
        a.Checks,
        queries.PathPage,
    ),
    # jobs
    _get("/jobs", "Load jobs, the newest first.", jobs.list_jobs, a.Jobs, queries.Page),
    Route(
        "POST",
        "/jobs",
        "Submit a load job. The same paths as of one that runs change its settings (200).",
        jobs.submit_job,
        {200: a.SubmittedJob, 201: a.SubmittedJob},
        body=a.NewJob,
        keyed=True,
    ),
    _get("/jobs/{job}", "One job.", jobs.show_job, a.Job),
    Route(
        "DELETE",
        "/jobs/{job}",
        "Forget a job that does not run.",
        jobs.forget_job,
        {204: None},
    ),
    Route(
        "POST",
        "/jobs/{job}/paths",
        "More paths of a job that was submitted with `more`.",
        jobs.add_paths,
        {200: a.Job},
        body=a.JobPaths,
    ),
    Route(
        "POST",
        "/jobs/{job}/{action}",
        "Stop a job, resume a stopped one, or retry the failed files of one that has ended.",
        jobs.control_job,
        {200: a.Job},
        body=a.Nothing,
    ),
    _get(
        "/jobs/{job}/failures",
        "Files that could not be loaded, and why.",
        jobs.list_failures,
        a.FailedFiles,
        queries.Next_,
    ),
    # syncs
    Route(
        "POST",
        "/syncs",
        "Compare a path with its origin now.",
        jobs.start_sync,
        {201: Sync},
        body=NewSync,
    ),
    _get(
        "/syncs/{sync}",
        "How far a sync is, and changes from a place in their list on.",
        jobs.show_sync,
        Sync,
        queries.Next_,
    ),
    Route(
        "DELETE",
        "/syncs/{sync}",
        "End a sync here.",
        jobs.stop_sync,
        {204: None},
    ),
)

# Each route with the segments of its path, and the name of the parameter that a segment is, or "".
_PATTERNS: Final = [
    (
        route,
        [
            (text, found[1] if (found := _PARAMETER.fullmatch(text)) else "")
            for text in route.path.split("/")[1:]
        ],
    )
    for route in ROUTES
]


def _match(wanted: list[tuple[str, str]], segments: list[str]) -> dict[str, str] | None:
    """Returns the parameters of a route's path, or None if the segments do not match it."""
    if len(wanted) != len(segments):
        return None
    found = {}
    for (text, parameter), segment in zip(wanted, segments, strict=True):
        if parameter:
            found[parameter] = segment
        elif text != segment:
            return None
    return found


def find(segments: list[str]) -> list[tuple[Route, dict[str, str]]]:
    """Returns the routes that match a path below `API`, with its parameters: only those with the
    fewest parameters."""
    found = [
        (route, params)
        for route, wanted in _PATTERNS
        if (params := _match(wanted, segments)) is not None
    ]
    fewest = min((len(params) for _, params in found), default=0)
    return [one for one in found if len(one[1]) == fewest]
