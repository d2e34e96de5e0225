"""The base of every bench: a `Lab` with an origin, data, mounts and readers, and `main`.

A bench module has a docstring (the claim) and `run(lab, result)`, which fills bars and tables. It
calls `main(run)` when it is run alone. All files are below one folder on tmpfs. Mounts, processes
and the folder are removed when the lab closes, also after an error or SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from bench import machine
from bench.datasets import MIB, Dataset, Datasets
from bench.mounts import (
    BenchFailed,
    CacheFS,
    Mounted,
    bare_pyfuse3,
    rclone,
    rclone_mount,
    s3fs,
    unmount,
)
from bench.origin import PLAIN, REPOSITORY, Origin, Shaped, light_origin, origins
from bench.readers import Spec, read_file
from bench.report import Result, markdown
from tests.services.processes import NotInTime, is_running

SHARED_MEMORY = Path("/dev/shm")
PROFILES = Path(__file__).with_name("profiles")
READ_LIMIT_S = 300.0
GB = 1e9


@dataclass(frozen=True)
class Pass:
    """One timed pass of readers. `server_cpu_s` is the CPU of the file system under test."""

    wall_s: float
    bytes: int
    files: int
    reader_cpu_s: float
    server_cpu_s: float

    @property
    def mb_per_s(self) -> float:
        return self.bytes / self.wall_s / 1e6

    @property
    def files_per_s(self) -> float:
        return self.files / self.wall_s

    @property
    def cpu_s_per_gb(self) -> float:
        return self.server_cpu_s / (self.bytes / GB)

    @property
    def cpu_us_per_file(self) -> float:
        return self.server_cpu_s / self.files * 1e6


def median(passes: Iterable[Pass]) -> Pass:
    """Returns the pass with the median wall time, so that its figures are of one pass."""
    ordered = sorted(passes, key=lambda one: one.wall_s)
    return ordered[len(ordered) // 2]


def median_rate(passes: Iterable[Pass]) -> Pass:
    """Returns the pass with the median rate, for passes of a fixed duration."""
    ordered = sorted(passes, key=lambda one: one.files_per_s)
    return ordered[len(ordered) // 2]


def middle(values: Iterable[float]) -> float:
    return statistics.median(values)


class Lab:
    """The environment of one bench; use `lab()`. `quick` selects small data and single runs.
    `origin` speaks plain HTTP; `over` returns the one of a scheme."""

    def __init__(
        self, root: Path, by_scheme: dict[str, Origin], datasets: Datasets, quick: bool
    ) -> None:
        self.root = root
        self.origin = source = by_scheme[PLAIN]
        self._by_scheme = by_scheme
        self.datasets = datasets
        self.quick = quick
        self.runs = 1 if quick else 3
        self.cachefs = CacheFS(root, source)
        self._caches = 0

    def over(self, scheme: str) -> Origin:
        return self._by_scheme[scheme]

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @contextlib.contextmanager
    def ours(
        self,
        source: str,
        *flags: str,
        url: str | None = None,
        cache_size: str = "4GiB",
        covers: bool = True,
    ) -> Iterator[Mounted]:
        """Mounts with a new, empty cache, which is removed at the end. `url`: the S3 endpoint.
        `covers`: what is read for a minute may become native, as the default is."""
        cache = self.fresh_cache()
        flags += ("--cache-size", cache_size, *(("--endpoint-url", url) if url else ()))
        try:
            with self.cachefs.mount(source, cache, *flags) as mount:
                if not covers:
                    self.cachefs.run("policy", "set", mount.path, "view=never")
                yield mount
        finally:
            shutil.rmtree(cache, ignore_errors=True)
            self.cachefs.forget()

    def fresh_cache(self) -> Path:
        """Returns an unused path in the lab's folder."""
        self._caches += 1
        return self.root / f"cache-{self._caches}"

    def rclone(self, data: Dataset, url: str) -> contextlib.AbstractContextManager[Mounted]:
        return rclone(self.root, self.origin, url, data.bucket)

    def s3fs(self, data: Dataset, url: str) -> contextlib.AbstractContextManager[Mounted]:
        return s3fs(self.root, self.origin, url, data.bucket)

    def rclone_of(self, folder: Path) -> contextlib.AbstractContextManager[Mounted]:
        return rclone_mount(self.root, str(folder), dict(os.environ))

    def light(self, scheme: str = PLAIN) -> contextlib.AbstractContextManager[Shaped]:
        """Runs an origin of the same objects that needs little CPU, and shapes and counts."""
        return light_origin(self.origin, self.datasets.root / "objects", scheme)

    def bare(self, data: Dataset) -> contextlib.AbstractContextManager[Mounted]:
        return bare_pyfuse3(self.root, data.folder)

    @contextlib.contextmanager
    def side_by_side(self, data: Dataset, readers: int) -> Iterator[list[Mounted]]:
        """Mounts native tmpfs, a bare pyfuse3 server, rclone's mount2 and CacheFS by pyfuse3 at
        once. Reads each once with `readers` readers, so that warm passes can take turns."""
        url = self.origin.direct_url
        with contextlib.ExitStack() as stack:
            contenders = [
                Mounted("native tmpfs", data.folder, []),
                stack.enter_context(self.bare(data)),
                stack.enter_context(self.rclone(data, url)),
                stack.enter_context(self.ours(data.url, "--transport", "pyfuse3", url=url)),
            ]
            for contender in contenders:
                self.read(contender, data, readers=readers)
            yield contenders

    def read(self, mount: Mounted, data: Dataset, **how: Any) -> Pass:
        """Reads through a mount (`how`: fields of `Spec`). Raises BenchFailed on a wrong byte."""
        spec = Spec(what=how.pop("what", "files"), root=str(mount.path), **how)
        spec.checksums, spec.source = str(data.checksums), str(data.folder)
        return self._run(spec, mount.pids)

    def client(self, what: str, data: Dataset, url: str, readers: int = 16) -> Pass:
        """Measures an S3 client without a file system: `obstore_…` with `readers` threads, `curl_…`
        with `readers` requests in flight. Its CPU counts as the server's. A file that it wrote is
        compared after the clock stopped. Raises BenchFailed on a wrong byte."""
        spec = Spec(what=what, checksums=str(data.checksums), readers=readers, bucket=data.bucket)
        spec.destination = str(self.root / "client")
        (self.root / "client").unlink(missing_ok=True)
        spec.endpoint_url, spec.region = url, self.origin.region
        spec.access_key, spec.secret_key = self.origin.access_key, self.origin.secret_key
        spec.ca_bundle = self.origin.ca_bundle
        done = self._run(spec, [])
        if os.path.isdir(spec.destination):
            shutil.rmtree(spec.destination)
        elif os.path.exists(spec.destination):
            expected = json.loads(data.checksums.read_text())[data.names[0]]
            if read_file(spec.destination, bytearray(MIB))[1] != expected:
                raise BenchFailed(f"{what} wrote wrong bytes")
            os.unlink(spec.destination)
        return replace(done, reader_cpu_s=0.0, server_cpu_s=done.reader_cpu_s)

    def hdfs_client(self, what: str, data: Dataset, url: str, readers: int) -> Pass:
        """Measures a function of `bench.hdfs_client` on the data below `/<bucket>` of an HDFS."""
        spec = Spec(what=what, checksums=str(data.checksums), readers=readers)
        spec.endpoint_url, spec.bucket = url, f"/{data.bucket}"
        done = self._run(spec, [])
        return replace(done, reader_cpu_s=0.0, server_cpu_s=done.reader_cpu_s)

    def _run(self, spec: Spec, pids: list[int]) -> Pass:
        path = self.root / "spec.json"
        path.write_bytes(msgspec.json.encode(spec))
        before_s = machine.cpu_s(pids)
        done = subprocess.run(
            [sys.executable, "-m", "bench.readers", str(path)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=READ_LIMIT_S,
        )
        server_cpu_s = machine.cpu_s(pids) - before_s
        if done.returncode:
            raise BenchFailed(f"the readers failed: {done.stderr.strip()[-800:]}")
        got = json.loads(done.stdout)
        if got["wrong"]:
            raise BenchFailed(f"{len(got['wrong'])} wrong: {got['wrong'][:3]}")
        return Pass(got["wall_s"], got["bytes"], got["files"], got["cpu_s"], server_cpu_s)

    def drop_caches(self, *, dentries: bool = True) -> None:
        machine.drop_caches(dentries=dentries)


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """Creates a folder on tmpfs; removes it and its mounts at the end, and those of killed runs
    first."""
    parent = SHARED_MEMORY / "cachefs-bench"
    parent.mkdir(exist_ok=True)
    for left in parent.glob("run-*"):
        if not is_running(int(left.name.removeprefix("run-"))):
            _remove(left)
    root = parent / f"run-{os.getpid()}"
    root.mkdir()
    try:
        yield root
    finally:
        _remove(root)
        with contextlib.suppress(OSError):
            parent.rmdir()


def _remove(root: Path) -> None:
    for path in machine.mounts_below(root):
        unmount(path)
    for pid in machine.orphans_of(root):  # left by a killed run
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def labs(quick: bool) -> Iterator[Callable[[str], Lab]]:
    """Starts an origin and data sets for many benches; yields a function from a name to a lab."""
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with workplace() as root, origins(root) as by_scheme:
            datasets = Datasets(root)

            def make(name: str) -> Lab:
                folder = root / name
                folder.mkdir()
                for source in by_scheme.values():
                    source.reset()
                return Lab(folder, by_scheme, datasets, quick)

            yield make
    finally:
        signal.signal(signal.SIGTERM, previous)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


Run = Callable[[Lab, Result], None]


def measure(name: str, question: str, run: Run, make_lab: Callable[[str], Lab]) -> Result:
    """Runs one bench; an error that stops it is kept in the result."""
    result, started = Result(name, question), time.monotonic()
    result.profile, result.began = profile_of(name), machine.now()
    lab = make_lab(name)
    try:
        run(lab, result)
    except (
        BenchFailed,
        NotInTime,
        subprocess.SubprocessError,
        OSError,
        LookupError,
        ValueError,
    ) as err:
        result.error = f"{type(err).__name__}: {err}"
    finally:  # frees the memory of its caches for the next bench
        shutil.rmtree(lab.root, ignore_errors=True)
    result.took_s = time.monotonic() - started
    return result


def profile_of(name: str) -> str:
    """Returns the hand-written profile of a bench, with its date; "" if it has none."""
    path = PROFILES / f"{name}.md"
    return path.read_text() if path.exists() else ""


def main(run: Run, arguments: list[str] | None = None) -> None:
    """Runs one bench: prints its section, exits 1 if it misses a bar."""
    module = sys.modules["__main__"]
    parser = argparse.ArgumentParser(description=module.__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, single runs")
    quick = parser.parse_args(arguments).quick
    with labs(quick) as make_lab:
        question = first_paragraph(module.__doc__ or "")
        result = measure(Path(str(module.__file__)).stem, question, run, make_lab)
    print(markdown(result))
    sys.exit(0 if result.passed else 1)


def first_paragraph(text: str) -> str:
    return " ".join(text.strip().split("\n\n")[0].split())
