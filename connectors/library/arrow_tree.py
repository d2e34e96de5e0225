"""A file system of pyarrow as a `LibraryTree`. It tells sizes and times, and no etags."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from pyarrow import fs as arrow

from connectors.library.options import resolved
from connectors.library.tree import Facts


class ArrowTree:
    """The directory of a URL. Connects at the first call; pyarrow's file systems serve many
    threads."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        """`url`: with pyarrow's scheme only. `options`: the parameters of its URLs."""
        self.where = f"arrow+{url}"
        self._url = url
        self._options = options
        self._lock = threading.Lock()
        self._made: tuple[Any, str] | None = None

    def _open(self) -> tuple[Any, str]:
        """Returns the file system, and its name of the root."""
        with self._lock:
            if self._made is None:
                query = {
                    name: str(value).lower() if isinstance(value, bool) else str(value)
                    for name, value in resolved(self._options).items()
                }
                if endpoint := query.pop("endpoint_url", ""):
                    query["scheme"], _, query["endpoint_override"] = endpoint.partition("://")
                self._made = _made(self._url, query)
            return self._made

    def stat(self, path: bytes) -> Facts | None:
        made, root = self._open()
        return _facts(made.get_file_info(_joined(root, path)), path.rpartition(b"/")[2])

    def names(self, path: bytes) -> tuple[list[Facts], int]:
        made, root = self._open()
        infos = made.get_file_info(arrow.FileSelector(_joined(root, path)))
        found = [_facts(info, info.base_name.encode()) for info in infos]
        return [facts for facts in found if facts], found.count(None)

    def read(self, path: bytes, offset: int, size: int) -> memoryview:
        made, root = self._open()
        with made.open_input_file(_joined(root, path)) as file:
            return memoryview(file.read_at(size, offset))

    def close(self) -> None:
        """pyarrow closes connections with the file system."""
        with self._lock:
            self._made = None


def _made(url: str, query: Mapping[str, str]) -> tuple[Any, str]:
    scheme, _, rest = url.partition("://")
    uri = f"{scheme}://{quote(rest, safe='/:@[]')}" + (f"?{urlencode(query)}" if query else "")
    made, root = arrow.FileSystem.from_uri(uri)
    return made, root.rstrip("/")


def _joined(root: str, path: bytes) -> str:
    return f"{root}/{path.decode()}" if path else root or "/"


def _facts(info: Any, name: bytes) -> Facts | None:
    if info.type == arrow.FileType.Directory:
        return Facts(name, is_directory=True)
    if info.type != arrow.FileType.File:
        return None
    return Facts(name, False, info.size, info.mtime_ns)
