"""A training run of one rank, without a model: it records what it read, saves its state at each
step, and dies where its plan says so. Runs with real torch, see `host.py`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import cachefs.torch as ct
from tests.services.processes import children

TRAINER, LOADER = "trainer", "loader"
BATCH = 4


class Plan(NamedTuple):
    """`kills`: by step a pid, TRAINER or LOADER; `after`: of the step that is resumed, -1: none."""

    path: str
    home: str
    saved: str
    rank: int = 0
    world_size: int = 1
    workers: int = 0
    epochs: int = 2
    kills: dict[str, Any] = {}  # noqa: RUF012 -- never changed
    after: int = -1


def number_in(data: bytes) -> int:
    """Returns the number that a file repeats. Raises ValueError for bytes of two files."""
    (number,) = set(data.split())
    return int(number)


def run(**values: Any) -> None:
    """Runs a plan."""
    train(Plan(**values))


def train(plan: Plan) -> None:
    manifest = ct.Manifest(plan.path, home=plan.home)
    sampler = ct.OrderSampler(manifest, seed=7, rank=plan.rank, world_size=plan.world_size)
    loader = ct.DataLoader(
        ct.Files(manifest, decode=number_in),
        sampler=sampler,
        batch_size=BATCH,
        num_workers=plan.workers,
        collate_fn=list,
    )
    step, read = 0, []
    if plan.after >= 0:
        saved = json.loads(saved_at(plan, 0, plan.after).read_text())
        loader.load_state_dict(saved["state"])
        step = plan.after
    for epoch in range(sampler.epoch, plan.epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            step += 1
            kill(plan.kills.get(str(step)))
            read = [*batch]
            save(plan, step, {"state": loader.state_dict(), "epoch": epoch, "read": read})
    Path(plan.saved, f"rank{plan.rank}-ended").touch()


def saved_at(plan: Plan, rank: int, step: int) -> Path:
    return Path(plan.saved, f"rank{rank}-step{step}.json")


def save(plan: Plan, step: int, values: dict[str, Any]) -> None:
    path = saved_at(plan, plan.rank, step)
    path.with_suffix(".new").write_text(json.dumps(values))
    path.with_suffix(".new").rename(path)


def kill(target: Any) -> None:
    if target == TRAINER:
        os.kill(os.getpid(), signal.SIGKILL)
    elif target == LOADER:
        loader = max(children(os.getpid()))
        os.kill(loader, signal.SIGKILL)
        # Torch hears of the death by SIGCHLD, which comes before this returns: an epoch whose last
        # batches are already here could end before it.
        os.waitid(os.P_PID, loader, os.WEXITED | os.WNOWAIT)
    elif target is not None:
        os.kill(int(target), signal.SIGKILL)
