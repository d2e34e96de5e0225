"""SIEVE and LRU against naive models that keep lists."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.services.examples import examples
from worker.tier.eviction_order import (
    NEVER_S,
    CopiesFirstOrder,
    EvictionOrder,
    LruOrder,
    SieveOrder,
    eviction_order,
)

KEYS = st.integers(0, 11).map(lambda n: b"key%d" % n)


class _Model:
    """The obvious implementation: a list from the oldest to the newest."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.use_s: dict[bytes, int] = {}
        self.held: dict[bytes, tuple[int, bool]] = {}

    def insert(self, key: bytes, now_s: int) -> None:
        if key in self.use_s:
            return self.hit(key, now_s)
        self.keys.append(key)
        self.use_s[key] = now_s

    def insert_oldest(self, key: bytes, now_s: int) -> None:
        if key not in self.use_s:
            self.keys.insert(0, key)
            self.use_s[key] = now_s

    def hit(self, key: bytes, now_s: int) -> None:
        if key in self.use_s and key not in self.held:
            self.use_s[key] = now_s
            self.defer(key)

    def defer(self, key: bytes) -> None:
        raise NotImplementedError

    def remove(self, key: bytes) -> None:
        if key in self.use_s:
            if self.held.pop(key, None) is None:
                self.keys.remove(key)
            del self.use_s[key]

    def hold(self, key: bytes, until_s: int, *, though_read: bool) -> None:
        if key in self.use_s:
            self.remove(key)
            self.use_s[key] = NEVER_S
            self.held[key] = until_s, though_read

    def release(self, key: bytes, now_s: int, *, oldest: bool = False) -> None:
        if self.held.pop(key, None) is not None:
            self.keys.insert(0 if oldest else len(self.keys), key)
            self.use_s[key] = now_s

    def candidates(self, count: int, idle_before_s: int) -> list[bytes]:
        raise NotImplementedError


class _Lru(_Model):
    def defer(self, key: bytes) -> None:
        if key in self.use_s and key not in self.held:
            self.keys.remove(key)
            self.keys.append(key)

    def candidates(self, count: int, idle_before_s: int) -> list[bytes]:
        return [key for key in self.keys if self.use_s[key] <= idle_before_s][:count]


class _Sieve(_Model):
    def __init__(self) -> None:
        super().__init__()
        self.visited: set[bytes] = set()
        self.hand: bytes | None = None

    def defer(self, key: bytes) -> None:
        if key in self.use_s and key not in self.held:
            self.visited.add(key)

    def remove(self, key: bytes) -> None:
        if key == self.hand:
            self.hand = self._after(key)
        super().remove(key)
        self.visited.discard(key)

    def _after(self, key: bytes) -> bytes | None:
        place = self.keys.index(key) + 1
        return self.keys[place] if place < len(self.keys) else None

    def candidates(self, count: int, idle_before_s: int) -> list[bytes]:
        found: list[bytes] = []
        for _ in range(2 * len(self.keys)):
            key = self.hand if self.hand is not None else self.keys[0]
            if len(found) == count or key in found:
                break
            self.hand = self._after(key)
            if idle_before_s != NEVER_S:
                take = self.use_s[key] <= idle_before_s
            else:
                take = key not in self.visited
                self.visited.discard(key)
            if take:
                found.append(key)
        return found


