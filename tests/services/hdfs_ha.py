"""A real name service of two NameNodes, with shared edits in a directory, and one DataNode."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.hdfs import (
    ADDRESS,
    DATANODE,
    NAMENODE,
    REPORTED,
    START_LIMIT_S,
    Part,
    common_properties,
    format_name_node,
    jars,
    java,
    jmx,
    login,
    write_conf,
)
from tests.services.processes import wait_until
from tests.services.s3_server import free_port

SERVICE = "warehouse"
NAMES = ("nn1", "nn2")
ADMIN = "org.apache.hadoop.hdfs.tools.DFSHAAdmin"


@dataclass
class NameService:
    """`conf_dir` is what clients need."""

    conf_dir: Path
    namenodes: dict[str, Part]
    datanode: Part
    web_ports: dict[str, int]
    libraries: Path

    @property
    def url(self) -> str:
        return f"hdfs://{SERVICE}"

    @property
    def parts(self) -> list[Part]:
        return [*self.namenodes.values(), self.datanode]

    def client(self) -> Any:
        from hdfs_native import Client

        return Client(self.url, None, str(self.conf_dir))

    def start(self) -> None:
        """Starts all parts, and makes the first NameNode active."""
        for part in self.parts:
            part.start()
        wait_until(lambda: all(map(self._answers, NAMES)), "both NameNodes answer", START_LIMIT_S)
        self.activate(NAMES[0])
        wait_until(lambda: self.datanode.is_up, "the DataNode has reported", START_LIMIT_S)

    def activate(self, name: str, *, force: bool = False) -> None:
        """Makes a NameNode active; `force`: while the other one cannot be asked."""
        flags = ["--forceactive"] if force else []
        command = java(self.conf_dir, self.libraries, ADMIN, "-ns", SERVICE)
        done = subprocess.run(
            [*command, "-transitionToActive", *flags, name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_LIMIT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        wait_until(lambda: self.state(name) == "active", f"{name} is active")

    def state(self, name: str) -> str:
        found = jmx(self.web_ports[name], "NameNodeStatus")
        return str(found.get("State", ""))

    def may_follow(self, name: str) -> bool:
        """Is it a standby that the DataNode has told its blocks?"""
        found = jmx(self.web_ports[name], "FSNamesystemState")
        is_whole = found.get("FSState") == "Operational" and found.get("NumLiveDataNodes") == 1
        return is_whole and self.state(name) == "standby"

    def _answers(self, name: str) -> bool:
        part = self.namenodes[name]
        assert part.is_running, part.tail()
        return self.state(name) == "standby"


@contextlib.contextmanager
def name_service(directory: Path) -> Iterator[NameService]:
    ports = {name: free_port() for name in NAMES}
    web_ports = {name: free_port() for name in NAMES}
    libraries = jars()
    core = {"fs.defaultFS": f"hdfs://{SERVICE}"}
    shared: dict[str, object] = common_properties(login(), directory / "tmp") | {
        "dfs.replication": 1,
        "dfs.nameservices": SERVICE,
        f"dfs.ha.namenodes.{SERVICE}": ",".join(NAMES),
        "dfs.namenode.shared.edits.dir": f"file://{directory}/edits",
        "dfs.ha.fencing.methods": "shell(/bin/true)",
        "dfs.ha.tail-edits.period": 1,
        "dfs.datanode.data.dir": f"file://{directory}/data",
    }
    for name in NAMES:
        shared[f"dfs.namenode.rpc-address.{SERVICE}.{name}"] = f"{ADDRESS}:{ports[name]}"
        shared[f"dfs.namenode.http-address.{SERVICE}.{name}"] = f"{ADDRESS}:{web_ports[name]}"
    conf = write_conf(directory / "conf", core, shared)
    namenodes = {}
    for name in NAMES:
        own = shared | {
            "dfs.ha.namenode.id": name,
            "dfs.namenode.name.dir": f"file://{directory}/name-{name}",
        }
        command = java(write_conf(directory / name, core, own), libraries, NAMENODE)
        namenodes[name] = Part(name, command, directory / f"{name}.log")
    format_name_node(namenodes[NAMES[0]].command, directory / "format.log")
    # What `-bootstrapStandby` would copy.
    shutil.copytree(directory / f"name-{NAMES[0]}", directory / f"name-{NAMES[1]}")
    datanode = Part(
        "datanode", java(conf, libraries, DATANODE), directory / "datanode.log", REPORTED
    )
    service = NameService(conf, namenodes, datanode, web_ports, libraries)
    try:
        service.start()
        yield service
    finally:
        for part in reversed(service.parts):
            part.kill()
