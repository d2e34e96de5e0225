"""[S-resume] The loader in real Lightning, which saves its state and sets its epoch."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.integration.conftest import Node
from tests.torch.conftest import FILES, TorchHost, home_of

HERE = "tests.torch.lightning_runs"
SEED = 20261125
BATCHES = -(-FILES // 7)  # of an epoch


@pytest.mark.parametrize("workers", [0, 2])
def test_a_checkpoint_goes_on_at_the_next_batch(
    workers: int, torch_host: TorchHost, node: Node, mounted: Path, tmp_path: Path
) -> None:
    """It dies twice in the middle of the first epoch, and once in the middle of the second."""
    first, second = random.Random(SEED + workers).sample(range(1, BATCHES // 2), 2)
    torch_host.ok(
        f"{HERE}.a_checkpoint_goes_on_at_the_next_batch",
        path=str(mounted),
        home=home_of(node),
        folder=str(tmp_path / "runs"),
        workers=workers,
        deaths=[first, second, BATCHES],
    )


def test_the_snippets_of_the_page(
    torch_host: TorchHost, node: Node, mounted: Path, tmp_path: Path
) -> None:
    torch_host.ok(
        f"{HERE}.the_snippets_of_the_page",
        path=str(mounted),
        home=home_of(node),
        folder=str(tmp_path),
    )
