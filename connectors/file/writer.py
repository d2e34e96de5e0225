"""The writing half of `file://`.

A write fills a temporary file beside its target, which is synced and then linked or renamed to
its name. So a reader, and a crash, sees the old file or the new one. No symbolic link is followed.
The temporary files of crashed writers stay; listings hide them (`TEMPORARY`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from cachefs.core.errors import AlreadyExists, BadBody, IsADirectory, NotFound, Stale
from cachefs.core.model import Fingerprint, Kind
from connectors import keys
from connectors.capabilities import Capabilities, MultipartLimits, Writing
from connectors.file.connector import (
    READING,
    TEMPORARY,
    FileConnector,
    fingerprint_of,
    is_version,
    open_below,
    open_file,
)
from connectors.writing import ABSENT, ANY, Expect, Expectation, Upload

_GIB: Final = 1 << 30
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_COPY_BYTES: Final = 64 << 20
_WRITING: Final = Writing(
    create_only=True,
    replace_if=False,
    delete_if=False,
    max_put_bytes=_GIB,
    multipart=MultipartLimits(min_part_bytes=1, max_part_bytes=_GIB, max_parts=1 << 20),
    copy=True,
    rename=True,
    append=True,
)


class FileWriter(FileConnector):
    """A directory tree that can be written."""

    @property
    def capabilities(self) -> Capabilities:
        return WRITABLE

    def put(self, path: bytes, data: memoryview, expect: Expectation) -> Fingerprint:
        with self._temporary(path) as (temporary, name):
            temporary.write(data)
            return self._publish(temporary, name, expect, path)

    # Uploads. The id of a token is the name of the temporary file and its inode number.

    def begin(self, path: bytes, part_bytes: int) -> bytes:
        with self._temporary(path) as (temporary, _):
            temporary.keep()
            upload_id = f"{temporary.name.decode()}:{temporary.stat().st_ino}"
        return Upload(path, part_bytes, upload_id).token()

    def put_part(self, token: bytes, number: int, data: memoryview) -> bytes:
        upload = Upload.of(token)
        with self._classified(upload.path), self._parent(upload.path) as (directory, _):
            descriptor = os.open(_name_of(upload), _WRITE, dir_fd=directory)
            try:
                _write_all(descriptor, data, number * upload.part_bytes)
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        return b"%d" % len(data)

    def finish(self, token: bytes, receipts: Sequence[bytes], expect: Expectation) -> Fingerprint:
        upload = Upload.of(token)
        size = sum(map(int, receipts))
        path = upload.path
        with self._classified(path), self._parent(path) as (directory, name):
            try:
                temporary = _Temporary(directory, _name_of(upload))
            except FileNotFoundError:
                return self._finished(directory, name, upload)
            with temporary:
                temporary.keep()
                if temporary.stat().st_size < size:
                    raise BadBody("parts of the upload are missing", path=self._shown(path))
                os.ftruncate(temporary.descriptor, size)
                return self._publish(temporary, name, expect, path)

    def _finished(self, directory: int, name: bytes, upload: Upload) -> Fingerprint:
        """Returns the version of the file if it is that of an upload whose `finish` succeeded."""
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if found.st_ino == int(upload.id.partition(":")[2]):
                return _version(found)
        raise NotFound("no such upload: it was aborted", path=self._shown(upload.path))

    def abort(self, token: bytes) -> None:
        upload = Upload.of(token)
        with (
            contextlib.suppress(NotFound),
            self._classified(upload.path),
            self._parent(upload.path) as (directory, _),
        ):
            os.unlink(_name_of(upload), dir_fd=directory)

    # Names.

    def copy(
        self, source: bytes, version: Fingerprint, target: bytes, expect: Expectation
    ) -> Fingerprint:
        with self._classified(source), self._parent(source) as (above, old):
            reader = open_file(above, old, self._shown(source))
        try:
            with self._temporary(target) as (temporary, name):
                while os.sendfile(temporary.descriptor, reader, None, _COPY_BYTES):
                    pass
                if not is_version(fingerprint_of(os.fstat(reader)), version):
                    raise Stale("another version now", path=self._shown(source))
                return self._publish(temporary, name, expect, target)
        finally:
            os.close(reader)

    def rename(self, source: bytes, target: bytes, expect: Expectation) -> None:
        with self._classified(source), self._parent(source) as (above, old):
            found = os.stat(old, dir_fd=above, follow_symlinks=False)
            is_directory = stat.S_ISDIR(found.st_mode)
            with self._classified(target), self._parent_made(target) as (directory, new):
                self._expect(directory, new, expect, target)
                if expect is ABSENT and is_directory:
                    os.mkdir(new, dir_fd=directory)  # fails if the name is taken
                elif expect is ABSENT:
                    os.link(old, new, src_dir_fd=above, dst_dir_fd=directory, follow_symlinks=False)
                    os.unlink(old, dir_fd=above)
                if is_directory or expect is not ABSENT:
                    os.rename(old, new, src_dir_fd=above, dst_dir_fd=directory)
                os.fsync(directory)
                os.fsync(above)

    def delete(self, path: bytes, expect: Expectation) -> None:
        if expect is ABSENT:
            raise ValueError("a file to delete cannot be expected to be absent")
        is_directory = isinstance(expect, Fingerprint) and expect.kind is Kind.DIRECTORY
        try:
            with self._classified(path), self._parent(path) as (directory, name):
                self._expect(directory, name, expect, path)
                remove = os.rmdir if is_directory else os.unlink
                remove(name, dir_fd=directory)
                os.fsync(directory)
        except NotFound:
            if expect is not ANY:
                raise

    def mkdir(self, path: bytes, expect: Expect) -> None:
        with self._classified(path), self._parent_made(path) as (directory, name):
            try:
                os.mkdir(name, dir_fd=directory)
            except FileExistsError:
                found = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if expect is not ANY or not stat.S_ISDIR(found.st_mode):
                    raise
            os.fsync(directory)

    # Steps of a write.

    @contextlib.contextmanager
    def _parent_made(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """Yields as `_parent`, and makes the directories above the path."""
        above, _, name = path.rpartition(b"/")
        if not keys.visible_path(path) or not name or name.startswith(TEMPORARY):
            raise NotFound("no file can have this name", path=self._shown(path))
        directory = self._open_root()
        try:
            for part in above.split(b"/") if above else ():
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=directory)
                    os.fsync(directory)
                before = directory
                directory = open_below(before, part)
                os.close(before)
            yield directory, name
        finally:
            os.close(directory)

    @contextlib.contextmanager
    def _temporary(self, path: bytes) -> Iterator[tuple[_Temporary, bytes]]:
        """Yields a new temporary file for a path, and the path's last segment."""
        with (
            self._classified(path),
            self._parent_made(path) as (directory, name),
            _Temporary(directory) as temporary,
        ):
            yield temporary, name

    def _publish(
        self, temporary: _Temporary, name: bytes, expect: Expectation, path: bytes
    ) -> Fingerprint:
        """Gives a temporary file its name, and returns its version."""
        os.fsync(temporary.descriptor)
        directory = temporary.directory
        if expect is ABSENT:
            temporary.link(name)
            temporary.unlink()
        else:
            self._expect(directory, name, expect, path)
            temporary.rename(name)
        os.fsync(directory)
        return _version(temporary.stat())

    def _expect(self, directory: int, name: bytes, expect: Expectation, path: bytes) -> None:
        """Compares a name with a version; ANY is no directory. A change after that is lost."""
        if expect is ABSENT:
            return
        try:
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            if expect is ANY:
                return
            raise
        if isinstance(expect, Fingerprint):
            if not is_version(fingerprint_of(found), expect):
                raise Stale("another version now", path=self._shown(path))
        elif stat.S_ISDIR(found.st_mode):
            raise IsADirectory("a directory has this name", path=self._shown(path))


