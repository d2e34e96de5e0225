"""Bytes of gs:// and az:// cost less CPU by our requests with libcurl than by obstore, over TLS:
<= 0.8 x per GB in ranges of 8 MiB, 4 at a time, and <= 0.9 x per file of 110 KiB, 16 at a time.

Both read exactly one version of an object (by its generation, by its etag). The servers are
fake-gcs-server and azurite. All CPU is that of this process, the client. The rounds take turns.
"""

from __future__ import annotations

import json
import os
import queue
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import obstore

from bench import machine
from bench.harness import Lab, main
from bench.report import Result
from cachefs.core.model import Fingerprint, UfsSpec
from connectors.base import Connector
from connectors.meter import Meter
from connectors.registry import open_adapter
from tests.services.authority import Authority
from tests.services.azurite import ACCOUNT, KEY, AzureServer, azurite
from tests.services.download_thread import DownloadThread
from tests.services.fake_gcs import GcsServer, fake_gcs
from tests.services.many_thread import ManyThread

CONTAINER: Final = "bench"
FILE_BYTES: Final = 110 << 10
PART_BYTES: Final = 8 << 20
AT_ONCE_BIG, AT_ONCE_SMALL = 4, 16
ROUNDS: Final = 3
WAIT_S: Final = 60.0
BIG_AT_MOST, SMALL_AT_MOST = 0.8, 0.9
LIBCURL, OBSTORE = "CacheFS, libcurl", "obstore"


def run(lab: Lab, result: Result) -> None:
    big_bytes, files = lab.size(512, 64) << 20, lab.size(2000, 300)
    for scheme in ("gs", "az"):
        with tempfile.TemporaryDirectory() as folder, started(scheme, Path(folder)) as store:
            fill(store, big_bytes, files)
            compare(store, scheme, big_bytes, result, 1 if lab.quick else ROUNDS)


def fill(store: Store, big_bytes: int, files: int) -> None:
    data = os.urandom(FILE_BYTES)
    store.put("big", os.urandom(big_bytes))
    with ThreadPoolExecutor(AT_ONCE_SMALL) as pool:
        list(pool.map(lambda number: store.put(f"s/{number}", data), range(files)))


class Store:
    """A server's container, and both clients of it."""

    def __init__(self, server: GcsServer | AzureServer, bundle: Path, folder: Path) -> None:
        self.put: Callable[[str, bytes], object] = lambda key, data: server.put(
            CONTAINER, key, data
        )
        options = {"endpoint_url": server.endpoint_url, "ca_bundle": str(bundle)}
        client: dict[str, Any] = {"client_options": {"allow_invalid_certificates": True}}
        if isinstance(server, GcsServer):
            server.make_bucket(CONTAINER)
            spec = UfsSpec(f"gs://{CONTAINER}", {**options, "anonymous": "true"})
            account = {"gcs_base_url": server.endpoint_url, "disable_oauth": True}
            account |= {"client_email": "", "private_key": "", "private_key_id": ""}
            key = json.dumps(account)
            self.peer: Any = obstore.store.GCSStore(CONTAINER, service_account_key=key, **client)
        else:
            server.make_container(CONTAINER)
            (folder / "key").write_text(KEY)
            options["account_key_file"] = str(folder / "key")
            spec = UfsSpec(f"az://{ACCOUNT}/{CONTAINER}", options)
            client |= {"account_name": ACCOUNT, "account_key": KEY}
            client["endpoint"] = server.endpoint_url
            self.peer = obstore.store.AzureStore(CONTAINER, **client)
        self.ours: Connector = open_adapter(spec, Meter())
        self.downloads = DownloadThread()

    def close(self) -> None:
        self.downloads.close(WAIT_S)
        self.ours.close()

    def cpu_s(self) -> float:
        """Returns the CPU time of this process and of the download process."""
        return time.process_time() + machine.cpu_s([self.downloads.pid])

    def peer_read(self, key: str, offset: int, size: int, version: Fingerprint) -> int:
        """Reads a range of this version by obstore; returns the number of bytes."""
        is_gcs = isinstance(self.peer, obstore.store.GCSStore)
        pinned = {"version": version.etag} if is_gcs else {"if_match": f'"{version.etag}"'}
        options: Any = {**pinned, "range": (offset, offset + size)}
        return len(memoryview(obstore.get(self.peer, key, options=options).bytes()))


