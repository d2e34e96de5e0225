"""`python -m tests.simulator SEED`: one history, told as it happens; `--many N`: many."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulator import history, view_history


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--many", type=int, default=1, metavar="N")
    parser.add_argument("--views", action="store_true", help="with frozen directories")
    chosen = parser.parse_args()
    run = view_history.run if chosen.views else history.run
    failed = []
    started_s = time.monotonic()
    steps = 0
    for seed in range(chosen.seed, chosen.seed + chosen.many):
        try:
            world = run(seed, tracing=chosen.many == 1).world
        except AssertionError as err:
            failed.append(seed)
            print(err)
            continue
        steps += world.schedule.steps
        if chosen.many == 1:
            print({**{k: getattr(world.counts, k) for k in COUNTED}, "steps": steps})
    took_s = time.monotonic() - started_s
    print(f"{chosen.many} histories, {steps:,} steps, {took_s:.1f} s; failed: {failed or 'none'}")
    return 1 if failed else 0


COUNTED = (
    "reads", "failed", "pages", "longest_s", "evicted", "promoted", "demoted", "given", "views",
    "covered", "looks",
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
