"""Times to live: what is due when, and what a worker frees, with the master's permission only."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.errors import AccessDenied, Unreachable
from cachefs.core.messages import PoliciesAt
from cachefs.core.model import ContentId
from cachefs.core.policies import Policy, Rule
from cachefs.core.services import PolicyService
from tests.services.loading import fetch
from tests.unit.worker.rig import (
    LIMIT_S,
    MIB,
    NAMESPACE,
    Namespace,
    Rig,
    only,
    open_reader,
    read,
    run,
    until,
)
from worker.cache import policies
from worker.cache.expiry import Expiry
from worker.tier.disk import no_answer
from worker.tier.ledger import allocation

SIZE = 100_000
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "drop", "postpone", "due"]),
        st.sampled_from([b"a", b"b", b"c"]),
        st.integers(-1, 20),
        st.integers(0, 30),
    ),
    max_size=60,
)


@given(STEPS)
def test_what_is_due_is_what_its_last_word_says(steps: list[tuple[str, bytes, int, int]]) -> None:
    expiry, want, now = Expiry(), dict[bytes, float](), 0.0
    for what, key, ttl_s, wait_s in steps:
        now += wait_s
        if what == "put":
            expiry.put(key, now - 5, ttl_s, now)
            want.pop(key, None)
            if ttl_s >= 0:
                want[key] = now - 5 + ttl_s
        elif what == "drop":
            expiry.drop(key)
            want.pop(key, None)
        elif what == "postpone":
            expiry.postpone(key, now + ttl_s)
            if key in want:
                want[key] = now + ttl_s
        due = expiry.due(now, 10)
        assert sorted(due) == sorted(one for one, until in want.items() if until <= now)
        assert [want[one] for one in due] == sorted(want[one] for one in due)
        assert len(expiry) == len(want)


def test_a_clock_that_was_set_back_frees_nothing_early_and_nothing_never() -> None:
    expiry = Expiry()
    expiry.put(b"a", filled_s=1000.0, ttl_s=10.0, now_s=500.0)
    assert expiry.due(509.0, 10) == []
    assert expiry.due(510.0, 10) == [b"a"]


class Ruled(Namespace):
    """A namespace with policies: of each content, by ino."""

    def __init__(self) -> None:
        super().__init__()
        self.rules: dict[int, Rule] = {}
        self.policy_version = 0
        self.rule_questions = 0

    async def set_policy(self, path: bytes, policy: Policy, unset: Sequence[str]) -> Policy:
        raise NotImplementedError

    async def policies_at(self, path: bytes) -> PoliciesAt:
        raise NotImplementedError

    async def rules_of(self, contents: Sequence[ContentId]) -> list[Rule]:
        self.rule_questions += 1
        if not self.answers:
            raise Unreachable("the master does not answer")
        return [self.rules.get(content.ino, Rule()) for content in contents]

    def say(self, ino: int, **rule: object) -> None:
        self.rules[ino] = Rule(**rule)  # type: ignore[arg-type]
        self.policy_version += 1


def ruled(directory: Path) -> tuple[Rig, Ruled]:
    rig = Rig(directory, 100_000_000)
    rig.space = space = Ruled()
    assert isinstance(space, PolicyService)
    for ino in (1, 2, 3):
        rig.put(ino, SIZE)
    return rig, space


def test_what_is_over_its_time_goes_and_open_files_go_on(tmp_path: Path) -> None:
    async def script() -> None:
        rig, space = ruled(tmp_path)
        space.say(1, ttl_s=60.0)
        space.say(2, ttl_s=60.0)
        async with rig.worker() as worker:
            for ino in (1, 2, 3):
                await fetch(worker, NAMESPACE, ino)
            opened = await open_reader(worker, 2)
            await only(worker).expirer.tick()
            rig.wall_s += 59
            await only(worker).expirer.tick()
            assert len(rig.published()) == 3
            rig.wall_s += 1
            await only(worker).expirer.tick()
            assert rig.published() == {rig.name(3)}
            assert await opened.at(0, SIZE) == rig.data[2]
            opened.close()
            await fetch(worker, NAMESPACE, 1)  # filled anew: it stays for another 60 s
            assert await read(worker, 1) == rig.data[1]
            rig.wall_s += 59
            await only(worker).expirer.tick()
            assert rig.published() == {rig.name(1), rig.name(3)}

    run(script())


def test_a_change_of_policies_holds_for_what_is_cached(tmp_path: Path) -> None:
    """Also after a restart: the index says when each was filled."""

    async def script() -> None:
        rig, space = ruled(tmp_path)
        async with rig.worker() as worker:
            for ino in (1, 2, 3):
                await fetch(worker, NAMESPACE, ino)
            await only(worker).expirer.tick()
            questions = space.rule_questions
            await only(worker).expirer.tick()
            assert space.rule_questions == questions  # nothing new, no question
            rig.wall_s += 100
            space.say(1, ttl_s=60.0)
            await only(worker).expirer.tick()
            assert rig.published() == {rig.name(2), rig.name(3)}
            space.say(2, ttl_s=200.0)
        rig.wall_s += 99
        async with rig.worker() as worker:
            worker.used([rig.name(2)], 0)
            await only(worker).expirer.tick()
            assert rig.published() == {rig.name(2), rig.name(3)}
            rig.wall_s += 1
            await only(worker).expirer.tick()
            assert rig.published() == {rig.name(3)}

    run(script())


def test_nothing_goes_without_permission(tmp_path: Path) -> None:
    """What was pinned meanwhile stays, and so does everything while the master is silent."""

    async def script() -> None:
        rig, space = ruled(tmp_path)
        space.say(1, ttl_s=60.0)
        space.say(2, ttl_s=60.0)
        space.say(3, ttl_s=60.0, pinned=True)
        async with rig.worker() as worker:
            for ino in (1, 2, 3):
                await fetch(worker, NAMESPACE, ino)
            await only(worker).expirer.tick()
            space.answers = False
            rig.wall_s += 100
            await only(worker).expirer.tick()
            assert len(rig.published()) == 3
            space.answers = True
            space.protected = {rig.name(2)}
            await only(worker).expirer.tick()  # it tries again a little later
            assert len(rig.published()) == 3
            rig.wall_s += 3
            await only(worker).expirer.tick()
            assert rig.published() == {rig.name(2), rig.name(3)}

    run(script())


def test_how_many_own_it_is_heard_of_what_is_cached_and_of_what_is_open(tmp_path: Path) -> None:
    """This node is the second in rank for everything."""

    async def script() -> None:
        rig, space = ruled(tmp_path)
        async with rig.worker(is_owned=lambda key, size, replicas: replicas > 1) as worker:
            one, heard = only(worker), list[int]()
            one.contents.on_owners_changed = lambda: heard.append(len(one.contents.rules))
            for ino in (1, 2, 3):
                await fetch(worker, NAMESPACE, ino)
            opened = await open_reader(worker, 2)
            entry = only(worker)._catalog.live(rig.content(2).key)
            await only(worker).expirer.tick()
            assert (one.contents.order.copy_count, heard) == (3, [])
            for ino in (1, 2):
                space.say(ino, replicas=2, eviction="lru")
            await only(worker).expirer.tick()
            assert (one.contents.order.copy_count, heard) == (1, [2])
            assert one.contents.order.eviction(rig.content(1).key) == "lru"
            assert entry is None or entry.origin.rule.replicas == 2
            found = await worker.serving.holdings(b"", 10)
            assert sorted(one.replicas for one in found) == [1, 2, 2]
            space.say(1)
            await only(worker).expirer.tick()
            assert (one.contents.order.copy_count, heard) == (2, [2, 1]), "the extra copy is first"
            assert one.contents.order.eviction(rig.content(1).key) == ""
            opened.close()
            await worker.free([rig.content(ino) for ino in (1, 2, 3)])
            assert len(one.contents.rules) == 0

    run(script())


def test_what_was_pinned_before_a_late_drop_stays(tmp_path: Path) -> None:
    """The threads of the disk are busy until the master's permission has ended."""

    async def script() -> None:
        rig, space = ruled(tmp_path)
        space.say(1, ttl_s=60.0)
        async with rig.worker(disk_threads=1) as worker:
            one, go_on = only(worker), threading.Event()
            await fetch(worker, NAMESPACE, 1)
            await one.expirer.tick()
            rig.wall_s += 60
            space.valid_for_s = 0.05
            one.disk.threads.submit(go_on.wait, LIMIT_S, done=lambda *_: None)
            asked = len(space.asked)
            freeing = asyncio.create_task(one.expirer.tick())
            await until(lambda: len(space.asked) > asked)
            ends_s = time.monotonic() + space.valid_for_s
            await until(lambda: time.monotonic() > ends_s)
            go_on.set()
            await freeing
            assert rig.published() == {rig.name(1)}
            assert worker.status()["tiers"][0]["state"] == "normal"
            space.valid_for_s = 10.0
            rig.wall_s += policies.RETRY_S
            await one.expirer.tick()
            assert rig.published() == set()

    run(script())


