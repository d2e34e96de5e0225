"""The tiers of a worker as operators write them: `mem:/dev/shm/cache:16GiB`. Pure.

    KIND:PATH:SIZE[:OPTION=VALUE,…]      KIND is `mem` (a directory of a tmpfs) or `ssd` (of a disk)

Options: `high` and `low`, shares of the size. With `admission = always`, a tier that is above
`high` is evicted to below `low`, so that fills do not wait for space. `scrub`: bytes of complete
files to read and verify per second, 0 for none; by default `SCRUB_BYTES_PER_S` on disks and none in
memory. The first tier is the fastest.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Final

import msgspec

from cachefs.core.errors import BadConfig
from cachefs.core.units import parse_size

MEMORY: Final = "mem"
DISK: Final = "ssd"
KINDS: Final = (MEMORY, DISK)
MOST_TIERS: Final = 8
SCRUB_BYTES_PER_S: Final = 4 << 20
HIGH: Final = 0.95
LOW: Final = 0.90
_REMEDY: Final = "write it as mem:/dev/shm/cache:16GiB or ssd:/var/cache/cachefs:1TiB"


class TierSpec(msgspec.Struct, frozen=True):
    """A tier: a directory, and its limit in bytes, of which `high` and `low` are shares."""

    kind: str
    path: str
    limit_bytes: int
    high: float = HIGH
    low: float = LOW
    scrub_bytes_per_s: int = 0


def parse_tier(text: str) -> TierSpec:
    """Returns the tier of a text. Raises BadConfig with the accepted form."""
    kind, _, rest = text.partition(":")
    path, _, last = rest.rpartition(":")
    options = ""
    if "=" in last:
        options = last
        path, _, last = path.rpartition(":")
    if kind not in KINDS or not path or not last:
        raise BadConfig(f"bad tier {text!r}", remedy=_REMEDY)
    if not posixpath.isabs(path):
        raise BadConfig(f"the directory of tier {text!r} is not absolute", remedy=_REMEDY)
    limit_bytes = parse_size(last)
    if limit_bytes <= 0:
        raise BadConfig(f"tier {text!r} has no room", remedy=_REMEDY)
    scrub = SCRUB_BYTES_PER_S if kind == DISK else 0
    spec = TierSpec(kind, posixpath.normpath(path), limit_bytes, scrub_bytes_per_s=scrub)
    return _with_options(spec, options, text)


def parse_tiers(texts: Sequence[str]) -> list[TierSpec]:
    """Returns the tiers of one worker, the fastest first. Raises BadConfig."""
    if not texts:
        raise BadConfig("a worker needs a tier", remedy=f"give --tier; {_REMEDY}")
    if len(texts) > MOST_TIERS:
        raise BadConfig(f"{len(texts)} tiers are too many", remedy=f"give at most {MOST_TIERS}")
    specs = [parse_tier(text) for text in texts]
    paths = [spec.path for spec in specs]
    for number, path in enumerate(paths):
        for other in paths[number + 1 :]:
            if posixpath.commonpath((path, other)) in (path, other):
                raise BadConfig(f"two tiers share a directory: {path} and {other}", path=other)
    return specs


def _with_options(spec: TierSpec, options: str, text: str) -> TierSpec:
    changes: dict[str, float | int] = {}
    for option in filter(None, options.split(",")):
        name, _, value = option.partition("=")
        if name == "scrub":
            changes["scrub_bytes_per_s"] = parse_size(value)
        elif name in ("high", "low"):
            changes[name] = _share(value, text)
        else:
            raise BadConfig(
                f"unknown option {name!r} of tier {text!r}", remedy="use high, low or scrub"
            )
    spec = msgspec.structs.replace(spec, **changes)
    if spec.low > spec.high:
        raise BadConfig(f"tier {text!r}: low is above high", remedy="give low=0.9,high=0.95")
    return spec


def _share(value: str, text: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0.0 < share <= 1.0:
        raise BadConfig(
            f"tier {text!r}: {value!r} is no share", remedy="give a number above 0, up to 1"
        )
    return share
