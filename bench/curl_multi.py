"""The cheapest S3 client for comparison: libcurl's multi interface in one thread with libcurl's own
signatures. It does part of the work of `bench.readers`, in its process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pycurl
import xxhash

from bench.readers import MIB, RANGE_BYTES, Done, Spec, names_of

SMALL_BYTES = MIB
WAIT_S = 1.0
RECEIVE_BYTES = 512 << 10


@dataclass(frozen=True)
class Job:
    """A GET of an object; `at` and `size` select a part of it."""

    name: str
    at: int = 0
    size: int = 0
    place: int = 0  # offset in the destination

    @property
    def range(self) -> str | None:
        return f"{self.at}-{self.at + self.size - 1}" if self.size else None


Take = Callable[[Job, memoryview], None]
"""Gets a whole body. The memory is used again behind it."""


class Slot:
    """An easy handle with its buffer, reused for one job after another."""

    def __init__(self, spec: Spec, buffer_bytes: int) -> None:
        self.job = Job("")
        self.handle = _handle(spec)
        self.handle.setopt(pycurl.WRITEFUNCTION, self._write)
        self._memory = memoryview(bytearray(buffer_bytes))
        self._base = f"{spec.endpoint_url}/{spec.bucket}"
        self._got = 0

    def begin(self, job: Job) -> None:
        self.job, self._got = job, 0
        self.handle.setopt(pycurl.URL, f"{self._base}/{job.name}")
        if job.range:
            self.handle.setopt(pycurl.RANGE, job.range)

    def body(self) -> memoryview:
        """Returns the body. Raises ValueError for an unexpected reply."""
        status = self.handle.getinfo(pycurl.RESPONSE_CODE)
        if status != (206 if self.job.size else 200):
            raise ValueError(f"{self.job.name}: {status}")
        return self._memory[: self._got]

    def _write(self, data: bytes) -> None:
        end = self._got + len(data)
        self._memory[self._got : end] = data
        self._got = end


def _handle(spec: Spec) -> pycurl.Curl:
    handle = pycurl.Curl()
    handle.setopt(pycurl.NOSIGNAL, 1)
    handle.setopt(pycurl.BUFFERSIZE, RECEIVE_BYTES)
    handle.setopt(pycurl.CAINFO, spec.ca_bundle)
    handle.setopt(pycurl.AWS_SIGV4, f"aws:amz:{spec.region}:s3")
    handle.setopt(pycurl.USERPWD, f"{spec.access_key}:{spec.secret_key}")
    handle.setopt(pycurl.HTTPHEADER, ["x-amz-content-sha256: UNSIGNED-PAYLOAD"])
    return handle


def fetch(spec: Spec, jobs: Iterable[Job], buffer_bytes: int, take: Take) -> float:
    """Runs all jobs, `spec.readers` at a time; returns the duration, s. Raises ValueError,
    pycurl.error."""
    multi = pycurl.CurlMulti()
    multi.setopt(pycurl.M_MAXCONNECTS, spec.readers)
    slots = [Slot(spec, buffer_bytes) for _ in range(spec.readers)]
    by_handle = {slot.handle: slot for slot in slots}
    waiting, free = iter(jobs), [*slots]
    started = time.monotonic()
    while True:
        while free and (job := next(waiting, None)) is not None:
            slot = free.pop()
            slot.begin(job)
            multi.add_handle(slot.handle)
        if len(free) == len(slots):
            return time.monotonic() - started
        multi.perform()
        _, ended, failed = multi.info_read()
        if failed:
            raise ValueError(f"libcurl: {failed[0][1:]}")
        for handle in ended:
            slot = by_handle[handle]
            take(slot.job, slot.body())
            multi.remove_handle(handle)
            free.append(slot)
        if not ended:  # OpenSSL may hold bytes that no socket reports: see `timeout`
            limit_ms = multi.timeout()
            multi.select(WAIT_S if limit_ms < 0 else min(WAIT_S, limit_ms / 1000))


def curl_files(spec: Spec) -> tuple[float, Done]:
    """Fetches every object, whole, and keeps nothing."""
    return _small(spec, lambda _job, _body: None)


def curl_to_files(spec: Spec) -> tuple[float, Done]:
    """Fetches every object, whole, each into a new file."""
    os.makedirs(spec.destination)
    folder = os.open(spec.destination, os.O_DIRECTORY)

    def write(job: Job, body: memoryview) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        file = os.open(str(job.place), flags, 0o600, dir_fd=folder)
        os.pwrite(file, body, 0)
        os.close(file)

    try:
        return _small(spec, write)
    finally:
        os.close(folder)


def _small(spec: Spec, keep: Take) -> tuple[float, Done]:
    names, done = names_of(spec), Done()

    def take(job: Job, body: memoryview) -> None:
        keep(job, body)
        done.bytes += len(body)
        done.files += 1
        if xxhash.xxh3_64_hexdigest(body) != names[job.name]:
            done.wrong.append(job.name)

    jobs = (Job(name, place=place) for place, name in enumerate(names))
    return fetch(spec, jobs, SMALL_BYTES, take), done


def curl_to_file(spec: Spec) -> tuple[float, Done]:
    """Fetches objects in 8 MiB ranges into one file. The caller verifies the first object."""
    names, done, jobs, place = [*names_of(spec)], Done(), list[Job](), 0
    sizes = {name: _size(spec, name) for name in names}
    for name, size in sizes.items():
        for at in range(0, size, RANGE_BYTES):
            part = min(RANGE_BYTES, size - at)
            jobs.append(Job(name, at, part, place + at))
        place += size
    file = os.open(spec.destination, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def take(job: Job, body: memoryview) -> None:
        if len(body) != job.size:
            raise ValueError(f"{job.name}: {len(body)} bytes of {job.size}")
        done.bytes += os.pwrite(file, body, job.place)

    wall_s = fetch(spec, jobs, RANGE_BYTES, take)
    done.files = len(names)
    os.ftruncate(file, sizes[names[0]])
    os.close(file)
    return wall_s, done


def _size(spec: Spec, name: str) -> int:
    handle = _handle(spec)
    handle.setopt(pycurl.URL, f"{spec.endpoint_url}/{spec.bucket}/{name}")
    handle.setopt(pycurl.NOBODY, 1)
    handle.perform()
    size = int(handle.getinfo(pycurl.CONTENT_LENGTH_DOWNLOAD))
    handle.close()
    return size


KINDS = {"curl_files": curl_files, "curl_to_files": curl_to_files, "curl_to_file": curl_to_file}
