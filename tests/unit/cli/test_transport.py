"""Which transport `auto` takes on which machine, and what people are told about it."""

from __future__ import annotations

import errno
import json
import socket
from pathlib import Path

import pytest

from cachefs.cli import transport
from cachefs.cli.commands import doctor, status
from cachefs.cli.transport import Machine
from cachefs.core.errors import Unsupported
from cachefs.core.model import UfsSpec
from cachefs.launcher.process_watch import ProcessId
from cachefs.launcher.state import MountRecord, StateHome
from tests.unit.cli.conftest import Run


def machine(
    kernel: str = "6.12.3", *, root: bool = True, inside: bool = False, extra: bool = True
) -> Machine:
    return Machine(transport.kernel_version(kernel), root, inside, extra)


@pytest.mark.parametrize(
    ("asked", "passthrough", "here", "taken", "why"),
    [
        ("auto", "auto", machine(), "kernel, with passthrough", ""),
        ("auto", "auto", machine("6.9"), "kernel, with passthrough", ""),
        ("auto", "auto", machine("6.8.12"), "kernel, without passthrough", "Linux 6.9"),
        ("auto", "auto", machine(root=False), "kernel, without passthrough", "CAP_SYS_ADMIN"),
        ("auto", "auto", machine(inside=True), "kernel, without passthrough", "user namespaces"),
        ("auto", "off", machine(), "kernel, without passthrough", "switched off"),
        ("auto", "auto", machine("4.19"), "pyfuse3", "Linux 5.4"),
        ("pyfuse3", "auto", machine(), "pyfuse3", "as it is set"),
        ("kernel", "auto", machine("4.19"), "kernel, without passthrough", "Linux 6.9"),
        ("auto", "auto", machine(extra=False), "kernel, with passthrough", ""),
    ],
)
def test_what_is_taken_and_why_none_better(
    asked: str, passthrough: str, here: Machine, taken: str, why: str
) -> None:
    choice = transport.choose(asked, passthrough, here)
    assert str(choice) == taken
    assert why in choice.why_not_better
    assert bool(why) == bool(choice.why_not_better)
    finding = doctor.check_transport(asked, passthrough, here)
    assert finding.state == ("note" if why else "ok")
    assert taken in finding.detail
    assert why in finding.remedy


@pytest.mark.parametrize("asked", ["auto", "pyfuse3"])
def test_an_extra_that_is_missing_is_named(asked: str) -> None:
    here = machine("4.19", extra=False)
    with pytest.raises(Unsupported) as caught:
        transport.choose(asked, "auto", here)
    assert "pip install" in caught.value.remedy
    assert doctor.check_transport(asked, "auto", here).state == "problem"


def test_a_cache_on_overlayfs_is_pointed_out() -> None:
    assert [f.state for f in doctor.check_stacking("/var/cache", "overlay")] == ["note"]
    assert list(doctor.check_stacking("/var/cache", "ext4")) == []


def test_the_file_system_of_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    assert doctor.file_system_at(str(tmp_path / "a" / "b")) == doctor.file_system_at(str(tmp_path))
    assert doctor.file_system_at("/proc/self") == "proc"


def test_a_mount_says_how_it_speaks_with_the_kernel() -> None:
    found = doctor.mount_finding("m", "s3://b", {"transport": "kernel", "passthrough": "yes"})
    assert (found.state, found.detail) == ("ok", "s3://b, transport kernel, passthrough: yes")
    found = doctor.mount_finding("m", "s3://b", {"transport": "kernel", "passthrough": "no: why"})
    assert (found.state, found.detail) == ("note", "s3://b, transport kernel, passthrough: no: why")
    assert doctor.mount_finding("m", "s3://b", {}).state == "ok"


def test_status_is_headed_by_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [
        {"mountpoint": "/other", "transport": "pyfuse3"},
        {"mountpoint": "/mnt", "transport": "kernel", "passthrough": "yes", "pid": 1},
    ]
    assert status._transport({"mounts": mounts}, "/mnt") == {
        "transport": "kernel",
        "passthrough": "yes",
    }
    assert status._transport({"mounts": mounts}, "/none") == {}


def test_doctor_says_what_the_next_mount_takes(run: Run) -> None:
    found = {row["name"]: row for row in json.loads(run("doctor", "--json")[1])}
    assert found["transport"]["detail"].startswith("auto takes ")


def test_sockets_without_a_supervisor_are_cleared(
    run: Run, home: StateHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, used = home.control_socket("/mnt/left"), home.control_socket("/mnt/used")
    monkeypatch.chdir(left.parent)  # the paths are too long to bind
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(left.name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as living:
        living.bind(used.name)
        living.listen()
        found = {row["name"]: row["state"] for row in json.loads(run("doctor", "--json")[1])}
        assert found[f"socket {left.name}"] == "note"
        assert f"socket {used.name}" not in found
        run("doctor", "--fix")
    assert home.control_sockets() == [used]


def test_doctor_goes_on_after_a_socket_that_cannot_be_removed(
    run: Run, home: StateHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    for mountpoint in ("/mnt/a", "/mnt/b"):
        home.control_socket(mountpoint).touch()
    monkeypatch.setattr(Path, "unlink", refuse)
    assert run("doctor", "--fix")[1].count("its supervisor has ended; Read-only file system") == 2


def test_a_record_is_kept_while_its_supervisor_lives(
    run: Run, home: StateHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client has just died and the next is starting."""
    home.write_mount(MountRecord("/mnt/a", UfsSpec("s3://b"), 10, "/s", supervisor=20))
    monkeypatch.setattr(ProcessId, "lives", lambda process: process.pid == 20)
    assert "record of /mnt/a" not in run("doctor", "--fix")[1]
    monkeypatch.setattr(ProcessId, "lives", lambda process: False)
    assert "record of /mnt/a" in run("doctor", "--fix")[1]
    assert home.mount_records() == []
