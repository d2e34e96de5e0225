"""A real HDFS cluster of one NameNode and two DataNodes on loopback, of the jars of `scripts/hdfs`.
Each part is a process that a test may stop, kill and start again.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tests.services.processes import stop, wait_until
from tests.services.s3_server import free_port

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 180.0
STOP_LIMIT_S = 10.0
ADDRESS = "127.0.0.1"
NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
# A small heap, and the quick compiler only: the parts start sooner and share the test's CPUs.
JVM = (
    "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
)  # fmt: skip
REPORTED = "Successfully sent block report"  # by a DataNode to the NameNode
TIED = ("setpriv", "--pdeathsig", "KILL")  # a killed test process leaves no server
LOGGING = """log4j.rootLogger=INFO,A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.layout=org.apache.log4j.PatternLayout
log4j.appender.A.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
log4j.logger.BlockStateChange=WARN
log4j.logger.org.apache.hadoop.hdfs.StateChange=WARN
log4j.logger.org.apache.hadoop.hdfs.server.datanode.DataNode.clienttrace=WARN
log4j.logger.org.apache.hadoop.hdfs.server.namenode.FSNamesystem.audit=WARN
"""


def jars() -> Path:
    """The folder of the jars. Raises FileNotFoundError with what to do."""
    found = subprocess.run(
        [str(ROOT / "scripts/hdfs")], capture_output=True, text=True, check=False
    )
    if found.returncode or shutil.which("java") is None:
        raise FileNotFoundError(f"HDFS needs Java and the jars of scripts/hdfs: {found.stderr}")
    return Path(found.stdout.strip())


@dataclass
class Part:
    """One process of the cluster. `start` may be called again after its end: the data stays."""

    name: str
    command: list[str]
    log: Path
    sign: str = ""  # a line of the log that shows that it is up
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _from: int = 0  # where the log of this process begins

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._from = log.tell()
            self._process = subprocess.Popen(
                [*TIED, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def is_up(self) -> bool:
        return self.sign in self.log.read_text(errors="replace")[self._from :]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_LIMIT_S)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops the process in the block (SIGSTOP), so that its connections stay and are silent."""
        stop(self.pid)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def tail(self) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        lines = [line for line in text.splitlines() if "classpath" not in line]
        return f"{self.name}:\n" + "\n".join(lines[-25:])


@dataclass
class HdfsCluster:
    """The parts and what clients need. Users are what clients say: the tests' user is the
    superuser."""

    directory: Path
    port: int
    web_port: int
    namenode: Part
    datanodes: list[Part]

    @property
    def url(self) -> str:
        return f"hdfs://{ADDRESS}:{self.port}"

    @property
    def parts(self) -> list[Part]:
        return [self.namenode, *self.datanodes]

    def client(self) -> Any:
        """A client of hdfs-native, for the test's own reads and writes."""
        from hdfs_native import Client

        return Client(self.url, {"dfs.client.failover.max.attempts": "1"})

    def start(self) -> None:
        """Starts what does not run, and waits until a file can be written to two DataNodes. Raises
        RuntimeError with the ends of the logs."""
        for part in self.parts:
            if not part.is_running:
                part.start()
        wait_until(lambda: self._is_up() or self._died(), "HDFS is up", START_LIMIT_S)
        if died := self._died():
            raise RuntimeError("HDFS did not start\n" + "\n".join(part.tail() for part in died))

    def stop(self) -> None:
        for part in reversed(self.parts):
            part.kill()

    def tails(self) -> str:
        return "\n".join(part.tail() for part in self.parts)

    def _died(self) -> list[Part]:
        return [part for part in self.parts if not part.is_running]

    def _is_up(self) -> bool:
        state = self.state()
        return (
            all(part.is_up for part in self.parts)
            and state.get("FSState") == "Operational"
            and state.get("NumLiveDataNodes") == len(self.datanodes)
            and state.get("CapacityRemaining", 0) > 0
        )

    def state(self) -> dict[str, Any]:
        """What the NameNode reports of itself; empty while it does not answer."""
        return jmx(self.web_port, "FSNamesystemState")


