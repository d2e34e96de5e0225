"""What the holder keeps, who claims it, and who watches. Pure.

`handle` and `ended` return actions. A connection is any hashable value.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

from cachefs.holder.protocol import MAX_KEY_BYTES, MAX_META_BYTES, MAX_NAME_BYTES, Datagram

MAX_ENTRIES = 512  # mounts of a node


class Send(NamedTuple):
    """Send a datagram to a connection. One that does not read is closed."""

    to: Hashable
    datagram: Datagram


class Close(NamedTuple):
    """Close descriptors."""

    fds: tuple[int, ...]


class _Entry(NamedTuple):
    meta: bytes
    fds: tuple[int, ...]


class Holdings:
    """The entries of one holder."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._claimants: dict[str, tuple[Hashable, bytes]] = {}  # connection, name
        self._watchers: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def handle(self, sender: Hashable, request: Datagram) -> list[Send | Close]:
        """Returns what to do for a request, whose descriptors belong to this object from now on."""
        verb, key, meta, fds = request
        if verb == "PUT":
            return self._put(sender, key, meta, fds)
        actions: list[Send | Close] = [Close(fds)] if fds else []
        match verb:
            case "LIST" | "WATCH":
                if verb == "WATCH":
                    self._watchers.add(sender)
                lines = (key.encode() + b" " + self._claimant(key)[1] for key in self._entries)
                return [*actions, Send(sender, Datagram("KEYS", data=b"\n".join(lines)))]
            case "GET":
                return [*actions, Send(sender, self._entry(key))]
            case "CLAIM":
                return [*actions, *self._claim(sender, key, meta[:MAX_NAME_BYTES])]
            case "DROP":
                return [*actions, *self._drop(sender, key)]
        return [*actions, Send(sender, _error(f"unknown verb {verb[:20]!r}"))]

    def ended(self, connection: Hashable) -> list[Send | Close]:
        """Returns what to do after a connection has ended: its claims are free."""
        self._watchers.discard(connection)
        free = [key for key, claimant in self._claimants.items() if claimant[0] == connection]
        for key in free:
            del self._claimants[key]
        return [event for key in free for event in self._tell("FREE", key)]

    def _put(
        self, sender: Hashable, key: str, meta: bytes, fds: tuple[int, ...]
    ) -> list[Send | Close]:
        refusal = self._refusal(key, meta, fds)
        if refusal:
            return [Close(fds), Send(sender, _error(refusal))]
        if key in self._entries:  # a survivor deposits what another one has deposited
            return [Close(fds), Send(sender, Datagram("OK"))]
        self._entries[key] = _Entry(meta, fds)
        return [Send(sender, Datagram("OK")), *self._tell("PUT", key)]

    def _refusal(self, key: str, meta: bytes, fds: tuple[int, ...]) -> str:
        if not key or len(key) > MAX_KEY_BYTES or not key.isprintable() or " " in key:
            return f"a key has 1 to {MAX_KEY_BYTES} printable characters, none of them a space"
        if not fds:
            return "there are no descriptors"
        if len(meta) > MAX_META_BYTES:
            return f"more than {MAX_META_BYTES} bytes"
        if len(self._entries) >= MAX_ENTRIES and key not in self._entries:
            return f"{MAX_ENTRIES} entries are held, which is the most"
        return ""

    def _entry(self, key: str) -> Datagram:
        entry = self._entries.get(key)
        if entry is None:
            return Datagram("NONE", key)
        return Datagram("ENTRY", key, entry.meta, entry.fds)

    def _claimant(self, key: str) -> tuple[Hashable, bytes]:
        return self._claimants.get(key, (None, b""))

    def _claim(self, sender: Hashable, key: str, name: bytes) -> list[Send | Close]:
        if key not in self._entries:
            return [Send(sender, Datagram("NONE", key))]
        former, _ = self._claimant(key)
        self._claimants[key] = sender, name
        told = [] if former in (None, sender) else [Send(former, Datagram("HANDOVER", key))]
        return [*told, Send(sender, Datagram("OK", key)), *self._tell("CLAIM", key, name)]

    def _drop(self, sender: Hashable, key: str) -> list[Send | Close]:
        entry = self._entries.pop(key, None)
        if entry is None:
            return [Send(sender, Datagram("NONE", key))]
        self._claimants.pop(key, None)
        return [Close(entry.fds), Send(sender, Datagram("OK")), *self._tell("DROP", key)]

    def _tell(self, verb: str, key: str, data: bytes = b"") -> Iterator[Send]:
        return (Send(watcher, Datagram(verb, key, data)) for watcher in self._watchers)


def _error(text: str) -> Datagram:
    return Datagram("ERROR", data=text.encode())
