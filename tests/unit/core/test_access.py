"""Tokens: who is let in, what a limited one may ask, where a server may listen without one."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.access import (
    EVERYTHING,
    NEEDS,
    Access,
    Caller,
    Need,
    check_listen,
    header_of,
    inos_of,
    join_address,
    parse_address,
    parse_tokens,
    permit,
)
from cachefs.core.errors import AccessDenied, BadConfig
from cachefs.core.jobs import JobSpec
from cachefs.core.model import NamespaceId, UfsSpec
from cachefs.core.policies import Policy

SHARED = "a" * 32
READER = "b" * 32
OWNER = "c" * 32
FILE = f"""
# of the cluster
{SHARED}
{READER} name=train path=/imagenet/ read-only   # a team
{OWNER} path=/scratch
"""
NAMESPACE = NamespaceId(b"n" * 16)


@pytest.fixture
def access() -> Access:
    return Access(parse_tokens(FILE, "tokens"))


def test_a_lone_token_lets_do_everything(access: Access) -> None:
    assert access.check(header_of(SHARED)) == EVERYTHING
    assert access.check(f"bearer  {SHARED} ") == EVERYTHING, "the scheme's case means nothing"


def test_limits_are_those_of_the_line(access: Access) -> None:
    assert access.check(header_of(READER)) == Caller("train", b"imagenet", False, False)
    assert access.check(header_of(OWNER)) == Caller("", b"scratch", True, False)


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", f"Basic {SHARED}", header_of(SHARED + "x"), "Bearer é"],
)
def test_others_stay_out(access: Access, header: str | None) -> None:
    with pytest.raises(AccessDenied) as caught:
        access.check(header)
    assert SHARED not in str(caught.value)


def test_without_tokens_everybody_may() -> None:
    assert Access().is_open
    assert Access().check(None) == EVERYTHING


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "no token"),
        ("# nothing\n", "no token"),
        ("short", "line 1"),
        (f"{SHARED}\n\n{READER} write", "line 3: unknown limit 'write'"),
        (f"{SHARED} path=imagenet", "unknown limit"),
        (f"{SHARED}\n{SHARED} read-only", "line 2"),
        ("\u00e9" * 20, "ASCII"),
    ],
)
def test_bad_files_are_refused_by_line(text: str, cause: str) -> None:
    with pytest.raises(BadConfig, match=cause) as caught:
        parse_tokens(text, "tokens")
    assert SHARED not in caught.value.one_line(), "a secret is never shown"


def test_a_token_is_not_printed() -> None:
    assert SHARED not in repr(parse_tokens(FILE, "tokens"))


@given(st.binary(max_size=12), st.binary(max_size=12))
def test_a_prefix_ends_at_a_slash(prefix: bytes, name: bytes) -> None:
    prefix = prefix.strip(b"/")
    caller = Caller(prefix=prefix)
    assert caller.sees(prefix)
    assert caller.sees(b"/" + prefix + b"/" + name)
    if prefix and name.strip(b"/") and not name.startswith(b"/"):
        assert not caller.sees(prefix + name)


PIN = Policy(pin=True)
OF_TEAM = Caller("", b"imagenet", True, False)
READING = Caller("", b"imagenet", False, False)


def load(*paths: bytes) -> m.SubmitJob:
    return m.SubmitJob(NAMESPACE, JobSpec(paths))


ADD = c.AddUfs(b"/imagenet/x", UfsSpec("s3://bucket"))
REGISTER = c.Register("w", "http://x", 1.0)


@pytest.mark.parametrize(
    ("caller", "call", "allowed"),
    [
        (EVERYTHING, ADD, True),
        (EVERYTHING, REGISTER, True),
        (Caller("", b"", False, False), ADD, False),
        (Caller("", b"", False, False), c.Drain("w"), False),
        (Caller("", b"", False, False), c.ListWorkers(), True),
        (Caller("", b"", False, False), REGISTER, False),
        (Caller("", b"imagenet", True, False), ADD, False),
        (Caller("", b"imagenet", True, False), c.RemoveUfs(b"/imagenet/x"), False),
        (Caller("", b"images", True, False), ADD, False),
        (Caller("", b"imagenet", True, False), c.Drain("w"), False),
        (Caller("", b"imagenet", True, False), c.ListUfs(), False),
        (Caller("", b"imagenet", False, False), m.Resolve(NAMESPACE, b"imagenet/a"), True),
        (Caller("", b"imagenet", False, False), m.Resolve(NAMESPACE, b""), False),
        (Caller("", b"imagenet", False, False), m.Resolve(NAMESPACE, b"secret"), False),
        (Caller("", b"imagenet", False, False), m.GetPolicies(NAMESPACE, b"imagenet"), True),
        (Caller("", b"imagenet", False, False), m.GetPolicies(NAMESPACE, b"other"), False),
        (Caller("", b"imagenet", False, False), m.SetPolicy(NAMESPACE, b"imagenet/a", PIN), False),
        (Caller("", b"imagenet", True, False), m.SetPolicy(NAMESPACE, b"imagenet/a", PIN), True),
        (Caller("", b"imagenet", True, False), m.SetPolicy(NAMESPACE, b"/imagenet/", PIN), False),
        (OF_TEAM, m.SetPolicy(NAMESPACE, b"imagenet/.", PIN), False),
        (OF_TEAM, m.SetPolicy(NAMESPACE, b"/imagenet/.//", PIN), False),
        (Caller("", b"imagenet", True, False), m.SetPolicy(NAMESPACE, b"other", PIN), False),
        (Caller("", b"", False, False), m.SetPolicy(NAMESPACE, b"other", PIN), False),
        (Caller(), m.SetPolicy(NAMESPACE, b"", PIN), True),
        (OF_TEAM, load(b"/imagenet/train", b"imagenet"), True),
        (OF_TEAM, load(b"/imagenet/train", b"/other"), False),
        (OF_TEAM, load(b"/*/train"), False),
        (OF_TEAM, load(b"/imagenet*/train"), False),
        (OF_TEAM, load(b"/"), False),
        (READING, load(b"/imagenet/train"), False),
        (OF_TEAM, m.AddJobPaths(NAMESPACE, 1, 1, [b"imagenet/a", b"secret"]), False),
        (OF_TEAM, m.AddJobPaths(NAMESPACE, 1, 1, [b"imagenet/a"]), True),
        (READING, m.ControlJob(NAMESPACE, 1, "stop"), False),
        (OF_TEAM, m.ControlJob(NAMESPACE, 1, "stop"), True),  # judged by the job's paths
        (READING, m.ListJobs(NAMESPACE), True),  # those of its path, as the master judges
        (READING, m.GetJob(NAMESPACE, 1), True),
        (READING, m.GetJobFailures(NAMESPACE, 1), True),
        (Caller("", b"", False, False), m.ListJobs(NAMESPACE), True),
        (Caller("", b"", False, False), m.ControlJob(NAMESPACE, 1, "stop"), False),
        (Caller("", b"", False, False), load(b"/imagenet"), False),
        (OF_TEAM, m.StartSync(NAMESPACE, b"/imagenet/train"), True),
        (OF_TEAM, m.StartSync(NAMESPACE, b"/"), False),
        (READING, m.StartSync(NAMESPACE, b"/imagenet/train"), False),
        (READING, m.StartSync(NAMESPACE, b"/imagenet/train", dry_run=True), True),
        (READING, m.StartSync(NAMESPACE, b"/other", dry_run=True), False),
        (READING, m.GetSync(NAMESPACE, 1), True),  # the master judges paths, and `stop`
        (OF_TEAM, c.Work("w", "", [], 1), False),
        (EVERYTHING, c.Work("w", "", [], 1), True),
        (Caller("", b"imagenet", False, False), c.GetView(), False),
        (OF_TEAM, c.GetView(), False),
        (Caller("", b"", False, False), c.GetView(), True),
        (OF_TEAM, c.Greeting(), True),
        (READING, c.Doubt(b"", [0]), False),
        (Caller("", b"", False, False), c.Doubt(b"", [0]), False),
        (Caller("", b"", False, False), c.Drop([b""]), False),
        (Caller("", b"", False, False), c.Have([b""]), True),
        (Caller("", b"", False, False), c.Verify(b"", 0, 1), True),
        (OF_TEAM, c.PushEvents(b"/imagenet/a", "secret", []), True),
        (OF_TEAM, c.PushEvents(b"/other", "secret", []), False),
        (OF_TEAM, c.Have([b""]), False),
        (OF_TEAM, c.Verify(b"", 0, 1), False),
        (Caller("", b"imagenet", False, False), c.Offer("w", "u", 1, []), False),
    ],
)
def test_what_a_call_needs(caller: Caller, call: m.Message, allowed: bool) -> None:
    if allowed:
        return permit(caller, call)
    with pytest.raises(AccessDenied):
        permit(caller, call)


def test_every_call_says_what_a_limited_caller_needs_for_it() -> None:
    """A call that is added and forgotten here is refused for limited callers, and fails this."""
    assert {*get_args(c.Call), m.Free} == {*NEEDS}
    for kind, needs in NEEDS.items():
        fields = {field.name for field in msgspec.structs.fields(kind)}
        if fields & {"path", "paths", "spec"}:
            assert needs & (Need.PATH | Need.ALL), f"the path of a {kind.__name__} is not judged"
        if fields & {"ino", "inos", "parent", "calls"}:
            assert needs & Need.INOS, f"the inode of a {kind.__name__} is not judged"


def test_what_is_judged_by_inode_names_its_inodes() -> None:
    calls = [
        m.Lookup(NAMESPACE, 1, b"x"),
        m.GetAttr(NAMESPACE, 1),
        m.ListDir(NAMESPACE, 1),
        c.Batch([m.GetAttr(NAMESPACE, 1)]),
        c.Locate(NAMESPACE, [1]),
        c.ListNext(NAMESPACE, 1),
        c.ReportChanged(NAMESPACE, 1),
        c.Walk(NAMESPACE, 1),
    ]
    assert {type(call) for call in calls} == {kind for kind, n in NEEDS.items() if Need.INOS in n}
    assert all(inos_of(call) == [1] for call in calls)


def test_a_call_that_is_not_listed_is_refused_for_limited_callers() -> None:
    for caller in (OF_TEAM, READING, Caller("", b"", False, False)):
        with pytest.raises(AccessDenied, match="does not allow Welcome"):
            permit(caller, m.Welcome("", 0))
    permit(EVERYTHING, m.Welcome("", 0))


def test_the_inos_that_a_server_must_judge() -> None:
    lookup, getattr = m.Lookup(NAMESPACE, 7, b"x"), m.GetAttr(NAMESPACE, 8)
    assert inos_of(c.Batch([lookup, getattr])) == [7, 8]
    assert inos_of(c.Locate(NAMESPACE, [3, 4])) == [3, 4]
    assert inos_of(m.ListDir(NAMESPACE, 5)) == inos_of(c.Walk(NAMESPACE, 5)) == [5]
    assert inos_of(c.ListNext(NAMESPACE, 6)) == [6]
    assert inos_of(c.GetView()) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    check_listen(host, has_tokens=False)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "node7", "127.0.0.1.example"])
def test_beyond_loopback_a_token_is_needed(host: str) -> None:
    with pytest.raises(BadConfig, match="token"):
        check_listen(host, has_tokens=False)
    check_listen(host, has_tokens=True)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("node7", ("node7", 5)),
        (":80", ("", 80)),
        ("[::1]:0", ("::1", 0)),
        ("[fe80::1]", ("fe80::1", 5)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, 5) == address
    assert parse_address(join_address(*address), 5) == address


@pytest.mark.parametrize("text", ["", "::1", "a:b", "a:70000", "http://a", "a b:1", "a:1:2"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(BadConfig):
        parse_address(text, 5)
