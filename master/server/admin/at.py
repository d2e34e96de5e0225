"""What a request of the admin API is answered from: a namespace, who asks, and what was asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.access import Caller
from cachefs.core.errors import BadConfig, ProtocolError
from cachefs.core.model import NamespaceId
from cachefs.core.placement import View

T = TypeVar("T", bound=m.Message)


class Peers(Protocol):
    """Whoever asks workers."""

    async def ask(self, url: str, call: c.Have | c.Drop) -> c.Answer:
        """One attempt; the caller bounds its time. Raises Unreachable, ProtocolError."""


class Workers(Protocol):
    """The workers of a namespace, as the master sees them."""

    @property
    def view(self) -> View: ...
    def rows(self) -> list[c.WorkerRow]: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """One namespace. `ask`: the answer to a call, as judged for its caller; raises the typed
    errors. `peers`: None where workers cannot be asked from here."""

    namespace: NamespaceId
    ask: Callable[[c.Call, Caller], Awaitable[m.Message]]
    workers: Workers
    peers: Peers | None = None


@dataclass(frozen=True, slots=True)
class At:
    """One request, decoded: `params` of its path, `query`, `body` as its route says."""

    backend: Backend
    namespaces: list[str]  # hex, of all that are served here
    caller: Caller
    params: Any
    query: Any
    body: Any
    key: str  # Idempotency-Key, "": none

    @property
    def namespace(self) -> NamespaceId:
        return self.backend.namespace

    async def ask(self, call: c.Call, kind: type[T]) -> T:
        """The answer to a call of the asker. Raises the typed errors."""
        answer = await self.backend.ask(call, self.caller)
        if isinstance(answer, m.Failure):
            raise m.error_of(answer)
        assert isinstance(answer, kind), f"{type(call).__name__}: {type(answer).__name__}"
        return answer


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is not just 200."""

    answer: msgspec.Struct | None
    status: int
    location: str = ""


def number(text: str | None) -> int:
    """The `next` of lists that count. Raises BadConfig."""
    if text is None:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BadConfig(f"not a place in this list: {text!r}", remedy="give the `next` of a page")
    return int(text)


def position(text: str | None) -> bytes:
    """The `next` of walks. Raises BadConfig."""
    try:
        return bytes.fromhex(text or "")
    except ValueError as err:
        raise BadConfig("not a place in this walk", remedy="give the `next` of a page") from err


def no_peers() -> ProtocolError:
    return ProtocolError("workers cannot be asked from here")
