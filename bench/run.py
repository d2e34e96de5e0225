"""Runs all benches: prints every bar with pass or fail, and writes RESULTS.md (one node) and
RESULTS-cluster.md beside this file."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import shutil
import subprocess
import sys
from pathlib import Path

from bench import machine
from bench.harness import first_paragraph, labs, measure
from bench.mounts import CACHEFS
from bench.report import Result, as_json, markdown, page

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
    return ", ".join(["cachefs " + importlib.metadata.version("cachefs"), *parts]) + (
        f", {done.stdout.splitlines()[0]}"
    )


def run_all(names: list[str], quick: bool) -> list[Result]:
    """Runs benches one after the other, on one origin, and prints each result."""
    results = []
    with labs(quick) as make_lab:
        for name in names:
            module = importlib.import_module(f"bench.{name}")
            question = first_paragraph(module.__doc__ or "")
            print(f"... {name}", file=sys.stderr, flush=True)
            result = measure(name, question, module.run, make_lab)
            print(markdown(result), flush=True)
            results.append(result)
    return results


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


def run_group(group: str, quick: bool) -> list[Result]:
    """Runs a group's benches; a full run writes the group's page."""
    names, file = GROUPS[group]
    described = machine.describe()
    results = run_all(list(names), quick)
    if not quick:
        text = page(results, described, versions(), quick)
        Path(__file__).with_name(file).write_text(text)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--only", metavar="NAME", action="append", choices=[*NODE, *CLUSTER])
    some.add_argument("--group", choices=list(GROUPS), help="of one node, or of a cluster")
    parser.add_argument("--quick", action="store_true", help="small data, single runs")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures there, too")
    chosen = parser.parse_args()
    described, results = machine.describe(), list[Result]()
    if chosen.only:
        results = run_all(chosen.only, chosen.quick)
    else:
        for group in [chosen.group] if chosen.group else GROUPS:
            results += run_group(group, chosen.quick)
    if chosen.json:
        chosen.json.write_text(json.dumps(as_json(results, described), indent=1))
    return 1 if summary(results) else 0


if __name__ == "__main__":
    sys.exit(main())
