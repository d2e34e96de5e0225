"""Runs all benches: prints every bar with pass or fail, and writes RESULTS.md (one node) and
RESULTS-cluster.md beside this file. `--keep FILE` keeps each result: a run that was stopped goes
on with the next bench."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

import cachefs
from bench import machine
from bench.harness import first_paragraph, labs, measure
from bench.mounts import CACHEFS
from bench.report import Result, markdown, page

NODE = (
    "origin_bytes",
    "cold_sequential",
    "cold_small",
    "warm_small",
    "warm_read",
    "warm_passthrough",
    "warm_opens",
    "native_views",
    "native_covers",
    "cold_sequential_300",
    "cold_small_latency",
    "files_ahead",
    "announced_orders",
    "library",
    "manifests",
    "cold_random",
    "cold_maps",
    "find_million",
    "kill_pause",
    "namespace",
    "mount_time",
    "memory",
    "many_readers",
    "policies",
    "loads",
    "hdfs",
    "cloud_stores",
)
CLUSTER = (
    "placement",
    "master_calls",
    "node_names",
    "peer_transfer",
    "cluster_bytes",
    "cluster_epochs",
    "load_million",
    "load_kill",
    "unordered_listing",
    "first_sync",
    "pushes",
)
GROUPS = {"node": (NODE, "RESULTS.md"), "cluster": (CLUSTER, "RESULTS-cluster.md")}


def versions() -> str:
    """Returns the versions of the measured programs."""
    names = ("pyfuse3", "trio", "pycurl", "obstore", "lmdb")
    parts = [f"{name} {importlib.metadata.version(name)}" for name in names]
    binary = shutil.which("rclone") or str(CACHEFS.parent / "rclone")
    done = subprocess.run([binary, "version"], check=True, capture_output=True, text=True)
    ours = f"cachefs {cachefs.__version__}"  # a checkout need not be installed
    return ", ".join([ours, *parts, done.stdout.splitlines()[0]])


class Kept:
    """The results in a file, of benches that have ended; without a file, of this run alone. In
    msgpack, which has NaN: a figure that was not measured."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self.results: dict[str, Result] = {}
        if file is not None and file.exists():
            found = msgspec.msgpack.decode(file.read_bytes(), type=list[Result])
            self.results = {result.name: result for result in found}

    def add(self, result: Result) -> None:
        self.results[result.name] = result
        if self._file is not None:
            self._file.write_bytes(msgspec.msgpack.encode(list(self.results.values())))


def run_all(names: list[str], quick: bool, kept: Kept) -> list[Result]:
    """Runs benches one after the other, on one origin, and prints each result."""
    with labs(quick) as make_lab:
        for name in names:
            if name in kept.results:
                continue
            module = importlib.import_module(f"bench.{name}")
            question = first_paragraph(module.__doc__ or "")
            print(f"... {name}", file=sys.stderr, flush=True)
            kept.add(measure(name, question, module.run, make_lab))
            print(markdown(kept.results[name]), flush=True)
    return [kept.results[name] for name in names]


def summary(results: list[Result]) -> int:
    """Prints every bar, and returns how many were missed."""
    failed = 0
    for result in results:
        for bar in result.bars:
            claim, measured, asked, _ = bar.cells()
            print(f"{'pass' if bar.passed else 'FAIL'}  {claim}: {measured} (asked {asked})")
            failed += not bar.passed
        if result.error:
            print(f"FAIL  {result.name}: {result.error}")
            failed += 1
    return failed


def run_group(group: str, quick: bool, kept: Kept) -> list[Result]:
    """Runs a group's benches; a full run writes the group's page."""
    names, file = GROUPS[group]
    results = run_all(list(names), quick, kept)
    if not quick:
        text = page(results, machine.describe(), versions(), quick)
        Path(__file__).with_name(file).write_text(text)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--only", metavar="NAME", action="append", choices=[*NODE, *CLUSTER])
    some.add_argument("--group", choices=list(GROUPS), help="of one node, or of a cluster")
    parser.add_argument("--quick", action="store_true", help="small data, single runs")
    parser.add_argument(
        "--keep", metavar="FILE", type=Path, help="keep results there, skip those it has"
    )
    chosen = parser.parse_args()
    kept, results = Kept(chosen.keep), list[Result]()
    if chosen.only:
        results = run_all(chosen.only, chosen.quick, kept)
    else:
        for group in [chosen.group] if chosen.group else GROUPS:
            results += run_group(group, chosen.quick, kept)
    return 1 if summary(results) else 0


if __name__ == "__main__":
    sys.exit(main())
