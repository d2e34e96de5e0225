"""The names of a source, against a scripted session."""

from __future__ import annotations

import threading
import time
from typing import Any

from cachefs.core import messages as m
from cachefs.core.model import Inode, Kind, NamespaceId
from cachefs.library.names import Names
from cachefs.library.path_walk import Question

ROOT = Inode(1, Kind.DIRECTORY)
ATTACHED = m.Attached(NamespaceId(b"n" * 16), ROOT)
LIMIT_S = 20.0


class LostSession:
    """Its connection is lost: whoever needs the root connects, which drops all names."""

    names: Names

    @property
    def attached(self) -> m.Attached:
        self.names.invalidate_everything(ATTACHED)
        return ATTACHED


def test_an_outdated_path_is_dropped_while_the_connection_is_lost() -> None:
    """A file was replaced, and the server ended with its reply."""
    session: Any = LostSession()
    session.names = names = Names(session)
    found = m.Found(Inode(7, Kind.FILE, 5), 60.0)
    names.put_found(Question(ROOT.ino, b"a"), found, names.position())
    dropping = threading.Thread(target=names.forget, args=(b"a",), daemon=True)
    dropping.start()
    dropping.join(LIMIT_S)
    assert not dropping.is_alive()
    assert names.known(b"a", time.monotonic()) is None
