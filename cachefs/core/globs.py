"""Paths and globs as operators type them, over `bytes` paths below a namespace root. Pure.

`*` and `?` stay within a segment, `[...]` is a class, `**` crosses segments. A selected directory
selects everything below it.
"""

from __future__ import annotations

import re

import msgspec

_MAGIC = re.compile(rb"[*?\[]")
_TOKEN = re.compile(rb"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)


class Selection(msgspec.Struct, frozen=True):
    """`base` is the deepest directory (or file) that holds every match; `pattern` None selects all
    of it."""

    base: bytes
    pattern: re.Pattern[bytes] | None

    def matches(self, path: bytes) -> bool:
        return self.pattern is None or self.pattern.fullmatch(path) is not None


def select(text: bytes) -> Selection:
    """The selection of a path or glob; leading, trailing and double slashes do not matter."""
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
        negated = token[1:2] == b"!"
        inner = token[2 if negated else 1 : -1].replace(b"\\", rb"\\").replace(b"[", rb"\[")
        inner = inner.replace(b"]", rb"\]")
        return b"[" + (b"^/" if negated else b"") + inner + b"]"
    return re.escape(token)
