"""When a quota that refused files of a job is full, on all workers and for all that is left."""

from __future__ import annotations

import pytest

from cachefs.core.jobs import FullQuota
from master.state.quota_exhaustion import FOR_S, QuotaExhaustion

NOW = 50.0


def full(used: int, limit: int = 500, quota: int = 1000, path: bytes = b"a") -> FullQuota:
    return FullQuota(path, quota, used, limit)


def test_a_quota_is_full_when_all_shares_of_it_are() -> None:
    it = QuotaExhaustion()
    it.note("one", full(499), NOW)
    assert it.full(NOW, [b"a/b"]) is None, "the other worker has room"
    it.note("two", full(510), NOW)
    assert it.full(NOW, [b"a/b"]) == FullQuota(b"a", 1000, 999, 1000)
    it.note("two", full(300), NOW)
    assert it.full(NOW, [b"a/b"]) is None, "only too small for one file"


@pytest.mark.parametrize("left", [[b"a"], [b"a/b/c", b"a/d"]])
def test_it_ends_a_job_all_of_which_lies_below_it(left: list[bytes]) -> None:
    it = QuotaExhaustion()
    it.note("one", full(1000, 1000), NOW)
    assert it.full(NOW, left) is not None
    assert it.full(NOW, [*left, b"ab"]) is None
    assert it.full(NOW, [b""]) is None
    it.note("one", full(1000, 1000, path=b""), NOW)
    assert it.full(NOW, [b""]) is not None


def test_what_was_said_long_ago_or_of_another_quota_means_nothing() -> None:
    it = QuotaExhaustion()
    it.note("one", full(500), NOW)
    it.note("two", full(500), NOW + FOR_S)
    assert it.full(NOW + FOR_S, [b"a"]) is None
    it.note("one", full(500), NOW + FOR_S)
    assert it.full(NOW + FOR_S, [b"a"]) is not None
    it.note("two", full(600, 600, 1200), NOW + FOR_S)
    assert it.full(NOW + FOR_S, [b"a"]) is None, "it was raised, and one has not heard of it"
    it.clear()
    assert it.full(NOW + FOR_S, [b"a"]) is None
