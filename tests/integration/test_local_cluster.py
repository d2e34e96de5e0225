"""`cachefs up` and `down`, tokens and TLS: real processes on loopback, by the command line."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.dataset import body
from tests.services.authority import Authority
from tests.services.cluster import ClusterFailed, Machine
from tests.services.files import files_below
from tests.services.processes import wait_until

MIB = 1 << 20


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """One machine; what was started on it is ended."""
    made = Machine("machine", tmp_path / "machine", {})
    pids: set[int] = set()
    try:
        yield made
    finally:
        made.close()
        for path in files_below(made.root / ".cache" / "cachefs"):
            if path.suffix == ".json":
                pids |= _pids(path)
        for pid in pids:
            if b"cachefs" in _title(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _pids(path: Path) -> set[int]:
    """Returns the processes that a record names; none of one that its process has removed."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return set()
    return {one["pid"] for one in [found, *found.get("processes", [])] if "pid" in one}


def _title(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    files = {"a": b"a few bytes", "sub/b": body(1, MIB + 5), "sub/cold": body(2, 3 * MIB)}
    for name, data in files.items():
        path = tmp_path / "origin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "origin"


def up(machine: Machine, workers: int) -> dict[str, Any]:
    found: dict[str, Any] = machine.json("up", "--workers", str(workers), "--cache-size", "64MiB")
    return found


def used_worker(machine: Machine, mountpoint: Path) -> int:
    """The pid of the worker that a mount uses."""
    processes = machine.json("status", str(mountpoint))["processes"]
    (pid,) = [one["pid"] for one in processes if one["role"] == "server"]
    return int(pid)


def same(mountpoint: Path, origin: Path, name: str) -> bool:
    return (mountpoint / name).read_bytes() == (origin / name).read_bytes()


def flip_a_byte(machine: Machine, path: Path) -> None:
    """In one of the cached copies of a file."""
    name = machine.json("stat", str(path))["content_id"]
    home = machine.root / ".cache" / "cachefs" / "local"
    copy = next(one for one in home.glob(f"worker-*/files/*/{name}"))
    with copy.open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))


def test_a_cluster_on_this_machine(machine: Machine, origin: Path) -> None:
    """Up, a source, a mount; its worker is killed under it ([S-cluster-node]); up again; down; and
    up once more."""
    cluster = up(machine, 2)
    assert [one["name"] for one in cluster["processes"]] == ["master", "worker-1", "worker-2"]
    machine.run("ufs", "add", f"file://{origin}", "/data")
    mountpoint = machine.mount(cluster["mount"] + "data")
    assert sorted(os.listdir(mountpoint)) == ["a", "sub"]
    assert os.stat(mountpoint).st_ino == 1, "whatever the ino of the directory that is mounted"
    assert same(mountpoint, origin, "a")
    assert same(mountpoint, origin, "sub/b")
    listed = machine.run("ls", "-l", str(mountpoint / "sub"))
    assert [line.split()[-2] for line in listed.splitlines()] == ["100%", "0%"]

    flip_a_byte(machine, mountpoint / "sub/b")
    with pytest.raises(ClusterFailed, match="wrong  /data/sub/b  page 0 "):
        machine.run("fsck", mountpoint)
    assert "nothing is damaged" in machine.run("fsck", mountpoint), "what was damaged is gone"
    assert same(mountpoint, origin, "sub/b")

    with (mountpoint / "sub/b").open("rb") as warm:
        first = used_worker(machine, mountpoint)
        os.kill(first, signal.SIGKILL)
        assert same(mountpoint, origin, "sub/cold"), "another worker of this machine is used"
        assert warm.read() == (origin / "sub/b").read_bytes()
    assert used_worker(machine, mountpoint) != first
    again = up(machine, 2)
    assert all(_title(one["pid"]) for one in again["processes"])
    assert again["mount"] == cluster["mount"]

    with pytest.raises(ClusterFailed, match=r"127\.0\.0\.1:1: the master does not answer"):
        machine.mount("cachefs://127.0.0.1:1/data", name="nowhere")
    machine.mounts.pop()
    text = machine.run("down")
    assert f"{mountpoint} is unmounted" in text
    assert not os.path.ismount(mountpoint)
    assert not any(_title(one["pid"]) for one in again["processes"])
    shutil.rmtree(origin / "sub")
    assert up(machine, 2)["mount"] == cluster["mount"], "the port is the same"
    assert json.loads(machine.run("ufs", "ls", "--json"))[0]["path"] == "/data"
    machine.run("down")
    assert machine.run("down") == "OK, nothing of it was running\n"