def test_a_permission_ends_while_the_machine_is_suspended(tmp_path: Path) -> None:
    async def script() -> None:
        rig, space = ruled(tmp_path)
        space.say(1, ttl_s=60.0)
        async with rig.worker(disk_threads=1) as worker:
            one, go_on = only(worker), threading.Event()
            await fetch(worker, NAMESPACE, 1)
            await one.expirer.tick()
            rig.wall_s += 60
            one.disk.threads.submit(go_on.wait, LIMIT_S, done=lambda *_: None)
            asked = len(space.asked)
            freeing = asyncio.create_task(one.expirer.tick())
            await until(lambda: len(space.asked) > asked)
            rig.suspended_s = space.valid_for_s
            go_on.set()
            await freeing
            assert rig.published() == {rig.name(1)}

    run(script())


def test_rules_that_a_late_disk_left_unknown_are_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "ASKED_AT_ONCE", 1)

    async def late(*_: Any, **__: Any) -> Any:
        raise no_answer()

    async def script() -> None:
        rig, space = ruled(tmp_path)
        for ino in (1, 2, 3):
            space.say(ino, ttl_s=60.0, quotas=((b"dir", 100_000_000),))
        async with rig.worker() as worker:
            one = only(worker)
            await one.expirer.tick()
            for ino in (1, 2, 3):
                await fetch(worker, NAMESPACE, ino)
            await until(lambda: not len(one._catalog))
            with monkeypatch.context() as patch:
                patch.setattr(one.disk, "call", late)
                await one.expirer.tick()
            await one.expirer.tick()
            assert one.contents.charges.used() == {b"dir": 3 * allocation(SIZE)}
            rig.wall_s += 60
            await one.expirer.tick()
            assert rig.published() == set()

    run(script())


