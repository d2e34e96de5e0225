"""Announces the order of a sampler to the node's server, which reads ahead in it.

An announcement is a hint: a failure is logged once, and the samples are read without it. What is
left of the order is announced again to a server that was restarted, or that has ended the order
because no file was opened for some minutes.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Final

from cachefs.core.errors import (
    BadConfig,
    CacheFSError,
    DeadlineExceeded,
    Interrupted,
    Unreachable,
    Unsupported,
)
from cachefs.core.orders import Order, Share
from cachefs.trainers.announced import Announced, AnnouncedFunction, AnnouncedList
from cachefs.trainers.manifest import Manifest
from cachefs.trainers.mount_session import RESTART_S
from cachefs.trainers.order_route import OrderRoute, find_route

log = logging.getLogger(__name__)

CHECK_S: Final = 1.0  # between two requests whether the server still has the order
MOST_CHECK_S: Final = 60.0  # while it gives no answer: the pause doubles


class Announcer:
    """The order of one sampler at the server: its route, its name, what was announced last.
    Belongs to one thread. A loader process has a copy, which announces nothing."""

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
        self._pid = os.getpid()
        self._route: OrderRoute | None = None
        self._announced: Announced | None = None
        self._checked_s = 0.0
        self._pause_s = CHECK_S
        self._failed = False

    def function(self, order: Order, share: Share, span: int) -> bool:
        """Announces a rank's share of an order. Replaces what was announced before. Returns False,
        and announces nothing, where the server only takes lists."""
        self._announced = AnnouncedFunction(order, share, span)
        self._send()
        if self._route is None or self._route.takes_functions:
            return True
        self._announced = None
        return False

    def listing(self, total: int, span: int) -> Callable[[Sequence[int]], None]:
        """Returns a function that announces the next inode numbers of a list, in order. Replaces
        what was announced before."""
        announced = self._announced = AnnouncedList(total, span)

        def add(inos: Sequence[int]) -> None:
            announced.add(inos)
            self._send()

        return add

    def check(self, consumed: int) -> None:
        """Announces the rest again if the server has lost the order. `consumed`: samples since the
        iteration began. Loader processes may have read `span` more."""
        announced = self._announced
        if announced is None or self._pid != os.getpid():
            return
        announced.consume(consumed)
        if announced.left > announced.span and self._is_lost():
            self._drop()
            announced.begin_again()
            self._send()

    def close(self) -> None:
        """Ends the order and the session; idempotent."""
        self._manifest.order_names.discard(self._label)
        if self._pid == os.getpid():
            self._drop()

    # ---- the route ----

    def _is_lost(self) -> bool:
        if self._route is not None and self._route.is_over:
            return True
        now = time.monotonic()
        if now - self._checked_s < self._pause_s:
            return False
        self._checked_s = now
        if self._route is None:
            return self._failed
        try:
            is_lost = not self._route.has(self._name)
        except DeadlineExceeded:
            self._wait_longer()
            return False
        except CacheFSError:
            return True
        self._pause_s = CHECK_S
        return is_lost

    def _wait_longer(self) -> None:
        self._pause_s = min(2 * self._pause_s, MOST_CHECK_S)

    def _send(self) -> None:
        announced = self._announced
        if announced is None or self._pid != os.getpid():
            return
        try:
            self._announce(announced)
            self._failed, self._pause_s = False, CHECK_S
        except Unsupported as err:  # a mount by pyfuse3
            log.info("samples are read without being announced: %s", err.one_line())
            self._announced = None
            self._drop()
        except CacheFSError as err:
            self._report(err)

    def _announce(self, announced: Announced) -> None:
        for may_retry in (True, False):
            route = self._found(announced)
            if route is None or not (announced.is_list or route.takes_functions):
                return
            try:
                return announced.send(route, self._name)
            except (BadConfig, Interrupted, Unreachable) as err:  # it may be another server now
                if not may_retry:
                    raise
                announced.begin_again()
                if isinstance(err, Unreachable):
                    self._drop()

    def _found(self, announced: Announced) -> OrderRoute | None:
        if self._route is None:
            self._route = find_route(self._manifest, 0.0 if self._failed else RESTART_S)
            announced.begin_again()
        return self._route

    def _report(self, err: CacheFSError) -> None:
        if not self._failed:
            log.warning("samples are read without being announced: %s", err.one_line())
        self._failed = True
        self._wait_longer()
        self._drop()

    def _drop(self) -> None:
        route, self._route = self._route, None
        if route is not None:
            route.close(self._name)