def test_down_without_up(machine: Machine) -> None:
    with pytest.raises(ClusterFailed, match="no cluster was started here; `cachefs up` starts one"):
        machine.run("down")


# ---- access --------------------------------------------------------------------------------------


def test_a_master_that_does_not_start_leaves_the_token_of_the_one_that_runs(
    machine: Machine, tmp_path: Path
) -> None:
    machine.command = ["master", "--listen", "127.0.0.1:0"]
    machine.start()
    address = machine.url.removeprefix("http://")
    (token,) = (machine.root / ".cache" / "cachefs" / "tokens").iterdir()
    open_ = ["master", "--no-token", "--background", "--store", f"lmdb:{tmp_path / 'other'}"]
    with pytest.raises(ClusterFailed, match="ddress already in use"):
        machine.run(*open_, "--listen", address)
    with pytest.raises(ClusterFailed, match="without a token"):
        machine.run(*open_, "--listen", f"0.0.0.0:{token.name}")
    machine.run("workers", "--master", address)
    machine.stop()
    machine.command = [*open_[:2], "--listen", address]
    machine.start()
    assert not token.exists(), "a master without tokens is asked without one"


@pytest.fixture
def secured(machine: Machine, tmp_path: Path, origin: Path) -> Iterator[Machine]:
    """A master on every address, with tokens and TLS, a worker, and two sources."""
    cert, key = _certificate(tmp_path)
    shared, limited = "s" * 40, "l" * 40
    _secret(tmp_path / "shared", shared)
    _secret(tmp_path / "limited", limited)
    _secret(tmp_path / "accepted", f"{shared}\n{limited} name=team path=/data read-only\n")
    trusts = {"CACHEFS_TLS_CA": str(cert)}
    tls = ["--tls-cert", str(cert), "--tls-key", str(key)]
    master = Machine("master", tmp_path / "master", dict(trusts))
    master.command = ["master", "--listen", "0.0.0.0:0", *tls]
    master.command.append("--no-token")
    with pytest.raises(ClusterFailed, match="without a token"):
        master.start()
    master.command.remove("--no-token")
    master.command += ["--token-file", str(tmp_path / "accepted")]
    master.start()
    trusts["CACHEFS_MASTER"] = master.url.removeprefix("https://")
    machine.environment |= trusts
    worker = Machine("worker", tmp_path / "worker", dict(trusts))
    worker.command = ["worker", "--tier", f"ssd:{tmp_path / 'tier'}:64MiB", *tls]
    try:
        with pytest.raises(ClusterFailed, match="the token is not known; give the cluster's --tok"):
            worker.start()
        worker.command += ["--token-file", str(tmp_path / "shared")]
        worker.start()
        for path in ("/data", "/other"):
            machine.run("ufs", "add", f"file://{origin}", path, "--token-file", tmp_path / "shared")
        yield machine
    finally:
        for path in machine.mounts:  # while there is somebody to answer
            subprocess.run(["umount", "-l", path], check=False, timeout=60, capture_output=True)
        worker.close()
        master.close()


