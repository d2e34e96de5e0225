"""What a request for a load job may name."""

from __future__ import annotations

import pytest

from cachefs.core.errors import BadConfig
from cachefs.core.globs import MOST_STARS
from master.jobs.job_validation import normal


def test_a_glob_has_few_stars() -> None:
    assert normal(b"/a//./" + b"*x" * MOST_STARS) == b"a/" + b"*x" * MOST_STARS
    assert normal(b"a/" + b"[*]" * 100) == b"a/" + b"[*]" * 100
    for glob in (b"*x" * (MOST_STARS + 1), b"**/" * (MOST_STARS + 1) + b"a"):
        with pytest.raises(BadConfig, match=f"more than {MOST_STARS} stars"):
            normal(glob)
