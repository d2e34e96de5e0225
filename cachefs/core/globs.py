"""Paths and globs as operators type them, over `bytes` paths below a namespace root. Pure.

`*` and `?` match within a segment, `[...]` is a class, `**` matches across segments. A selected
directory selects everything below it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from cachefs.core.glob_automaton import ANY, SLASH, GlobAutomaton, Step

MOST_STARS: Final = 32  # of one glob
MOST_TRIES: Final = 1 << 17  # of a regular expression, which is faster for short names
_STARS: Final = (b"*", b"**", b"**/")
_MAGIC = re.compile(rb"[*?\[]")
_TOKEN = re.compile(rb"\*\*/|\*\*|\*|\?|\[[!^]?\]?[^\]]*\]|.", re.DOTALL)


class Selection(msgspec.Struct, frozen=True):
    """The paths that a glob selects. `base`: the deepest directory (or file) that holds every
    match. `pattern` None: everything at or below `base`."""

    base: bytes
    pattern: re.Pattern[bytes] | None
    glob: bytes = b""
    stars: int = 0

    def matches(self, path: bytes) -> bool:
        """Returns whether the glob selects a path, in a time that no glob and no name prolongs."""
        if self.pattern is None:
            return True
        if self.stars < 2 or (len(path) - len(self.base)) ** self.stars <= MOST_TRIES:
            return self.pattern.fullmatch(path) is not None
        return _automaton(self.glob).matches(path)


def is_glob(text: bytes) -> bool:
    """Returns whether a text is a pattern rather than a literal path."""
    return _MAGIC.search(text) is not None


def literal(path: bytes) -> bytes:
    """Returns a glob that matches only this path."""
    return _MAGIC.sub(rb"[\g<0>]", path)


def select(text: bytes) -> Selection:
    """Returns the selection of a path or glob. Leading, trailing and double slashes are ignored."""
    parts = [part for part in text.split(b"/") if part]
    magic = next((i for i, part in enumerate(parts) if _MAGIC.search(part)), None)
    if magic is None:
        return Selection(b"/".join(parts), None)
    glob = b"/".join(parts)
    pattern = re.compile(_translate(glob) + rb"(?:/.*)?", re.DOTALL)
    return Selection(b"/".join(parts[:magic]), pattern, glob, stars(glob))


def stars(glob: bytes) -> int:
    """Returns the number of parts of a glob that match any number of bytes."""
    return sum(token in _STARS for token in _TOKEN.findall(glob))


@functools.lru_cache(maxsize=64)
def _automaton(glob: bytes) -> GlobAutomaton:
    return GlobAutomaton([step for token in _TOKEN.findall(glob) for step in _steps(token)])


def _steps(token: bytes) -> Iterator[Step]:
    if token == b"**/":
        yield Step(skips=2)
        yield Step(takes=(SLASH,), keeps=ANY)
    elif token == b"**":
        yield Step(keeps=ANY, skips=1)
    elif token == b"*":
        yield Step(keeps=frozenset(ANY) - {SLASH}, skips=1)
    else:
        one = re.compile(_regex(token), re.DOTALL)
        yield Step(takes=frozenset(byte for byte in ANY if one.fullmatch(bytes([byte]))))


def _translate(glob: bytes) -> bytes:
    return b"".join(_regex(token) for token in _TOKEN.findall(glob))


def _regex(token: bytes) -> bytes:
    fixed = {b"**/": rb"(?:.*/)?", b"**": rb".*", b"*": rb"[^/]*", b"?": rb"[^/]"}
    if token in fixed:
        return fixed[token]
    if len(token) > 2 and token.startswith(b"["):
        negated = token[1:2] in (b"!", b"^")
        return _class(token[2 if negated else 1 : -1], negated=negated)
    return re.escape(token)


def _class(inner: bytes, *, negated: bool) -> bytes:
    """Returns a regex for a byte in (or not in) a class, never a slash. Reversed ranges are
    empty."""
    items, at = [], 0
    while at < len(inner):
        is_range = inner[at + 1 : at + 2] == b"-" and at + 2 < len(inner)
        low, high = inner[at : at + 1], inner[at + 2 : at + 3] if is_range else inner[at : at + 1]
        if low <= high:
            items.append(re.escape(low) + b"-" + re.escape(high))
        at += 3 if is_range else 1
    if not items:
        return rb"[^/]" if negated else rb"(?!)"
    return rb"(?!/)[" + (b"^" if negated else b"") + b"".join(items) + b"]"
