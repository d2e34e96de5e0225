"""Histories of clusters whose directories are frozen, thawed, changed at their origin, and read
through covers, while clients, workers and the master die. The other steps are those of
`tests.simulator.history`.

What must hold: no cover shows what its mount would not show at that moment, nothing that is held is
evicted, every link has a record, and all accounts are right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.simulator.cache import DISK_S
from tests.simulator.history import MIB, PAUSE_S, History, sort_of, tell
from tests.simulator.mounts import Mount
from tests.simulator.names import Names, below
from tests.simulator.origin import PAGE_BYTES, File, make_file
from tests.simulator.views import NodeViews
from tests.simulator.worker import WorkerHost
from worker.views.view_state import ViewState

DIRECTORIES: Final = (b"", b"a", b"a/c", b"b")
SIZES: Final = (1, 110_000, 110_000, MIB, 3 * MIB + 7)
SOON_S: Final = 0.2
TROUBLE_S: Final = 5.0
FEW_READS: Final = 4.0
MOST_S: Final = 30.0
SETTLE_S: Final = 2000.0  # the longest pause, and what it takes then


def run(seed: int, *, tracing: bool = False) -> History:
    """Raises AssertionError, with the seed and the end of the story."""
    history = ViewHistory(seed, tracing=tracing)
    tell(history, f"views {seed} ({sort_of(seed)})")
    return history


class ViewHistory(History):
    """One of them."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        super().__init__(seed, tracing=tracing)
        self._next_ino = 1000
        self._until_s += self.random.uniform(0.0, MOST_S)
        names = {
            (self.random.choice(DIRECTORIES) + b"/%d" % number).lstrip(b"/"): file
            for number, file in enumerate(self.files)
        }
        self.names = self.world.names = self.world.master.names = Names(names)

    def _files(self) -> list[File]:
        count = self.random.randint(3, 12)
        return [make_file(ino, self.random.choice(SIZES)) for ino in range(2, 2 + count)]

    def _limit_bytes(self) -> int:
        if self.sort == "calm":
            return super()._limit_bytes()
        total = sum(max(file.size_bytes, PAGE_BYTES) for file in self.files)
        return int(max(8 * MIB, self.random.choice([0.4, 0.8, 1.5, 3.0]) * total))

    # ---- what happens ----

    def _steps(self) -> list[tuple[float, Callable[[], None]]]:
        steps = [
            (min(weight, FEW_READS), step)
            for weight, step in super()._steps()
            if step != self._lose_disk  # its mounts would be those of another machine
        ]
        steps += [
            (6, self._freeze), (2, self._thaw), (2, self._freeze_again), (1, self._cover),
            (4, self._change), (1, self._free), (2, self._mount), (0.5, self._unmount),
            (1, self._remove_cover),
        ]  # fmt: skip
        if self.sort == "rough":
            steps += [
                (2, self._crash_client), (2, self._stop_client), (3, self._crash_soon),
                (2, self._change_in_trouble), (0.2, self._blind),
            ]  # fmt: skip
        return steps

    def _something(self) -> None:
        self.check()
        super()._something()

    def _node(self) -> NodeViews | None:
        host = self._host()
        return host.served.views if host is not None and host.served is not None else None

    def _freeze(self) -> None:
        node, path = self._node(), self.random.choice(DIRECTORIES)
        if node is not None:
            self.world.say(f"{node.host.id} freezes {path!r}")
            node.freeze(path)

    def _thaw(self) -> None:
        node = self._node()
        if node is not None and node.views:
            view = self.random.choice(node.views)
            self.world.say(f"{node.host.id} thaws {view.tree.path!r}")
            node.thaw(view)

    def _freeze_again(self) -> None:
        """While the former tree is being removed."""
        node = self._node()
        if node is not None and node.views:
            view = self.random.choice(node.views)
            path = self.random.choice([view.tree.path, *DIRECTORIES])
            self.world.say(f"{node.host.id} thaws {view.tree.path!r}, freezes {path!r}")
            node.thaw(view, lambda: node.freeze(path))

    def _cover(self) -> None:
        """As a policy has it: nothing is loaded, and other data takes its room."""
        node, path = self._node(), self.random.choice(DIRECTORIES)
        if node is not None:
            self.world.say(f"a policy covers {path!r} at {node.host.id}")
            node.freeze(path, "auto")

    def _free(self) -> None:
        node, path = self._node(), self.random.choice(DIRECTORIES)
        if node is not None:
            self.world.say(f"{node.host.id} frees {path!r}")
            node.free(path)

    def _change(self) -> None:
        """At the origin: some names are new, others are other files, or gone."""
        known = sorted(self.names.now)
        changed: dict[bytes, File | None] = {}
        for _ in range(self.random.randint(1, 3)):
            new = (self.random.choice(DIRECTORIES) + b"/n%d" % self._next_ino).lstrip(b"/")
            path = self.random.choice([*known, new])
            is_gone = path in known and self.random.random() < 0.3
            changed[path] = None if is_gone else self._new_file()
        self.names.change(changed)
        self.world.say(f"event {self.names.position}: {sorted(changed)} changed")

    def _new_file(self) -> File:
        self._next_ino += 1
        file = make_file(self._next_ino, self.random.choice(SIZES))
        self.world.origin.by_ino[file.ino] = self.world.origin.by_key[file.key] = file
        self.files.append(file)
        return file

    # ---- mounts ----

    def _mount(self) -> None:
        host = self._host()
        if host is not None and sum(mount.is_there for mount in host.mounts) < 2:
            mount = Mount(host, f"/m{len(host.mounts)}")
            host.mounts.append(mount)
            self.world.say(f"{host.id} mounts {mount.mountpoint}")
            mount.start()

    def _some_mount(self) -> Mount | None:
        mounts = [
            mount
            for host in self.world.hosts.values()
            for mount in host.mounts
            if mount.client is not None and mount.client.process.is_alive
        ]
        return self.random.choice(mounts) if mounts else None

    def _unmount(self) -> None:
        mount = self._some_mount()
        if mount is not None and mount.client is not None:
            self.world.say(f"{mount.host.id} unmounts {mount.mountpoint}")
            mount.client.unmount()

    def _remove_cover(self) -> None:
        mount = self._some_mount()
        if mount is not None and mount.covers:
            self.world.say(f"somebody removes a cover of {mount.host.id} {mount.mountpoint}")
            del mount.covers[self.random.choice([*mount.covers])]

    def _crash_client(self) -> None:
        mount = self._some_mount()
        if mount is not None and mount.client is not None:
            self.world.fault(f"the client of {mount.host.id} {mount.mountpoint} dies")
            mount.client.crash()

    def _stop_client(self) -> None:
        mount = self._some_mount()
        if mount is not None and mount.client is not None:
            for_s = self.random.choice([0.5, 4.0, 15.0])
            self.world.fault(f"a client of {mount.host.id} is stopped for {for_s} s")
            process = mount.client.process
            process.resumes_s = max(process.resumes_s, self.world.schedule.now_s + for_s)

    def _blind(self) -> None:
        host = self._host()
        if host is not None:
            self.world.fault(f"the worker of {host.id} cannot see mounts")
            host.is_blind = True

    def _change_in_trouble(self) -> None:
        """A client is not there, or does not answer, when a change comes; its worker dies then."""
        mount = self._some_mount()
        if mount is None:
            return
        self.random.choice([self._stop_client, self._crash_client])()
        self._change()
        if self.random.random() < 0.5:
            after, host = self.world.schedule.after, mount.host
            after(self.random.uniform(0.0, TROUBLE_S), host.crash)
            after(TROUBLE_S + self.random.uniform(0.0, 2.0), host.start)

    def _crash_soon(self) -> None:
        """A worker dies in the middle of something, and is there again soon."""
        host = self._host()
        if host is None or host.served is None or host.served.views is None:
            return
        self.random.choice([self._freeze, self._thaw, self._change, self._free])()
        after, random = self.world.schedule.after, self.random
        self.world.fault(f"{host.id} dies soon")
        after(random.uniform(0.0, SOON_S), host.crash)
        after(SOON_S + random.uniform(0.0, 2.0), host.start)

    # ---- its end ----

    def _end(self) -> None:
        """All that is up shows its frozen directories, or says why not."""
        world = self.world
        if self.sort != "calm":
            self._mend()
        for host in world.hosts.values():
            host.disk.answer_s = DISK_S
        until_s = world.schedule.now_s + SETTLE_S
        while not self._is_settled() and world.schedule.now_s < until_s:
            world.schedule.run(world.schedule.now_s + PAUSE_S)
            self.check()
        assert self._is_settled(), f"views never settled: {self._unsettled()}"
        self.check()
        for host in self._up():
            assert host.served is not None
            host.served.cache.check_bytes()
        world.count_all()

    def check(self) -> None:
        for host in self.world.hosts.values():
            host.check_mounts()
            if host.is_up and host.served is not None and host.served.views is not None:
                host.served.views.check()

    def _up(self) -> list[WorkerHost]:
        return [host for host in self.world.hosts.values() if host.is_up]

    def _is_settled(self) -> bool:
        return not self.world.readings and not self._unsettled()

    def _unsettled(self) -> list[str]:
        found: list[str] = []
        for host in self._up():
            node = host.served.views if host.served is not None else None
            assert node is not None
            if node.position != self.names.position or node.removing:
                found.append(f"{host.id} at {node.position}, removing {len(node.removing)}")
            shown = below(self.names.now, b"")
            for view in node.views:
                if view.state is ViewState.READY:
                    names = below(shown, view.tree.path)
                    wrong = view.tree.links != names or not self._is_laid(host, view.number)
                else:
                    wrong = view.state is not ViewState.IMPOSSIBLE
                if wrong:
                    found.append(f"{host.id} {view.tree.path!r} is {view.state.name}")
        return found

    def _is_laid(self, host: WorkerHost, number: int) -> bool:
        """On all mounts that have a client."""
        there = [mount for mount in host.mounts if mount.is_there]
        return all(number in mount.covers for mount in there)
