"""`cachefs bench`: measurements of this machine with this version."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from cachefs.cli import output
from cachefs.cli.directory_argument import Directory
from cachefs.core.errors import CannotMount
from cachefs.core.mountinfo import read_mounts
from cachefs.core.policies import VIEW_LEAST_FILES, VIEW_MOST_MEAN_BYTES
from cachefs.trainers.accelerator_search import BUSY, AcceleratorSearch
from cachefs.trainers.accelerators import MODELS, AcceleratorModel, make_files, utilisation

COMMAND_S: Final = 120.0
ATTEMPTS: Final = 3  # at a number of accelerators: other processes may disturb one
NATIVE, MOUNT, FROZEN = "native files", "mount", "frozen mount"
COVER_WAIT_S: Final = 120.0  # the policy view=auto looks at a directory for a while before
LOOK_S: Final = 1.0


@click.group("bench")
def command() -> None:
    """Measure this machine with this version of cachefs.

    \b
    cachefs bench au --model resnet50
    """


@command.command("au")
@click.argument(
    "directory",
    required=False,
    metavar="[DIRECTORY]",
    type=Directory(),
)
@click.option(
    "--model", "name", type=click.Choice([*MODELS]), default="resnet50", help="The workload."
)
@click.option("--files", type=click.IntRange(1), help="Files of the data set.")
@click.option(
    "--most", type=click.IntRange(1, 1024), default=64, help="Most accelerators to emulate."
)
@click.option("--steps", type=click.IntRange(2, 1000), default=10, help="Batches of each one.")
@output.json_flag
@output.debug_flag
def au(
    directory: str | None,
    name: str,
    files: int | None,
    most: int,
    steps: int,
    as_json: bool,
) -> None:
    """Show how many accelerators this machine keeps busy, from a warm mount and from native files
    on the same disk: the largest number with a utilisation of 90 % (computing / all time without
    the first step, as MLPerf Storage defines it) in the best of at most three runs. A mount that
    the policy view=auto covers is measured when it is covered. As root, also from a second mount,
    which is frozen. Makes a data set and mounts below DIRECTORY (default: a temporary one) and
    removes them.

    \b
    cachefs bench au --model unet3d /mnt/nvme
    """
    model = MODELS[name]
    with tempfile.TemporaryDirectory(prefix="cachefs-au-", dir=directory) as work:
        names = make_files(model, Path(work, "data"), files or model.files)
        with contextlib.ExitStack() as mounts:
            places = {NATIVE: Path(work, "data")}
            for place in _mount_places():
                is_frozen = place == FROZEN
                places[place] = mounts.enter_context(_mounted(Path(work), names, frozen=is_frozen))
            if len(names) >= VIEW_LEAST_FILES and model.sample_bytes <= VIEW_MOST_MEAN_BYTES:
                _wait_for_cover(places[MOUNT], names)
            covered = [place for place, path in places.items() if _is_covered(path)]
            compare = _Comparison(model, places, names, steps, most, quiet=as_json)
            best = compare.largest()
    if as_json:
        found = {"model": name, "accelerators": best, "covered": covered, "runs": compare.runs}
        return output.print_json(found)
    click.echo(f"{name}: accelerators with a utilisation of {BUSY:.0%} or more")
    for place, count in best.items():
        more = " (covered by the kernel's own mount)" if place in covered else ""
        more += " (the most that were emulated)" if count == most else ""
        click.echo(f"  {place:12} {count:4}{more}")


class _Comparison:
    """The runs on all places. A number of accelerators runs in turn on each place that may keep it
    busy, so that a slow moment of the machine meets all of these."""

    def __init__(
        self,
        model: AcceleratorModel,
        places: dict[str, Path],
        names: Sequence[str],
        steps: int,
        most: int,
        *,
        quiet: bool,
    ) -> None:
        self.runs: list[dict[str, Any]] = []
        self._model, self._places, self._names = model, places, names
        self._steps, self._quiet = steps, quiet
        self._searches = {place: AcceleratorSearch(most) for place in places}

    def largest(self) -> dict[str, int]:
        """Returns the largest number of accelerators that each place keeps busy."""
        while counts := self._wanted():
            self._run(min(counts))
        return {place: search.best for place, search in self._searches.items()}

    def _wanted(self) -> list[int]:
        counts = [search.next() for search in self._searches.values()]
        return [count for count in counts if count is not None]

    def _run(self, count: int) -> None:
        found = {place: 0.0 for place, one in self._searches.items() if one.is_open(count)}
        for place in [*found] * ATTEMPTS:
            if found[place] < BUSY:
                folder = self._places[place]
                busy = utilisation(self._model, folder, self._names, count, self._steps)
                found[place] = max(found[place], busy)
        for place, busy in found.items():
            self._searches[place].measured(count, busy)
        self.runs.append({"accelerators": count, **found})
        if not self._quiet:
            shown = ", ".join(f"{place} {busy:.1%}" for place, busy in found.items())
            click.echo(f"{count:4} accelerators: {shown}")


def _warm(mount: Path, names: Sequence[str]) -> None:
    """Reads everything twice: after the first pass all of it is cached."""
    for _ in range(2):
        for name in names:
            with open(mount / name, "rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass


def _wait_for_cover(mount: Path, names: Sequence[str]) -> None:
    """Reads a file now and then until the mount is covered, as its policy does while it is used."""
    until_s = time.monotonic() + COVER_WAIT_S
    while not _is_covered(mount) and time.monotonic() < until_s:
        (mount / names[0]).read_bytes()
        time.sleep(LOOK_S)


def _is_covered(path: Path) -> bool:
    """Returns whether a cover lies over the mount at a path."""
    return any(cover.mountpoint == str(path) for cover in read_mounts().covers)


def _mount_places() -> tuple[str, ...]:
    """Returns the mounts to compare: only root's can be frozen."""
    return (MOUNT, FROZEN) if os.geteuid() == 0 else (MOUNT,)


@contextlib.contextmanager
def _mounted(work: Path, names: Sequence[str], *, frozen: bool) -> Iterator[Path]:
    """Mounts the data set with a state home and a cache of its own, and reads it warm."""
    own = work / ("frozen" if frozen else "plain")
    mount, home = own / "mnt", ["--home", str(own / "home")]
    mount.mkdir(parents=True)
    source = ["mount", f"file://{work / 'data'}", str(mount), "--sync-interval", "1h"]
    _run_command([*source, "--cache-dir", str(own / "cache"), *home])
    try:
        _warm(mount, names)
        if frozen:
            _run_command(["freeze", "--wait", str(mount), *home])
        yield mount
    finally:
        _run_command(["umount", str(mount), *home])
        shutil.rmtree(own / "home", ignore_errors=True)


def _run_command(arguments: Sequence[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-m", "cachefs.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
    )
    if done.returncode:
        raise CannotMount(done.stderr.strip().splitlines()[-1] if done.stderr else "it failed")