def test_what_is_evicted_while_its_rule_is_asked_for_counts_against_no_quota(
    tmp_path: Path,
) -> None:
    """Nothing would ever end the charge: the content is not there."""

    async def script() -> None:
        rig, space = ruled(tmp_path)
        answer = space.rules_of
        async with rig.worker() as worker:
            one, going = only(worker), [1, 2]

            async def rules_of(contents: Sequence[ContentId]) -> list[Rule]:
                if going:
                    await worker.free([rig.content(going.pop())])
                return await answer(contents)

            space.rules_of = rules_of  # type: ignore[method-assign]
            for ino in (1, 2, 3):
                space.say(ino, quotas=((b"dir", 100_000_000),))
                await fetch(worker, NAMESPACE, ino)
            for _ in range(3):  # of what is new, and of everything after a change
                space.policy_version += 1
                await one.expirer.tick()
            assert not going
            assert one.contents.charges.used() == {b"dir": allocation(SIZE)}

    run(script())


def test_room_that_a_failed_read_gave_back_counts_against_no_quota(tmp_path: Path) -> None:
    """The file stays open, and is read again and again."""

    async def script() -> None:
        rig, _ = ruled(tmp_path)
        rig.rule = Rule(quotas=((b"dir", 40 * MIB),))
        rig.put(4, 12 * MIB)
        async with rig.worker() as worker:
            one = only(worker)
            await one.expirer.tick()
            opened = await open_reader(worker, 4)
            for _ in range(8):
                rig.origin.fail("read", None, AccessDenied("not now"), 1)
                with pytest.raises(AccessDenied):
                    await opened.at(0, 100)
                await until(lambda: not one._filler._pieces)
                await one.expirer.tick()
            assert one.contents.charges._quotas.used_bytes[b"dir"] == 0
            assert await opened.at(0, 100) == rig.data[4][:100]
            opened.close()

    run(script())


def test_a_quota_that_pinned_files_exceed_is_not_asked_about_each_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "FREED_AT_ONCE", 1)

    async def script() -> None:
        rig, space = ruled(tmp_path)
        async with rig.worker() as worker:
            expirer = only(worker).expirer
            for ino in (1, 2, 3):
                await fetch(worker, NAMESPACE, ino)
            space.protected = {rig.name(ino) for ino in (1, 2, 3)}
            for ino in (1, 2, 3):
                space.say(ino, quotas=((b"dir", 2 * SIZE),))
            await expirer.tick()
            asked = len(space.asked)
            assert asked >= 2, "it looks for one that may go"
            await expirer.tick()
            await expirer.tick()
            assert len(space.asked) == asked
            rests = expirer._rests.items()
            expirer._rests = {path: rest._replace(until_s=0.0) for path, rest in rests}
            space.answers = False
            await expirer.tick()
            assert len(space.asked) == asked + 1, "a master that is away is asked once"
            assert [rest.pause_s for rest in expirer._rests.values()] == [2 * policies.RETRY_S]
            space.answers = True
            space.protected.clear()
            space.policy_version += 1  # a pin was removed
            await expirer.tick()
            assert len(rig.published()) < 3

    run(script())
