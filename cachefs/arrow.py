"""File systems of pyarrow over CacheFS: `pyarrow.parquet.read_table(path, filesystem=...)`.

Complete files of this node are given to pyarrow as memory maps, so their bytes pass no Python code.
Others are read by the library. Read-only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from cachefs.core.errors import ReadOnly
from cachefs.core.install import install_command
from cachefs.library import api
from cachefs.library.os_errors import os_error
from cachefs.library.tree import Entry, Tree

try:
    import pyarrow as pa
    from pyarrow import fs
except ModuleNotFoundError as err:
    err.add_note(f"cachefs.arrow needs it: {install_command('arrow')}")
    raise


def filesystem(url: str | os.PathLike[str], **settings: Any) -> fs.FileSystem:
    """Returns the file system whose paths are those below `url` (see `cachefs.tree`)."""
    return fs.PyFileSystem(TreeHandler(api.tree(url, **settings)))


class TreeHandler(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """The names and files below a tree, as pyarrow requests them. Raises OSError."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeHandler) and other.tree.url == self.tree.url

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        return "cachefs"

    def normalize_path(self, path: str) -> str:
        return path.strip("/")

    # ---- names ----

    def get_file_info(self, paths: Sequence[str]) -> list[fs.FileInfo]:
        found = self.tree.stat_batch([path.strip("/") for path in paths], on_error="return")
        return [_info_of(path, one) for path, one in zip(paths, found, strict=True)]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        base = selector.base_dir.strip("/")
        try:
            list_all = self.tree.walk if selector.recursive else self.tree.list_dir
            return [_info_of(os.fsdecode(one.path), one) for one in list_all(base)]
        except FileNotFoundError:
            if selector.allow_not_found:
                return []
            raise

    # ---- bytes ----

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Returns a file for random access: a memory map where every byte is on this node."""
        file = self.tree.open(path.strip("/"))
        if not file.complete or not file.size:
            return pa.PythonFile(file, mode="r")
        with file:
            return pa.memory_map(f"/proc/self/fd/{file.fileno()}")

    open_input_stream = open_input_file

    # ---- what a read-only file system refuses ----

    def create_dir(self, path: str, recursive: bool) -> None:
        raise _read_only(path)

    def delete_dir(self, path: str) -> None:
        raise _read_only(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        raise _read_only(path)

    def delete_root_dir_contents(self) -> None:
        raise _read_only("")

    def delete_file(self, path: str) -> None:
        raise _read_only(path)

    def move(self, src: str, dest: str) -> None:
        raise _read_only(dest)

    def copy_file(self, src: str, dest: str) -> None:
        raise _read_only(dest)

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise _read_only(path)

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise _read_only(path)


def _info_of(path: str, found: Entry | OSError) -> fs.FileInfo:
    """Returns what pyarrow wants to know of a name. Raises OSError, unless the name is missing."""
    if isinstance(found, (FileNotFoundError, NotADirectoryError)):
        return fs.FileInfo(path, fs.FileType.NotFound)
    if isinstance(found, OSError):
        raise found
    if found.is_directory:
        return fs.FileInfo(path, fs.FileType.Directory)
    kind = fs.FileType.File if found.is_file else fs.FileType.Unknown
    return fs.FileInfo(path, kind, size=found.size, mtime_ns=found.mtime_ns)


def _read_only(path: str) -> OSError:
    return os_error(ReadOnly("the file system is read-only"), path)
