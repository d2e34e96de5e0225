"""The watches of the controller: kopf lists and watches, and gives every event to the controller.

No state of kopf is kept in objects: only its lowest handlers are used. Of pods, only those that are
not running are watched, and of volumes, only those that the controller made.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

import kopf

from cachefs.kube.account import log_in
from cachefs.kube.controller import Controller
from cachefs.kube.names import GROUP, PLURAL, VERSION, VOLUME, Object

PAGE: Final = 200  # objects of the first list, at once in memory
CONNECT_S: Final = 5.0
SILENT_S: Final = 70.0  # the API server sends something every 60 s
IDLE_S: Final = 1.0
Saw = Callable[[str | None, Object], None]


class Pauses:
    """The pauses between attempts to reach the API server. They do not end."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.2, 0.5, 1.0), itertools.repeat(2.0))


async def watch(controller: Controller, ready: asyncio.Event) -> None:
    """Watches until a cancellation or a stop signal, and sets `ready` once it begins.
    Raises what kopf cannot deal with. kopf cancels every task that was made after it began."""
    logging.getLogger("kopf").setLevel(logging.WARNING)
    await kopf.operator(
        registry=registry_of(controller),
        settings=settings(),
        clusterwide=True,
        standalone=True,
        ready_flag=ready,
    )


def settings() -> kopf.OperatorSettings:
    made = kopf.OperatorSettings()
    made.posting.enabled = False  # the controller reports events itself
    made.scanning.disabled = True  # definitions and namespaces are not watched
    made.watching.chunk_size = PAGE
    made.watching.connect_timeout = CONNECT_S
    made.watching.inactivity_timeout = SILENT_S
    made.watching.field_selectors["", "v1", "pods"] = "status.phase=Pending"
    made.watching.label_selectors["", "v1", "persistentvolumes"] = VOLUME
    made.networking.error_backoffs = Pauses()
    made.networking.connect_timeout = CONNECT_S
    made.queueing.idle_timeout = IDLE_S
    return made


def registry_of(controller: Controller) -> kopf.OperatorRegistry:
    """Returns the handlers: each gives an event to the controller and returns."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(_log_in)
    _add(registry, (GROUP, VERSION, PLURAL), controller.saw_dataset)
    _add(registry, ("", "v1", "pods"), controller.saw_pod)
    _add(registry, ("", "v1", "persistentvolumeclaims"), controller.saw_claim)
    _add(registry, ("", "v1", "persistentvolumes"), controller.saw_volume)
    return registry


def _add(registry: kopf.OperatorRegistry, kind: tuple[str, str, str], saw: Saw) -> None:
    async def handler(event: Any, **_: Any) -> None:
        saw(event["type"], event["object"])

    kopf.on.event(*kind, id=kind[2], registry=registry)(handler)


def _log_in(**_: Any) -> kopf.ConnectionInfo:
    return log_in()
