"""The readers of every bench, as a process: `python -m bench.readers SPEC.json`.

It reads as a program would, through the kernel, obstore or libcurl, verifies every byte, and prints
one JSON line: {wall_s, cpu_s, bytes, files, wrong: [names]}. The clock starts when all readers are
ready.
"""

from __future__ import annotations

import array
import fcntl
import itertools
import json
import mmap
import multiprocessing
import os
import random
import resource
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from bench import plain_reads
from cachefs.core import order_ioctl

MIB = 1 << 20
RANGE_BYTES = 8 * MIB
FORGET_BYTES = 64 * MIB
START_LIMIT_S = 60.0


class Spec(msgspec.Struct):
    """`what`: files | random | opens (without checksums) | obstore_file | obstore_to_file |
    obstore_to_files | obstore_files | obstore_list | a function of `bench.curl_multi`,
    `bench.hdfs_client` or `bench.library_reads`. It reads the files below `root` (or keys of
    `bucket`) named in `checksums`; `source` is the original that random reads are compared with."""

    what: str
    root: str = ""
    checksums: str = ""
    readers: int = 1
    shared: bool = False
    shuffled: bool = False  # files: in a random order (`seed`), not in name order
    announced: bool = False  # files: the order is announced by ioctl when the clock starts
    forget: bool = False  # files: the kernel drops the pages that were read
    chunk_bytes: int = MIB
    source: str = ""
    read_bytes: int = 4096
    duration_s: float = 3.0
    seed: int = 1
    places: list[int] = msgspec.field(
        default_factory=list
    )  # random: the offsets, in place of a seed
    once: bool = False  # opens: every file once, in place of `duration_s`
    bucket: str = ""
    endpoint_url: str = ""
    region: str = ""
    access_key: str = ""
    secret_key: str = ""
    ca_bundle: str = ""
    limit: int = 0
    destination: str = ""  # of works that write: a file or a folder


class Done(msgspec.Struct):
    """The result of one reader. `began_s`, `ended_s` are on the clock that all processes share."""

    bytes: int = 0
    files: int = 0
    wrong: list[str] = msgspec.field(default_factory=list)
    began_s: float = 0.0
    ended_s: float = 0.0


def names_of(spec: Spec) -> dict[str, str]:
    """Returns name -> checksum."""
    names: dict[str, str] = json.loads(Path(spec.checksums).read_text())
    return dict(list(names.items())[: spec.limit]) if spec.limit else names


