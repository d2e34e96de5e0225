"""Random freezes, thaws, policies, syncs, replacements and removals on a real mount, against a
dictionary: after each sync every path reads as the origin was then, covered or not. What is open or
mapped keeps its bytes."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cachefs.cli.session import Session, attached, find_target
from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError
from cachefs.core.policies import Policy
from cachefs.launcher.state import StateHome
from tests.integration.conftest import Node
from tests.services.processes import wait_until

STEPS = 70
PATHS = (b"", b"train", b"train/a", b"train/b", b"other")
LIMIT_S = 60.0


class Held(NamedTuple):
    """What is open or mapped, the name that led to it, and the bytes of that moment."""

    fd: int
    memory: mmap.mmap | None
    name: str
    data: bytes


class World:
    """The origin, the mount over it, and `files`: what the mount must show."""

    def __init__(self, seed: int, node: Node, source: Path, mnt: Path) -> None:
        self.random = random.Random(seed)
        self.node = node
        self.source = source
        self.mnt = mnt
        self.files: dict[str, bytes] = {}
        self.held: list[Held] = []
        self.laid = 0
        for folder in ("train/a", "train/b", "other"):
            for number in range(8):
                self.write(f"{folder}/f{number}")

    # ---- the origin ----

    def write(self, name: str) -> None:
        data = self.random.randbytes(self.random.choice([1, 100, 5000, 70_000]))
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.source.parent / "aside"
        aside.write_bytes(data)
        aside.rename(path)
        self.files[name] = data

    def remove(self, name: str) -> None:
        (self.source / name).unlink()
        del self.files[name]

    def change(self) -> None:
        """A change at the origin, which the mount shows once a sync has returned."""
        name = self.random.choice(sorted(self.files))
        match self.random.choice(["replace", "remove", "add", "rename"]):
            case "remove" if len(self.files) > 10:
                self.remove(name)
            case "rename" if len(self.files) > 10:
                data = self.files.pop(name)
                (self.source / name).rename(self.source / f"{name}x")
                self.files[f"{name}x"] = data
            case "add":
                folder = self.random.choice(["train/a", "train/new", "other"])
                self.write(f"{folder}/n{self.random.randrange(99)}")
            case _:
                self.write(name)
        self.sync()

    # ---- commands ----

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        target = find_target(str(self.mnt), StateHome(str(self.node.state)))
        with attached(target.record) as session:
            yield session

    def sync(self) -> None:
        with self.session() as session:
            reply = session.call(m.StartSync(session.namespace, b"", True), m.SyncReply)
            while reply.sync.state == "running":
                body = m.GetSync(session.namespace, reply.sync.sync)
                reply = session.call(body, m.SyncReply)
            assert reply.sync.state == "done", reply

    def freeze(self) -> None:
        with self.session() as session, contextlib.suppress(CacheFSError):
            body = m.Freeze(session.namespace, self.random.choice(PATHS), wait=True)
            (view,) = session.call(body, m.ViewTable).views
            self.laid += view.state == "covered"

    def thaw(self) -> None:
        with self.session() as session, contextlib.suppress(CacheFSError):
            session.call(m.Thaw(session.namespace, self.random.choice(PATHS)), m.Done)

    def policy(self) -> None:
        view = self.random.choice(["native", "native", "never"])
        path = self.random.choice(PATHS)
        with self.session() as session, contextlib.suppress(CacheFSError):
            body = m.SetPolicy(session.namespace, path, Policy(view=view, sync_interval_s=3600.0))
            session.call(body, m.PolicySet)

    def free(self) -> None:
        with self.session() as session, contextlib.suppress(CacheFSError):
            session.call(m.Free(session.namespace, self.random.choice(PATHS)), m.Freed)

    def kill(self) -> None:
        role = self.random.choice(["client", "server"])
        for process in self.node.processes(self.mnt):
            if process["role"] == role:
                os.kill(process["pid"], signal.SIGKILL)
        wait_until(self._answers, f"a successor of the {role}", LIMIT_S)

    def _answers(self) -> bool:
        try:
            self.node.processes(self.mnt)
        except AssertionError:
            return False
        return True

    # ---- readers ----

    def read_all(self) -> None:
        found = {}
        for folder, _, names in os.walk(self.mnt):
            for name in names:
                path = Path(folder) / name
                found[str(path.relative_to(self.mnt))] = path.read_bytes()
        assert found.keys() == self.files.keys()
        assert found == self.files

    def read_some(self) -> None:
        name = self.random.choice(sorted(self.files))
        path = self.mnt / name
        assert path.stat().st_size == len(self.files[name])
        assert path.read_bytes() == self.files[name]
        with pytest.raises(FileNotFoundError):
            (path.parent / "no such name").stat()

    def hold(self) -> None:
        name = self.random.choice(sorted(self.files))
        fd = os.open(self.mnt / name, os.O_RDONLY)
        data = self.files[name]
        memory = None
        if self.random.random() < 0.5:
            memory = mmap.mmap(fd, len(data), mmap.MAP_SHARED, mmap.PROT_READ)
        self.held.append(Held(fd, memory, name, data))

    def read_held(self) -> None:
        for one in self.held:
            try:
                data = os.pread(one.fd, len(one.data) + 1, 0)
            except OSError as err:
                if err.errno != errno.ESTALE or self.files.get(one.name) == one.data:
                    raise
            else:
                assert data == one.data
        if len(self.held) > 6:
            self.release(self.held.pop(0))

    def read_mapped(self) -> None:
        for one in self.held:
            assert one.memory is None or one.memory[:] == one.data

    @staticmethod
    def release(one: Held) -> None:
        if one.memory is not None:
            one.memory.close()
        os.close(one.fd)

    def drop_names(self) -> None:
        Path("/proc/sys/vm/drop_caches").write_text("2")

    def step(self) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (6, self.freeze), (3, self.thaw), (3, self.policy), (7, self.change), (1, self.free),
            (5, self.read_all), (8, self.read_some), (4, self.hold), (4, self.read_held),
            (2, self.read_mapped), (1, self.drop_names), (1, self.kill),
        ]  # fmt: skip
        weights = [weight for weight, _ in steps]
        self.random.choices([step for _, step in steps], weights)[0]()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(3))
def test_a_mount_with_covers_reads_as_its_origin(node: Node, tmp_path: Path, seed: int) -> None:
    node.allowed_log.append(r"ended unexpectedly|connection to the server is lost|cannot connect")
    node.allowed_log.append(r"has not removed its cover|lost the supervisor|supervisor")
    source = tmp_path / "source"
    mnt = node.mountpoint()
    source.mkdir()
    world = World(seed, node, source, mnt)
    node.mount(f"file://{source}", "--sync-interval", "1h", "--transport", "kernel")
    try:
        for _ in range(STEPS):
            world.step()
        world.read_all()
        assert world.laid
    finally:
        for one in world.held:
            world.release(one)
