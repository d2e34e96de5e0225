"""A file system of pyarrow as a `LibraryTree`. It has sizes and times, and no etags."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from pyarrow import fs as arrow

from connectors.library.arguments import Arguments, Values
from connectors.library.tree import Facts

# The files of a credential for S3, and their names in pyarrow. No URL has them: URLs are shown.
_SECRETS: Final = {
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "session_token": "session_token",
}


class ArrowTree:
    """The directory of a URL. Connects at the first call; pyarrow's file systems serve many
    threads."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        """`url`: with pyarrow's scheme only. `options`: the parameters of its URLs."""
        self.where = f"arrow+{url}"
        self._url = url
        self._arguments = Arguments(options, [*_SECRETS])
        self._lock = threading.Lock()
        self._made: tuple[Values, tuple[Any, str]] | None = None

    def _open(self) -> tuple[Any, str]:
        """Returns the file system, and its name of the root."""
        values = self._arguments.values()
        with self._lock:
            if self._made is None or self._made[0] != values:
                self._made = values, _made(self._url, _query(values))
            return self._made[1]

    def stat(self, path: bytes) -> Facts | None:
        made, root = self._open()
        return _facts(made.get_file_info(_joined(root, path)), path.rpartition(b"/")[2])

    def names(self, path: bytes) -> tuple[list[Facts], int]:
        made, root = self._open()
        infos = made.get_file_info(arrow.FileSelector(_joined(root, path)))
        found = [_listed(info) for info in infos]
        return [facts for facts in found if facts], found.count(None)

    def read(self, path: bytes, offset: int, size: int) -> memoryview:
        made, root = self._open()
        with made.open_input_file(_joined(root, path)) as file:
            return memoryview(file.read_at(size, offset))

    def close(self) -> None:
        """pyarrow closes connections with the file system."""
        with self._lock:
            self._made = None


def _query(values: Values) -> dict[str, str]:
    """Returns the parameters as the URLs of pyarrow have them."""
    query = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
    }
    if endpoint := query.pop("endpoint_url", ""):
        query["scheme"], _, query["endpoint_override"] = endpoint.partition("://")
    return query


def _made(url: str, query: dict[str, str]) -> tuple[Any, str]:
    scheme, _, rest = url.partition("://")
    if secrets := {_SECRETS[name]: query.pop(name) for name in _SECRETS if name in query}:
        return arrow.S3FileSystem(**secrets, **query), rest.rstrip("/")
    uri = f"{scheme}://{quote(rest, safe='/:@[]')}" + (f"?{urlencode(query)}" if query else "")
    made, root = arrow.FileSystem.from_uri(uri)
    return made, root.rstrip("/")


def _joined(root: str, path: bytes) -> str:
    return f"{root}/{path.decode()}" if path else root or "/"


def _listed(info: Any) -> Facts | None:
    """Returns the facts of a name in a listing; None also for bytes that are no UTF-8."""
    try:
        name = info.base_name.encode()
    except UnicodeError:
        return None
    return _facts(info, name)


def _facts(info: Any, name: bytes) -> Facts | None:
    if info.type == arrow.FileType.Directory:
        return Facts(name, is_directory=True)
    if info.type != arrow.FileType.File:
        return None
    return Facts(name, False, info.size, info.mtime_ns)