def read_file(path: str, buffer: bytearray, *, forget: bool = False) -> tuple[int, str]:
    """Returns bytes and checksum. The buffer is reused and filled by each read call: the cost of
    the reader lowers the measured rate. With `forget` the kernel drops the pages that were read."""
    digest, count = xxhash.xxh3_64(), 0
    fd = os.open(path, os.O_RDONLY)
    with memoryview(buffer) as view:
        while size := os.readv(fd, [buffer]):
            digest.update(view[:size])
            count += size
            if forget and count % FORGET_BYTES == 0:
                os.posix_fadvise(fd, 0, count, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    return count, digest.hexdigest()


Plan = Sequence[tuple[str, str]] | Sequence[int]


def plan_of(spec: Spec) -> Plan:
    """Returns the work of all readers: files, or offsets (each page once, in random order)."""
    names = list(names_of(spec).items())
    if spec.what != "random":
        if spec.shuffled:
            random.Random(spec.seed).shuffle(names)
        return names
    if spec.places:
        return spec.places
    size = os.path.getsize(os.path.join(spec.source, names[0][0]))
    places = list(range(0, size - spec.read_bytes + 1, spec.read_bytes))
    random.Random(spec.seed).shuffle(places)
    return places


def read_files(spec: Spec, plan: Sequence[tuple[str, str]], number: int) -> Done:
    """Reads every `readers`-th file from `number` on; all files if the readers share them."""
    done, buffer = Done(), bytearray(spec.chunk_bytes)
    mine = plan if spec.shared else plan[number :: spec.readers]
    for name, expected in mine:
        count, digest = read_file(os.path.join(spec.root, name), buffer, forget=spec.forget)
        done.bytes += count
        done.files += 1
        if digest != expected:
            done.wrong.append(name)
    return done


def read_random(spec: Spec, plan: Sequence[int], number: int) -> Done:
    """Reads at the planned offsets for at most `duration_s`, and compares with the source."""
    (name,) = names_of(spec)
    done = Done()
    fd = os.open(os.path.join(spec.root, name), os.O_RDONLY)
    if not spec.places:  # each page once: the kernel must not read ahead
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    with open(os.path.join(spec.source, name), "rb") as file:
        original = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    end = time.monotonic() + spec.duration_s
    for at in plan[number :: spec.readers]:
        piece = os.pread(fd, spec.read_bytes, at)
        if piece != original[at : at + spec.read_bytes]:
            done.wrong.append(f"{name} at {at}")
        done.bytes += len(piece)
        done.files += 1
        if time.monotonic() > end:
            break
    os.close(fd)
    return done


def read_plainly(spec: Spec, plan: Sequence[tuple[str, str]], number: int) -> Done:
    """Opens, reads and closes this reader's share of the files without a checksum."""
    paths = [os.path.join(spec.root, name) for name, _ in plan[number :: spec.readers]]
    steps = plain_reads.open_read_close(paths, spec.chunk_bytes)
    if not spec.once:
        turn = plain_reads.go_on(steps, spec.duration_s)
        return Done(turn.bytes, turn.operations)
    done = Done()
    while done.files < len(paths):
        count, files = next(steps)
        done.bytes += count
        done.files += files
    return done


class Gate:
    """A start line for forked processes. The kernel wakes all of them at once, whereas a barrier
    hands a lock from one to the next."""

    def __init__(self) -> None:
        self._ready = os.pipe()
        self._go = os.pipe()

    def wait(self) -> None:
        """Waits for the start; called in a child."""
        os.close(self._go[1])
        os.write(self._ready[1], b".")
        os.read(self._go[0], 1)

    def open(self, count: int, announcement: Sequence[bytearray], root: str) -> float:
        """Starts all children, after an announcement; called in the parent. Returns the time before
        it (monotonic). Raises TimeoutError if a child is not ready."""
        while count:
            if not select.select([self._ready[0]], [], [], START_LIMIT_S)[0]:
                raise TimeoutError(f"{count} readers did not start")
            count -= len(os.read(self._ready[0], count))
        folder = os.open(root, os.O_RDONLY)
        began_s = time.monotonic()
        for piece in announcement:
            fcntl.ioctl(folder, order_ioctl.PIECE, piece)
        os.close(self._go[1])
        os.close(folder)
        return began_s


def announcement_of(spec: Spec, plan: Any) -> list[bytearray]:
    """Returns the ioctl arguments that announce the plan: one list for all readers together."""
    if not spec.announced:
        return []
    inos = array.array("Q", (os.stat(os.path.join(spec.root, name)).st_ino for name, _ in plan))
    return [*order_ioctl.pieces("bench", inos)]


def in_processes(spec: Spec) -> tuple[float, Done]:
    """Runs `readers` processes at once. Returns the wall time from the first start to the last end,
    and the sum of their results."""
    act: Any = {"files": read_files, "random": read_random}.get(spec.what, read_plainly)
    fork = multiprocessing.get_context("fork")
    plan = plan_of(spec)
    announcement = announcement_of(spec, plan)
    gate = Gate()
    pipes = [fork.Pipe(duplex=False) for _ in range(spec.readers)]

    def child(number: int) -> None:
        gate.wait()
        began_s = time.monotonic()
        done: Done = act(spec, plan, number)
        done.began_s, done.ended_s = began_s, time.monotonic()
        pipes[number][1].send_bytes(msgspec.json.encode(done))

    children = [fork.Process(target=child, args=(n,)) for n in range(spec.readers)]
    for process in children:
        process.start()
    for _, writer in pipes:
        writer.close()
    began_s = gate.open(spec.readers, announcement, spec.root)
    all_done = [msgspec.json.decode(reader.recv_bytes(), type=Done) for reader, _ in pipes]
    if not spec.announced:
        began_s = min(done.began_s for done in all_done)
    wall_s = max(done.ended_s for done in all_done) - began_s
    for process in children:
        process.join()
    return wall_s, add(all_done)


def add(parts: list[Done]) -> Done:
    wrong = [name for part in parts for name in part.wrong]
    return Done(sum(p.bytes for p in parts), sum(p.files for p in parts), wrong)


def bucket_of(spec: Spec) -> Any:
    from obstore.store import S3Store

    trusted = Path(spec.ca_bundle).read_bytes()
    return S3Store(
        spec.bucket,
        endpoint=spec.endpoint_url,
        region=spec.region,
        access_key_id=spec.access_key,
        secret_access_key=spec.secret_key,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "timeout": "60s", "root_certificate": trusted},
    )