@contextmanager
def started(scheme: str, folder: Path) -> Iterator[Store]:
    authority = Authority(folder)
    start = fake_gcs if scheme == "gs" else azurite
    bundle = authority.bundle
    with start(folder, certificate=authority.certificate, ca_bundle=bundle) as server:
        store = Store(server, bundle, folder)
        try:
            yield store
        finally:
            store.close()


def compare(store: Store, scheme: str, big_bytes: int, result: Result, rounds: int) -> None:
    pages = store.ours.list_dir(b"s")
    small = {b"s/" + entry.name: entry.fingerprint for page in pages for entry in page.entries}
    big = store.ours.stat(b"big").fingerprint
    gb, unit_s = big_bytes / 1e9, 1e-6 * len(small)
    acts: dict[tuple[str, str], tuple[Callable[[], None], float]] = {
        ("s per GB", LIBCURL): (lambda: read_big(store, big), gb),
        ("s per GB", OBSTORE): (lambda: peer_read_big(store, big), gb),
        ("us per file", LIBCURL): (lambda: read_small(store, small), unit_s),
        ("us per file", OBSTORE): (lambda: peer_read_small(store, small), unit_s),
    }
    taken: dict[tuple[str, str], list[float]] = {what: [] for what in acts}
    for _ in range(rounds):
        for what, (act, units) in acts.items():
            before_s = store.cpu_s()
            act()
            taken[what].append((store.cpu_s() - before_s) / units)
    medians = {what: statistics.median(found) for what, found in taken.items()}
    table = result.table(
        f"CPU of the client, {scheme}:// over TLS", "client", "s per GB", "us per file"
    )
    for client in (LIBCURL, OBSTORE):
        table.add(client, medians["s per GB", client], medians["us per file", client])
    limits = {"s per GB": BIG_AT_MOST, "us per file": SMALL_AT_MOST}
    for unit, limit in limits.items():
        ratio = medians[unit, LIBCURL] / medians[unit, OBSTORE]
        result.bar(f"{scheme}://, CPU {unit}, of obstore's", ratio, limit, "x")


def offsets(size_bytes: int) -> range:
    return range(0, size_bytes, PART_BYTES)


def read_big(store: Store, version: Fingerprint) -> None:
    """As a worker does: a process downloads the parts, here into the null device."""
    for _ in store.ours.read(b"big", 0, 1, version):
        pass  # after which ranges may be requested
    ended = queue.SimpleQueue[str]()
    left, done = [*offsets(version.size)], 0

    def start(sink: int) -> None:
        offset = left.pop()
        size = min(PART_BYTES, version.size - offset)
        asked = store.ours.ask(b"big", offset, size, version)
        assert asked is not None
        store.downloads.start(asked.get, lambda _body, _size, code, _made: ended.put(code), sink)

    with open(os.devnull, "wb") as null:
        for _ in range(min(AT_ONCE_BIG, len(left))):
            start(null.fileno())
        while done < len(offsets(version.size)):
            assert not ended.get(timeout=WAIT_S)
            done += 1
            if left:
                start(null.fileno())


def peer_read_big(store: Store, version: Fingerprint) -> None:
    def part(offset: int) -> None:
        size = min(PART_BYTES, version.size - offset)
        assert store.peer_read("big", offset, size, version) == size

    with ThreadPoolExecutor(AT_ONCE_BIG) as pool:
        list(pool.map(part, offsets(version.size)))


def read_small(store: Store, versions: dict[bytes, Fingerprint]) -> None:
    """As a worker does: one loop sends the requests of all."""
    first = next(iter(versions))
    store.ours.read_all(first, versions[first])  # after which the loop may read
    loop, ended = ManyThread(), queue.SimpleQueue[bool]()
    left, done = list(versions.items()), 0

    def start() -> None:
        path, version = left.pop()
        asked = store.ours.ask(path, 0, version.size, version)
        assert asked is not None
        loop.start(asked.get, lambda body, *_: ended.put(body is not None))

    try:
        for _ in range(min(AT_ONCE_SMALL, len(left))):
            start()
        while done < len(versions):
            assert ended.get(timeout=WAIT_S)
            done += 1
            if left:
                start()
    finally:
        loop.close(WAIT_S)


def peer_read_small(store: Store, versions: dict[bytes, Fingerprint]) -> None:
    def read(path: bytes) -> None:
        assert store.peer_read(path.decode(), 0, FILE_BYTES, versions[path]) == FILE_BYTES

    with ThreadPoolExecutor(AT_ONCE_SMALL) as pool:
        list(pool.map(read, versions))


if __name__ == "__main__":
    main(run)
