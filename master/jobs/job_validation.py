"""Validation and normal form of operators' requests for load jobs. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Final

from cachefs.core.errors import BadConfig
from cachefs.core.globs import MOST_STARS, select, stars
from cachefs.core.jobs import PATHS_PER_CALL, PRIORITIES, JobSpec
from cachefs.core.policies import above, shown
from master.state.job_record import JobRecord

MAX_PATH_BYTES: Final = 4096
DIGEST_BYTES: Final = 32
_MODULUS: Final = 1 << (8 * DIGEST_BYTES)


def check(spec: JobSpec) -> None:
    """Raises BadConfig for an invalid spec: specs arrive from the network."""
    if not 0 < len(spec.paths) <= PATHS_PER_CALL:
        raise BadConfig(f"a job begins with 1 to {PATHS_PER_CALL} paths, not {len(spec.paths)}")
    if spec.priority not in PRIORITIES:
        raise BadConfig(f"bad priority {spec.priority!r}", remedy=f"write {', '.join(PRIORITIES)}")
    if spec.bandwidth_bytes_s < 0:
        raise BadConfig("a bandwidth is not below 0")
    if spec.hold_s is not None and not (spec.hold_s >= 0 and math.isfinite(spec.hold_s)):
        raise BadConfig("a hold is a span of time", remedy="write it as 24h or 0")


def normal(path: bytes) -> bytes:
    """Returns a path or glob without empty and "." parts. Raises BadConfig."""
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    normal = b"/".join(parts)
    if b".." in parts or len(normal) > MAX_PATH_BYTES or b"\0" in normal:
        raise BadConfig("not a path of the namespace", path=shown(path[:MAX_PATH_BYTES]))
    if stars(normal) > MOST_STARS:
        raise BadConfig(f"a glob with more than {MOST_STARS} stars", path=shown(normal))
    return normal


def distinct(paths: Iterable[bytes]) -> list[bytes]:
    """Removes duplicates, and paths below a plain path (not a glob) of the list."""
    given = dict.fromkeys(paths)
    plain = {path for path in given if select(path).pattern is None}
    return [path for path in given if plain.isdisjoint(list(above(path))[1:])]


def digest_of(paths: Iterable[bytes], before: bytes = b"") -> bytes:
    """Returns the digest of a list of paths, independent of their order: the sum of their
    digests. `before` is the digest of the earlier pieces of the list."""
    total = int.from_bytes(before, "big")
    for path in paths:
        total += int.from_bytes(hashlib.sha256(path).digest(), "big")
    return (total % _MODULUS).to_bytes(DIGEST_BYTES, "big")


def base_of(paths: Iterable[bytes]) -> bytes:
    """Returns the deepest path that all of these lie at or below."""
    common: list[bytes] | None = None
    for path in paths:
        parts = select(path).base.split(b"/")
        if common is None:
            common = parts
        else:
            pairs = zip(common, parts, strict=False)
            same = next(
                (n for n, (a, b) in enumerate(pairs) if a != b), min(len(common), len(parts))
            )
            common = common[:same]
    return b"/".join(common or [])


def named(record: JobRecord) -> str:
    paths = ", ".join(shown(path) for path in record.paths[:3])
    return paths if record.path_count <= 3 else f"{paths} and {record.path_count - 3} more"
