"""Fixtures of the integration tests: real S3 servers, real mounts by the real command line, in a
state home of each test's own. A test leaves nothing mounted, nothing running, and no unexpected
warning in a log, or it fails."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import tempfile
import textwrap
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cachefs.cli.commands.status import ask
from cachefs.cli.session import find_target
from cachefs.core.errors import CacheFSError
from cachefs.launcher.state import StateHome
from tests.services.authority import Authority
from tests.services.cluster import Cluster, Machine
from tests.services.commands import run_cachefs
from tests.services.environment import environment_of
from tests.services.processes import NotInTime, is_running, wait_until, waits
from tests.services.proxy import FaultProxy
from tests.services.s3_server import S3Server
from tests.services.transcript import Transcript
from worker.store.directory import TierDirectory

COMMAND_LIMIT_S = 60.0
LOG_SHOWN = 40  # lines of each log of a test that failed
LINE_SHOWN = 300  # characters
_buckets = itertools.count(1)

MOST_STACKED = 3  # mounts at one path: a native directory covers a mount
# A server stays 10 s for the programs that read without a mount, and 30 s for the successor of a
# client that broke off.
END_LIMIT_S = 60.0


def is_mounted(mountpoint: Path) -> bool:
    return any(line.split()[4] == str(mountpoint) for line in open_mountinfo())


def mount_users(root: Path) -> list[str]:
    """Returns the pid and the command line of each process that sees a mount below `root`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f" {root}/" in (process / "mountinfo").read_text():
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ")
                found.append(f"{process.name}: {command[:LINE_SHOWN].decode(errors='replace')}")
    return found


def open_mountinfo() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


