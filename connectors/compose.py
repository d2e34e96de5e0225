"""Construction of a source's connector from its URL: the adapter of its scheme, and the order of
the decorators (retry around limit around meter around the adapter)."""

from __future__ import annotations

import time
from collections.abc import Callable

from cachefs.core.model import UfsSpec
from connectors.base import Connector
from connectors.limit import IN_FLIGHT, Limit
from connectors.meter import Meter, Metered
from connectors.registry import open_adapter
from connectors.retry import Retry


def open_connector(
    spec: UfsSpec,
    *,
    deadline_s: float,
    meter: Meter,
    sleep: Callable[[float], None] = time.sleep,
    rng: Callable[[], float] | None = None,
) -> Connector:
    """Returns the connector of a source, with retries up to `deadline_s` per call. Sends no request
    yet (`check` does). Raises BadConfig, and Unsupported for a missing extra or a plug-in that
    fails."""
    adapter = open_adapter(spec, meter)
    return decorate(adapter, deadline_s=deadline_s, meter=meter, sleep=sleep, rng=rng)


def decorate(
    adapter: Connector,
    *,
    deadline_s: float,
    meter: Meter,
    in_flight: int = IN_FLIGHT,
    sleep: Callable[[float], None] = time.sleep,
    rng: Callable[[], float] | None = None,
) -> Connector:
    """Returns an adapter inside its decorators."""
    limited = Limit(Metered(adapter, meter), in_flight, wait_limit_s=deadline_s)
    return Retry(limited, deadline_s=deadline_s, sleep=sleep, rng=rng)
