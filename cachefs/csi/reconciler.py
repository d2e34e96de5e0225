"""A thread that removes what no pod uses any more: it carries out what `leftovers` decides."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from cachefs.core.errors import CacheFSError, ProtocolError
from cachefs.core.mountinfo import read_mounts
from cachefs.csi.deadlines import Probes
from cachefs.csi.leftovers import Drop, Leftovers, Snapshot, Unmount
from cachefs.csi.metrics import DriverMetrics
from cachefs.csi.shared_mounts import Node, SharedMounts
from cachefs.fuse.deposits import HolderClient
from cachefs.network.unix_sockets import close_all

log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
HUNG_S: Final = 120.0  # a pass that takes longer makes the driver unhealthy


class Reconciler:
    """The thread, from `start` to `stop`."""

    def __init__(
        self,
        node: Node,
        mounts: SharedMounts,
        probes: Probes,
        metrics: DriverMetrics,
        linger_s: float,
    ) -> None:
        self._node = node
        self._mounts = mounts
        self._probes = probes
        self._metrics = metrics
        self._leftovers = Leftovers(linger_s)
        self._interval_s = min(INTERVAL_S, max(linger_s / 4, 0.05))
        self._devices: dict[str, str] = {}  # key -> device of its deposit, which never changes
        self._passed_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, deadline_s: float) -> None:
        """Ends the thread; waits no longer than this for it. Idempotent."""
        self._stop.set()
        self._thread.join(deadline_s)

    def is_healthy(self) -> bool:
        return self._thread.is_alive() and time.monotonic() - self._passed_s < HUNG_S

    def reconcile(self, now: float) -> None:
        """Makes one pass. A removal that fails is tried again by the next one."""
        self._probes.reap()
        self._remove_empty_places()
        snapshot = self._snapshot()
        self._metrics.shared.set(len(snapshot.shared))
        self._metrics.published.set(sum(snapshot.users.values()))
        for item in self._leftovers.handle(snapshot, now):
            try:
                self._remove(item)
            except (CacheFSError, OSError) as err:
                log.warning("%s stays for now: %s", item, err)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self.reconcile(time.monotonic())
                self._passed_s = time.monotonic()
            except OSError:
                log.exception("the leftovers of this node cannot be found")

    def _remove_empty_places(self) -> None:
        try:
            self._mounts.remove_empty_places()
        except CacheFSError as err:
            log.warning("directories without a mount stay for now: %s", err.one_line())

    def _remove(self, item: Unmount | Drop) -> None:
        match item:
            case Unmount(place, device):
                if not self._mounts.remove_unused(place, device):
                    return
                kind, what = "mount", place
            case Drop(key):
                with HolderClient(self._node.holder) as holder:
                    holder.drop(key)
                kind, what = "deposit", key
        self._metrics.orphans.labels(kind).inc()
        log.info("removed the %s %s, which nothing used", kind, what)

    def _snapshot(self) -> Snapshot:
        entries = self._entries()
        mounts = read_mounts()  # after the entries: a mount is made before its deposit
        return Snapshot.of(mounts, self._node.mounts_dir, entries)

    def _entries(self) -> dict[str, str] | None:
        """Returns key -> device of the holder's entries; None if it does not answer."""
        try:
            with HolderClient(self._node.holder) as holder:
                found = {key: self._device(holder, key) for key in holder.claimants()}
        except CacheFSError:
            return None
        self._devices = found
        return found

    def _device(self, holder: HolderClient, key: str) -> str:
        if key in self._devices:
            return self._devices[key]
        try:
            entry = holder.get(key)
        except ProtocolError:
            return ""
        if entry is None:
            return ""
        deposit, *fds = entry
        close_all(fds)
        return deposit.device