def obstore_file(spec: Spec) -> tuple[float, Done]:
    """Fetches one object in 8 MiB ranges by threads; the checksum is taken after the clock
    stops."""
    import obstore

    store, ((name, expected),) = bucket_of(spec), names_of(spec).items()
    size = obstore.head(store, name)["size"]
    starts = range(0, size, RANGE_BYTES)

    def fetch(start: int) -> Any:
        return obstore.get_range(store, name, start=start, end=min(size, start + RANGE_BYTES))

    with ThreadPoolExecutor(spec.readers) as pool:
        started = time.monotonic()
        parts = list(pool.map(fetch, starts))
        wall_s = time.monotonic() - started
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part)
    wrong = [] if digest.hexdigest() == expected else [name]
    return wall_s, Done(sum(len(p) for p in parts), 1, wrong)


def obstore_to_file(spec: Spec) -> tuple[float, Done]:
    """Fetches objects in 8 MiB ranges by threads into one file; the caller verifies the first."""
    import obstore

    store, names = bucket_of(spec), [*names_of(spec)]
    sizes = {name: obstore.head(store, name)["size"] for name in names}
    file = os.open(spec.destination, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    ranges = [(name, at) for name in names for at in range(0, sizes[name], RANGE_BYTES)]
    places = dict(zip(names, itertools.accumulate(sizes.values(), initial=0), strict=False))

    def fetch(piece: tuple[str, int]) -> int:
        name, start = piece
        end = min(sizes[name], start + RANGE_BYTES)
        data = obstore.get_range(store, name, start=start, end=end)
        return os.pwrite(file, data, places[name] + start)

    with ThreadPoolExecutor(spec.readers) as pool:
        started = time.monotonic()
        count = sum(pool.map(fetch, ranges))
        wall_s = time.monotonic() - started
    os.ftruncate(file, sizes[names[0]])
    os.close(file)
    return wall_s, Done(count, len(names))


def obstore_files(spec: Spec) -> tuple[float, Done]:
    """Fetches every object, whole, by threads."""
    import obstore

    store, names = bucket_of(spec), names_of(spec)

    def fetch(name: str) -> Done:
        body = obstore.get(store, name).bytes()
        right = xxhash.xxh3_64_hexdigest(body) == names[name]
        return Done(len(body), 1, [] if right else [name])

    with ThreadPoolExecutor(spec.readers) as pool:
        started = time.monotonic()
        parts = list(pool.map(fetch, names))
        wall_s = time.monotonic() - started
    return wall_s, add(parts)


def obstore_to_files(spec: Spec) -> tuple[float, Done]:
    """Fetches every object, whole, by threads, each into a new file."""
    import obstore

    store, names = bucket_of(spec), names_of(spec)
    os.makedirs(spec.destination)
    folder = os.open(spec.destination, os.O_DIRECTORY)

    def fetch(place: int, name: str) -> Done:
        body = obstore.get(store, name).bytes()
        file = os.open(str(place), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        os.pwrite(file, body, 0)
        os.close(file)
        right = xxhash.xxh3_64_hexdigest(body) == names[name]
        return Done(len(body), 1, [] if right else [name])

    with ThreadPoolExecutor(spec.readers) as pool:
        started = time.monotonic()
        parts = list(pool.map(fetch, range(len(names)), names))
        wall_s = time.monotonic() - started
    os.close(folder)
    return wall_s, add(parts)


def obstore_list(spec: Spec) -> tuple[float, Done]:
    """Lists the bucket recursively."""
    import obstore

    store = bucket_of(spec)
    started = time.monotonic()
    found = {meta["path"]: meta["size"] for page in obstore.list(store) for meta in page}
    wall_s = time.monotonic() - started
    wrong = sorted(set(names_of(spec)) ^ set(found))
    return wall_s, Done(sum(found.values()), len(found), wrong)


def main(path: str) -> None:
    spec = msgspec.json.decode(Path(path).read_bytes(), type=Spec)
    alone: Mapping[str, Callable[[Spec], tuple[float, Done]]] = {
        "obstore_file": obstore_file,
        "obstore_files": obstore_files,
        "obstore_to_file": obstore_to_file,
        "obstore_to_files": obstore_to_files,
        "obstore_list": obstore_list,
    }
    if spec.what.startswith("curl_"):
        from bench import curl_multi

        alone = curl_multi.KINDS
    if spec.what.startswith("hdfs_"):
        from bench import hdfs_client

        alone = hdfs_client.KINDS
    if spec.what.startswith("library_"):
        from bench import library_reads

        alone = library_reads.KINDS
    before_s = cpu_s()
    wall_s, done = alone.get(spec.what, in_processes)(spec)
    result = {"wall_s": wall_s, "cpu_s": cpu_s() - before_s, **msgspec.to_builtins(done)}
    print(json.dumps(result), flush=True)


def cpu_s() -> float:
    """Returns the CPU time of this process and its children. Callers subtract the value at the
    start: the start of the interpreter does not count."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in usage)


if __name__ == "__main__":
    main(sys.argv[1])
