"""What an agent aborts of a mount that nothing could serve."""

from __future__ import annotations

import os

import pytest

from cachefs.core.model import UfsSpec
from cachefs.core.specs import ClientSpec
from cachefs.fuse import mounting
from cachefs.fuse.agent import agent
from cachefs.fuse.agent.agent import Agent, AgentSpec
from cachefs.fuse.deposits import Deposit

CLIENT = ClientSpec(socket="s", mountpoint="/mnt", source=UfsSpec("s3://bucket"), home="/home")


class Holder:
    """Has the deposit of one mount. A pipe stands for /dev/fuse: poll reports an error of it once
    nobody reads it."""

    def __init__(self) -> None:
        self.kernel_fd, self.fuse_fd = os.pipe()
        self.dropped: list[str] = []

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get(self, key: str) -> tuple[Deposit, int, int]:
        return Deposit(CLIENT, b"", "0:52"), self.fuse_fd, os.dup(self.fuse_fd)

    def drop(self, key: str) -> None:
        self.dropped.append(key)


@pytest.fixture
def holder(monkeypatch: pytest.MonkeyPatch) -> Holder:
    made = Holder()
    monkeypatch.setattr(agent, "HolderClient", lambda _: made)
    return made


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_mount_that_has_ended_is_not_aborted_by_its_number(
    holder: Holder, monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    """The kernel may have given the number to another mount."""
    aborted: list[str] = []
    monkeypatch.setattr(mounting, "abort", aborted.append)
    if has_ended:
        os.close(holder.kernel_fd)
    Agent(AgentSpec("holder", "worker", "/home", "agent"))._abort("key")
    assert aborted == ([] if has_ended else ["0:52"])
    assert holder.dropped == ["key"]
    if not has_ended:
        os.close(holder.kernel_fd)
