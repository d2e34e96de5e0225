"""The commands about policies against a scripted server: what they ask, print, and refuse."""

from __future__ import annotations

import json
import os

import pytest

from cachefs.core import messages as m
from cachefs.core.errors import NotFound
from cachefs.core.jobs import JobSpec, JobState
from cachefs.core.policies import KEYS, Policy
from tests.unit.cli.fake_node import FakeNode
from tests.unit.cli.test_commands import Run, node, ok, refused
from tests.unit.cli.test_job_commands import shown

__all__ = ["node"]  # a fixture
MIB = 1 << 20


def test_pin_loads_and_unpin_takes_back(node: FakeNode, run: Run) -> None:
    assert ok(run("pin", "/mnt/data/d")) == (
        "OK, /mnt/data/d is pinned; job 7 loads what is missing:"
        " `cachefs jobs show 7 /mnt/data` shows it\n"
    )
    assert ok(run("pin", "--no-load", "/mnt/data/d/x")).endswith("what is cached of it stays\n")
    assert ok(run("unpin", "/mnt/data/d/x")) == "/mnt/data/d/x stays pinned, by /mnt/data/d\n"
    assert ok(run("unpin", "/mnt/data/d")) == "OK, /mnt/data/d is no longer pinned\n"
    assert ok(run("unpin", "/mnt/data/d")) == "/mnt/data/d was not pinned\n"
    said = [body for body in node.asked if isinstance(body, m.SetPolicy)]
    assert [(one.path, one.policy.pin, one.unset) for one in said[:3]] == [
        (b"d", True, []),
        (b"d/x", True, []),
        (b"d/x", None, ["pin"]),
    ]


def test_a_pin_of_a_freeze_above_is_named(node: FakeNode, run: Run) -> None:
    node._policies.put(b"", Policy(frozen_by=("n1",)))
    assert ok(run("unpin", "/mnt/data/d")) == "/mnt/data/d stays pinned, by /mnt/data (frozen)\n"


def test_unpin_removes_the_pins_of_freezes(node: FakeNode, run: Run) -> None:
    node._policies.put(b"d", Policy(frozen_by=("n1", "n2")))
    shown = ok(run("policy", "show", "/mnt/data/d"))
    assert shown.split("\n")[1].split(maxsplit=2) == ["pin", "yes", "/mnt/data/d (frozen)"]
    assert "\nfrozen by: n1, n2\n" in shown
    found = json.loads(ok(run("policy", "show", "/mnt/data/d", "--json")))
    assert found["frozen_by"] == ["n1", "n2"]
    assert ok(run("policy", "unset", "/mnt/data/d", "--all")) == "OK, /mnt/data/d: pin=yes\n"
    assert ok(run("unpin", "/mnt/data/d")) == "OK, /mnt/data/d is no longer pinned\n"
    assert ok(run("unpin", "/mnt/data/d")) == "/mnt/data/d was not pinned\n"


def test_a_refused_path_is_shown_as_the_mount_shows_it(node: FakeNode, run: Run) -> None:
    node.refused[m.SetPolicy] = NotFound("no such file or directory", path="/nope")
    assert refused(run("pin", "/mnt/data/nope")) == (
        "cachefs: /mnt/data/nope: no such file or directory\n"
    )
    node.refused[m.SetPolicy] = NotFound("it is gone", path="/")
    assert refused(run("pin", "/mnt/data")) == "cachefs: /mnt/data: it is gone\n"
    node.refused[m.SetPolicy] = NotFound("no such file or directory", path="/other")
    assert refused(run("pin", "/mnt/data/nope")) == "cachefs: /other: no such file or directory\n"


def test_the_help_of_set_names_every_key(run: Run) -> None:
    words = ok(run("policy", "set", "--help")).replace(",", " ").replace(".", " ").split()
    assert set(KEYS) <= set(words)


def test_a_pinned_path_is_no_glob(node: FakeNode, run: Run) -> None:
    ok(run("pin", "/mnt/data/*[d]?"))
    (asked,) = [body for body in node.asked if isinstance(body, m.SubmitJob)]
    assert asked.spec == JobSpec((b"[*][[]d][?]",), hold_s=0.0)


def test_a_pin_that_does_not_fit_says_how_much_does(node: FakeNode, run: Run) -> None:
    message = "stopped before it evicts what is pinned: it needs 4 MiB, the cache holds 3 MiB"
    node.jobs[7] = [shown(JobState.FAILED, 2, message=message)]
    code, out, err = run("pin", "--wait", "/mnt/data/d")
    assert code == 1
    assert f"; {message}; " in out
    assert err == "cachefs: /mnt/data/d is pinned, and not all of it is cached\n"


