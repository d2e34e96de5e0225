"""[S-resume] A training run that dies and resumes reads the sequence of an undisturbed one: the
trainer, a loader process, the client and the server are killed at random steps."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.orders import Order
from cachefs.trainers.manifest import Manifest
from tests.integration.conftest import Node
from tests.services.processes import wait_until
from tests.torch.conftest import FILES, TorchHost, home_of
from tests.torch.training import BATCH, LOADER, TRAINER

SEED = 20261125
EPOCHS = 2
STEPS = EPOCHS * FILES // BATCH  # of one rank
TRAIN = "tests.torch.training.run"


def undisturbed(mounted: Path, node: Node) -> list[int]:
    """The numbers in the files in the order of both epochs, by the order's own definition."""
    manifest = Manifest(mounted, home=home_of(node))
    numbers = [int(Path(os.fsdecode(path)).stem) for path in manifest]
    orders = (Order(FILES, 7, epoch) for epoch in range(EPOCHS))
    return [numbers[sample] for order in orders for sample in order.indices(range(FILES))]


class Runs:
    """The runs of one training: each continues at the last step that all ranks saved."""

    def __init__(self, host: TorchHost, node: Node, mounted: Path, workers: int) -> None:
        self.host = host
        self.node = node
        self.mounted = mounted
        self.saved = node.root / "saved"
        self.saved.mkdir()
        self.workers = workers
        self.after = -1
        self.read: list[int] = []  # by all ranks, in the order of the steps

    def run(self, world_size: int, kills: list[dict[int, Any]]) -> list[int]:
        """Runs all ranks until they end or die; takes what they read up to the last common step."""
        plans = [self.plan(rank, world_size, kills[rank]) for rank in range(world_size)]
        statuses = self.host.run(*((TRAIN, plan) for plan in plans))
        self.take(world_size)
        wait_until(self.is_served, "the server is there again", 30.0)
        return statuses

    def pid(self, role: str) -> int:
        """Returns the present process of a role."""
        found: list[int] = []

        def is_there() -> bool:
            if self.is_served():
                roles = {one["role"]: one["pid"] for one in self.node.processes(self.mounted)}
                found[:] = [roles[role]] if role in roles else []
            return bool(found)

        wait_until(is_there, f"a {role} is there", 30.0)
        return found[0]

    def is_served(self) -> bool:
        """Also notes the pids of the present processes, for the end of the test."""
        try:
            return bool(self.node.processes(self.mounted))
        except AssertionError:  # the server that was killed is being restarted
            return False

    def plan(self, rank: int, world_size: int, kills: dict[int, Any]) -> dict[str, Any]:
        return {
            "path": str(self.mounted),
            "home": home_of(self.node),
            "saved": str(self.saved),
            "rank": rank,
            "world_size": world_size,
            "workers": self.workers,
            "epochs": EPOCHS,
            "kills": kills,
            "after": self.after,
        }

    def take(self, world_size: int) -> None:
        step = max(self.after, 0)
        while all(self.path(rank, step + 1).exists() for rank in range(world_size)):
            step += 1
            found = [json.loads(self.path(rank, step).read_text()) for rank in range(world_size)]
            assert all(one["state"] == found[0]["state"] for one in found)
            read = [number for turn in zip(*(one["read"] for one in found), strict=True)
                    for number in turn]  # fmt: skip
            state = found[0]["state"]
            epoch_end = (found[0]["epoch"] + 1) * FILES
            self.read += read[: epoch_end - len(self.read)]  # the ranks fill up the last step
            assert state["position"] == len(self.read) - found[0]["epoch"] * FILES
        self.after = step if step else -1
        for path in self.saved.glob("*.json"):
            if path != self.path(0, step):
                path.unlink()

    def path(self, rank: int, step: int) -> Path:
        return self.saved / f"rank{rank}-step{step}.json"


@pytest.mark.parametrize("workers", [0, 2, 4])
def test_the_sequence_is_that_of_an_undisturbed_run(
    workers: int, torch_host: TorchHost, node: Node, mounted: Path
) -> None:
    draw = random.Random(SEED + workers)
    runs = Runs(torch_host, node, mounted, workers)
    client, server, trainer, loader = sorted(draw.sample(range(1, STEPS), 4))
    pids = {process["role"]: process["pid"] for process in node.processes(mounted)}
    kills = {client: pids["client"], server: pids["server"], trainer: TRAINER}
    assert runs.run(1, [kills]) == [-signal.SIGKILL]
    assert runs.after == trainer - 1
    if workers:
        assert runs.run(1, [{loader: LOADER}]) == [1]  # torch reports the loader's death
        assert "is killed by signal: Killed" in torch_host.log()
    assert runs.run(1, [{}]) == [0]
    assert runs.read == undisturbed(mounted, node)


@pytest.mark.parametrize("workers", [0, 2, 4])
def test_three_ranks_continue_what_two_began(
    workers: int, torch_host: TorchHost, node: Node, mounted: Path
) -> None:
    """Of two ranks one kills the server and dies, the other one's client or loader process dies.
    Of three that continue one kills the server again."""
    draw = random.Random(SEED - workers)
    runs = Runs(torch_host, node, mounted, workers)
    last = STEPS // 2  # of a rank of two
    server, first, client, second = draw.sample(range(2, last), 4)
    kills = [{server: runs.pid("server"), first: TRAINER}, {client: runs.pid("client")}]
    kills[1][second] = LOADER if workers else TRAINER
    statuses = runs.run(2, kills)
    assert statuses[0] == -signal.SIGKILL
    assert runs.after < first
    after = draw.randint(1, max(1, (STEPS - 2 * runs.after) // 3))
    again = {runs.after + after: runs.pid("server")}
    assert runs.run(3, [again, {}, {}]) == [0, 0, 0]
    assert runs.read == undisturbed(mounted, node)
