"""A decoded admin API request: its namespace, its caller and its parameters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.access import Caller
from cachefs.core.errors import BadConfig
from cachefs.core.model import NamespaceId
from cachefs.core.placement import View
from master.server.admin.queries import Page

T = TypeVar("T", bound=m.Message)
Item = TypeVar("Item")


class Peers(Protocol):
    """A sender of requests to workers."""

    async def ask(self, url: str, call: c.Have | c.Drop) -> c.Answer:
        """Sends one request; the handler bounds its time. Raises Unreachable, ProtocolError."""


class Workers(Protocol):
    """The workers of a namespace in the master's view."""

    @property
    def view(self) -> View: ...
    def rows(self) -> list[c.WorkerRow]: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """A namespace. `ask` checks the caller's rights, and returns the reply to the call or raises
    the typed errors. `admit_store` raises AccessDenied unless the secret is that of the source at
    the path. `lose_events(path)` records that events of a source were refused. `peers` is None if
    this server cannot reach workers."""

    namespace: NamespaceId
    ask: Callable[[c.Call, Caller], Awaitable[m.Message]]
    admit_store: Callable[[bytes, str], Awaitable[None]]
    lose_events: Callable[[bytes], None]
    workers: Workers
    peers: Peers | None = None


@dataclass(frozen=True, slots=True)
class At:
    """A request: the `params` of its path, `query` and `body`, in the types of its route."""

    backend: Backend
    namespaces: list[str]  # hex, of all that this server has
    caller: Caller
    params: Any
    query: Any
    body: Any
    key: str  # the Idempotency-Key; "": none
    secret: str = ""  # of the header, for a route with its own secret

    def __repr__(self) -> str:
        return "At(...)"

    @property
    def namespace(self) -> NamespaceId:
        return self.backend.namespace

    async def ask(self, call: c.Call, kind: type[T]) -> T:
        """Returns the reply to a call by the caller of this request. Raises the typed errors."""
        answer = await self.backend.ask(call, self.caller)
        if isinstance(answer, m.Failure):
            raise m.error_of(answer)
        assert isinstance(answer, kind), f"{type(call).__name__}: {type(answer).__name__}"
        return answer


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply with a status other than 200, or with a `Location` header."""

    answer: msgspec.Struct | None
    status: int
    location: str = ""


def number(text: str | None) -> int:
    """Returns the position in a list from its `next`; None: 0. Raises BadConfig."""
    if text is None:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BadConfig(f"not a place in this list: {text!r}", remedy="give the `next` of a page")
    return int(text)


def position(text: str | None) -> bytes:
    """Returns the cursor of a walk from its `next`; None: empty. Raises BadConfig."""
    try:
        return bytes.fromhex(text or "")
    except ValueError as err:
        raise BadConfig("not a place in this walk", remedy="give the `next` of a page") from err


def page_of(
    items: Iterable[Item], key: Callable[[Item], str], query: Page
) -> tuple[list[Item], str | None]:
    """Returns the page of a list that a query asks for, in the order of `key`, and its `next`."""
    later = sorted((one for one in items if query.next is None or key(one) > query.next), key=key)
    page = later[: query.limit]
    return page, key(page[-1]) if len(later) > len(page) else None
