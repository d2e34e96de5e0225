"""What the holder keeps, who claims it, and who watches. Pure.

`handle` and `ended` return actions. A connection is any hashable value.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from cachefs.holder.protocol import MAX_KEY_BYTES, MAX_META_BYTES, MAX_NAME_BYTES, Datagram

MAX_ENTRIES = 512  # mounts of a node
_NOBODY = (None, b"")


class Send(NamedTuple):
    """Send a datagram to a connection. One that does not read is closed."""

    to: Any
    datagram: Datagram


class Close(NamedTuple):
    """Close descriptors."""

    fds: tuple[int, ...]


class Holdings:
    """The entries of one holder."""

    def __init__(self) -> None:
        self._entries: dict[str, Datagram] = {}  # as GET returns them
        self._claimants: dict[str, tuple[Hashable, bytes]] = {}  # of each entry: connection, name
        self._watchers: set[Hashable] = set()

    def handle(self, sender: Hashable, request: Datagram) -> list[Send | Close]:
        """Returns what to do for a request, whose descriptors belong to this object from now on."""
        verb, key, data, fds = request
        entry = self._entries.get(key, Datagram("NONE", key))
        refusal = self._refusal(key, data, fds) if verb == "PUT" else ""
        if verb == "PUT" and not refusal and key not in self._entries:
            self._entries[key], self._claimants[key] = Datagram("ENTRY", key, data, fds), _NOBODY
            return [Send(sender, Datagram("OK")), *self._tell("PUT", key)]
        actions: list[Send | Close] = [Close(fds)] if fds else []
        reply, events = Datagram("OK"), list[Send]()
        if refusal:
            reply = Datagram("ERROR", data=refusal.encode())
        elif verb in ("LIST", "WATCH"):
            if verb == "WATCH":
                self._watchers.add(sender)
            lines = (key.encode() + b" " + name for key, (_, name) in self._claimants.items())
            reply = Datagram("KEYS", data=b"\n".join(lines))
        elif verb == "GET" or (verb in ("CLAIM", "DROP") and key not in self._entries):
            reply = entry
        elif verb == "CLAIM":
            former, name = self._claimants[key][0], data[:MAX_NAME_BYTES]
            self._claimants[key] = sender, name
            if former not in (None, sender):
                actions.append(Send(former, Datagram("HANDOVER", key)))
            reply, events = Datagram("OK", key), self._tell("CLAIM", key, name)
        elif verb == "DROP":
            del self._entries[key], self._claimants[key]
            actions.append(Close(entry.fds))
            events = self._tell("DROP", key)
        elif verb != "PUT":  # whose key is held: a survivor deposits what another one has deposited
            reply = Datagram("ERROR", data=f"unknown verb {verb[:20]!r}".encode())
        return [*actions, Send(sender, reply), *events]

    def ended(self, connection: Hashable) -> list[Send | Close]:
        """Returns what to do after a connection has ended: its claims are free."""
        self._watchers.discard(connection)
        free = [key for key, claimant in self._claimants.items() if claimant[0] == connection]
        self._claimants.update(dict.fromkeys(free, _NOBODY))
        return [event for key in free for event in self._tell("FREE", key)]

    def _refusal(self, key: str, meta: bytes, fds: tuple[int, ...]) -> str:
        if not 0 < len(key) <= MAX_KEY_BYTES or not all("!" <= char <= "~" for char in key):
            return f"a key has 1 to {MAX_KEY_BYTES} printable characters, none of them a space"
        if not fds:
            return "there are no descriptors"
        if len(meta) > MAX_META_BYTES:
            return f"more than {MAX_META_BYTES} bytes"
        if len(self._entries) >= MAX_ENTRIES and key not in self._entries:
            return f"{MAX_ENTRIES} entries are held, which is the most"
        return ""

    def _tell(self, verb: str, key: str, data: bytes = b"") -> list[Send]:
        return [Send(watcher, Datagram(verb, key, data)) for watcher in self._watchers]