def _secret(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def _certificate(directory: Path) -> tuple[Path, Path]:
    cert, key = directory / "cert.pem", directory / "key.pem"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-days", "2", "-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1",
        "-keyout", str(key), "-out", str(cert),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return cert, key


def test_tokens_and_tls(secured: Machine, tmp_path: Path, origin: Path) -> None:
    """Nobody without a token; one that is limited sees its path alone, and changes nothing."""
    shared, limited = str(tmp_path / "shared"), str(tmp_path / "limited")
    with pytest.raises(ClusterFailed, match="a token is needed"):
        secured.run("workers")
    assert len(secured.json("workers", "--token-file", shared)["workers"]) == 1
    found = secured.json("health", "--token-file", shared, codes=(1, 2))
    # Root's health names the dead mounts of all users of the machine, too.
    found = [one for one in found if one["code"] != "MOUNT_DEAD"]
    assert [one["code"] for one in found] == ["CERTIFICATE_EXPIRES"] * 2, "they last for two days"
    assert {one["subject"].split()[0] for one in found} == {"the", "worker"}
    with pytest.raises(ClusterFailed, match="'team' is for reading only"):
        secured.run("ufs", "rm", "/data", "--token-file", limited)

    address = secured.environment["CACHEFS_MASTER"]
    with pytest.raises(ClusterFailed, match="the master"):
        secured.run("workers", "--master", f"http://{address}", "--token-file", shared)
    with pytest.raises(ClusterFailed, match="'team' is limited to /data"):
        secured.mount(f"cachefs://{address}/other", "--token-file", limited)
    mountpoint = secured.mount(f"cachefs://{address}/data", "--token-file", limited)
    assert same(mountpoint, origin, "sub/b")
    secured.umount(mountpoint)
    mountpoint = secured.mount(f"cachefs://{address}/", "--token-file", shared)
    assert same(mountpoint / "other", origin, "sub/b")
    rows = secured.json("workers", "--token-file", shared)["workers"]
    assert sorted(one["weight"] > 0 for one in rows) == [False, True]
    check_that_the_mount_knows_its_master(secured, mountpoint)
    secured.umount(mountpoint)
    wait_until(
        lambda: len(secured.json("workers", "--token-file", shared)["workers"]) == 1,
        "the worker of the mounts leaves with the last one",
    )


def check_that_the_mount_knows_its_master(machine: Machine, mountpoint: Path) -> None:
    """Commands about a mount need neither the flags of its connection nor the settings that named
    them when it was mounted."""
    given = {"CACHEFS_MASTER", "CACHEFS_TLS_CA"}
    environment = {name: text for name, text in machine.environment.items() if name not in given}
    bare = Machine(machine.name, machine.root, environment)
    for command in ("status", "health"):
        found = bare.json(command, mountpoint, codes=(0, 1, 2))
        problems = found if command == "health" else found["problems"]
        assert "MASTER_AWAY" not in [one["code"] for one in problems]
        certificates = [one for one in problems if one["code"] == "CERTIFICATE_EXPIRES"]
        assert {one["subject"].split()[0] for one in certificates} == {"the", "worker"}
    assert bare.json("du", mountpoint)[0]["files"]
    with pytest.raises(ClusterFailed, match="not under a CacheFS mount"):
        bare.run("du", "/other")


def test_a_renewed_certificate_is_presented(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    path = tmp_path / "tls.pem"
    path.write_bytes(authority.issue("first").read_bytes())
    master = Machine("master", tmp_path / "master", {"CACHEFS_TLS_CA": str(authority.bundle)})
    master.command = ["master", "--listen", "127.0.0.1:0", "--tls-cert", str(path)]
    master.start()
    try:
        host, _, port = master.url.removeprefix("https://").rpartition(":")

        def presents(pem: str) -> bool:
            return ssl.get_server_certificate((host, int(port)), timeout=10).strip() in pem

        assert presents(path.read_text())
        renewed = authority.issue("second")
        os.replace(renewed, path)
        wait_until(lambda: presents(path.read_text()), "the renewed certificate is presented")
        master.run("workers", "--master", f"{host}:{port}")
    finally:
        master.close()
