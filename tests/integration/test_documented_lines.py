"""The command lines of the README, of docs/operations.md and of the helps are run, as they are
printed but for the names that stand for something of the reader's: sources, mount points,
addresses, sizes, numbers of jobs."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pytest

from cachefs.cli import main
from tests.integration.dataset import body
from tests.integration.test_local_cluster import machine
from tests.services.cluster import Machine
from tests.services.s3_server import S3Server
from tests.unit.cli.test_documented_commands import PROMPT, ROOT, Line, in_helps, in_text, words_of

__all__ = ["machine"]  # a fixture

FILES: Final = {
    "train/0001.jpg": body(1, 100_000),
    "train/n01/a/b.jpg": body(2, 50_000),
    "val/0002.jpg": body(3, 20_000),
    "train.tar": body(4, 300_000),
    "train/1.jpg": body(5, 1_000),
    "train/7.jpg": body(6, 1_000),
    **{f"slow/{number}": body(number, 20_000) for number in range(10)},
}
Call = Callable[[list[str]], tuple[int, str]]  # the exit code, and what was printed
FOLDERS: Final = (
    "imagenet/train", "imagenet/val", "audio", "more", "set/old", "set/new", "old", "other",
    "shards", "images/cat",
)  # fmt: skip
SLOW: Final = "100KiB/s"  # for a job that runs still when the next command comes
PAGE: Final = "operations.md"
# In front, or for a state that this test does not make; other tests do.
NOT_RUN: Final = {
    r"master\b": "it stays in front",
    r"worker\b": "it stays in front",
    r"(csi|fuse-agent)\b": "they stay in front, and need a node of Kubernetes",
    r"operator\b": "it stays in front, and needs Kubernetes",
    r"logs -f": "it goes on until it is interrupted",
    r"doctor --fix": "it clears dead mounts of the whole machine, also those of other tests",
    r"workers (drain|remove)": "they need a worker to spare, or a lost one",
    r"jobs retry": "it needs a job that failed",
    r"order\b": "it needs a list of files; test_announced_orders.py types it",
    r"bench au": "it measures for minutes; test_bench_command.py runs a small one",
    r"cache rm --unused --older-than 30d$": "like the line with --dry-run",
    # Of docs/operations.md:
    r"ls -l$": "of the directory where the reader is",
    r"mount s3://bucket/prefix /mnt/data --cache-dir D": "a sample of flags that the README has",
    r"mount s3://bucket/train /mnt/data --admin-socket": "test_admin_socket.py mounts so",
    r"ufs set /imagenet --push": "it needs events; test_pushed_changes.py, test_event_queues.py",
    r"ufs add hdfs://": "it needs HDFS; tests/hdfs/test_polls.py",
    r"ufs rm /imagenet --token-file": "it needs a token that may not; test_cluster_access.py",
    r"mount cachefs://127\.0\.0\.1:22998/other": "it needs a token of a path; the same",
    r"ufs add s3://demo/train /imagenet$": "it shows a master without credentials",
}
REFUSED: Final = {  # at once, with the words of the page; what else starts so stays in front
    r"master --listen 0\.0\.0\.0:19998 --no-token$": "listening on 0.0.0.0 lets other machines in",
    r"worker --master 192\.0\.2\.2:19998 ": "is reached from no other machine",
}
ALONE: Final = ("top", "health", "status", "doctor", "jobs", "workers", "down")
DEMO: Final = re.compile(r"<!-- (\w+) output: begin -->.*?<!-- \1 output: end -->", re.DOTALL)
SUBPROCESS: Final = ("mount s", "mount f", "mount c", "up", "umount", "down")
JOBS: Final = ("jobs stop", "jobs resume", "jobs forget")
CLUSTERS: Final = ("ufs", "workers", "location", "fsck", "up", "down")
MAY_FAIL: Final = {"health": {0, 1, 2}, "doctor": {0, 1}, "status": {0}}


def documented() -> list[Line]:
    """Each line once, the helps first; without the output of the demos in the README."""
    text = (ROOT / "README.md").read_text()
    readme = in_text(DEMO.sub("", text), "README.md")
    found: dict[str, Line] = {}
    for line in (*in_helps(), *readme, *of_operations()):
        text = " ".join(words_of(line.text))
        found.setdefault(text, Line(line.where, text))
    return [line for line in found.values() if not matches(line, NOT_RUN) or matches(line, REFUSED)]


def of_operations() -> Iterator[Line]:
    """Yields what the page says can be typed; it also names commands by a word."""
    for line in in_text((ROOT / "docs" / PAGE).read_text(), PAGE):
        words = words_of(line.text)
        if len(words) > 1 or words[0] in ALONE:
            yield line


def matches(line: Line, patterns: Iterable[str]) -> bool:
    return any(re.match(one, line.text) for one in patterns)


def shown_to_fail() -> set[str]:
    """Returns the lines below which docs/operations.md prints an error."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "docs" / PAGE).read_text())
    found = set()
    for line, below in itertools.pairwise(text.splitlines()):
        prompt = PROMPT.match(line.strip())
        if prompt is not None and re.match(r"\s*(cachefs: (?!warning)|FAILED|.*: no such)", below):
            found.add(" ".join(words_of(prompt[1])))
    return found


