"""The pins of frozen directories over a real master: whose they are, and when they go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.errors import Unavailable, Unreachable
from cachefs.core.policies import FROZEN_BY, Policy
from tests.integration.test_views import origin_with, run
from tests.integration.views_rig import Node, node
from worker.views.pins import ViewPins


async def pinned(one: Node, path: bytes) -> bool:
    """Returns whether a path itself is pinned, not only one above it."""
    return bool((await one.master.policies_at(path)).said.own_pin)


def test_an_operators_pin_of_a_frozen_directory_stays_over_the_thaw(tmp_path: Path) -> None:
    """[S-pin]"""

    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            await one.freeze(b"train")
            await one.master.set_policy(b"train", Policy(pin=True), ())
            await one.views.thaw(one.namespace, b"train")
            assert await pinned(one, b"train")
            await one.master.set_policy(b"train", Policy(), ("pin",))
            assert not await pinned(one, b"train")

    run(script())


def test_a_directory_stays_pinned_until_the_last_node_thaws_it(tmp_path: Path) -> None:
    """[S-pin]"""

    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            await one.freeze(b"train")
            other = ViewPins("other")
            assert await other.pin(one.master, b"train")
            await one.views.thaw(one.namespace, b"train")
            assert await pinned(one, b"train")
            (below,) = (await one.master.policies_at(b"")).below
            assert below.policy == Policy(pin=True)
            await one.freeze(b"train")
            assert await other.unpin(one.master, b"train")
            assert await pinned(one, b"train")
            await one.views.thaw(one.namespace, b"train")
            assert not await pinned(one, b"train")

    run(script())


def test_an_operator_removes_the_pins_of_nodes_that_do_not_return(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            gone = ViewPins("gone")
            assert await gone.pin(one.master, b"train")
            await one.freeze(b"train")
            await one.master.set_policy(b"train", Policy(), ("pin", FROZEN_BY))
            assert not await pinned(one, b"train")
            await one.views.thaw(one.namespace, b"train")
            assert not await gone.unpin(one.master, b"train")

    run(script())


def test_the_pin_of_a_freeze_that_failed_goes_with_a_thaw_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    async def script() -> None:
        origin = origin_with()
        async with node(tmp_path, origin) as one:
            await one.mount()
            with monkeypatch.context() as patch:
                patch.setattr(one.tier.views, "make", fails)
                with pytest.raises(Unavailable):
                    await one.freeze(b"train")
        async with node(tmp_path, origin) as one:
            await one.mount()
            assert await pinned(one, b"train")
            await one.views.thaw(one.namespace, b"train")
            assert not await pinned(one, b"train")

    run(script())


def test_a_freeze_above_a_frozen_directory_ends_the_pin_of_that(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            await one.freeze(b"train/c0")
            await one.freeze(b"train")
            assert (await pinned(one, b"train"), await pinned(one, b"train/c0")) == (True, False)
            await one.views.thaw(one.namespace, b"train")
            assert not await pinned(one, b"train")

    run(script())


def test_an_operators_pin_stays_over_a_freeze_above_a_frozen_directory(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            await one.freeze(b"train/c0")
            await one.master.set_policy(b"train", Policy(pin=True), ())
            await one.freeze(b"train")
            await one.views.thaw(one.namespace, b"train")
            assert (await pinned(one, b"train"), await pinned(one, b"train/c0")) == (True, False)

    run(script())


def test_the_pin_of_a_freeze_that_the_disk_refuses_goes_with_the_next_thaw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            with monkeypatch.context() as patch:
                patch.setattr(one.tier.views, "make", fails)
                with pytest.raises(Unavailable):
                    await one.freeze(b"train")
            assert await pinned(one, b"train")
            await one.views.thaw(one.namespace, b"train")
            assert not await pinned(one, b"train")

    run(script())


def test_a_thaw_without_an_answer_of_the_master_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: Any) -> None:
        raise Unreachable("the master is away")

    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            await one.freeze(b"train")
            with monkeypatch.context() as patch:
                patch.setattr(one.master, "set_policy", silent)
                with pytest.raises(Unreachable):
                    await one.views.thaw(one.namespace, b"train")
            assert await pinned(one, b"train")
            await one.views.thaw(one.namespace, b"train")
            assert not await pinned(one, b"train")

    run(script())


@pytest.mark.parametrize("late", ["pin", "view"])
def test_the_pin_of_a_freeze_that_nobody_waits_for_goes_with_the_next_thaw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """The caller was interrupted once the pin was set, before the view was there."""
    reached = asyncio.Event()

    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            set_policy = one.master.set_policy

            async def hangs(*args: Any) -> None:
                if late == "pin":
                    await set_policy(*args)
                reached.set()
                await asyncio.Event().wait()

            owner, name = {
                "pin": (one.master, "set_policy"),
                "view": (one.tier.views, "make"),
            }[late]
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, hangs)
                freezing = asyncio.ensure_future(one.freeze(b"train"))
                await reached.wait()
                freezing.cancel()
                await asyncio.gather(freezing, return_exceptions=True)
            assert await pinned(one, b"train")
            await one.views.thaw(one.namespace, b"train")
            assert not await pinned(one, b"train")

    run(script())
