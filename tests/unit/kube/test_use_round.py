"""Measurements take a bounded share of the master's time."""

from __future__ import annotations

import msgspec

from cachefs.kube import use_round
from cachefs.kube.status import Phase, Status
from cachefs.kube.steps import Attached, Master, Seen, Use, plan
from tests.unit.kube.things import MASTER, PATH, parsed


def test_a_round_takes_its_time_and_long_walks_more() -> None:
    assert use_round.pause_s(1, 0.01) == use_round.ROUND_S
    assert use_round.pause_s(50, 0.01) == use_round.ROUND_S / 50
    assert use_round.pause_s(50, 10.0) == 10.0 * use_round.TIMES


def test_what_was_measured_is_told() -> None:
    found = parsed({"load": {"enabled": False}})
    status = Status(source="s3://b/p", attachments=1, policy=found.policy_mark(1))
    dataset = msgspec.structs.replace(found, status=status)
    seen = Seen(master=Master(sources={PATH: Attached("s3://b/p")}), use=Use(3, 200, 50))
    after = plan(dataset, seen, MASTER).status
    assert (after.phase, after.files, after.cached) == (Phase.ATTACHED, 3, "25 % of 200 B")
