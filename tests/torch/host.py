"""Runs functions with real torch in forks of a process that has imported it: an import takes some
seconds. `python -m tests.torch.host`: a line of standard input is JSON, a list of (function,
arguments) to run side by side; the line of the answer has their exit codes, those of
multiprocessing.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
from typing import Any

import torch
import torch.utils.data


def call(function: str, arguments: dict[str, Any]) -> None:
    """Calls a function in its own process."""
    os.dup2(2, 1)  # standard output is for answers
    torch.set_num_threads(1)
    module, _, name = function.rpartition(".")
    getattr(importlib.import_module(module), name)(**arguments)


def run_all(calls: list[tuple[str, dict[str, Any]]]) -> list[int | None]:
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=call, args=one) for one in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(run_all(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
