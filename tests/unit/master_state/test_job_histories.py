"""Histories of one load job with crashes of master and workers at every step, lost and repeated
messages, files that fail, vanish, change or do not fit: what a job says is true.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.services.examples import examples
from tests.unit.master_state.job_world import World

HISTORIES = int(os.environ.get("JOB_HISTORIES", examples(1200)))
STEPS = 400
FIRST = random.SystemRandom().randrange(1 << 32) if "JOB_HISTORIES" in os.environ else 7_000


@pytest.mark.no_cover
@pytest.mark.parametrize("part", range(4))
def test_what_a_job_says_is_true_whatever_happens(part: int) -> None:
    for n in range(part, HISTORIES, 4):
        seed = FIRST + n
        world = World(seed)
        try:
            for _ in range(world.dice.randrange(STEPS)):
                world.step(faults=True)
            world.finish()
        except Exception as err:
            err.add_note(f"seed {seed}")
            raise