class Node:
    """A user on a machine: a state home, an environment, the command line."""

    def __init__(
        self, root: Path, environment: dict[str, str], mount_options: tuple[str, ...] = ()
    ) -> None:
        self.root = root
        self.mount_options = mount_options
        self.home = root / "home"
        self.home.mkdir()
        self.environment = {**environment_of(self.home), **environment}
        self.mountpoints: list[Path] = []
        self.allowed_log: list[str] = []
        self.pids: set[int] = set()
        self.transcript = Transcript()
        self.last_status: dict[str, Any] = {}

    @property
    def state(self) -> Path:
        return self.home / ".cache" / "cachefs"

    def run(
        self, *arguments: str | Path, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`cachefs ARGUMENTS`, not checked, with `env` added to the environment."""
        environment = {**self.environment, **(env or {})}
        words = [*map(str, arguments)]
        return self.transcript.of(words, lambda: run_cachefs(words, environment, COMMAND_LIMIT_S))

    def ok(self, *arguments: str | Path, env: Mapping[str, str] | None = None) -> str:
        """Standard output of a command that must succeed."""
        done = self.run(*arguments, env=env)
        assert done.returncode == 0, f"cachefs {arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def fails(self, *arguments: str | Path, env: Mapping[str, str] | None = None) -> str:
        """The one line on standard error of a command that must fail."""
        done = self.run(*arguments, env=env)
        assert done.returncode != 0, f"cachefs {arguments} succeeded: {done.stdout}"
        assert "Traceback" not in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        return done.stderr.strip()

    def mountpoint(self, name: str = "mnt") -> Path:
        path = self.root / name
        path.mkdir(exist_ok=True)
        return path

    def mount(self, source: str, *options: str | Path, name: str = "mnt") -> Path:
        """Mounts and returns the mount point."""
        mountpoint = self.mountpoint(name)
        if mountpoint not in self.mountpoints:
            self.mountpoints.append(mountpoint)
        self.ok("mount", source, mountpoint, *self.mount_options, *options)
        assert is_mounted(mountpoint)
        self.processes(mountpoint)
        return mountpoint

    def umount(self, mountpoint: Path, *options: str) -> None:
        pids = {process["pid"] for process in self.processes(mountpoint)}
        self.ok("umount", *options, mountpoint)
        assert not is_mounted(mountpoint)
        wait_until(
            lambda: not any(is_running(pid) for pid in pids) or self._others_mounted(),
            f"processes {pids} end after umount",
        )

    def _others_mounted(self) -> bool:
        return any(is_mounted(path) for path in self.mountpoints)

    def status(self, mountpoint: Path) -> dict[str, Any]:
        """As `cachefs status` says it, asked from here: a process each time would take a CPU of
        its own, and most tests ask again and again."""
        try:
            found = ask(find_target(str(mountpoint), StateHome(str(self.state))).record)
            self.last_status = found
            return found
        except CacheFSError as err:
            raise AssertionError(f"status of {mountpoint}: {err.one_line()}") from err

    def processes(self, mountpoint: Path) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.status(mountpoint)["processes"]
        self.pids |= {process["pid"] for process in found}
        return found

    def wait_until_recorded(self, mountpoint: Path) -> None:
        """Until a SIGKILL would cost no cached byte: readers have what they read before the index
        has it."""

        def recorded() -> bool:
            cache = self.status(mountpoint)["cache"]
            waiting = sum(tier["commits_waiting"] for tier in cache["tiers"])
            return not (cache["fills_in_flight"] or waiting)

        wait_until(recorded, "everything that was filled is recorded")

    def kill_all(self, mountpoint: Path) -> None:
        """SIGKILL to every process of the mount, so that none sees another die."""
        pids = [process["pid"] for process in self.processes(mountpoint)]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, number)
        wait_until(lambda: not any(is_running(pid) for pid in pids), "killed processes end")

    def log_texts(self) -> dict[str, str]:
        files = sorted(self.state.glob("sources/*/log/*.log*"))
        return {path.name: path.read_text(errors="replace") for path in files}

    def logs(self) -> str:
        return "".join(f"\n--- {name}\n{text}" for name, text in self.log_texts().items())

    def unexpected(self) -> list[str]:
        """Log lines of level WARNING and up that no test declared, and tracebacks."""
        bad = re.compile(r" (WARNING|ERROR|CRITICAL) |^Traceback")
        lines = [line for line in self.logs().splitlines() if bad.search(line)]
        return [ln for ln in lines if not any(re.search(ok, ln) for ok in self.allowed_log)]

    def clean_up(self) -> list[str]:
        """Unmounts and ends whatever is left; returns what a test should not have left running."""
        for mountpoint in self.mountpoints:
            for _ in range(MOST_STACKED):
                if is_mounted(mountpoint):
                    subprocess.run(["umount", "-l", str(mountpoint)], check=False, timeout=20)
        with contextlib.suppress(NotInTime):
            wait_until(lambda: not any(map(is_running, self.pids)), "all have ended", END_LIMIT_S)
        left = [pid for pid in self.pids if is_running(pid)]
        told = [f"{pid}\n{waits(pid)}" for pid in left]
        if told:
            told += [f"mounted in the namespace of {user}" for user in mount_users(self.root)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return told


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds to the report of a failed test the ends of the logs of its mounts and machines: nothing
    is left to look at."""
    report = yield
    if report.failed:
        fixtures = getattr(item, "funcargs", {})
        root = str(fixtures.get("tmp_path", "no folder"))
        mounted = "\n".join(line for line in open_mountinfo() if root in line)
        logs = "".join(map(log_tails, fixtures.values()))
        if logs:
            report.sections.append(("mounts and logs", f"{mounted}\n{logs}"))
    return report


def log_tails(fixture: object) -> str:
    """Returns the last lines of each log that a node, a machine or a cluster has, "" of others."""
    match fixture:
        case Node():
            status = textwrap.fill(json.dumps(fixture.last_status), LINE_SHOWN)
            said = {"commands": str(fixture.transcript), "last status": status}
            texts = {**fixture.log_texts(), **said}
        case Machine():
            texts = {**fixture.logs(), "commands": str(fixture.transcript)}
        case Cluster():
            return "".join(map(log_tails, (fixture.master, *fixture.workers)))
        case _:
            return ""
    name = f"{fixture.name} " if isinstance(fixture, Machine) else ""
    return "".join(f"\n--- {name}{path}\n{tail(text)}" for path, text in texts.items())


def tail(text: str) -> str:
    lines = text.splitlines()
    left_out = [f"[{len(lines) - LOG_SHOWN} earlier lines]"] if len(lines) > LOG_SHOWN else []
    return "\n".join([*left_out, *(line[:LINE_SHOWN] for line in lines[-LOG_SHOWN:])])


@pytest.fixture(params=["memory", "disk"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A directory for a tier: one in memory, and one on a disk (or taken for that)."""
    if request.param == "disk":
        monkeypatch.setattr(TierDirectory, "in_memory", False)
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.fixture
def transport_options() -> tuple[str, ...]:
    """Options of every mount of a test; modules that run on each transport have their own."""
    return ()


def outlived(request: pytest.FixtureRequest) -> None:
    """Sets up what processes of the test read from, if the test has it, so that it ends after them:
    else they would log that it is gone."""
    for name in ("bucket", "proxy"):
        if name in request.fixturenames:
            request.getfixturevalue(name)


@pytest.fixture
def node(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    s3: S3Server,
    transport_options: tuple[str, ...],
) -> Iterator[Node]:
    outlived(request)
    user = Node(tmp_path, s3.credentials(), transport_options)
    try:
        yield user
    finally:
        left = user.clean_up()
    assert not left, "\n".join(["processes left behind:", *left])
    assert user.unexpected() == []


class Bucket:
    """A bucket of the test's own, and the URL and options to mount it."""

    def __init__(self, server: S3Server, name: str) -> None:
        self.server = server
        self.name = name
        self.client = server.client()
        self.client.create_bucket(Bucket=name)
        self.url = f"s3://{name}"
        self.endpoint_url = server.endpoint_url
        self.ca_bundle: Path | None = None

    @property
    def options(self) -> tuple[str, ...]:
        trusted = ("--ca-bundle", str(self.ca_bundle)) if self.ca_bundle else ()
        return ("--endpoint-url", self.endpoint_url, *trusted)

    def put(self, key: str, body: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=body)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)

    def fill(self, files: dict[str, bytes]) -> None:
        for key, body in files.items():
            self.put(key, body)


@pytest.fixture
def bucket(s3: S3Server) -> Bucket:
    return Bucket(s3, f"bucket-{next(_buckets)}")


@pytest.fixture
def scheme() -> str:
    """What mounts speak to an origin with faults. Real stores speak TLS, so tests that are slow run
    over TLS alone; a mount without `proxy` speaks plain HTTP. Some tests parametrize both."""
    return "https"


@pytest.fixture
def proxy(bucket: Bucket, scheme: str, authority: Authority) -> Iterator[FaultProxy]:
    """A proxy before the bucket's server, which counts; `bucket.options` lead through it."""
    certificate = authority.certificate if scheme == "https" else None
    with FaultProxy(bucket.endpoint_url, certificate=certificate) as between:
        bucket.endpoint_url = between.endpoint_url
        bucket.ca_bundle = authority.bundle if certificate else None
        yield between


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path, bucket: Bucket) -> Iterator[Cluster]:
    """Of the bucket's credentials; nothing runs yet."""
    outlived(request)
    with Cluster(tmp_path / "cluster", bucket.server.credentials()) as made:
        yield made


@pytest.fixture
def trainer(tmp_path: Path, bucket: Bucket, cluster: Cluster) -> Iterator[Machine]:
    """A machine that has no worker, with a copy of the cluster's token."""
    token_file = {"CACHEFS_TOKEN_FILE": cluster.security.token_file}
    environment = {**bucket.server.credentials(), **token_file}
    machine = Machine("trainer", tmp_path / "trainer", environment)
    try:
        yield machine
    finally:
        machine.close()
