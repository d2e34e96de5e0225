"""Publishes and unpublishes volumes: the Node service without gRPC. Its errors are typed.

One operation at a time for each target; operations on different targets run side by side. Every
wait has a deadline, and few operations may wait for a mount at once, so that others find a thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from cachefs.core.errors import (
    CacheFSError,
    CannotMount,
    DeadlineExceeded,
    InUse,
    NotADirectory,
    NotFound,
    Unreachable,
)
from cachefs.core.messages import error_of
from cachefs.core.mountinfo import read_mounts
from cachefs.csi.deadlines import Answer, Probes
from cachefs.csi.errors import VolumeLost
from cachefs.csi.metrics import DriverMetrics
from cachefs.csi.shared_mounts import SharedMount, SharedMounts
from cachefs.csi.shares import MountShares, Places, Use
from cachefs.csi.volumes import Volume, namespace_of, parse_volume, pod_of
from cachefs.fuse import failure_notes

log = logging.getLogger(__name__)

THREADS: Final = 8  # that serve
MAX_WAITING: Final = THREADS - 2  # publishes at once: the others serve Unpublish and Probe
ANSWER_S: Final = 60.0  # for the first answer of a mount
CHECK_S: Final = 1.0  # for a published one: a dead mount answers at once
FRESH_S: Final = 1.0  # for this time many pods of one mount use one answer
TRIES: Final = 3  # a mount may die while it is queried


class Publish(NamedTuple):
    """A request to publish a volume."""

    volume_id: str
    target: str
    context: Mapping[str, str]
    mount_flags: Sequence[str] = ()


class Publisher:
    """The operations on targets. Threads may share this."""

    def __init__(
        self,
        mounts: SharedMounts,
        probes: Probes,
        metrics: DriverMetrics,
        master: str,
        *,
        confine: bool = False,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._mounts = mounts
        self._probes = probes
        self._metrics = metrics
        self._master = master
        self._confine = confine
        self._answer_s = answer_s
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._fresh: dict[str, float] = {}  # device -> until when it counts as not dead
        self._places = Places(MAX_WAITING)
        self._shares = MountShares()

    def publish(self, request: Publish) -> None:
        """Binds the volume to its target, read-only. Does nothing if it is bound. Raises BadConfig,
        InUse, Unreachable, DeadlineExceeded, CannotMount, OSError; Throttled for a namespace with
        too many mounts; NotFound or NotADirectory if the cluster has no such directory; VolumeLost
        once for a dead mount, after mounting it again."""
        with self._metrics.publish():
            volume = parse_volume(
                request.volume_id,
                request.context,
                request.mount_flags,
                self._master,
                confine=self._confine,
            )
            target, namespace = _resolved(request.target), namespace_of(request.context)
            use = Use(target, namespace, volume.mount_name)
            try:
                with self._operation(target), self._mounts.pinned(volume):
                    if self._is_published(target, volume, pod_of(request.context)):
                        return self._shares.note(use)
                    self._shares.claim(use)
                    with self._places.taken(namespace):
                        self._bind(volume, target)
            except (NotFound, NotADirectory):
                self._mounts.remove_failed(volume)
                raise

    def unpublish(self, target: str) -> None:
        """Unmounts and removes a target, never what lies below. Does nothing if there is none.
        Raises InUse, CannotMount, DeadlineExceeded, OSError."""
        target = _resolved(target)
        with self._operation(target):
            self._mounts.unbind(target)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(target)
            self._shares.end(target)

    def _is_published(self, target: str, volume: Volume, pod: str) -> bool:
        """Returns whether something that is alive is bound to a target. Raises VolumeLost."""
        top = read_mounts().at(target)
        if top is None:
            return False
        if not top.is_cachefs:
            raise CannotMount(f"a mount of type {top.fstype} is there", path=target)
        if not self._is_dead(target, top.device):
            return True
        self._replace(target, top.device, volume)
        self._metrics.volume_lost(pod)
        raise VolumeLost(
            f"the mount of the pod {pod} is lost: its descriptors were closed; it is mounted anew",
            remedy=f"restart the pod {pod}",
            path=target,
        )

    def _is_dead(self, target: str, device: str) -> bool:
        """Returns whether a mount is dead. One that waits for its server is not."""
        now = time.monotonic()
        with self._lock:
            self._fresh = {dev: end for dev, end in self._fresh.items() if end > now}
            if device in self._fresh:
                return False
        if self._query(target, CHECK_S) is Answer.DEAD:
            return True
        with self._lock:
            self._fresh[device] = time.monotonic() + FRESH_S
        return False

    def _replace(self, target: str, device: str, volume: Volume) -> None:
        """Removes a dead bind and its shared mount, and mounts that again. If the last step fails,
        the next publish repeats it. Raises as `SharedMounts.unbind`."""
        # The bind keeps the kernel from giving its device to a mount that another thread makes.
        shared = self._mounts.find(volume)
        self._mounts.unbind(target)
        if shared is not None and shared.device == device:
            self._mounts.discard(shared)
        try:
            self._mounts.find_or_make(volume)
        except CacheFSError as err:
            log.warning("%s is not mounted anew yet: %s", volume.url, err.one_line())

    def _bind(self, volume: Volume, target: str) -> None:
        end = time.monotonic() + self._answer_s
        for _ in range(TRIES):
            if self._mounts.bind(self._answering(volume, end), volume, target):
                return
        raise Unreachable("the mount was removed while it was bound", path=target)

    def _answering(self, volume: Volume, end: float) -> SharedMount:
        """Returns the shared mount of a volume once it answers. A dead one is replaced."""
        for _ in range(TRIES):
            shared = self._mounts.find_or_make(volume)
            left_s = max(0.0, end - time.monotonic())
            answer = self._query(shared.place, left_s, failure_notes.lacks_directory)
            if answer is Answer.ALIVE:
                return shared
            if answer is Answer.NONE:
                raise _unanswered(volume, shared.place)
            self._mounts.discard(shared)
        raise Unreachable(f"the mount of {volume.url} ended {TRIES} times")

    def _query(
        self, place: str, deadline_s: float, is_hopeless: Callable[[str], bool] = lambda _: False
    ) -> Answer:
        try:
            return self._probes.query(place, deadline_s, lambda: is_hopeless(place))
        except OSError as err:
            raise CannotMount(f"cannot be read: {err.strerror}", path=place) from err

    @contextlib.contextmanager
    def _operation(self, target: str) -> Iterator[None]:
        with self._lock:
            if target in self._busy:
                raise InUse("another operation on this target has not ended", path=target)
            self._busy.add(target)
        try:
            yield
        finally:
            with self._lock:
                self._busy.discard(target)


def _unanswered(volume: Volume, place: str) -> CacheFSError:
    """Returns the error of a mount that does not answer: the cause that its client has told."""
    failure = failure_notes.read(place)
    if failure is None:
        return DeadlineExceeded(
            f"the mount of {volume.url} does not answer yet",
            remedy="do the worker and the fuse container run on this node?",
        )
    if failure.code in failure_notes.NO_DIRECTORY:
        return error_of(failure)
    return DeadlineExceeded(f"{volume.url} cannot be shown yet: {error_of(failure).one_line()}")


def _resolved(target: str) -> str:
    """Returns a target as the mount table shows it. Does not access what is mounted there."""
    parent, name = os.path.split(os.path.normpath(target))
    return os.path.join(os.path.realpath(parent), name)
