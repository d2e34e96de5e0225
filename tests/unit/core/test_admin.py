"""Paths as the admin API writes them, and what its bodies are made of."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core import admin as a
from cachefs.core import messages as m
from cachefs.core.admin_syncs import Sync
from cachefs.core.errors import BadConfig
from cachefs.core.jobs import JobFailure, JobSpec, JobState, JobStatus
from cachefs.core.policies import Policy
from cachefs.core.syncs import Change, ChangeKind, SyncStatus

NAMES = st.binary(min_size=1, max_size=20).filter(
    lambda name: b"\0" not in name and b"/" not in name and name not in (b".", b"..")
)


@given(st.lists(NAMES, max_size=4))
def test_every_path_comes_back(parts: list[bytes]) -> None:
    path = b"/".join(parts)
    text = a.text_of(path)
    assert a.bytes_of(text) == path
    assert msgspec.json.decode(msgspec.json.encode(text)) == text


@pytest.mark.parametrize(
    ("path", "text"),
    [(b"", "/"), (b"a/b", "/a/b"), (b"100%", "/100%25"), (b"\xc3\xa9\xff", "/é%FF")],
)
def test_how_paths_are_written(path: bytes, text: str) -> None:
    assert a.text_of(path) == text
    assert a.bytes_of(f"{text}/" if path else text) == path


@pytest.mark.parametrize("text", ["a", "", "/a%", "/a%2", "/%zz", "/a/../b", "/.", "/a%00"])
def test_what_is_no_path(text: str) -> None:
    with pytest.raises(BadConfig):
        a.bytes_of(text)


def test_what_comes_back_from_the_api_is_what_the_master_said() -> None:
    spec = JobSpec((b"a\xff",), 5, 7.0, True, "high")
    shown = JobStatus(3, JobState.FAILED, [b"a\xff"], 1, spec, "no room", files_found=9, eta_s=1.5)
    assert a.Job.of(shown).shown() == shown
    failure = JobFailure(b"x%", "access-denied", "403", 2)
    assert a.FailedFile.of(failure).failure() == failure
    changes = [Change(ChangeKind.GONE, b"x/y\xfe", True)]
    reply = m.SyncReply(SyncStatus(1, "running", b"x", names=2), changes)
    assert Sync.of(reply, 4).reply() == reply
    assert Sync.of(reply, 4).next == "5"
    at = m.PoliciesAt(
        Policy(pin=True), {"pin": "/a"}, Policy(), [m.PolicySaid(b"b\xff", Policy(ttl_s=3.0))], 1
    )
    assert a.PolicyAt.of(b"a", at).message() == at


def test_a_sync_that_has_ended_and_was_read_has_no_next() -> None:
    ended = SyncStatus(1, "done", b"")
    assert Sync.of(m.SyncReply(ended), 9).next is None
    assert Sync.of(m.SyncReply(SyncStatus(1, "running", b"")), 9).next == "9"


def test_a_request_with_a_field_that_nobody_knows_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'{"paths": ["/a"], "bandwith": 5}', type=a.NewJob)
