"""What the holder keeps, who claims it, and who watches. Pure.

`handle` and `ended` return actions. A connection is any hashable value.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

from cachefs.holder.protocol import MAX_KEY_BYTES, MAX_META_BYTES, Datagram

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
        self._claimants: dict[str, Hashable] = {}
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
                keys = "\n".join(self._entries).encode()
                return [*actions, Send(sender, Datagram("KEYS", data=keys))]
            case "CLAIM":
                return [*actions, *self._claim(sender, key)]
            case "DROP":
                return [*actions, *self._drop(sender, key)]
        return [*actions, Send(sender, _error(f"unknown verb {verb[:20]!r}"))]

    def ended(self, connection: Hashable) -> list[Send | Close]:
        """Returns what to do after a connection has ended: its claims are free."""
        self._watchers.discard(connection)
        free = [key for key, claimant in self._claimants.items() if claimant == connection]
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

    def _claim(self, sender: Hashable, key: str) -> list[Send | Close]:
        entry = self._entries.get(key)
        if entry is None:
            return [Send(sender, Datagram("NONE", key))]
        former = self._claimants.get(key)
        self._claimants[key] = sender
        reply = Send(sender, Datagram("ENTRY", key, entry.meta, entry.fds))
        if former is None or former == sender:
            return [reply]
        return [Send(former, Datagram("HANDOVER", key)), reply]

    def _drop(self, sender: Hashable, key: str) -> list[Send | Close]:
        entry = self._entries.pop(key, None)
        if entry is None:
            return [Send(sender, Datagram("NONE", key))]
        self._claimants.pop(key, None)
        return [Close(entry.fds), Send(sender, Datagram("OK")), *self._tell("DROP", key)]

    def _tell(self, verb: str, key: str) -> Iterator[Send]:
        return (Send(watcher, Datagram(verb, key)) for watcher in self._watchers)


def _error(text: str) -> Datagram:
    return Datagram("ERROR", data=text.encode())
