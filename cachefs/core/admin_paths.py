"""The encoding of namespace paths in the admin API. Pure.

A path is text that starts with '/': its bytes as UTF-8, where `%XX` stands for one byte. `%` is
always written `%25`. A byte that is not valid UTF-8 is written as `%XX`.
"""

from __future__ import annotations

import re
import urllib.parse
from typing import Annotated, Final

from msgspec import Meta

from cachefs.core.errors import BadConfig

MAX_PATH_CHARS: Final = 3 * 4096 + 1

_UNDECODED: Final = re.compile("[\udc80-\udcff]")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


def text_of(path: bytes) -> str:
    """Returns a path below the namespace root as the API writes it."""
    text = path.strip(b"/").replace(b"%", b"%25").decode("utf-8", "surrogateescape")
    return "/" + _UNDECODED.sub(lambda one: f"%{ord(one[0]) - 0xDC00:02X}", text)


def bytes_of(text: str) -> bytes:
    """Returns the path of a text: the inverse of `text_of`, stripped of '/'. Raises BadConfig."""
    wrong = ""
    if not text.startswith("/"):
        wrong = "start it with '/'"
    elif _BAD_ESCAPE.search(text):
        wrong = "write '%' as %25"
    path = urllib.parse.unquote_to_bytes(text.encode("utf-8", "surrogatepass"))
    if b"\0" in path or {b".", b".."} & set(path.split(b"/")):
        wrong = "remove '.', '..' and NUL"
    if wrong:
        raise BadConfig(f"not a path of the namespace: {text!r}", remedy=wrong)
    return b"/".join(part for part in path.split(b"/") if part)


PathText = Annotated[
    str,
    Meta(
        pattern="^/",
        max_length=MAX_PATH_CHARS,
        description="Path of the namespace: UTF-8, where %XX stands for one byte; % is %25.",
    ),
]
