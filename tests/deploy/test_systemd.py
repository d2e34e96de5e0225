"""The units of systemd: systemd accepts them, and their command lines do what the units promise.

systemd does not run here. The tests run the commands as it would: with the unit's environment,
directories, credentials, user, capabilities and refusal of writable code."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.foreground import COMMAND_S, Services, run
from tests.deploy.units import PROGRAM, UNITS, Unit
from tests.integration.dataset import body
from tests.services.commands import CACHEFS, run_cachefs
from tests.services.processes import is_running, wait_until

MASTER, WORKER, MOUNT = "cachefs-master.service", "cachefs-worker.service", "cachefs-mount@.service"
# Exposure as `systemd-analyze security` sums it up, times 10: 100 is a unit without any limit.
MOST_EXPOSURE: Final = {MASTER: 20, WORKER: 20, MOUNT: 50}
# What gives a unit a mount namespace of its own, or devices without /dev/fuse.
HIDES_MOUNTS: Final = re.compile(
    r"(Private(Tmp|Devices|Mounts)|Protect\w+|(ReadOnly|ReadWrite|Inaccessible|Bind\w*)Paths"
    r"|TemporaryFileSystem|RootDirectory|DynamicUser|LoadCredential\w*|\w+Directory)"
)
FILES: Final = {"small.bin": body(1, 5_000), "large.bin": body(2, 3 << 20)}


# ---- the files -----------------------------------------------------------------------------------


@pytest.fixture
def installed(tmp_path: Path) -> list[Path]:
    """Returns copies of the units whose program is there."""
    copies = []
    for unit in sorted(UNITS.glob("*.service")):
        copy = tmp_path / unit.name
        copy.write_text(unit.read_text().replace(PROGRAM, str(CACHEFS)))
        copies.append(copy)
    return copies


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return run(["systemd-analyze", *map(str, words)], os.environ)


def test_systemd_accepts_the_units(installed: list[Path]) -> None:
    assert {path.name for path in installed} == {MASTER, WORKER, MOUNT}
    done = analyze("verify", "--man=no", *installed)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", MOST_EXPOSURE)
def test_the_units_are_hardened(name: str, installed: list[Path]) -> None:
    path = next(path for path in installed if path.name == name)
    if "@" in name:
        path = path.rename(path.with_name(name.replace("@", "@mnt-data")))
    threshold = f"--threshold={MOST_EXPOSURE[name]}"
    done = analyze("security", "--offline=true", "--no-pager", threshold, path)
    assert done.returncode == 0, done.stdout


def test_a_mount_is_seen_by_all_and_outlasts_its_unit() -> None:
    unit = Unit(MOUNT, Path("/nowhere"), "/mnt/data")
    assert [name for name, _, _ in unit.lines if HIDES_MOUNTS.fullmatch(name)] == []
    assert unit.value("KillMode") == "process"
    assert unit.value("SendSIGKILL") == "no"
    assert unit.value("OOMPolicy") == "continue"
    assert "/dev/fuse rw" in unit.values("DeviceAllow")


def test_sysusers_and_tmpfiles_are_accepted(tmp_path: Path) -> None:
    """systemd makes the user and the directories in an empty root."""
    (tmp_path / "etc").mkdir()
    for program, name in (("sysusers", "cachefs.sysusers"), ("tmpfiles", "cachefs.tmpfiles")):
        words = ["--create"] if program == "tmpfiles" else []
        file = str(UNITS / f"{name}.conf")
        done = run([f"systemd-{program}", f"--root={tmp_path}", *words, file], os.environ)
        assert done.returncode == 0, done.stdout
    assert "\ncachefs:" in f"\n{(tmp_path / 'etc' / 'passwd').read_text()}"
    assert (tmp_path / "etc" / "cachefs" / "mounts").is_dir()


# ---- the commands --------------------------------------------------------------------------------


class Machine:
    """A machine whose units run below a directory, and a source of files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.etc = root / "etc"
        (self.etc / "mounts").mkdir(parents=True)
        self.token = self.etc / "token"
        self.token.touch(0o600)
        self.token.write_text(secrets.token_hex(32))
        self.source = root / "source"
        self.source.mkdir()
        for name, data in FILES.items():
            (self.source / name).write_bytes(data)
        self.mountpoint = root / "mnt" / "data"
        self.services = Services()
        self.pids: set[int] = set()
        self.address = ""

    def start(self, name: str) -> str:
        """Starts a service, and returns the line with which it says that it is ready."""
        unit = Unit(name, self.root)
        unit.make_directories()
        return unit.start(self.services)

    def start_cluster(self) -> None:
        (self.etc / "master.env").write_text("CACHEFS_MASTER_LISTEN=127.0.0.1:0\n")
        said = self.start(MASTER)
        self.address = re.findall(r"http://(\S+)", said)[0]
        tier = f"ssd:{self.root}/C/cachefs/tier:64MiB"
        lines = [f"CACHEFS_MASTER={self.address}", f"CACHEFS_TIER={tier}"]
        (self.etc / "worker.env").write_text("\n".join(lines))
        assert f"is a member of http://{self.address}" in self.start(WORKER)
        self.run("ufs", "add", f"file://{self.source}", "/data", "--master", self.address)

    def run(self, *words: str | Path) -> str:
        """Runs `cachefs WORDS` as root with the token, and returns what it printed."""
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.root), "LC_ALL": "C.UTF-8",
            "CACHEFS_TOKEN_FILE": str(self.token),
        }  # fmt: skip
        done = run_cachefs([*map(str, words)], environment, COMMAND_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def mount_unit(self, job: str = "") -> Unit:
        """Returns the unit of the mount while systemd has a job of this type for it."""
        unit = Unit(MOUNT, self.root, str(self.mountpoint))
        bin = self.root / f"bin-{job}"
        bin.mkdir(exist_ok=True)
        fake = bin / "systemctl"
        line = f"  7 {unit.full_name} {job} running" if job else "No jobs running."
        fake.write_text(f"#!/bin/sh\necho '{line}'\n")
        fake.chmod(0o755)
        unit.path = {"PATH": f"{bin}:{os.environ['PATH']}"}
        return unit

    def client(self, *former: int) -> int:
        """Returns the pid of the client of the mount, once it is none of the former ones: these may
        be ending, or the server may not know the new one yet."""

        def found() -> list[int]:
            clients = self._only_client()
            return clients if not set(clients) & set(former) else []

        (pid,) = wait_until(found, f"the mount has one client, and not {former}")
        return int(pid)

    def _only_client(self) -> list[int]:
        found = json.loads(self.run("status", "--json", self.mountpoint))["processes"]
        self.pids |= {process["pid"] for process in found if process["role"] != "server"}
        clients = [process["pid"] for process in found if process["role"] == "client"]
        return clients if len(clients) == 1 else []

    def read_all(self) -> None:
        assert {name: (self.mountpoint / name).read_bytes() for name in FILES} == FILES

    def close(self) -> None:
        if os.path.ismount(self.mountpoint):
            subprocess.run(["umount", "-l", self.mountpoint], check=False, timeout=COMMAND_S)
        self.services.close()
        wait_until(lambda: not any(map(is_running, self.pids)), "the mount's processes end")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_the_units_make_a_cluster_and_a_mount_that_outlasts_their_restarts(
    machine: Machine,
) -> None:
    machine.start_cluster()
    name = machine.mount_unit().full_name.removeprefix("cachefs-mount@").removesuffix(".service")
    socket = machine.root / "t" / "cachefs" / "worker.sock"
    lines = [f"SOURCE=cachefs://{machine.address}/data", f"CACHEFS_WORKER_SOCKET={socket}"]
    (machine.etc / "mounts" / f"{name}.env").write_text("\n".join(lines))
    start = machine.mount_unit()
    start.run("ExecStartPre")
    assert "is ready at" in start.run("ExecStart")
    first = machine.client()
    with (machine.mountpoint / "large.bin").open("rb") as file:
        assert file.read(100) == FILES["large.bin"][:100]
        _restart_mount(machine, first)
        _restart_worker(machine)
        assert file.read() == FILES["large.bin"][100:]
        with pytest.raises(subprocess.CalledProcessError, match="exit status 1") as refused:
            machine.mount_unit("stop").run("ExecStop")
        assert "in use by" in refused.value.output
        machine.read_all()
    machine.client()
    assert "is unmounted" in machine.mount_unit("stop").run("ExecStop")
    assert not os.path.ismount(machine.mountpoint)
    assert machine.services.stop(WORKER) == 0
    assert machine.services.stop(MASTER) == 0


def _restart_mount(machine: Machine, first: int) -> None:
    """Restarts and reloads the unit: each time another client serves the same mount."""
    machine.mount_unit("restart").run("ExecStop")
    assert machine.client() == first
    machine.mount_unit("restart").run("ExecStartPre")
    assert "is served by version" in machine.mount_unit("restart").run("ExecStart")
    second = machine.client(first)
    machine.mount_unit("reload").run("ExecReload")
    machine.client(first, second)
    machine.read_all()


def _restart_worker(machine: Machine) -> None:
    assert machine.services.stop(WORKER) == 0
    machine.start(WORKER)
    machine.read_all()
