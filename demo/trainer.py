"""A training program with PyTorch, for the demo: `python -m demo.trainer DIRECTORY RUN [--plain]`.

It classifies the images of DIRECTORY by the histograms of their bytes. `loader_of` has the three
lines that CacheFS needs; `--plain` is the same program without them. After each step it saves a
checkpoint in the directory RUN, from which the next start goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import DataLoader

import cachefs.torch as ct

BATCH: Final = 32
LOADERS: Final = 2
SEED: Final = 7


class Images:
    """A data set: the images of all class folders, by name. Knows nothing of CacheFS."""

    def __init__(self, directory: str) -> None:
        self.files = [str(path) for path in sorted(Path(directory).glob("*/*.jpg"))]
        self.classes = sorted({os.path.dirname(path) for path in self.files})

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, int]:
        """Returns the number, the histogram and the class of an image."""
        with open(self.files[index], "rb", buffering=0) as file:
            values = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
        histogram = torch.bincount(values.int(), minlength=256) / len(values) * 256 - 1
        return index, histogram, self.classes.index(os.path.dirname(self.files[index]))


def loader_of(data: Images, directory: str, plain: bool) -> Any:
    if plain:
        return DataLoader(data, shuffle=True, batch_size=BATCH, num_workers=LOADERS)
    manifest = ct.Manifest(directory)
    sampler = ct.OrderSampler(manifest, seed=SEED)
    return ct.DataLoader(data, sampler=sampler, batch_size=BATCH, num_workers=LOADERS)


class Run:
    """A model, its optimizer, its loader, the numbers of all images that it has trained on."""

    def __init__(self, data: Images, loader: Any, directory: Path, dies_at: int) -> None:
        torch.manual_seed(SEED)
        self.dies_at = dies_at
        self.loader = loader
        self.directory = directory
        self.model = torch.nn.Linear(256, len(data.classes))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.epoch = 0
        self.seen: list[int] = []

    def train(self) -> Iterator[int]:
        """Trains one epoch, or the rest of it; yields how many images each step was right about."""
        for numbers, histograms, labels in self.loader:
            self.optimizer.zero_grad()
            scores = self.model(histograms)
            torch.nn.functional.cross_entropy(scores, labels).backward()
            self.optimizer.step()
            self.seen += numbers.tolist()
            if 0 < self.dies_at <= len(self.seen):
                os.kill(os.getpid(), signal.SIGKILL)
            self.save()
            yield int((scores.argmax(1) == labels).sum())

    def save(self) -> None:
        resumable = hasattr(self.loader, "state_dict")
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict() if resumable else {},
            "epoch": self.epoch,
            "seen": self.seen,
        }
        replace(self.directory / "checkpoint.pt", lambda path: torch.save(state, path))

    def note(self, name: str, values: dict[str, Any]) -> None:
        """Writes what the demo looks at."""
        text = json.dumps(values)
        replace(self.directory / f"{name}.json", lambda path: path.write_text(text))

    def end_epoch(self) -> None:
        weights = (tensor.numpy().tobytes() for tensor in self.model.state_dict().values())
        digest = hashlib.sha256(b"".join(weights)).hexdigest()
        self.note(f"epoch{self.epoch}", {"seen": self.seen, "weights": digest})

    def resume(self) -> bool:
        """Continues from the checkpoint, if there is one."""
        path = self.directory / "checkpoint.pt"
        if not path.exists():
            return False
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        self.epoch, self.seen = state["epoch"], state["seen"]
        return True


def replace(path: Path, write: Any) -> None:
    """Writes a file whole or not at all."""
    write(path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def timed(run: Run, steps: Iterable[int]) -> dict[str, Any]:
    before, started = len(run.seen), time.perf_counter()
    right = sum(steps)
    seconds, images = time.perf_counter() - started, len(run.seen) - before
    return {"epoch": run.epoch, "images": images, "seconds": seconds, "right": right / images}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.trainer")
    parser.add_argument("directory")
    parser.add_argument("run", type=Path)
    parser.add_argument("--plain", action="store_true", help="without CacheFS in this program")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--dies-at", type=int, default=0, help="SIGKILL behind so many images")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    chosen.run.mkdir(exist_ok=True)
    data = Images(chosen.directory)
    run = Run(data, loader_of(data, chosen.directory, chosen.plain), chosen.run, chosen.dies_at)
    if run.resume():
        print(f"resumed behind image {len(run.seen):,}", flush=True)
    for epoch in range(run.epoch, chosen.epochs):
        run.epoch = epoch
        result = timed(run, run.train())
        run.end_epoch()
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
