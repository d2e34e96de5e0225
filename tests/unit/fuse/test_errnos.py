"""What a handler raises, as the caller sees it and as the log says it."""

from __future__ import annotations

import errno
import logging

import pytest

from cachefs.core.errors import BY_CODE, CacheFSError, Interrupted, NotFound, Stale, Unreachable
from cachefs.fuse.errnos import Errnos


@pytest.mark.parametrize("kind", [BY_CODE[code] for code in sorted(BY_CODE)])
def test_a_typed_error_is_its_errno(kind: type[CacheFSError]) -> None:
    expected = errno.ENFILE if kind.errno == errno.EMFILE else kind.errno
    assert Errnos().of("read", kind("a cause")) == expected > 0


def test_only_what_becomes_eio_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    errnos = Errnos()
    for error in (NotFound("no such key"), Stale("replaced"), Interrupted("a signal")):
        errnos.of("open", error)
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    error = Unreachable("the origin does not answer", path="a/b", request_id="17")
    assert errnos.of("read", error) == errno.EIO
    assert caplog.records[-1].levelno == logging.WARNING
    assert caplog.records[-1].message == f"read: {error.one_line()}"


def test_an_os_error_is_passed_on_and_said(caplog: pytest.LogCaptureFixture) -> None:
    assert Errnos().of("open", OSError(errno.ENOMEM, "no memory")) == errno.ENOMEM
    assert Errnos().of("open", OSError("without a number")) == errno.EIO
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


def test_a_lack_of_descriptors_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """[S-errors] It is the mount's, not the caller's."""
    errnos = Errnos()
    for number in (errno.EMFILE, errno.ENFILE) * 50:
        assert errnos.of("open", OSError(number, "too many open files")) == errno.ENFILE
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_a_bug_has_a_traceback_once(caplog: pytest.LogCaptureFixture) -> None:
    errnos = Errnos()

    def fail() -> None:
        raise ZeroDivisionError

    for _ in range(3):
        with pytest.raises(ZeroDivisionError) as caught:
            fail()
        assert errnos.of("read", caught.value) == errno.EIO
    first, *others = caplog.records
    assert first.exc_info is not None
    assert [record.exc_info for record in others] == [None, None]
    assert all(record.levelno == logging.ERROR for record in caplog.records)
