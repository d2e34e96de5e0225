"""The writing half of the UFS in memory: it writes as an object store with conditions does."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

import msgspec

from cachefs.core.errors import AlreadyExists, BadBody, NotEmpty, NotFound, Stale, Unsupported
from cachefs.core.model import Fingerprint, Kind
from connectors import keys
from connectors.capabilities import Capabilities, MultipartLimits, Writing
from connectors.decorator import Decorator
from connectors.writing import ABSENT, ANY, Expect, Expectation, Upload
from tests.services.memory import MemoryConnector

_WRITING = Writing(
    create_only=True,
    replace_if=True,
    delete_if=True,
    max_put_bytes=1 << 30,
    multipart=MultipartLimits(min_part_bytes=1, max_part_bytes=1 << 30, max_parts=1 << 20),
    copy=True,
    rename=False,
    append=False,
)


class MemoryUploads:
    """The uploads of a store in memory. `lock` makes a comparison and a change one step."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.numbers = itertools.count(1)
        self.parts: dict[str, dict[int, bytes]] = {}
        self.finished: dict[str, Fingerprint] = {}


class WritableMemory(Decorator):
    """A tree in memory that can be written. Several may share one tree and its uploads."""

    def __init__(self, memory: MemoryConnector, uploads: MemoryUploads | None = None) -> None:
        super().__init__(memory)
        self.memory = memory
        self.uploads = uploads or MemoryUploads()

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(self.memory.capabilities, writing=_WRITING)

    def put(self, path: bytes, data: memoryview, expect: Expectation) -> Fingerprint:
        with self.uploads.lock:
            self._expect("put", path, expect)
            self.memory.put(path, bytes(data))
            return self.memory.stat(path).fingerprint

    def begin(self, path: bytes, part_bytes: int) -> bytes:
        self.memory.script.enter("begin", path)
        upload_id = str(next(self.uploads.numbers))
        self.uploads.parts[upload_id] = {}
        return Upload(path, part_bytes, upload_id).token()

    def put_part(self, token: bytes, number: int, data: memoryview) -> bytes:
        upload = Upload.of(token)
        self.memory.script.enter("put_part", upload.path)
        self._parts(upload)[number] = bytes(data)
        return b"%d" % len(data)

    def finish(self, token: bytes, receipts: Sequence[bytes], expect: Expectation) -> Fingerprint:
        upload = Upload.of(token)
        with self.uploads.lock:
            if upload.id in self.uploads.finished:
                return self.uploads.finished[upload.id]
            parts = self._parts(upload)
            self._expect("finish", upload.path, expect)
            if [b"%d" % len(parts.get(n, b"")) for n in range(len(receipts))] != [*receipts]:
                raise BadBody("parts are missing", path=repr(upload.path))
            data = b"".join(parts[number] for number in range(len(receipts)))
            version = self.memory.put(upload.path, data)
            del self.uploads.parts[upload.id]
            self.uploads.finished[upload.id] = version
            return version

    def abort(self, token: bytes) -> None:
        upload = Upload.of(token)
        self.memory.script.enter("abort", upload.path)
        self.uploads.parts.pop(upload.id, None)

    def copy(
        self, source: bytes, version: Fingerprint, target: bytes, expect: Expectation
    ) -> Fingerprint:
        with self.uploads.lock:
            data = bytes(self.memory.read_all(source, version))
            self._expect("copy", target, expect)
            return self.memory.put(target, data)

    def rename(self, source: bytes, target: bytes, expect: Expectation) -> None:
        raise Unsupported("the store cannot rename")

    def delete(self, path: bytes, expect: Expectation) -> None:
        if expect is ABSENT:
            raise ValueError("a file to delete cannot be expected to be absent")
        with self.uploads.lock:
            if isinstance(expect, Fingerprint) and expect.kind is Kind.DIRECTORY:
                self._remove_directory(path)
            elif self._expect("delete", path, expect) is not None:
                self.memory.delete(path)

    def mkdir(self, path: bytes, expect: Expect) -> None:
        with self.uploads.lock:
            found = self._version(path)
            if found is not None and (expect is ABSENT or found.kind is not Kind.DIRECTORY):
                raise AlreadyExists("the name is taken", path=repr(path))
            self.memory.mkdir(path)

    def _remove_directory(self, path: bytes) -> None:
        if any(page.entries for page in self.memory.list_dir(path)):
            raise NotEmpty("the directory is not empty", path=repr(path))
        self.memory.stat(path)
        self.memory.delete(path)

    def _expect(self, verb: str, path: bytes, expect: Expectation) -> Fingerprint | None:
        """Returns the version that is there. Raises unless it is expected."""
        if not path or not keys.visible_path(path):
            raise NotFound("no file can have this name", path=repr(path))
        self.memory.script.enter(verb, path)
        found = self._version(path)
        if expect is ABSENT and found is not None:
            raise AlreadyExists("the file exists", path=repr(path))
        if isinstance(expect, Fingerprint):
            if found is None:
                raise NotFound("no such file", path=repr(path))
            if found != expect:
                raise Stale("another version now", path=repr(path))
        return found if expect is not ANY or found is not None else None

    def _version(self, path: bytes) -> Fingerprint | None:
        try:
            return self.memory.stat(path).fingerprint
        except NotFound:
            return None

    def _parts(self, upload: Upload) -> dict[int, bytes]:
        try:
            return self.uploads.parts[upload.id]
        except KeyError:
            raise NotFound("no such upload", path=repr(upload.path)) from None
