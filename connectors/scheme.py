"""The interface of a plug-in: what CacheFS must know of a URL scheme before it opens a source.

An entry point of the group `cachefs.connectors` names an instance of `Scheme`, which
`connectors.registry` finds. Its module must not import a client library, since the command line
checks sources where no client library is installed. Only `open` imports the adapter.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import ClassVar

from cachefs.core.errors import BadConfig
from cachefs.core.model import UfsSpec
from connectors.base import Connector
from connectors.event_queue import EventQueue
from connectors.meter import Meter


class Scheme:
    """A URL scheme. A subclass overrides `normalise` and `open`, and what differs of the rest."""

    # The options of a source, with a help line each. `endpoint_url` has one meaning in all schemes:
    # it is part of the identity of the source (`UfsSpec.key`).
    options: ClassVar[Mapping[str, str]] = {}
    # The extra of the plug-in's distribution that `open` needs, and the modules that the extra
    # installs. "": `open` needs no extra.
    extra: ClassVar[str] = ""
    libraries: ClassVar[tuple[str, ...]] = ()
    # A family `name` also has the URLs `name+anything://`.
    is_family: ClassVar[bool] = False

    def normalise(self, scheme: str, rest: str) -> str:
        """Returns the normal form of the URL `scheme://rest`: equal for all spellings of a source,
        without a trailing '/', and its own normal form. `scheme` is in lower case. Raises BadConfig
        with a remedy; never connects."""
        raise NotImplementedError

    def check_options(self, spec: UfsSpec) -> None:
        """Raises BadConfig for an unknown option or a bad value. An override calls this method
        first. `spec.url` is normal."""
        scheme = spec.url.partition("://")[0]
        for name in spec.options:
            if name not in self.options:
                raise _unknown_option(name, scheme, self.options)

    def open(self, spec: UfsSpec, meter: Meter) -> Connector:
        """Returns the adapter, without decorators (`connectors.compose` adds them). Sends no
        request. `spec` is normal and checked; `meter.made` counts new connections, if the adapter
        can tell them. May raise ModuleNotFoundError for one of `libraries`."""
        raise NotImplementedError

    def open_queue(self, spec: UfsSpec, url: str) -> EventQueue:
        """Returns the queue of the source's events. Sends no request. Raises as `open`; BadConfig
        for a store without such queues."""
        scheme = spec.url.partition("://")[0]
        raise BadConfig(f"no queue has events of {scheme}:// sources", path=spec.url)


def _unknown_option(name: str, scheme: str, options: Mapping[str, str]) -> BadConfig:
    if not options:
        return BadConfig(f"{scheme}:// sources have no options, got {name!r}", remedy="remove it")
    near = difflib.get_close_matches(name, options, n=1)
    remedy = f"did you mean {near[0]}?" if near else f"known: {', '.join(options)}"
    return BadConfig(f"unknown option {name!r} of {scheme}:// sources", remedy=remedy)
