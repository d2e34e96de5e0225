"""The pins of frozen directories, over a master that dies while it sets one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from cachefs.core.errors import NotFound, Unreachable
from cachefs.core.messages import PoliciesAt
from cachefs.core.model import NamespaceId
from cachefs.core.policies import Policy, merged, with_freeze
from worker.views.pins import ViewPins

PATH = b"data/train"


class Policies:
    """A service with the policy of one path. `error`: of the next change, after it was made if its
    reply is lost. `knows_nodes`: False for a master of an earlier version."""

    namespace = NamespaceId(b"n" * 16)
    policy_version = 1

    def __init__(self) -> None:
        self.policy = Policy()
        self.error: Exception | None = None
        self.knows_nodes = True

    async def set_policy(
        self, path: bytes, policy: Policy, unset: Sequence[str], node: str = ""
    ) -> Policy:
        error, self.error = self.error, None
        if node and self.knows_nodes:
            changed = with_freeze(self.policy, node, pinned=bool(policy.pin))
        else:
            changed = merged(self.policy, policy, unset)
        if not isinstance(error, NotFound):
            self.policy = changed
        if error is not None:
            raise error
        return self.policy

    async def policies_at(self, path: bytes) -> PoliciesAt:
        return PoliciesAt(self.policy, {}, self.policy)

    async def rules_of(self, contents: Sequence[Any]) -> list[Any]:
        return []


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def lost(pins: ViewPins, policies: Policies) -> None:
    policies.error = Unreachable("the master is away")
    with pytest.raises(Unreachable) as caught:
        run(pins.pin(policies, PATH))  # type: ignore[arg-type]
    assert "/data/train may be pinned" in caught.value.remedy
    assert policies.policy.own_pin


def test_a_pin_of_which_the_reply_was_lost_goes_with_the_thaw_after_the_next_freeze() -> None:
    pins, policies = ViewPins("a"), Policies()
    lost(pins, policies)
    assert run(pins.pin(policies, PATH))  # type: ignore[arg-type]
    assert run(pins.unpin(policies, PATH))  # type: ignore[arg-type]
    assert policies.policy.says_nothing


def test_a_thaw_removes_the_pin_of_a_freeze_that_failed_and_no_other_one() -> None:
    pins, policies = ViewPins("a"), Policies()
    policies.policy = others = Policy(pin=True, frozen_by=("b",))
    lost(pins, policies)
    assert run(pins.unpin(policies, PATH))  # type: ignore[arg-type]
    assert policies.policy == others
    assert not run(pins.unpin(policies, PATH))  # type: ignore[arg-type]
    assert policies.policy == others


def test_what_the_master_refuses_is_not_pinned() -> None:
    pins, policies = ViewPins("a"), Policies()
    policies.error = NotFound("no such path")
    with pytest.raises(NotFound) as caught:
        run(pins.pin(policies, PATH))  # type: ignore[arg-type]
    assert not caught.value.remedy
    assert policies.policy.says_nothing


def test_over_an_earlier_master_a_thaw_removes_no_pin() -> None:
    """It cannot tell the pin of a freeze from that of an operator."""
    pins, policies = ViewPins("a"), Policies()
    policies.knows_nodes = False
    assert not run(pins.pin(policies, PATH))  # type: ignore[arg-type]
    assert not run(pins.unpin(policies, PATH))  # type: ignore[arg-type]
    assert policies.policy == Policy(pin=True)
