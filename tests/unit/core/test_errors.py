"""Typed errors, as a program that does not catch them shows them."""

from __future__ import annotations

import traceback

from cachefs.core import messages as m
from cachefs.core.errors import BadConfig, OriginError


def test_a_traceback_has_the_cause_and_the_remedy() -> None:
    error = BadConfig("the size is 0", remedy="give another", path="/data")
    shown = traceback.format_exception(error)
    assert shown[-2:] == ["cachefs.core.errors.BadConfig: the size is 0\n", "give another\n"]
    assert str(error) == "the size is 0"
    assert error.one_line() == "/data: the size is 0; give another"


def test_texts_of_an_origin_cannot_write_to_a_terminal_or_a_log() -> None:
    error = BadConfig("no \x1b]0;x\x07 such\nERROR root: all is lost", path="/a\n\x9bm")
    assert error.cause == "no \\x1b]0;x\\x07 such ERROR root: all is lost"
    assert error.one_line().isprintable()
    assert error.one_line().startswith("/a\\n\\x9bm: no ")


def test_a_failure_fits_into_a_datagram_whatever_an_origin_writes() -> None:
    """Each character may become ten, as `\\U000e0001`."""
    error = OriginError("\U000e0001" * 1_000_000, request_id="R" * 100_000)
    assert error.cause.endswith("…")
    assert len(m.encode(1, m.failure_of(error))) < m.MAX_FRAME_BYTES // 4
    assert OriginError("no such key", request_id="R1").one_line() == "no such key (request id R1)"
