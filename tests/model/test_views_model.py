"""Views and crashes against the model: a cover shows what the mount would show, or nothing.

A process freezes, thaws, changes policies, and syncs changes of the origin at random, until it is
killed before some step. After each life the next process adopts what is left. Before its mount uses
a name, each cover that the kernel still has shows the names of that moment, or none. Then the
accounts of the tier are right: every content in a tree is held, no other one is, and no byte is
counted twice or lost. The tier is in memory, or on ext4.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.views_rig import FakeKernel, Node, node, read_tree
from tests.model.views_process import MOUNTPOINT, LoggedCovers, LoggedOrigin
from tests.services.thin_disk import thin_disk
from tests.unit.worker.rig import descriptors

ROOT = Path(__file__).parents[2]
LIVES = 6
MOST_STEPS = {"disk": 700, "covers": 20, "events": 8}  # a life that takes fewer ends by itself
LIFE_S = 60.0
KILLED = -9


@pytest.fixture(params=["memory", "ext4"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "ext4":
        with thin_disk(tmp_path) as disk:
            yield disk.path
    else:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            yield Path(directory)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(3))
def test_no_cover_shows_what_the_mount_would_not_show(place: Path, seed: int) -> None:
    rng = random.Random(seed)
    begin(place / "origin.log")
    before = descriptors()
    ends = set()
    for life in range(LIVES):
        kind = rng.choice([*MOST_STEPS])
        step = int(MOST_STEPS[kind] ** rng.random())
        ends.add(live(place, seed * 100 + life, kind, step))
        asyncio.run(asyncio.wait_for(examine(place, f"seed {seed}, life {life}"), LIFE_S))
    assert not descriptors() - before
    assert KILLED in ends


def begin(log: Path) -> None:
    origin = LoggedOrigin(log)
    for number in range(20):
        origin.put(b"train/c%d/f%d" % (number % 3, number), b"%d " % number * 1000)
    origin.put(b"train/empty", b"")
    origin.put(b"train/\xff odd\n", b"odd")
    origin.put(b"other/file", b"x" * 100)
    origin.mkdir(b"train/no files")
    origin.symlink(b"train/link", b"c0/f0")


def live(place: Path, seed: int, kind: str, step: int) -> int:
    """Runs one life; returns its exit code."""
    command = [sys.executable, "-m", "tests.model.views_process", str(place)]
    command += [str(seed), kind, str(step)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LIFE_S, check=False
    )
    assert done.returncode in (0, KILLED), done.stderr[-3000:]
    return done.returncode


async def examine(place: Path, where: str) -> None:
    """Adopts what is left, as the next process does."""
    origin = LoggedOrigin(place / "origin.log")
    covers = LoggedCovers(place / "covers.log", place / "tier")
    async with node(place, origin, kernel=FakeKernel()) as one:
        mount = await one.mount(MOUNTPOINT, covers)
        await check(one, covers, where)
        one.check()
        await one.sync()
        await check(one, covers, where)
        for view in one.views.all():
            view._due_s = 0.0
            view._woken.set()
        while any(view.status().state == "building" for view in one.views.all()):
            await asyncio.sleep(0.005)
        await check(one, mount.covers, where)


async def check(one: Node, covers: dict[int, tuple[bytes, int]], where: str) -> None:
    for path, fd in [*covers.values()]:
        shown = read_tree(fd)
        assert [*shown] == [b""] or shown == await one.expected(path), (where, path)
