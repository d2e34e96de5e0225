"""Paths and globs as operators type them, over `bytes` paths below a namespace root. Pure.

`*` and `?` match within a segment, `[...]` is a class, `**` matches across segments. A selected
directory selects everything below it.
"""

from __future__ import annotations

import re

import msgspec

_MAGIC = re.compile(rb"[*?\[]")
_TOKEN = re.compile(rb"\*\*/|\*\*|\*|\?|\[[!^]?\]?[^\]]*\]|.", re.DOTALL)


class Selection(msgspec.Struct, frozen=True):
    """The paths that a glob selects. `base`: the deepest directory (or file) that holds every
    match. `pattern` None: everything at or below `base`."""

    base: bytes
    pattern: re.Pattern[bytes] | None

    def matches(self, path: bytes) -> bool:
        return self.pattern is None or self.pattern.fullmatch(path) is not None


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
    pattern = _translate(b"/".join(parts)) + rb"(?:/.*)?"
    return Selection(b"/".join(parts[:magic]), re.compile(pattern, re.DOTALL))


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
