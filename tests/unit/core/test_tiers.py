"""Tiers as operators write them."""

from __future__ import annotations

import pytest

from cachefs.core.errors import BadConfig
from cachefs.core.tiers import SCRUB_BYTES_PER_S, TierSpec, parse_tier, parse_tiers

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("mem:/dev/shm/c:16GiB", TierSpec("mem", "/dev/shm/c", 16 * GIB)),
        (
            "ssd:/var/cache/c/:1TiB",
            TierSpec("ssd", "/var/cache/c", GIB << 10, scrub_bytes_per_s=SCRUB_BYTES_PER_S),
        ),
        ("ssd:/a:b/c:1GiB:scrub=0", TierSpec("ssd", "/a:b/c", GIB)),
        (
            "mem:/c:1GiB:high=0.8,low=0.5,scrub=1MiB",
            TierSpec("mem", "/c", GIB, 0.8, 0.5, 1 << 20),
        ),
    ],
)
def test_what_is_written_is_meant(text: str, spec: TierSpec) -> None:
    assert parse_tier(text) == spec


@pytest.mark.parametrize(
    "text",
    [
        "", "mem", "mem:/c", "mem:16GiB", "disk:/c:1GiB", "mem:c:1GiB", "mem:/c:0", "mem:/c:much",
        "mem:/c:1GiB:fast=1", "mem:/c:1GiB:high=0", "mem:/c:1GiB:high=2", "mem:/c:1GiB:low=x",
        "mem:/c:1GiB:high=0.5,low=0.6", ":/c:1GiB", "mem::1GiB",
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadConfig):
        parse_tier(text)


@pytest.mark.parametrize(
    "texts",
    [
        [],
        ["mem:/c:1GiB", "ssd:/c:1GiB"],
        ["ssd:/c:1GiB", "ssd:/c/d:1GiB"],
        [f"ssd:/c{n}:1GiB" for n in range(9)],
    ],
)
def test_tiers_have_directories_of_their_own(texts: list[str]) -> None:
    with pytest.raises(BadConfig):
        parse_tiers(texts)


def test_the_order_is_kept() -> None:
    texts = ["ssd:/c:1GiB", "mem:/cc:1GiB"]
    assert [spec.path for spec in parse_tiers(texts)] == ["/c", "/cc"]