def test_show_says_who_says_it(node: FakeNode, run: Run) -> None:
    assert ok(run("policy", "set", "/mnt/data", "profile=train-read", "ttl=7d")) == (
        "OK, /mnt/data: ttl=7d profile=train-read\n"
    )
    ok(run("policy", "set", "/mnt/data/d", "ttl=90s"))
    ok(run("policy", "set", "/mnt/data/d/x", "pin=yes"))
    lines = ok(run("policy", "show", "/mnt/data")).splitlines()
    assert [line.split() for line in lines if line.startswith(("ttl ", "admission"))] == [
        ["ttl", "7d", "/mnt/data"],
        ["admission", "fill", "/mnt/data", "(train-read)"],
    ]
    assert lines[-2:] == ["below: /mnt/data/d  ttl=1m30s", "and 1 more below"]
    found = json.loads(ok(run("policy", "show", "--json", "/mnt/data/d/x")))
    assert (found["policy"]["ttl_s"], found["from"]["ttl_s"]) == (90.0, "/mnt/data/d")
    assert (found["policy"]["pin"], found["below_count"]) == (True, 0)
    assert ok(run("policy", "unset", "/mnt/data", "ttl")) == "OK, /mnt/data: profile=train-read\n"
    assert ok(run("policy", "unset", "/mnt/data", "--all")) == "OK, /mnt/data: no policies\n"


def test_a_key_that_an_earlier_server_drops_is_not_called_set(node: FakeNode, run: Run) -> None:
    node.unknown_policies = ["sync_background_s", "view"]
    values = ("view=never", "ttl=7d", "sync_background=1h")
    assert refused(run("policy", "set", "/mnt/data", *values)) == (
        "cachefs: /mnt/data: not set: sync_background, view; the server or its master is of an"
        " earlier version; upgrade both, then repeat the command\n"
    )
    assert ok(run("policy", "set", "/mnt/data", "pin=no")) == "OK, /mnt/data: pin=no ttl=7d\n"
    shown = [line.split()[:3] for line in ok(run("policy", "show", "/mnt/data")).splitlines()]
    assert ["view", "not", "known"] in shown
    assert ["profile", "none", "default"] in shown


def test_ttl(node: FakeNode, run: Run) -> None:
    assert ok(run("ttl", "/mnt/data/d")) == "/mnt/data/d: ttl never (free)\n"
    assert ok(run("ttl", "/mnt/data/d", "12h", "--action", "free")) == (
        "/mnt/data/d: ttl 12h00m (free), by /mnt/data/d\n"
    )
    assert json.loads(ok(run("ttl", "/mnt/data/d/x", "--json")))["ttl_s"] == 43200.0
    assert ok(run("ttl", "/mnt/data/d", "none")) == "/mnt/data/d: ttl never (free)\n"
    said = [body.policy for body in node.asked if isinstance(body, m.SetPolicy)]
    assert said == [Policy(ttl_s=43200.0, ttl_action="free"), Policy()]


def test_a_path_may_have_parentheses(node: FakeNode, run: Run) -> None:
    odd = "/mnt/data/d (copy) (train-read"
    assert ok(run("ttl", odd, "12h")).endswith(f": ttl 12h00m (free), by {odd}\n")
    ok(run("policy", "set", odd, "profile=train-read"))
    found = json.loads(ok(run("policy", "show", "--json", f"{odd}/x")))["from"]
    assert (found["ttl_s"], found["admission"]) == (odd, f"{odd} (train-read)")


def test_quota(node: FakeNode, run: Run) -> None:
    node.status = {"cache": {"quota_used_bytes": {"/d": MIB}}}
    assert ok(run("quota", "/mnt/data/d")) == "/mnt/data/d: no quota\n"
    assert ok(run("quota", "/mnt/data/d", "4MiB")) == "/mnt/data/d: 1 MiB of 4 MiB (25%)\n"
    assert json.loads(ok(run("quota", "/mnt/data", "--json"))) == [
        {"path": "/mnt/data/d", "quota_bytes": 4 * MIB, "used_bytes": MIB}
    ]
    assert ok(run("quota", "/mnt/data/d", "none")) == "/mnt/data/d: no quota\n"


def test_du(node: FakeNode, run: Run) -> None:
    found = json.loads(ok(run("du", "/mnt/data/a.bin", "/mnt/data", "--json")))
    assert found[0] == {
        "path": "/mnt/data/a.bin", "files": 1, "size_bytes": MIB, "cached_bytes": MIB // 2,
        "unlisted_directories": 0, "silent": [],
    }  # fmt: skip
    assert found[1]["files"] > 4
    assert ok(run("du", "/mnt/data/a.bin")) == (
        "1 MiB  512 KiB cached  50%  1 file  /mnt/data/a.bin\n"
    )


def test_du_shows_any_name_on_one_line(node: FakeNode, run: Run) -> None:
    """A name may have bytes that are no text, and characters that a terminal would act on."""
    odd = os.fsdecode(b"/mnt/data/odd\xff\n")
    assert ok(run("du", odd)).endswith("  1 file  /mnt/data/odd\\xff\\n\n")
    (found,) = json.loads(ok(run("du", odd, "--json")))
    assert found["path"] == "/mnt/data/odd\\xff\\n"


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("policy", "set", "/mnt/data", "colour=red"), "no such policy"),
        (("policy", "set", "/mnt/data", "ttl"), "not key=value"),
        (("policy", "unset", "/mnt/data"), "give keys, or --all"),
        (("policy", "unset", "/mnt/data", "colour"), "no such policy"),
        (("ttl", "/mnt/data", "soon"), "bad duration"),
        (("quota", "/mnt/data", "much"), "bad size"),
        (("pin", "/elsewhere"), "not under a CacheFS mount"),
    ],
)
def test_refusals_are_one_line(
    node: FakeNode, run: Run, words: tuple[str, ...], cause: str
) -> None:
    assert cause in refused(run(*words))
