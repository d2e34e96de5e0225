"""The command lines of the README and of the helps are run, as they are printed but for the names
that stand for something of the reader's: sources, mount points, addresses, numbers of jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from cachefs.cli import main
from tests.integration.dataset import body
from tests.integration.test_local_cluster import machine
from tests.services.cluster import Machine
from tests.unit.cli.test_documented_commands import ROOT, Line, in_helps, in_text, words_of

__all__ = ["machine"]  # a fixture

FILES: Final = {
    "train/0001.jpg": body(1, 100_000),
    "train/n01/a/b.jpg": body(2, 50_000),
    "val/0002.jpg": body(3, 20_000),
    "train.tar": body(4, 300_000),
}
# In front, or for a state that this test does not make; other tests do.
NOT_RUN: Final = {
    r"master\b": "it stays in front",
    r"worker\b": "it stays in front",
    r"logs -f": "it goes on until it is interrupted",
    r"doctor --fix": "it clears dead mounts of the whole machine, also those of other tests",
    r"workers (drain|remove)": "they need a worker to spare, or a lost one",
    r"jobs (stop|retry)": "they need a job that runs, or one that failed",
    r"cache rm --unused --older-than 30d$": "like the line with --dry-run",
}
DEMO: Final = re.compile("<!-- demo output: begin -->.*<!-- demo output: end -->", re.DOTALL)
SUBPROCESS: Final = ("mount s", "mount f", "mount c", "up", "umount", "down")
CLUSTERS: Final = ("ufs", "workers", "location", "fsck", "up", "down")
MAY_FAIL: Final = {"health": {0, 1, 2}, "doctor": {0, 1}, "status": {0}}


def documented() -> list[Line]:
    """Each line once, the helps first; without the README's demo, which `make demo` runs."""
    text = (ROOT / "README.md").read_text()
    readme = in_text(DEMO.sub("", text), "README.md")
    found: dict[str, Line] = {}
    for line in (*in_helps(), *readme):
        text = " ".join(words_of(line.text))
        found.setdefault(text, Line(line.where, text))
    return [line for line in found.values() if not any(re.match(one, line.text) for one in NOT_RUN)]


class Reader:
    """Somebody who types what is documented, with names of their own."""

    def __init__(self, machine: Machine, call: Callable[..., int]) -> None:
        self.machine = machine
        self._call = call
        self.source = machine.root / "source"
        for name, data in FILES.items():
            (self.source / name).parent.mkdir(parents=True, exist_ok=True)
            (self.source / name).write_bytes(data)
        self.mnt, self.imagenet = machine.root / "mnt", machine.root / "imagenet"
        for path in (self.mnt, self.imagenet):
            path.mkdir()
            machine.mounts.append(path)
        (machine.root / "epoch1.txt").write_text(f"{self.mnt}/train/0001.jpg\n")
        self.address = ""
        self.ran: list[str] = []

    def names(self) -> Iterator[tuple[str, str]]:
        yield r"^(s3://bucket/\w+|SOURCE)$", f"file://{self.source}"
        yield r"^(/mnt/data|DIR)(?=/|$)", str(self.mnt)
        yield r"^/mnt/imagenet(?=/|$)", str(self.imagenet)
        yield r"^PATH(\.\.\.)?$", str(self.mnt / "train")
        yield r"^cachefs://(master:19998|127\.0\.0\.1:19998|HOST:PORT)", f"cachefs://{self.address}"
        yield r"^epoch1\.txt$", str(self.machine.root / "epoch1.txt")
        yield r"^/ssd/cachefs$", str(self.machine.root / "ssd")
        yield r"^N$", "2"

    def words(self, line: Line) -> list[str]:
        words = words_of(line.text)
        for pattern, name in self.names():
            words = [re.sub(pattern, lambda _, name=name: name, word) for word in words]
        if words[0] == "jobs":
            words = ["1" if word == "7" else word for word in words]
        if words[0] == "top":
            words += ["--interval", "0.2s"]
        return words

    def type(self, line: Line) -> None:
        words = self.words(line)
        self.ran.append(line.text)
        if line.text.startswith(SUBPROCESS):
            self.machine.run(*words)
            return
        code = self._call(words)
        assert code in MAY_FAIL.get(words[0], {0}), f"{line.where}: cachefs {' '.join(words)}"


