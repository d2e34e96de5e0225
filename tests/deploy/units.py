"""Units of systemd, run without it: a unit's command lines with their specifiers, environment,
directories, credentials, user and capabilities."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.deploy.foreground import COMMAND_S, Services, limits, run
from tests.deploy.promtool import ROOT
from tests.services.commands import CACHEFS

UNITS: Final = ROOT / "deploy" / "systemd"
PROGRAM: Final = "/opt/cachefs/bin/cachefs"
USER: Final = 65532  # stands for the user cachefs, which need not exist here
DIRECTORIES: Final = {"StateDirectory": "S", "CacheDirectory": "C", "RuntimeDirectory": "t"}


@dataclass
class Unit:
    """A unit file. `root` is where its directories lie; `instance` is the mount point's path."""

    name: str
    root: Path
    instance: str = ""
    path: Mapping[str, str] = field(default_factory=lambda: {"PATH": os.environ["PATH"]})

    def __post_init__(self) -> None:
        text = (UNITS / self.name).read_text()
        self.lines = [line.partition("=") for line in text.splitlines() if re.match(r"\w", line)]
        self.full_name = self.name.replace("@", f"@{escaped(self.instance)}")

    def values(self, key: str) -> list[str]:
        """Returns the values of a directive, with specifiers and the paths of the test."""
        return [self._filled(value) for name, _, value in self.lines if name == key]

    def value(self, key: str) -> str:
        """Returns the only value of a directive; "" if it is not there."""
        (found,) = self.values(key) or [""]
        return found

    def _filled(self, text: str) -> str:
        specifiers = {
            "f": self.instance, "i": escaped(self.instance), "n": self.full_name,
            "S": str(self.root / "S"), "C": str(self.root / "C"), "t": str(self.root / "t"),
            "d": str(self.root / "d" / self.name),
        }  # fmt: skip
        text = text.replace("/etc/cachefs", str(self.root / "etc")).replace(PROGRAM, str(CACHEFS))
        text = text.replace("HOME=/root", f"HOME={self.root}")
        return re.sub(r"%(.)", lambda found: specifiers[found[1]], text)

    def commands(self, key: str) -> Iterator[tuple[list[str], bool]]:
        """Yields each command line of `ExecStart` and the like, and whether it may fail."""
        for value in self.values(key):
            words = shlex.split(value.removeprefix("-"))
            assert not any(word.startswith(("$", "@", "+", "!")) for word in words)
            yield [word.replace("$$", "$") for word in words], value.startswith("-")

    @property
    def environment(self) -> dict[str, str]:
        """Returns what systemd would set, with the test's own PATH."""
        pairs = [word for value in self.values("Environment") for word in shlex.split(value)]
        for value in self.values("EnvironmentFile"):
            file = Path(value.removeprefix("-"))
            if file.exists() or not value.startswith("-"):
                pairs += file.read_text().splitlines()
        found = {"LC_ALL": "C.UTF-8", "SSL_CERT_FILE": os.devnull, **self.path}
        if self.values("LoadCredential"):
            found["CREDENTIALS_DIRECTORY"] = self._filled("%d")
        return found | dict(pair.split("=", 1) for pair in pairs)

    def make_directories(self) -> None:
        """Makes the directories of the unit for its user, and its credentials as systemd does: of
        root, readable by the user, with the mask of an ACL as the mode."""
        for key, place in DIRECTORIES.items():
            for name in self.values(key):
                directory = self.root / place / name
                directory.mkdir(parents=True, exist_ok=True)
                directory.chmod(int(self.value(f"{key}Mode"), 8))
                os.chown(directory, USER, USER)
        for value in self.values("LoadCredential"):
            name, _, source = value.partition(":")
            copy = Path(self._filled("%d"), name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            copy.chmod(0o440)

    @property
    def wrapper(self) -> list[str]:
        """Returns the words that limit a command as the unit does."""
        uid = USER if self.value("User") else 0
        kept = self.value("CapabilityBoundingSet").split()
        denies = self.value("MemoryDenyWriteExecute") == "yes"
        return limits(uid, uid, kept, deny_write_execute=denies)

    def run(self, key: str) -> str:
        """Runs the commands of a directive one after another, until one fails that may not; returns
        what they printed. Raises CalledProcessError."""
        said = ""
        for command, may_fail in self.commands(key):
            done = run([*self.wrapper, *command], self.environment)
            said += done.stdout
            if done.returncode and not may_fail:
                raise subprocess.CalledProcessError(done.returncode, command, said)
        return said

    def start(self, services: Services) -> str:
        """Starts the one command of a service that stays; returns its line."""
        ((command, _),) = self.commands("ExecStart")
        return services.start(self.name, [*self.wrapper, *command], self.environment)


def escaped(path: str) -> str:
    """Returns a path as the instance of a unit, as `systemd-escape --path` does."""
    words = ["systemd-escape", "--path", path] if path else ["echo"]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=COMMAND_S)
    return done.stdout.strip()