class _Temporary:
    """A temporary file in an open directory. The end of the block closes it, and removes it unless
    it got a name or is kept."""

    def __init__(self, directory: int, name: bytes = b"") -> None:
        """Creates a file; with a name, opens that one. Raises OSError."""
        self.directory = directory
        self.name = name or TEMPORARY + secrets.token_hex(12).encode()
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC if name else _CREATE
        self.descriptor = os.open(self.name, flags, 0o666, dir_fd=directory)
        self._is_there = True

    def __enter__(self) -> _Temporary:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)
        if self._is_there:
            os.unlink(self.name, dir_fd=self.directory)

    def keep(self) -> None:
        """Keeps the file after the block."""
        self._is_there = False

    def stat(self) -> os.stat_result:
        return os.fstat(self.descriptor)

    def write(self, data: memoryview) -> None:
        _write_all(self.descriptor, data, 0)

    def link(self, name: bytes) -> None:
        """Gives the file a second name. Raises FileExistsError, unless the name is this file's,
        given by a writer that ended before `unlink`."""
        where = self.directory
        try:
            os.link(self.name, name, src_dir_fd=where, dst_dir_fd=where, follow_symlinks=False)
        except FileExistsError:
            found = os.stat(name, dir_fd=where, follow_symlinks=False)
            if not os.path.samestat(self.stat(), found):
                raise

    def unlink(self) -> None:
        os.unlink(self.name, dir_fd=self.directory)
        self._is_there = False

    def rename(self, name: bytes) -> None:
        os.rename(self.name, name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        self._is_there = False


def _name_of(upload: Upload) -> bytes:
    """Returns the name of an upload's temporary file. Raises ValueError for a forged token."""
    name = upload.id.partition(":")[0].encode()
    if not name.startswith(TEMPORARY) or not keys.visible(name):
        raise ValueError("not a token of this connector")
    return name


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    data = data.cast("B")
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _version(found: os.stat_result) -> Fingerprint:
    version = fingerprint_of(found)
    if version is None:
        raise AlreadyExists("a special file has this name")
    return version


WRITABLE: Final = msgspec.structs.replace(READING, writing=_WRITING)
