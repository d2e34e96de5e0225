"""What the ends of requests say of the way to an origin."""

from __future__ import annotations

import pytest

from cachefs.core import errors
from cachefs.core.model import Fingerprint, Kind
from connectors.meter import Meter, Metered
from connectors.reach import LASTS_S, LATELY_S, TRY_S, Reach
from tests.services.memory import MemoryConnector

UNREACHABLE = errors.Unreachable.code
DENIED = errors.AccessDenied.code
FILE = Fingerprint(Kind.FILE, 3, 0, "etag")


def after(*ends: tuple[str, float, float]) -> Reach:
    reach = Reach()
    for error, began_s, now in ends:
        reach.ended(error, began_s, now)
    return reach


def test_a_way_is_cut_after_a_second_without_any_reply() -> None:
    assert not Reach().is_cut(0.0)
    refused = after((UNREACHABLE, 10.0, 10.0))
    assert not refused.is_cut(10.0 + LASTS_S / 2), "a connection may be reset"
    assert refused.is_cut(10.0 + LASTS_S)
    assert after((UNREACHABLE, 10.0, 15.0)).is_cut(15.0), "one attempt was long enough"


@pytest.mark.parametrize("error", ["", errors.NotFound.code, errors.Stale.code])
def test_a_reply_mends_it(error: str) -> None:
    reach = after((UNREACHABLE, 10.0, 10.0), (error, 12.0, 13.0))
    assert not reach.is_cut(100.0)


def test_what_others_were_read_meanwhile_is_no_cut() -> None:
    """A request that was lost says little where others are answered."""
    assert not after(("", 11.0, 12.0), (UNREACHABLE, 10.0, 15.0)).is_cut(100.0)
    assert after(("", 9.0, 9.5), (UNREACHABLE, 10.0, 15.0)).is_cut(15.0)


@pytest.mark.parametrize(
    "error",
    [errors.Throttled, errors.Unavailable, errors.BadBody, errors.OriginError, errors.Archived],
)
def test_errors_that_the_origin_replies_say_nothing(error: type[errors.CacheFSError]) -> None:
    assert not after((error.code, 10.0, 20.0)).is_cut(100.0)
    assert after((UNREACHABLE, 10.0, 10.0), (error.code, 12.0, 13.0)).is_cut(13.0)


def test_credentials_that_are_missing_cut_it_off() -> None:
    assert after((errors.CredentialsMissing.code, 10.0, 10.0)).is_cut(10.0 + LASTS_S)


def test_a_refusal_is_of_this_worker_where_nothing_was_read_lately() -> None:
    assert after((DENIED, 10.0, 10.1)).is_cut(12.0)
    assert after((DENIED, 10.0, 10.1)).is_in_doubt, "from the first one on"
    assert not after(("", 5.0, 5.1), (DENIED, 10.0, 10.1)).is_in_doubt
    assert not after(("", 5.0, 5.1), (DENIED, 10.0, 10.1)).is_cut(100.0), "it is the file's"
    late_s = 6.0 + LATELY_S
    assert after(("", 5.0, 5.1), (DENIED, late_s, late_s)).is_cut(late_s + LASTS_S)


def test_one_request_at_a_time_tries_a_way_that_is_cut() -> None:
    reach = after((UNREACHABLE, 10.0, 15.0))
    assert [reach.may_try(15.0 + n) for n in range(4)] == [True, False, False, False]
    assert reach.may_try(15.0 + TRY_S)
    reach.ended("", 21.0, 21.1)
    assert [reach.may_try(21.2) for _ in range(3)] == 3 * [True]


def test_the_meter_hears_of_each_attempt() -> None:
    memory = MemoryConnector()
    ticks = iter(range(100))
    meter = Meter(clock := lambda: float(next(ticks)))
    metered = Metered(memory, meter, clock=clock)
    memory.script.fail("read", None, errors.Unreachable("down"), times=2)
    for _ in range(2):
        with pytest.raises(errors.Unreachable):
            metered.read_all(b"f", FILE)
    assert meter.reach.is_cut(float(next(ticks)))
    found = memory.put(b"f", b"abc")
    assert bytes(metered.read_all(b"f", found)) == b"abc"
    assert not meter.reach.is_cut(float(next(ticks)))
