"""Commands of deployments that stay in front: started with the limits of their deployment, ended by
SIGTERM."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

COMMAND_S: Final = 60.0
# As MemoryDenyWriteExecute=, by the kernel's own switch (Linux >= 6.3), for all that follows.
_DENY_WRITE_EXECUTE: Final = (
    "import ctypes, os, sys; "
    "assert ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0; os.execvp(sys.argv[1], sys.argv[1:])"
)


def limits(
    uid: int, gid: int, capabilities: Sequence[str], *, deny_write_execute: bool = False
) -> list[str]:
    """Returns the words that run a command as a user, with no other capabilities and without new
    privileges. For another user than root, reading the way to the interpreter stays allowed: that
    is below the home of root here."""
    kept = ["-all", *(f"+{name.lower().removeprefix('cap_')}" for name in capabilities)]
    words = ["setpriv", "--no-new-privs"]
    if uid:
        kept.append("+dac_read_search")
        words += [f"--inh-caps={','.join(kept)}", f"--ambient-caps={','.join(kept)}"]
        words += [f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
    words.append(f"--bounding-set={','.join(kept)}")
    wrapped = [sys.executable, "-I", "-c", _DENY_WRITE_EXECUTE] if deny_write_execute else []
    return [*words, *wrapped]


class Services:
    """The commands that run now, by name."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, words: Sequence[str], environment: Mapping[str, str]) -> str:
        """Starts a command, and returns the line with which it says that it is ready."""
        process = subprocess.Popen(
            words,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._running[name] = process
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("OK, "):
                return line
        raise AssertionError(f"{name} ended with {self.stop(name)}: {''.join(said)}")

    def stop(self, name: str) -> int:
        """Sends SIGTERM to a command, and returns its exit code."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=COMMAND_S)
        return process.returncode

    def close(self) -> None:
        """Ends what runs, the last one first."""
        for name in reversed([*self._running]):
            self.stop(name)


def run(words: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a command that ends, with both outputs in one text."""
    return subprocess.run(
        words,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_S,
    )
