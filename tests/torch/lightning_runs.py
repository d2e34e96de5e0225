"""What the tests do with real Lightning; see `host.py`."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import cachefs.torch as ct
from tests.torch.training import number_in

BATCH = 7
EPOCHS = 2
PAGE = Path(__file__).parents[2] / "docs" / "trainers" / "lightning.md"


class Noted(lightning.LightningModule):
    """A model that notes what it was given, and dies at a step."""

    def __init__(self, dies_at: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.dies_at = dies_at
        self.seen: list[int] = []

    def training_step(self, batch: Any, number: int) -> Any:
        if len(self.seen) == self.dies_at:
            raise KeyboardInterrupt
        self.seen.append([*batch.tolist()])
        return self.layer(batch[:1].float()).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-9)


def fit(path: str, home: str, folder: str, workers: int, dies_at: int = -1) -> list[Any]:
    """Runs until the end or the death; continues from the last checkpoint."""
    manifest = ct.Manifest(path, home=home)
    loader = ct.DataLoader(
        ct.Files(manifest, decode=number_in),
        sampler=ct.OrderSampler(manifest, seed=7),
        batch_size=BATCH,
        num_workers=workers,
    )
    model = Noted(dies_at)
    last = Path(folder, "last.ckpt")
    trainer = trainer_of(folder)
    try:
        trainer.fit(model, loader, ckpt_path=last if last.exists() else None)
    except (KeyboardInterrupt, SystemExit):
        assert dies_at >= 0
    return model.seen


def trainer_of(folder: str) -> Any:
    saving = ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=1, save_last=True)
    return lightning.Trainer(
        max_epochs=EPOCHS,
        callbacks=[saving],
        accelerator="cpu",
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )


def a_checkpoint_goes_on_at_the_next_batch(
    path: str, home: str, folder: str, workers: int, deaths: list[int]
) -> None:
    """`deaths`: after how many batches each run dies."""
    warnings.filterwarnings("ignore")
    expected = fit(path, home, f"{folder}/whole", workers)
    found: list[Any] = []
    for dies_at in (*deaths, -1):
        found += fit(path, home, f"{folder}/killed", workers, dies_at)
    assert found == expected
    manifest = ct.Manifest(path, home=home)
    assert sorted(n for batch in found for n in batch) == sorted([*range(len(manifest))] * EPOCHS)


def the_snippets_of_the_page(path: str, home: str, folder: str) -> None:
    warnings.filterwarnings("ignore")
    os.environ["CACHEFS_HOME"] = home
    os.chdir(folder)
    snippets = re.findall(r"<!-- snippet -->\n```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(snippets) == 2
    names: dict[str, Any] = {"__name__": "page"}
    exec("\n".join(snippets).replace("/mnt/imagenet/train", path), names)
    count = len(ct.Manifest(path))
    assert names["trainer"].global_step == EPOCHS * -(-count // 8)
    again = names["lightning"].Trainer(max_epochs=EPOCHS + 1, callbacks=[])
    again.fit(
        names["Classifier"](), datamodule=names["Images"](), ckpt_path="checkpoints/last.ckpt"
    )
    assert again.global_step == (EPOCHS + 1) * -(-count // 8)
