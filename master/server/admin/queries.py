"""The parameters of the admin API, in paths (`/jobs/{job}`) and in queries. Each struct has those
of a route; the OpenAPI page has one for each field."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from cachefs.core.admin import DEFAULT_LIMIT, MAX_LIMIT, MAX_NUMBER, PathText

Limit = Annotated[int, Meta(ge=1, le=MAX_LIMIT, description="Items of a page, at most.")]
Next = Annotated[
    str, Meta(min_length=1, max_length=16384, description="The `next` of the page before.")
]
Namespace = Annotated[
    str,
    Meta(
        pattern="^[0-9a-f]{32}$",
        description="Of those that GET /api/v1 names; left out: the first one.",
    ),
]
Number = Annotated[int, Meta(ge=1, le=MAX_NUMBER)]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of all parameters; a route without parameters uses it alone."""


class Query(Params, frozen=True):
    namespace: Namespace | None = None


class Page(Query, frozen=True):
    limit: Limit = DEFAULT_LIMIT
    next: Next | None = None


class Next_(Query, frozen=True):
    """The query of a list whose page size the handler decides."""

    next: Next | None = None


class _Path(Query, frozen=True, kw_only=True):
    path: PathText


class AtPath(_Path, frozen=True):
    pass


class OfRemoval(_Path, frozen=True, kw_only=True):
    """`force`: paths of the source may be pinned."""

    force: bool = False


class OfPush(_Path, frozen=True, kw_only=True):
    """`secret`: that of the source, if it is not in the header `Authorization`."""

    secret: Annotated[str, Meta(max_length=1024)] = ""


class PathPage(_Path, frozen=True, kw_only=True):
    limit: Limit = DEFAULT_LIMIT
    next: Next | None = None


class PathNext(_Path, frozen=True, kw_only=True):
    next: Next | None = None


class OfWorker(Params, frozen=True):
    worker: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=256,
            pattern="^[!-~]+$",
            description="Its id or a unique start of it, or HOST:PORT.",
        ),
    ]


class OfJob(Params, frozen=True):
    job: Number


class OfJobAction(OfJob, frozen=True):
    action: Literal["stop", "resume", "retry"]


class OfSync(Params, frozen=True):
    sync: Number


# Of a path, by the names in it.
IN_PATHS: Final[dict[tuple[str, ...], type[Params]]] = {
    (): Params,
    ("worker",): OfWorker,
    ("job",): OfJob,
    ("job", "action"): OfJobAction,
    ("sync",): OfSync,
}
