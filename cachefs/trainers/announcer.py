"""Announces the order of a sampler to the node's server, which reads ahead in it.

An announcement is a hint: a failure is logged once, and the samples are read without it. A server
that was restarted gets the rest of the order.
"""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from array import array
from collections.abc import Callable, Iterator, Sequence

from cachefs.core import messages as m
from cachefs.core.errors import BadConfig, CacheFSError
from cachefs.core.order_messages import MOST_ENTRIES
from cachefs.core.orders import Order, Share
from cachefs.trainers.manifest import Manifest
from cachefs.trainers.mount_session import MountSession, open_session

log = logging.getLogger(__name__)

Announcement = Callable[[MountSession], None]


class Announcer:
    """The order of one sampler at the server: its session, its name, what was announced last."""

    def __init__(self, manifest: Manifest, name: str) -> None:
        """Raises BadConfig if another sampler of this manifest has the name."""
        self._manifest = manifest
        self._label = name or uuid.uuid4().hex[:8]
        if self._label in manifest.order_names:
            raise BadConfig(
                f"another sampler of {manifest.path} announces its order as {name!r}",
                remedy="give each sampler a name of its own, or none",
            )
        manifest.order_names.add(self._label)
        self._name = f"{self._label}-{uuid.uuid4().hex[:8]}"  # other processes may use the label
        self._session: MountSession | None = None
        self._pid = os.getpid()
        self._function: tuple[Order, int] | None = None  # announced last, and its span
        self._failed = False

    def function(self, order: Order, share: Share, span: int) -> None:
        """Announces a rank's share of an order. Replaces what was announced before."""
        self._function = (order, span)
        self._send(self._share_of(order, share, span))

    @contextlib.contextmanager
    def listing(self, total: int, span: int) -> Iterator[Callable[[Sequence[int]], None]]:
        """Yields a function that announces the next inode numbers of a list, in order."""
        announced = 0

        def add(inos: Sequence[int]) -> None:
            nonlocal announced
            for first in range(0, len(inos), MOST_ENTRIES):
                piece = array("Q", inos[first : first + MOST_ENTRIES])
                self._send(self._piece(piece, announced, total, span))
                announced += len(piece)

        self._function = None
        yield add

    def check(self, rest: Share) -> None:
        """Announces the rest of a share again if the server was restarted."""
        if self._session is not None and self._session.is_over and self._pid == os.getpid():
            self._drop()
            if self._function is not None:
                order, span = self._function
                self._send(self._share_of(order, rest, span))

    def close(self) -> None:
        """Ends the order and the session; idempotent."""
        self._manifest.order_names.discard(self._label)
        if self._pid == os.getpid():
            self._drop()

    def _share_of(self, order: Order, share: Share, span: int) -> Announcement:
        def announce(session: MountSession) -> None:
            body = m.AnnounceFunction(session.namespace, self._name, order, share, span)
            session.call(body, m.Done, self._manifest.ino_fd)

        return announce

    def _piece(self, inos: array[int], first: int, total: int, span: int) -> Announcement:
        def announce(session: MountSession) -> None:
            body = m.AnnounceOrder(
                session.namespace, self._name, first, inos.tobytes(), total, span
            )
            session.call(body, m.Done)

        return announce

    def _send(self, announce: Announcement) -> None:
        if self._pid != os.getpid():
            return  # a loader process has a copy of the sampler
        try:
            if self._session is None:
                self._session = open_session(self._manifest.path, self._manifest.home)
            if self._session is not None:
                announce(self._session)
                self._failed = False
        except CacheFSError as err:
            self._report(err)

    def _report(self, err: CacheFSError) -> None:
        if not self._failed:
            log.warning("samples are read without being announced: %s", err.one_line())
        self._failed = True
        self._drop()

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