class _Machine(RuleBasedStateMachine):
    real: EvictionOrder
    model: _Model
    now_s = 1000

    @rule(key=KEYS)
    def insert(self, key: bytes) -> None:
        self.now_s += 1
        self.real.insert(key, self.now_s)
        self.model.insert(key, self.now_s)

    @rule(key=KEYS)
    def insert_oldest(self, key: bytes) -> None:
        self.real.insert_oldest(key, 500)
        self.model.insert_oldest(key, 500)

    @rule(key=KEYS)
    def hit(self, key: bytes) -> None:
        self.now_s += 1
        self.real.hit(key, self.now_s)
        self.model.hit(key, self.now_s)

    @rule(key=KEYS)
    def defer(self, key: bytes) -> None:
        self.real.defer(key)
        self.model.defer(key)

    @rule(key=KEYS)
    def remove(self, key: bytes) -> None:
        self.real.remove(key)
        self.model.remove(key)

    @rule(key=KEYS, until_s=st.integers(1, 9), though_read=st.booleans())
    def hold(self, key: bytes, until_s: int, though_read: bool) -> None:
        self.real.hold(key, until_s, though_read=though_read)
        self.model.hold(key, until_s, though_read=though_read)

    @rule(key=KEYS, age_s=st.sampled_from([0, 5, 600]))
    def release(self, key: bytes, age_s: int) -> None:
        self.now_s += 1
        use_s = self.now_s - age_s
        oldest = bool(self.model.keys) and use_s < self.model.use_s[self.model.keys[0]]
        self.real.release(key, use_s)
        self.model.release(key, use_s, oldest=oldest)

    @rule(until_s=st.integers(1, 9))
    def release_due(self, until_s: int) -> None:
        before = [*self.real.keys()]
        self.real.release_due(until_s, 450)
        for key in before:
            if self.model.held.get(key, (NEVER_S, False))[0] <= until_s:
                self.model.release(key, 450, oldest=True)

    @invariant()
    def holds_are_known(self) -> None:
        held = self.model.held
        assert self.real.held_count == len(held)
        assert {key: self.real.held(key) for key in held} == held
        first_s = min((until_s for until_s, _ in held.values()), default=NEVER_S)
        assert self.real.first_release_s <= first_s

    @precondition(lambda self: len(self.model.keys) > 0)
    @rule(count=st.integers(1, 5), idle=st.one_of(st.just(NEVER_S), st.integers(400, 1040)))
    def evict(self, count: int, idle: int) -> None:
        named = self.real.candidates(count, idle)
        assert named == self.model.candidates(count, idle)
        assert len(set(named)) == len(named)
        for key in named[::2]:
            self.real.remove(key)
            self.model.remove(key)

    @invariant()
    def same(self) -> None:
        assert len(self.real) == len(self.model.use_s)
        assert all(key in self.real for key in self.model.use_s)
        assert all(self.real.last_use_s(key) == use for key, use in self.model.use_s.items())
        assert self.real.oldest_use_s() == min(self.model.use_s.values(), default=NEVER_S)


class SieveMachine(_Machine):
    def __init__(self) -> None:
        super().__init__()
        self.real, self.model = SieveOrder(), _Sieve()


class LruMachine(_Machine):
    def __init__(self) -> None:
        super().__init__()
        self.real, self.model = LruOrder(), _Lru()


for machine in (SieveMachine, LruMachine):
    machine.TestCase.settings = settings(
        max_examples=examples(60), stateful_step_count=40, deadline=None
    )
TestSieve = SieveMachine.TestCase
TestLru = LruMachine.TestCase


def test_a_scan_does_not_flush_what_sieve_was_asked_for_twice() -> None:
    order = eviction_order("sieve")
    for n in range(10):
        order.insert(b"hot%d" % n, 1)
        order.hit(b"hot%d" % n, 2)
    for n in range(100):
        order.insert(b"scan%d" % n, 3)
        if len(order) > 20:
            (victim,) = order.candidates(1)
            assert victim.startswith(b"scan")
            order.remove(victim)


def test_memory_per_file_is_small() -> None:
    import tracemalloc

    tracemalloc.start()
    order = SieveOrder()
    for n in range(20_000):
        order.insert(n.to_bytes(36, "big"), n)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / 20_000 < 260, "bytes per file, its key of 36 bytes included"


def test_other_names_are_refused() -> None:
    with pytest.raises(ValueError):
        eviction_order("fifo")


@pytest.mark.parametrize("name", ["sieve", "lru"])
def test_a_use_is_known_until_the_file_goes(name: str) -> None:
    order = eviction_order(name)
    for key in (b"a", b"b"):
        order.insert(key, 1)
        assert not order.was_used(key)
    order.hit(b"a", 2)
    order.candidates(2)
    assert order.was_used(b"a"), "though the hand has passed"
    assert not order.was_used(b"b")
    order.remove(b"a")
    order.insert(b"c", 3)
    assert not order.was_used(b"c"), "in the place of the other"
    assert sorted(order.keys()) == [b"b", b"c"]


