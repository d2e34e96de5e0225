"""The compose file: the reference loader accepts it, its containers have few rights, and its
command lines make a cluster with a mount.

No container engine runs here. The tests run the commands with the user, the capabilities and the
files of each container; its directories lie below that of the test."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.deploy.foreground import COMMAND_S, Services, limits, run
from tests.deploy.promtool import ROOT, run_tool
from tests.integration.dataset import body
from tests.integration.test_metrics import free_port
from tests.services.commands import CACHEFS

FILE: Final = ROOT / "deploy" / "compose" / "compose.yaml"
FILES: Final = {"small.bin": body(1, 5_000), "large.bin": body(2, 3 << 20)}
NOBODY: Final = 65532


def model() -> dict[str, Any]:
    """Returns the file as the reference loader of the compose specification reads it."""
    done = run_tool("compose-spec", "-format", "json", FILE)
    assert done.returncode == 0, done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_loader_finds_errors(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(FILE.read_text().replace("read_only: true", "read_onyl: true"))
    done = run_tool("compose-spec", "-format", "json", wrong)
    assert done.returncode != 0
    assert "read_onyl" in done.stdout


def test_containers_have_few_rights() -> None:
    services = model()["services"]
    assert set(services) == {"master", "worker", "mount"}
    for name, service in services.items():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert not service.get("privileged")
        assert service.get("cap_add", []) == (["SYS_ADMIN"] if name == "mount" else [])
    assert services["master"]["user"].split(":")[0] == str(NOBODY)
    assert services["worker"]["user"].split(":")[0] == str(NOBODY)


def test_only_the_mount_has_the_device_and_shares_its_directory() -> None:
    services = model()["services"]
    assert [name for name, one in services.items() if "devices" in one] == ["mount"]
    (shared,) = [one for one in services["mount"]["volumes"] if one["type"] == "bind"]
    assert shared["bind"]["propagation"] == "rshared"
    assert "secrets" not in services["mount"]


def test_no_secret_is_in_the_file() -> None:
    for name, service in model()["services"].items():
        values = service.get("environment", {}).values()
        assert all(value.startswith("/run/secrets/") for value in values), name
    assert all(set(one) == {"file", "name"} for one in model()["secrets"].values())


class Machine:
    """The containers' commands, as processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.model = model()["services"]
        self.services = Services()
        self.address = f"127.0.0.1:{free_port()}"
        self.mountpoint = root / "mount" / "data"
        self.mountpoint.mkdir(parents=True)
        self.source = root / "source"
        self.source.mkdir()
        for name, data in FILES.items():
            (self.source / name).write_bytes(data)
        for name in ("master", "worker", "run"):
            self._directory(name)
        for name, text in (("token", secrets.token_hex(32)), ("aws", "")):
            path = root / name
            path.touch(0o400)
            path.write_text(text)
            os.chown(path, NOBODY, NOBODY)

    def _directory(self, name: str) -> None:
        path = self.root / name
        path.mkdir(mode=0o700)
        os.chown(path, NOBODY, 0)
        path.chmod(0o750 if name == "run" else 0o700)

    def places(self, service: dict[str, Any]) -> dict[str, str]:
        """Returns what the words of a container become here."""
        ends = {"master": "master", "worker": "worker", "run": "run", "cachefs": "mount"}
        found = {
            one["target"]: str(self.root / ends[Path(one["source"]).name])
            for one in service["volumes"]
        }
        return found | {
            "/run/secrets": str(self.root), "/tmp/cachefs": str(self.root / "tmp"),
            "0.0.0.0:19998": self.address, "master:19998": self.address,
            "127.0.0.1:19998": self.address, "0.0.0.0:19999": "127.0.0.1:0",
            "--advertise=worker": "--advertise=127.0.0.1",
        }  # fmt: skip

    def words(self, name: str, command: list[str]) -> list[str]:
        service = self.model[name]
        places = self.places(service)
        for before in sorted(places, key=len, reverse=True):
            command = [word.replace(before, places[before]) for word in command]
        uid, _, gid = service["user"].partition(":")
        return [*limits(int(uid), int(gid), service.get("cap_add", [])), str(CACHEFS), *command]

    def environment(self, name: str) -> dict[str, str]:
        """Returns the environment of a container, whose home cannot be written."""
        given = self.model[name].get("environment", {})
        places = {
            key: value.replace("/run/secrets", str(self.root)) for key, value in given.items()
        }
        usual = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}
        return {**usual, "SSL_CERT_FILE": os.devnull, **places}

    def start(self, name: str) -> str:
        words = self.words(name, self.model[name]["command"])
        return self.services.start(name, words, self.environment(name))

    def run(self, name: str, command: list[str]) -> str:
        """Runs `cachefs COMMAND` in a container, and returns what it printed."""
        done = run(self.words(name, command), self.environment(name))
        assert done.returncode == 0, done.stdout
        return done.stdout

    def close(self) -> None:
        if os.path.ismount(self.mountpoint):
            subprocess.run(["umount", "-l", self.mountpoint], check=False, timeout=COMMAND_S)
        self.services.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_the_command_lines_make_a_cluster_with_a_mount(machine: Machine) -> None:
    machine.start("master")
    test, program, *healthy = machine.model["master"]["healthcheck"]["test"]
    assert (test, program) == ("CMD", "cachefs")
    machine.run("master", healthy)
    machine.start("worker")
    assert "1 worker" in machine.run("master", healthy)
    to_master = ["--master=127.0.0.1:19998", "--token-file=/run/secrets/token"]
    machine.run("master", ["ufs", "add", f"file://{machine.source}", "/data", *to_master])
    assert "is ready at" in machine.start("mount")
    with (machine.mountpoint / "data" / "large.bin").open("rb") as file:
        assert file.read(100) == FILES["large.bin"][:100]
        assert machine.services.stop("worker") == 0
        machine.start("worker")
        assert file.read() == FILES["large.bin"][100:]
    found = {name: (machine.mountpoint / "data" / name).read_bytes() for name in FILES}
    assert found == FILES
    assert machine.services.stop("mount") == 0
    assert not os.path.ismount(machine.mountpoint)
    assert machine.services.stop("worker") == 0
    assert machine.services.stop("master") == 0