@pytest.fixture
def reader(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Reader:
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)

    def call(words: list[str]) -> int:
        code = main.main(words)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        assert code in MAY_FAIL.get(words[0], {0}), f"{words}: {said.out}{said.err}"
        return code

    return Reader(machine, call)


def is_of_cluster(line: Line) -> bool:
    words = words_of(line.text)
    return words[0] in CLUSTERS or any(
        word.startswith(("cachefs://", "/mnt/imagenet")) for word in words
    )


def take(lines: list[Line], *starts: str) -> list[Line]:
    """Removes and returns the lines that start so."""
    found = [line for line in lines if line.text.startswith(starts)]
    lines[:] = [line for line in lines if line not in found]
    return found


def test_what_is_documented_can_be_typed(reader: Reader) -> None:
    lines = documented()
    clusters = [line for line in lines if is_of_cluster(line)]
    alone = [line for line in lines if not is_of_cluster(line)]
    assert len(alone) >= 30
    assert len(clusters) >= 18
    type_alone(reader, alone)
    type_of_cluster(reader, clusters)
    assert sorted(reader.ran) == sorted(line.text for line in lines)


def type_alone(reader: Reader, lines: list[Line]) -> None:
    """A mount of a directory; at its end, and once more, it is unmounted."""
    mounts, umounts = take(lines, "mount s", "mount S"), take(lines, "umount")
    removals = take(lines, "cache rm")
    seen: set[str] = set()
    for number, line in enumerate(mounts):
        typed = " ".join(reader.words(line))
        reader.ran.append(line.text)
        if typed in seen:
            continue
        seen.add(typed)
        reader.machine.run(*reader.words(line))
        assert (reader.mnt / "train" / "0001.jpg").read_bytes() == FILES["train/0001.jpg"]
        if number == 0:
            type_all(reader, lines)
        for end in umounts[:1]:
            reader.machine.run(*reader.words(end))
    reader.ran += [line.text for line in umounts]
    for line in removals:
        (kept,) = json.loads(reader.machine.run("cache", "ls", "--json")) or [{"id": ""}]
        type_removal(reader, line, kept["id"])


def type_removal(reader: Reader, line: Line, id: str) -> None:
    words = [id if word == "7264607a34caeacd" else word for word in reader.words(line)]
    reader.ran.append(line.text)
    reader.machine.run(*words)


def type_of_cluster(reader: Reader, lines: list[Line]) -> None:
    """A cluster on this machine, a source in it, and a mount of it."""
    ups, downs, ends = take(lines, "up"), take(lines, "down"), take(lines, "ufs rm")
    adds, mounts = take(lines, "ufs add"), take(lines, "mount c")
    reader.machine.run("up", "--workers", "2", "--cache-size", "64MiB")
    reader.ran += [line.text for line in ups]
    up = reader.machine.json("up")
    reader.address = up["mount"].removeprefix("cachefs://").rstrip("/")
    type_all(reader, adds)
    for line in mounts:
        reader.ran.append(line.text)
    reader.machine.run("mount", f"cachefs://{reader.address}/imagenet", reader.imagenet)
    reader.mnt = reader.imagenet
    type_all(reader, lines)
    reader.machine.run("umount", reader.imagenet)
    type_all(reader, ends)
    type_all(reader, downs)


def type_all(reader: Reader, lines: list[Line]) -> None:
    for line in lines:
        reader.type(line)
        if line.text.startswith("pin "):
            path = next(word for word in reader.words(line)[1:] if not word.startswith("-"))
            reader.machine.run("unpin", path)
