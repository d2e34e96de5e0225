"""What the calls of the operator to the master make of its replies."""

from __future__ import annotations

import asyncio

import pytest

from cachefs.client.admin import AdminClient
from cachefs.core.messages import PoliciesAt
from cachefs.core.policies import Policy
from cachefs.core.specs import Security
from cachefs.kube.master_calls import MasterCalls


def test_the_pin_of_a_freeze_is_no_policy_that_the_operator_would_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = Policy(replicas=2, frozen_by=("node",))
    monkeypatch.setattr(AdminClient, "policies_at", lambda client, path: PoliciesAt(said, {}, said))
    calls = MasterCalls("http://127.0.0.1:1", Security())
    try:
        assert asyncio.run(calls.policy("/data")) == Policy(replicas=2)
    finally:
        calls.close()
