"""A client that serves nothing: `fake_client.py FOLDER ...`, a `ClientSpec` on standard input.

The n-th one to start takes its manners from the n-th line of FOLDER/plan ("good" when there is
none), and writes what it sees to FOLDER/n, a line each."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from cachefs.core.messages import Failure
from cachefs.core.specs import ClientSpec
from cachefs.fuse.supervisor import wire as w


class Client:
    def __init__(self, folder: Path, spec: ClientSpec) -> None:
        self.number, self.file = _take_number(folder)
        plan = (folder / "plan").read_text().split("\n")
        self.manners = (plan[self.number : self.number + 1] or [""])[0] or "good"
        self.sock = socket.socket(fileno=spec.control_fd)
        self.log(f"started {os.getpid()} {spec.successor}")
        self.log(
            f"held {spec.held is not None and os.path.exists(f'/proc/self/fd/{spec.held.fuse_fd}')}"
        )

    def log(self, line: str) -> None:
        os.write(self.file, f"{line}\n".encode())

    def run(self) -> int:
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._signalled)
        match self.manners:
            case "dies":
                return 5
            case "fails":
                w.send(self.sock, w.Failed(Failure("NOT_FOUND", "no such bucket")))
                return 1
            case "garbage":
                self.sock.send(b"\xc1 of another version")
        w.send(self.sock, w.Ready("a warning"))
        note, fds = w.receive(self.sock)
        if not isinstance(note, w.Serve):
            return 4
        self.log(f"serve {note.takeover} {len(fds)}")
        w.send(self.sock, w.Serving())
        return self._serve()

    def _serve(self) -> int:
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        while True:
            if self.manners != "hangs":
                with contextlib.suppress(OSError):
                    w.send(self.sock, w.Beat())
            if not poll.poll(50) or self.manners == "hangs":
                time.sleep(0.05 if self.manners == "hangs" else 0)
                continue
            note, _ = w.receive(self.sock)
            self.log(type(note).__name__)
            if note is None:
                return 3
            if isinstance(note, w.Retire):
                w.send(self.sock, w.Retired())
                return 0

    def _signalled(self, number: int, frame: object) -> None:
        self.log(signal.Signals(number).name)
        if number == signal.SIGTERM:
            w.send(self.sock, w.Ending())
            os._exit(0)


def _take_number(folder: Path) -> tuple[int, int]:
    for number in itertools.count():
        try:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND
            return number, os.open(folder / str(number), flags)
        except FileExistsError:
            continue
    raise AssertionError


if __name__ == "__main__":
    spec = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=ClientSpec)
    sys.exit(Client(Path(sys.argv[1]), spec).run())
