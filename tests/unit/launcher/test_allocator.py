"""Buffers that a server frees are used again, without a page fault each."""

from __future__ import annotations

import subprocess
import sys

ROUNDS = 20
BUFFERS = 8
FAULTS_OF_ALL = ROUNDS * BUFFERS * 256  # pages of 4 KiB

SCRIPT = f"""
import resource, sys
from cachefs.launcher import malloc_tuning
if sys.argv[1] == "settled":
    assert malloc_tuning.settle()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def round():
    buffers = [b"x" * (1 << 20) for _ in range({BUFFERS})]
round()
before = faults()
for _ in range({ROUNDS}):
    round()
print(faults() - before)
"""


def faults(how: str) -> int:
    command = [sys.executable, "-c", SCRIPT, how]
    return int(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)


def test_freed_buffers_are_used_again() -> None:
    assert faults("settled") < FAULTS_OF_ALL / 20


def test_without_it_each_buffer_is_made_of_fresh_pages() -> None:
    assert faults("as glibc has it") > FAULTS_OF_ALL / 2
