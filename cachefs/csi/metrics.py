"""The metrics of the driver, in a registry of their own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from cachefs.core.errors import CacheFSError

_BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
MOST_PODS: Final = 250
ORPHANS: Final = ("mount", "deposit")


class DriverMetrics:
    """The metrics. Threads may share this."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.shared = Gauge(
            "cachefs_csi_shared_mounts", "Shared mounts of this node.", registry=registry
        )
        self.published = Gauge(
            "cachefs_csi_published_volumes", "Volumes bound into pods.", registry=registry
        )
        self.publishes = Counter(
            "cachefs_csi_publishes", "Publishes by result.", ["result"], registry=registry
        )
        self.publishes.labels("ok")  # a first zero, so that `increase` sees the first event
        self.seconds = Histogram(
            "cachefs_csi_publish_seconds",
            "Duration of publishes that succeeded.",
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.orphans = Counter(
            "cachefs_csi_orphans_removed",
            "Shared mounts without a pod, and deposits without a mount.",
            ["kind"],
            registry=registry,
        )
        for kind in ORPHANS:
            self.orphans.labels(kind)
        self.lost = Counter(
            "cachefs_csi_lost_volumes",
            "Published volumes whose mount was dead and was made anew.",
            ["pod"],
            registry=registry,
        )
        self._lost_lock = threading.Lock()
        self._lost_pods: deque[str] = deque()

    def volume_lost(self, pod: str) -> None:
        """Counts a lost volume of a pod, NAMESPACE/NAME. Only the last `MOST_PODS` pods are
        exported."""
        with self._lost_lock:
            self.lost.labels(pod).inc()
            if pod in self._lost_pods:
                return
            self._lost_pods.append(pod)
            if len(self._lost_pods) > MOST_PODS:
                self.lost.remove(self._lost_pods.popleft())

    @contextlib.contextmanager
    def publish(self) -> Iterator[None]:
        """Counts a publish by its result, and its duration if it succeeds."""
        began_s = time.monotonic()
        try:
            yield
        except CacheFSError as err:
            self.publishes.labels(err.code).inc()
            raise
        except OSError:
            self.publishes.labels("os-error").inc()
            raise
        self.publishes.labels("ok").inc()
        self.seconds.observe(time.monotonic() - began_s)