def jmx(web_port: int, name: str) -> dict[str, Any]:
    """What a NameNode reports below a name; empty while it does not answer."""
    url = f"http://{ADDRESS}:{web_port}/jmx?qry=Hadoop:service=NameNode,name={name}"
    try:
        with urllib.request.urlopen(url, timeout=2.0) as answer:  # loopback
            beans = json.load(answer)["beans"]
    except OSError:
        return {}
    return dict(beans[0]) if beans else {}


def site(properties: Mapping[str, object]) -> str:
    """The text of a configuration file of Hadoop."""
    lines = [
        f"<property><name>{escape(name)}</name><value>{escape(str(value))}</value></property>"
        for name, value in properties.items()
    ]
    return "\n".join(["<configuration>", *lines, "</configuration>", ""])


def login() -> str:
    """The user that clients of this process are towards HDFS."""
    return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()


def common_properties(user: str, tmp: Path) -> dict[str, object]:
    groups = f"{user}=supergroup;alice=alice,team;bob=bob,team;eve=eve"
    return {
        "hadoop.tmp.dir": tmp,
        "hadoop.security.authentication": "simple",
        "hadoop.user.group.static.mapping.overrides": groups,
        "ipc.client.connect.retry.interval": 200,
        "dfs.replication": 2,
        "dfs.permissions.enabled": "true",
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.namenode.safemode.min.datanodes": 1,
        "dfs.namenode.safemode.extension": 0,
        "dfs.namenode.fs-limits.min-block-size": 1024,
        "dfs.namenode.file.close.num-committed-allowed": 1,  # else a close waits for half a second
        "dfs.blockreport.initialDelay": 0,
        "dfs.heartbeat.interval": 1,
        "dfs.datanode.du.reserved": 0,
        "dfs.datanode.hostname": ADDRESS,
        "dfs.datanode.address": f"{ADDRESS}:0",
        "dfs.datanode.ipc.address": f"{ADDRESS}:0",
        "dfs.datanode.http.address": f"{ADDRESS}:0",
    }


def write_conf(directory: Path, core: Mapping[str, object], hdfs: Mapping[str, object]) -> Path:
    """Writes a configuration directory, as `HADOOP_CONF_DIR` names it."""
    for folder in ("hdfs", "datanode", "static"):  # the jars have no pages: empty folders stand in
        (directory / "webapps" / folder).mkdir(parents=True, exist_ok=True)
    (directory / "core-site.xml").write_text(site(core))
    (directory / "hdfs-site.xml").write_text(site(hdfs))
    (directory / "log4j.properties").write_text(LOGGING)
    return directory


def java(conf: Path, libraries: Path, main: str, *arguments: str) -> list[str]:
    return [
        *JVM, f"-Dhadoop.home.dir={conf}", "-cp", f"{conf}:{libraries}/*", main, *arguments,
    ]  # fmt: skip


def format_name_node(command: list[str], log: Path) -> None:
    with log.open("wb") as output:
        subprocess.run(
            [*command, "-format", "-nonInteractive", "-force"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=True,
            timeout=START_LIMIT_S,
        )


@contextlib.contextmanager
def hdfs_cluster(
    directory: Path, datanodes: int = 2, libraries: Path | None = None
) -> Iterator[HdfsCluster]:
    """A cluster whose state is below `directory`. It has the user of the tests as superuser.
    `libraries`: the folder of the jars; None: that of this user."""
    port, web_port = free_port(), free_port()
    libraries = libraries or jars()
    core = {"fs.defaultFS": f"hdfs://{ADDRESS}:{port}"}
    hdfs = common_properties(login(), directory / "tmp") | {
        "dfs.namenode.rpc-address": f"{ADDRESS}:{port}",
        "dfs.namenode.http-address": f"{ADDRESS}:{web_port}",
        "dfs.namenode.name.dir": f"file://{directory}/name",
    }
    conf = write_conf(directory / "conf", core, hdfs)
    parts = []
    for number in range(datanodes):
        own = hdfs | {"dfs.datanode.data.dir": f"file://{directory}/data-{number}"}
        name = f"datanode-{number}"
        command = java(write_conf(directory / name, core, own), libraries, DATANODE)
        parts.append(Part(name, command, directory / f"{name}.log", REPORTED))
    command = java(conf, libraries, NAMENODE)
    format_name_node(command, directory / "format.log")
    namenode = Part("namenode", command, directory / "namenode.log")
    cluster = HdfsCluster(directory, port, web_port, namenode, parts)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