class Reader:
    """Somebody who types what is documented, with names of their own."""

    def __init__(self, machine: Machine, endpoint_url: str, call: Call) -> None:
        self.machine = machine
        self.endpoint_url = endpoint_url
        self._call = call
        self.source = machine.root / "source"
        for name, data in FILES.items():
            (self.source / name).parent.mkdir(parents=True, exist_ok=True)
            (self.source / name).write_bytes(data)
        self.mnt, self.imagenet = machine.root / "mnt", machine.root / "imagenet"
        for path in (self.mnt, self.imagenet):
            path.mkdir()
            machine.mounts.append(path)
        for name in FOLDERS:
            (self.source / name).mkdir(parents=True, exist_ok=True)
            (self.source / name / "1.jpg").write_bytes(name.encode())
        self.second = machine.root / "second"
        self.second.mkdir()
        machine.mounts.append(self.second)
        self.token_file = machine.root / "token"
        self.token_file.touch(mode=0o600)
        self.token_file.write_text("t" * 64)
        self.job = "1"
        self.failed: list[str] = []
        self.fails = shown_to_fail()
        (machine.root / "epoch1.txt").write_text(f"{self.mnt}/train/0001.jpg\n")
        self.address = ""
        self.ran: list[str] = []

    def names(self) -> Iterator[tuple[str, str]]:
        yield r"^(s3://bucket/\w+|SOURCE)$", f"file://{self.source}"
        yield r"^http://127\.0\.0\.1:44767$", self.endpoint_url
        yield r"^/mnt/second(?=/|$)", str(self.second)
        yield r"^D$", str(self.machine.root / "cache")
        yield r"^(500GiB|SIZE)$", "64MiB"
        yield r"^/etc/cachefs/token$", str(self.token_file)
        yield r"^/run/cachefs-admin\.sock$", str(self.machine.root / "admin.sock")
        yield r"^(/mnt/data|DIR)(?=/|$)", str(self.mnt)
        yield r"^/mnt/imagenet(?=/|$)", str(self.imagenet)
        yield r"^PATH(\.\.\.)?$", str(self.mnt / "train")
        yield (
            r"^cachefs://(master:19998|node1:19998|127\.0\.0\.1:\d\d998|HOST:PORT)",
            f"cachefs://{self.address}",
        )
        yield r"^epoch1\.txt$", str(self.machine.root / "epoch1.txt")
        yield r"^/ssd/cachefs$", str(self.machine.root / "ssd")
        yield r"^N$", "2"

    def words(self, line: Line) -> list[str]:
        words = [word for word in words_of(line.text) if word != "..."]
        for pattern, name in self.names():
            words = [re.sub(pattern, lambda _, name=name: name, word) for word in words]
        if words[0] == "jobs":
            words = [self.job if word.isdigit() else word for word in words]
        if words[0] == "top":
            words += ["--interval", "0.2s"]
        return words

    def type(self, line: Line) -> None:
        words = self.words(line)
        self.ran.append(line.text)
        if line.text.startswith(SUBPROCESS):
            self.machine.run(*words)
            return
        code, said = self._call(words)
        if code not in ({0, 1} if line.text in self.fails else MAY_FAIL.get(words[0], {0})):
            self.failed.append(f"{line.where}: cachefs {' '.join(words)}: {said}")
        if words[0] == "load" and "--wait" not in words:  # the next lines free what it loads
            assert self._call([*words, "--wait"])[0] == 0

    def refuse(self, lines: list[Line]) -> None:
        """Types what is refused with a sentence that the page prints."""
        assert len(lines) == len(REFUSED)
        page = (ROOT / "docs" / PAGE).read_text()
        for line in lines:
            (said,) = [words for one, words in REFUSED.items() if re.match(one, line.text)]
            assert said in page
            assert said in self._call(self.words(line))[1]
            self.ran.append(line.text)

    def type_jobs(self, lines: list[Line]) -> None:
        """Types what stops, resumes and forgets a job that was started for it; numbers differ."""
        stop, resume = r"jobs stop \d+", r"jobs resume \d+"
        order = [stop, rf"{resume} /", stop, rf"{resume} --wait", r"jobs forget \d+"]
        self.machine.run("free", self.mnt / "slow")
        slow = self.machine.json("load", str(self.mnt / "slow"), "--bandwidth", SLOW)
        before, self.job = self.job, str(slow["job"])
        for start in order:
            line = next(one for one in lines if re.match(start, one.text))
            lines.remove(line)
            self.type(line)
        self.job = before
        self.ran += [line.text for line in lines]


@pytest.fixture
def reader(
    machine: Machine,
    s3: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Reader:
    machine.environment |= s3.credentials()
    s3.client().create_bucket(Bucket="demo")
    s3.client().put_object(Bucket="demo", Key="train/1.jpg", Body=b"1")
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)

    def call(words: list[str]) -> tuple[int, str]:
        code = main.main(words)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out + said.err

    return Reader(machine, s3.endpoint_url, call)


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
    refused = [line for line in lines if matches(line, REFUSED)]
    clusters = [line for line in lines if is_of_cluster(line) and line not in refused]
    alone = [line for line in lines if not is_of_cluster(line) and line not in refused]
    assert len(alone) >= 60
    assert len(clusters) >= 30
    reader.refuse(refused)
    type_alone(reader, alone)
    type_of_cluster(reader, clusters)
    assert reader.failed == []
    assert sorted(reader.ran) == sorted(line.text for line in lines)


def type_alone(reader: Reader, lines: list[Line]) -> None:
    """A mount of a directory; at its end, and once more, it is unmounted."""
    mounts, umounts = take(lines, "mount s", "mount S"), take(lines, "umount")
    removals, jobs = take(lines, "cache rm"), take(lines, *JOBS)
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
            reader.type_jobs(jobs)
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
    type_all(reader, take(adds, "ufs add s3://demo"))
    reader.machine.run("ufs", "rm", "/imagenet")
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