@pytest.mark.parametrize("name", ["sieve", "lru"])
def test_copies_of_what_others_own_go_first(name: str) -> None:
    order = eviction_order(name, owned_last=True)
    for n in range(10):
        order.insert(b"%d" % n, n)
    for n in (7, 8, 9):
        order.set_owned(b"%d" % n, owned=False)
    order.hit(b"9", 20)
    order.set_owned(b"nobody", owned=False)
    assert len(order) == 10
    assert order.candidates(5)[:2] == [b"7", b"8"], "before all that is owned, however old"
    assert set(order.candidates(10)) == {b"%d" % n for n in range(10)}
    assert order.last_use_s(b"9") == 20
    assert order.was_used(b"9")
    assert order.oldest_use_s() == 0
    for n in range(7):
        order.remove(b"%d" % n)
    assert sorted(order.keys()) == [b"7", b"8", b"9"]
    assert order.oldest_use_s() == 7


def test_a_copy_that_cannot_go_does_not_stand_in_the_way_of_others() -> None:
    order = eviction_order("sieve", owned_last=True)
    for n in range(100):
        order.insert(b"copy%d" % n, n)
        order.set_owned(b"copy%d" % n, owned=False)
    order.insert(b"owned", 5)
    for _ in range(100):
        for key in order.candidates(64):
            if key == b"owned":
                return
            order.defer(key)  # somebody has it open
    raise AssertionError("what is owned was never named")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["insert", "oldest", "hit", "defer", "remove", "hold", "release", "own", "disown"]
            ),
            st.integers(0, 7),
        ),
        max_size=60,
    )
)
def test_whose_a_file_is_changes_nothing_but_the_order(steps: list[tuple[str, int]]) -> None:
    order = CopiesFirstOrder(SieveOrder(), SieveOrder())
    plain = SieveOrder()
    for now, (step, number) in enumerate(steps):
        key = b"%d" % number
        for one in (order, plain):
            match step:
                case "insert":
                    one.insert(key, now)
                case "oldest":
                    one.insert_oldest(key, now)
                case "hit":
                    one.hit(key, now)
                case "defer":
                    one.defer(key)
                case "remove":
                    one.remove(key)
                case "hold":
                    one.hold(key, 1 + now)
                case "release":
                    one.release(key, now)
                case _:
                    one.set_owned(key, owned=step == "own")
        assert sorted(order.keys()) == sorted(plain.keys())
        assert len(order) == len(plain)
        assert order.oldest_use_s() == plain.oldest_use_s()
        for known in plain.keys():  # noqa: SIM118
            assert known in order
            assert order.last_use_s(known) == plain.last_use_s(known)
            assert order.was_used(known) == plain.was_used(known)
            assert order.held(known) == plain.held(known)
    assert set(order.candidates(8)) <= set(plain.keys())


@given(st.lists(st.tuples(st.sampled_from(["use", "evict"]), st.integers(0, 9)), max_size=60))
def test_files_of_lru_paths_go_by_their_last_use_also_among_a_sieve_s(
    steps: list[tuple[str, int]],
) -> None:
    mixed, plain = eviction_order("sieve", owned_last=True), eviction_order("lru")
    for now, (step, number) in enumerate(steps):
        key = b"%d" % number
        if step == "use":
            mixed.insert(key, now)
            mixed.set_eviction(key, "lru")
            plain.insert(key, now)
        else:
            named = plain.candidates(1 + number % 3)
            assert mixed.candidates(1 + number % 3) == named
            for one in named:
                mixed.remove(one)
                plain.remove(one)


def test_a_file_of_a_sieve_path_is_passed_over_once_among_an_lru_s() -> None:
    order = eviction_order("lru")
    for n in range(4):
        order.insert(b"%d" % n, n)
    order.set_eviction(b"0", "sieve")
    order.hit(b"0", 9)
    assert order.candidates(1) == [b"1"], "it stays in its place, and is passed over"
    assert order.candidates(9) == [b"1", b"2", b"3", b"0"], "once"


@pytest.mark.parametrize("name", ["sieve", "lru"])
def test_what_a_path_says_of_the_way_out_stays_with_the_file(name: str) -> None:
    other = {"sieve": "lru", "lru": "sieve"}[name]
    order = eviction_order(name, owned_last=True)
    order.insert(b"a", 1)
    order.set_eviction(b"a", other)
    order.set_eviction(b"nobody", other)
    order.set_owned(b"a", owned=False)
    assert order.eviction(b"a") == other
    order.set_eviction(b"a", "")
    assert order.eviction(b"a") == ""
    order.set_eviction(b"a", other)
    order.remove(b"a")
    order.insert(b"b", 2)
    assert order.eviction(b"b") == "", "in the place of the other"
