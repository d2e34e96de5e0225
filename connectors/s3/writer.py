"""The writing half of `s3://`: conditional PUT, multipart uploads, CopyObject, DELETE.

The server compares the expected version (If-None-Match, If-Match). DELETE sends the condition too,
but not every server reads it, so the version is compared before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import msgspec

from cachefs.core.errors import (
    AlreadyExists,
    BadBody,
    CacheFSError,
    NotEmpty,
    NotFound,
    Stale,
    Unsupported,
)
from cachefs.core.model import Fingerprint, Kind
from connectors.base import clean_etag
from connectors.bodies import read_whole_body
from connectors.capabilities import Capabilities, MultipartLimits, Writing
from connectors.s3.connector import READING, S3Connector
from connectors.s3.errors import XML_ERRORS, classify, parse_failure
from connectors.writing import ABSENT, ANY, Expect, Expectation, Upload

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
WRITABLE: Final[Capabilities] = msgspec.structs.replace(
    READING,
    writing=Writing(
        create_only=True,
        replace_if=True,
        delete_if=False,
        max_put_bytes=5 * _GIB,
        multipart=MultipartLimits(
            min_part_bytes=5 * _MIB, max_part_bytes=5 * _GIB, max_parts=10_000
        ),
        copy=True,
        rename=False,
        append=False,
    ),
)


class S3Writer(S3Connector):
    """A bucket, or a prefix of it, that can be written."""

    _declared = WRITABLE

    def put(self, path: bytes, data: memoryview, expect: Expectation) -> Fingerprint:
        key = self._key(path)
        _, etag = self._write("PUT", key, expect, headers=_conditions(expect), data=data)
        return self._written(key, etag)

    # Uploads.

    def begin(self, path: bytes, part_bytes: int) -> bytes:
        document, _ = self._write("POST", self._key(path), ANY, query={"uploads": ""})
        upload_id = _text(document, "UploadId", self._shown(path))
        return Upload(path, part_bytes, upload_id).token()

    def put_part(self, token: bytes, number: int, data: memoryview) -> bytes:
        upload = Upload.of(token)
        query = {"partNumber": str(number + 1), "uploadId": upload.id}
        _, etag = self._write("PUT", self._key(upload.path), ANY, query=query, data=data)
        return etag.encode()

    def finish(self, token: bytes, receipts: Sequence[bytes], expect: Expectation) -> Fingerprint:
        upload = Upload.of(token)
        key = self._key(upload.path)
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>&quot;{escape(etag.decode())}&quot;"
            "</ETag></Part>"
            for number, etag in enumerate(receipts, start=1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        query, headers = {"uploadId": upload.id}, _conditions(expect)
        try:
            document, _ = self._write("POST", key, expect, query=query, headers=headers, data=body)
        except (NotFound, AlreadyExists, Stale):  # of a file, or an upload that is finished
            found = self._own(key, receipts)
            if found is None:
                raise
            return found
        return self._written(key, clean_etag(_text(document, "ETag", self._shown(upload.path))))

    def _own(self, key: str, receipts: Sequence[bytes]) -> Fingerprint | None:
        """Returns the version of an object if it is of these parts. A store with etags of another
        kind (SSE-KMS) cannot decide."""
        try:
            found = self._stat(key)
            digests = b"".join(bytes.fromhex(etag.decode()) for etag in receipts)
        except (NotFound, ValueError):
            return None
        digest = hashlib.md5(digests, usedforsecurity=False).hexdigest()
        return found if found.etag == f"{digest}-{len(receipts)}" else None

    def abort(self, token: bytes) -> None:
        upload = Upload.of(token)
        try:
            self._write("DELETE", self._key(upload.path), ANY, query={"uploadId": upload.id})
        except NotFound:
            return

    # Names.

    def copy(
        self, source: bytes, version: Fingerprint, target: bytes, expect: Expectation
    ) -> Fingerprint:
        """Raises Unsupported for more than 5 GiB."""
        key = self._key(target)
        where = quote(f"{self._bucket}/{self._key(source)}", safe="/-_.~")
        headers = (
            f"x-amz-copy-source: {where}",
            f'x-amz-copy-source-if-match: "{version.etag}"',
            *_conditions(expect),
        )
        self._compare(self._stat(self._key(source)), version, source)
        self._expect(key, expect, target)  # few servers read the conditions of a copy
        try:
            document, _ = self._write("PUT", key, expect, headers=headers)
        except (AlreadyExists, Stale):  # one status for both conditions
            self._compare(self._stat(self._key(source)), version, source)
            raise
        return self._written(key, clean_etag(_text(document, "ETag", self._shown(target))))

    def rename(self, source: bytes, target: bytes, expect: Expectation) -> None:
        remedy = "copy the file, then delete it"
        raise Unsupported("the store cannot rename", remedy=remedy, path=self._shown(source))

    def delete(self, path: bytes, expect: Expectation) -> None:
        if expect is ABSENT:
            raise ValueError("a file to delete cannot be expected to be absent")
        if isinstance(expect, Fingerprint) and expect.kind is Kind.DIRECTORY:
            return self._remove_directory(path)
        key = self._key(path)
        self._expect(key, expect, path)
        self._write("DELETE", key, expect, headers=_conditions(expect))
        return None

    def _remove_directory(self, path: bytes) -> None:
        marker = self._directory(path)
        found = [key for key, _ in self._list(marker, "", 2).objects]
        if not found:
            raise NotFound("no such directory", path=self._shown(path))
        if found != [marker]:
            raise NotEmpty("the directory is not empty", path=self._shown(path))
        self._write("DELETE", marker, ANY)

    def mkdir(self, path: bytes, expect: Expect) -> None:
        marker = self._directory(path)
        if self._has_keys(marker):
            if expect is ABSENT:
                raise AlreadyExists("the directory exists", path=self._shown(path))
            return
        self._write("PUT", marker, expect, headers=_conditions(expect))

    # Steps of a write.

    def _expect(self, key: str, expect: Expectation, path: bytes) -> None:
        """Compares an object with a version. A change after that is lost."""
        if expect is ANY:
            return
        try:
            found = self._stat(key)
        except NotFound:
            if expect is ABSENT:
                return
            raise
        if not isinstance(expect, Fingerprint):
            raise AlreadyExists("the file exists", path=self._shown(path))
        self._compare(found, expect, path)

    def _write(
        self,
        method: str,
        key: str,
        expect: Expectation,
        *,
        query: dict[str, str] | None = None,
        headers: Sequence[str] = (),
        data: bytes | memoryview = b"",
    ) -> tuple[bytes, str]:
        """Sends a request; returns the body and the etag of the reply."""
        path = f"{self._where}/{key}"
        request = self._api().write(method, key, query=query, headers=headers, data=data)
        try:
            reply = self._http.send(request, path)
            document = bytes(read_whole_body(reply))
            _check_document(document, path)
        except Stale as error:
            if expect is ABSENT:
                raise AlreadyExists("the file exists", path=path) from error
            raise
        return document, clean_etag(reply.head.headers.get("etag", ""))

    def _written(self, key: str, etag: str) -> Fingerprint:
        """Returns the version that a write made."""
        found = self._stat(key)
        if found.etag != etag:
            path = f"{self._where}/{key}"
            raise Stale("written, and replaced by another version since", path=path)
        return found


def _conditions(expect: Expectation) -> tuple[str, ...]:
    if isinstance(expect, Fingerprint):
        return (f'If-Match: "{expect.etag}"',)
    return ("If-None-Match: *",) if expect is ABSENT else ()


def _check_document(document: bytes, path: str) -> None:
    """Raises the error in a reply whose status is 200: a store sends the status of a long
    operation before it knows the end."""
    if b"<Error" in document[:1024]:
        error: CacheFSError = classify(parse_failure(502, document), path)
        raise error


def _text(document: bytes, name: str, path: str) -> str:
    """Returns the text of an element below the root. Raises BadBody."""
    try:
        root = ElementTree.fromstring(document)
    except XML_ERRORS as error:
        raise BadBody(f"the reply is malformed or incomplete ({error})", path=path) from error
    for child in root:
        if child.tag.rpartition("}")[2] == name and child.text:
            return child.text
    raise BadBody(f"the reply has no {name}", path=path)
