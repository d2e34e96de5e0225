"""The pins of frozen directories, over a master that dies while it sets one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from cachefs.core.errors import NotFound, Unreachable
from cachefs.core.messages import PoliciesAt
from cachefs.core.model import NamespaceId
from cachefs.core.policies import Policy
from worker.views.pins import ViewPins

PATH = b"data/train"


class Policies:
    """A service with the policy of one path. `loses`: the reply of the next change is lost."""

    namespace = NamespaceId(b"n" * 16)
    policy_version = 1

    def __init__(self) -> None:
        self.policy = Policy()
        self.error: Exception | None = None

    async def set_policy(self, path: bytes, policy: Policy, unset: Sequence[str]) -> Policy:
        error, self.error = self.error, None
        if not isinstance(error, NotFound):
            self.policy = policy
        if error is not None:
            raise error
        return policy

    async def policies_at(self, path: bytes) -> PoliciesAt:
        return PoliciesAt(self.policy, {}, Policy())

    async def rules_of(self, contents: Sequence[Any]) -> list[Any]:
        return []


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def lost(pins: ViewPins, policies: Policies) -> None:
    policies.error = Unreachable("the master is away")
    with pytest.raises(Unreachable) as caught:
        run(pins.pin(policies, PATH))  # type: ignore[arg-type]
    assert "/data/train may be pinned" in caught.value.remedy
    assert policies.policy.pin


def test_a_pin_of_which_the_reply_was_lost_belongs_to_the_next_freeze() -> None:
    pins, policies = ViewPins(), Policies()
    lost(pins, policies)
    assert run(pins.pin(policies, PATH))  # type: ignore[arg-type]
    assert not run(pins.pin(policies, PATH)), "else it is an operator's"  # type: ignore[arg-type]


def test_a_thaw_removes_the_pin_of_a_freeze_that_failed() -> None:
    pins, policies = ViewPins(), Policies()
    lost(pins, policies)
    assert run(pins.release(policies, PATH))  # type: ignore[arg-type]
    assert not policies.policy.pin
    policies.policy = Policy(pin=True)
    assert not run(pins.release(policies, PATH)), "an operator's"  # type: ignore[arg-type]
    assert policies.policy.pin


def test_what_the_master_refuses_is_not_pinned() -> None:
    pins, policies = ViewPins(), Policies()
    policies.error = NotFound("no such path")
    with pytest.raises(NotFound):
        run(pins.pin(policies, PATH))  # type: ignore[arg-type]
    policies.policy = Policy(pin=True)
    assert not run(pins.pin(policies, PATH)), "an operator's"  # type: ignore[arg-type]
