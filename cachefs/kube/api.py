"""Requests to the API server of Kubernetes, and their errors in the types of CacheFS.

Every request has a deadline. Nothing is retried here, but for a token that was renewed.
"""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any, Final

import aiohttp

from cachefs.core.errors import (
    AccessDenied,
    BadConfig,
    CacheFSError,
    DeadlineExceeded,
    InUse,
    NotFound,
    ProtocolError,
    Stale,
    Throttled,
    Unavailable,
    Unreachable,
)
from cachefs.kube.account import Account
from cachefs.kube.names import GROUP, PLURAL, VERSION, Key, Object, key_of

REQUEST_S: Final = 15.0
PAGE: Final = 500  # objects of a list
CONNECTIONS: Final = 16
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"

_PREFIXES: Final[Mapping[str, tuple[str, str]]] = {  # kind -> where it is, its plural
    "Dataset": (f"/apis/{GROUP}/{VERSION}", PLURAL),
    "Pod": ("/api/v1", "pods"),
    "PersistentVolume": ("/api/v1", "persistentvolumes"),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims"),
    "Event": ("/api/v1", "events"),
    "StorageClass": ("/apis/storage.k8s.io/v1", "storageclasses"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
}
_BY_REASON: Final[Mapping[str, type[CacheFSError]]] = {"AlreadyExists": InUse, "Conflict": Stale}
_BY_STATUS: Final[Mapping[int, type[CacheFSError]]] = {
    HTTPStatus.UNAUTHORIZED: AccessDenied,
    HTTPStatus.FORBIDDEN: AccessDenied,
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.CONFLICT: Stale,
    HTTPStatus.BAD_REQUEST: BadConfig,
    HTTPStatus.UNPROCESSABLE_ENTITY: BadConfig,
    HTTPStatus.TOO_MANY_REQUESTS: Throttled,
}


class KubeApi:
    """A client of the API server, from `open` to its end. Belongs to one event loop. Methods raise
    the typed errors: NotFound, InUse (the name exists), Stale (another version), AccessDenied,
    BadConfig (the server refuses the object), Throttled, Unavailable, Unreachable,
    DeadlineExceeded, ProtocolError."""

    def __init__(self, account: Account, session: aiohttp.ClientSession) -> None:
        self._account = account
        self._session = session

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, account: Account) -> AsyncIterator[KubeApi]:
        """Raises BadConfig for an authority that cannot be read."""
        try:
            connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=account.tls())
        except (OSError, ssl.SSLError) as err:
            raise BadConfig(f"the API server's authority cannot be used: {err}") from err
        timeout = aiohttp.ClientTimeout(total=REQUEST_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            yield cls(account, session)

    async def get(self, kind: str, key: Key) -> Object:
        return await self._request("GET", _path(kind, key))

    async def find(self, kind: str, key: Key) -> Object | None:
        """Returns an object, or None."""
        try:
            return await self.get(kind, key)
        except NotFound:
            return None

    async def list(
        self, kind: str, namespace: str = "", *, labels: str = ""
    ) -> AsyncIterator[Object]:
        """Yields objects, of all namespaces without one."""
        query: dict[str, str] = {"limit": str(PAGE)} | ({"labelSelector": labels} if labels else {})
        while True:
            page = await self._request("GET", _path(kind, (namespace, "")), query=query)
            for item in page.get("items") or ():
                yield item
            query["continue"] = (page.get("metadata") or {}).get("continue") or ""
            if not query["continue"]:
                return

    async def create(self, thing: Object) -> Object:
        namespace, _ = key_of(thing)
        return await self._request("POST", _path(thing["kind"], (namespace, "")), thing)

    async def replace(self, thing: Object) -> Object:
        """Replaces an object of the same version."""
        return await self._request("PUT", _path(thing["kind"], key_of(thing)), thing)

    async def delete(self, kind: str, key: Key, uid: str) -> None:
        """Deletes the object with this uid. Raises Stale for another one of its name."""
        await self._request("DELETE", _path(kind, key), {"preconditions": {"uid": uid}})

    async def patch(
        self, kind: str, key: Key, body: object, *, part: str = "", type: str = MERGE_PATCH
    ) -> Object:
        """Changes an object, or a `part` of it (`status`)."""
        path = _path(kind, key) + (f"/{part}" if part else "")
        return await self._request("PATCH", path, body, type=type)

    async def is_served(self, kind: str) -> bool:
        """Returns whether the API server knows a kind. Raises as others, but for NotFound."""
        prefix, plural = _PREFIXES[kind]
        try:
            found = await self._request("GET", prefix)
        except NotFound:
            return False
        return any(one.get("name") == plural for one in found.get("resources") or ())

    async def _request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        type: str = "application/json",
    ) -> Object:
        status, reply = await self._exchange(method, path, body, query, type)
        if status == HTTPStatus.UNAUTHORIZED:
            self._account.forget()
            status, reply = await self._exchange(method, path, body, query, type)
        if status >= HTTPStatus.BAD_REQUEST:
            raise error_of(status, reply, path)
        return _decoded(reply, path)

    async def _exchange(
        self, method: str, path: str, body: object, query: Mapping[str, str] | None, type: str
    ) -> tuple[int, bytes]:
        headers = {**self._account.headers(), "Content-Type": type, "Accept": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        url = self._account.server + path
        try:
            async with self._session.request(
                method, url, data=data, params=query, headers=headers, allow_redirects=False
            ) as response:
                return response.status, await response.read()
        except TimeoutError as err:
            raise DeadlineExceeded(
                f"no answer from the API server within {REQUEST_S:g} s", path=path
            ) from err
        except (aiohttp.ClientError, OSError) as err:
            raise Unreachable(f"the API server does not answer: {err}", path=path) from err


def error_of(status: int, reply: bytes, path: str) -> CacheFSError:
    """Returns the error of a reply, with the API server's own message."""
    try:
        said: Any = json.loads(reply)
    except ValueError:
        said = {}
    said = said if isinstance(said, dict) else {}
    cause = str(said.get("message") or f"the API server returned status {status}")
    default = Unavailable if status >= HTTPStatus.INTERNAL_SERVER_ERROR else ProtocolError
    kind = _BY_REASON.get(str(said.get("reason")), _BY_STATUS.get(status, default))
    return kind(cause, path=path)


def _decoded(reply: bytes, path: str) -> Object:
    try:
        found = json.loads(reply)
    except ValueError as err:
        raise ProtocolError("the API server returned an invalid reply", path=path) from err
    if not isinstance(found, dict):
        raise ProtocolError("the API server returned an unknown reply", path=path)
    return found


def _path(kind: str, key: Key) -> str:
    """Returns the path of an object; of all objects of a namespace without a name."""
    prefix, plural = _PREFIXES[kind]
    namespace, name = key
    below = f"/namespaces/{namespace}" if namespace else ""
    return f"{prefix}{below}/{plural}" + (f"/{name}" if name else "")
