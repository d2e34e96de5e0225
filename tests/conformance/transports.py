"""The transports that one suite runs on, each as the process that serves a mount of a fake node."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from cachefs.core.model import UfsSpec
from cachefs.core.specs import ClientSpec, Started, SupervisorSpec
from cachefs.launcher.state import StateHome
from tests.unit.fuse.fake_node import FakeNode

LIMIT_S = 60.0
KERNEL = "kernel"  # the kernel reads complete files by itself
CACHED = "kernel without passthrough"
PYFUSE3 = "pyfuse3"
TRANSPORTS = (KERNEL, CACHED, PYFUSE3)
SETTINGS: dict[str, dict[str, str]] = {
    KERNEL: {"transport": "kernel"},
    CACHED: {"transport": "kernel", "passthrough": "off"},
    PYFUSE3: {"transport": "pyfuse3"},
}
OPTIONS = {
    name: tuple(text for key, value in settings.items() for text in (f"--{key}", value))
    for name, settings in SETTINGS.items()
}


class Mounted:
    """A mount of a fake node by one of the transports."""

    def __init__(self, node: FakeNode, root: Path, transport: str) -> None:
        self.node = node
        self.root = root
        self.transport = transport
        self.path = root / "mnt"
        self.path.mkdir()
        self.home = root / "home"
        self.log = root / "client.log"
        self.process: subprocess.Popen[bytes] | None = None

    def spec(self, **changes: object) -> ClientSpec:
        spec = ClientSpec(
            home=str(self.home),
            socket=str(self.root / "node.sock"),
            source=UfsSpec("s3://bucket/pre,fix"),
            mountpoint=str(self.path),
            log_file=str(self.log),
        )
        return msgspec.structs.replace(spec, **(SETTINGS[self.transport] | changes))

    def start(self, **changes: object) -> Started:
        """What the process says when the mount answers, or cannot be made."""
        spec = self.spec(**changes)
        document: object = spec
        program = "cachefs.fuse.client"
        if self.transport != PYFUSE3:
            program, document = "cachefs.fuse.supervisor", SupervisorSpec(spec)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-m", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(msgspec.msgpack.encode(document))
        self.process.stdin.close()
        line = self.process.stdout.read()
        self.process.stdout.close()
        return msgspec.json.decode(line, type=Started)

    @property
    def client(self) -> int:
        """The pid of the process that answers the kernel."""
        record = StateHome(str(self.home)).find_mount(str(self.path))
        assert record is not None
        return record.pid

    @contextlib.contextmanager
    def stopped(self) -> Any:
        """The client answers nothing meanwhile."""
        pid = self.client
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def mountinfo(self) -> str:
        """The mount's line, "" when it is not mounted."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return next((line for line in lines if line.split()[4] == str(self.path)), "")

    def ended(self) -> int:
        assert self.process is not None
        return self.process.wait(LIMIT_S)

    def complaints(self) -> list[str]:
        """Lines of the log that no calm day has."""
        if not self.log.exists():
            return []
        bad = (" WARNING ", " ERROR ", "Traceback")
        return [ln for ln in self.log.read_text().splitlines() if any(word in ln for word in bad)]

    def clean_up(self) -> None:
        for gate in self.node.gates.values():
            gate.set()
        if self.mountinfo():
            subprocess.run(["umount", "-l", str(self.path)], check=False)
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(LIMIT_S)
            self.process.kill()
            self.process.wait()
