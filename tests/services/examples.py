"""How many random examples and histories a test looks at.

`make test` and CI look at all of them. `make check` sets `CACHEFS_TEST_EXAMPLES_PERCENT` and looks
at a quarter."""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "CACHEFS_TEST_EXAMPLES_PERCENT"


def examples(count: int) -> int:
    """Returns the share of `count` examples that this run looks at, at least one."""
    return max(1, count * int(os.environ.get(VARIABLE, "100")) // 100)
