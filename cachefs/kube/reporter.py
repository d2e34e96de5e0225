"""Reports events of Kubernetes. An event that cannot be reported is no failure of its object."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable

from cachefs.core.errors import CacheFSError, InUse
from cachefs.kube import events
from cachefs.kube.api import KubeApi
from cachefs.kube.events import Event

log = logging.getLogger(__name__)


def utc_now() -> str:
    """Returns the time as Kubernetes writes it in objects."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Reporter:
    """Reports events with one client."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def report(self, found: Iterable[Event]) -> None:
        """Creates the events that are not there yet, and logs each. Raises nothing."""
        for event in found:
            log.info("%s/%s: %s: %s", *self._words(event))
            try:
                await self._api.create(events.body_of(event, utc_now()))
            except InUse:
                continue
            except CacheFSError as err:  # a namespace that ends takes no events
                log.info("an event is not reported: %s", err.one_line())

    @staticmethod
    def _words(event: Event) -> tuple[str, str, str, str]:
        about = event.about
        return about.kind, f"{about.namespace}/{about.name}", event.reason, event.message
