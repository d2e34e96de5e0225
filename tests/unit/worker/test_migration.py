"""After a change of members every block reaches its new owner, at a bounded rate, and the workers
say so only then."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachefs.core.cluster import BATCH_LIMIT, Offer
from cachefs.core.errors import Stale, Unavailable, Unreachable
from cachefs.core.model import PAGE_BYTES
from cachefs.core.placement import BLOCK_BYTES, Member, Placement, View
from tests.unit.worker.migrating import Fleet, Node, key_of, member
from worker.migration.decisions import MigrationDecisions
from worker.migration.events import (
    BLOCK_PAGES,
    AskHave,
    HaveReplied,
    Holding,
    OfferReceived,
    OfferReplied,
    OfferReply,
    OwnersChanged,
    RefreshView,
    Scan,
    Scanned,
    SendOffer,
    TimePassed,
    ViewReceived,
)
from worker.migration.sender import (
    GIVE_UP_S,
    PATIENT_OFFERS,
    REOFFER_S,
    SCAN_CONTENTS,
    SCAN_PAUSE_S,
    WINDOW_BLOCKS,
)
from worker.runtime.rate import TokenBucket

MIB = 1 << 20
SMALL = 110_000
ALL = (1 << BLOCK_PAGES) - 1


def fleet_of_two(files: int, size_bytes: int = SMALL, **how: Any) -> Fleet:
    """`a` and `b` have settled with what they own."""
    fleet = Fleet("a", "b", **how)
    fleet.members(member("a"), member("b"))
    for ino in range(2, files + 2):
        for block in range(-(-size_bytes // BLOCK_BYTES)):
            (owner,) = fleet.placement.owners(ino, block)
            node = fleet.nodes[owner.id]
            pages = min(BLOCK_PAGES, -(-size_bytes // PAGE_BYTES) - block * BLOCK_PAGES)
            node.put(ino, size_bytes, node.bits.get(key_of(ino), 0) | _run(block, pages))
    fleet.run()
    return fleet


def _run(block: int, pages: int) -> int:
    return ((1 << pages) - 1) << block * BLOCK_PAGES


def owned_elsewhere(fleet: Fleet) -> list[tuple[int, int]]:
    """(ino, block) of which some node has pages that the owner has not."""
    found = []
    for node in fleet.nodes.values():
        for key, bits in node.bits.items():
            ino = int.from_bytes(key[16:24], "big")
            for block in range(bits.bit_length() // BLOCK_PAGES + 1):
                (owner,) = fleet.placement.owners(ino, block)
                if node.has(ino, block) & ~fleet.nodes[owner.id].has(ino, block):
                    found.append((ino, block))
    return found


def test_a_join_brings_the_new_worker_what_is_its_now_and_nothing_else() -> None:
    fleet = fleet_of_two(600)
    new = fleet.add("c")
    fleet.members(member("a"), member("b"), member("c"))
    assert owned_elsewhere(fleet)
    fleet.run()
    assert owned_elsewhere(fleet) == []
    own = {key_of(i) for i in range(2, 602) if fleet.placement.owners(i, 0)[0].id == "c"}
    assert new.bits.keys() == own
    assert fleet.nodes["a"].brought_bytes == fleet.nodes["b"].brought_bytes == 0


def test_who_hands_over_keeps_its_copy() -> None:
    fleet = fleet_of_two(100)
    before = {id: dict(node.bits) for id, node in fleet.nodes.items()}
    fleet.add("c")
    fleet.members(member("a"), member("b"), member("c"))
    fleet.run()
    assert all(fleet.nodes[id].bits == bits for id, bits in before.items())


def test_a_drained_worker_hands_everything_over() -> None:
    fleet = fleet_of_two(300)
    had = dict(fleet.nodes["a"].bits)
    assert had
    fleet.members(member("a", 0.0), member("b"))
    fleet.run()
    assert had.keys() <= fleet.nodes["b"].bits.keys()


def test_large_files_move_block_by_block() -> None:
    fleet = fleet_of_two(4, 5 * BLOCK_BYTES - 3, bytes_per_s=1 << 40)
    new = fleet.add("c")
    fleet.members(member("a"), member("b"), member("c"))
    fleet.run()
    blocks = [(ino, block) for ino in range(2, 6) for block in range(5)]
    own = [b for b in blocks if fleet.placement.owners(*b)[0].id == "c"]
    assert 0 < len(own) < len(blocks)
    for ino, block in blocks:
        assert new.has(ino, block) == (ALL if (ino, block) in own else 0)


def test_of_a_partial_file_only_the_pages_that_are_missing_come() -> None:
    fleet = Fleet("a")
    fleet.members(member("a"))
    fleet.nodes["a"].put(2, 40 * PAGE_BYTES, 0b1011_0110)
    fleet.run()
    new = fleet.add("b")
    new.put(2, 40 * PAGE_BYTES, 0b0010_0001)
    fleet.members(member("a", 0.0), member("b"))
    fleet.run()
    assert new.bits[key_of(2)] == 0b1011_0111
    assert new.brought_bytes == 4 * PAGE_BYTES


def test_a_local_copy_is_offered_when_the_owner_is_lost() -> None:
    fleet = fleet_of_two(100)
    keeper = fleet.add("k")
    fleet.members(member("a"), member("b"), member("k", 0.0))
    fleet.run()
    lost = fleet.nodes.pop("a")
    copies = dict(lost.bits)
    keeper.bits.update(copies)
    fleet.members(member("b"), member("k", 0.0))
    fleet.run()
    assert copies.keys() <= fleet.nodes["b"].bits.keys()


def test_a_copy_of_what_others_own_already_is_not_offered_again() -> None:
    """What an owner evicted stays evicted, whoever else joins."""
    fleet = fleet_of_two(50)
    keeper = fleet.add("k")
    fleet.members(member("a"), member("b"), member("k", 0.0))
    fleet.run()
    keeper.put(7, SMALL)
    for id in "ab":
        fleet.nodes[id].bits.pop(key_of(7), None)
    fleet.members(member("a"), member("b"), member("k", 0.0), member("l", 0.0))
    fleet.run()
    assert all(key_of(7) not in fleet.nodes[id].bits for id in "ab")


def test_of_several_owners_the_first_that_has_it_offers_it_to_a_new_one() -> None:
    fleet = Fleet("a", "b", "c", replicas=2)
    fleet.members(member("a"), member("b"), member("c"))
    for ino in range(2, 100):
        for owner in fleet.placement.owners(ino, 0, 2):
            fleet.nodes[owner.id].put(ino, SMALL)
    fleet.run()
    del fleet.nodes["c"]
    fleet.members(member("a"), member("b"))
    fleet.run()
    assert len(fleet.nodes["a"].bits) == len(fleet.nodes["b"].bits) == 98


def fleet_of_three(replicas: int = 2, **how: Any) -> Fleet:
    fleet = Fleet("a", "b", "c", replicas=replicas, **how)
    fleet.members(member("a"), member("b"), member("c"))
    fleet.run()
    return fleet


def first(fleet: Fleet, ino: int) -> Node:
    return fleet.nodes[fleet.placement.owners(ino, 0)[0].id]


def lacking(fleet: Fleet, inos: range, replicas: int = 2) -> list[tuple[str, int]]:
    return [
        (owner.id, ino)
        for ino in inos
        for owner in fleet.placement.owners(ino, 0, replicas)
        if key_of(ino) not in fleet.nodes[owner.id].bits
    ]


def turns(fleet: Fleet, seconds: float) -> None:
    until_s = fleet.now_s + seconds
    while fleet.now_s < until_s:
        fleet.turn()


def test_what_comes_to_the_first_owner_goes_on_to_the_others() -> None:
    fleet = fleet_of_three()
    inos = range(2, 60)
    for ino in inos:
        first(fleet, ino).fill(ino, SMALL)
    turns(fleet, 5.0)
    assert lacking(fleet, inos) == []
    assert sum(len(node.bits) for node in fleet.nodes.values()) == 2 * len(inos)
    assert {node.migration.settled for node in fleet.nodes.values()} == {1}


def test_a_part_of_a_file_goes_on_and_the_rest_as_it_comes() -> None:
    fleet = fleet_of_three()
    owner = first(fleet, 7)
    owner.fill(7, 12 * PAGE_BYTES, 0b11)
    turns(fleet, 3.0)
    other = fleet.nodes[fleet.placement.owners(7, 0, 2)[1].id]
    assert other.bits[key_of(7)] == 0b11
    owner.fill(7, 12 * PAGE_BYTES)
    turns(fleet, 8.0)
    assert other.bits[key_of(7)] == owner.bits[key_of(7)]


def test_a_copy_at_another_than_the_first_owner_stays_where_it_is() -> None:
    fleet = fleet_of_three()
    for ino in range(2, 60):
        for node in fleet.nodes.values():
            if node is not first(fleet, ino):
                node.fill(ino, SMALL)
                break
    turns(fleet, 5.0)
    assert not any(node.brought_bytes for node in fleet.nodes.values())


def test_an_epoch_is_settled_though_copies_are_still_to_come() -> None:
    fleet = fleet_of_three()
    for node in fleet.nodes.values():
        node.fails_to_bring = Unreachable("not now")
    for ino in range(2, 60):
        first(fleet, ino).fill(ino, SMALL)
    turns(fleet, 3.0)
    assert lacking(fleet, range(2, 60))
    fleet.add("d")
    fleet.members(member("a"), member("b"), member("c"), member("d", 0.0))
    turns(fleet, 2.0)
    assert {node.migration.settled for node in fleet.nodes.values()} == {2}
    for node in fleet.nodes.values():
        node.fails_to_bring = None
    turns(fleet, 10.0)
    assert lacking(fleet, range(2, 60)) == [], "forgotten with the view"


@pytest.mark.parametrize("dies", ["a", "b", "c"])
def test_copies_come_though_an_owner_dies_meanwhile(dies: str) -> None:
    """What the first owner alone had is lost with it."""
    fleet = fleet_of_three(bytes_per_s=20 * SMALL)
    inos = range(2, 200)
    for ino in inos:
        first(fleet, ino).fill(ino, SMALL)
    turns(fleet, 0.4)
    assert lacking(fleet, inos)
    del fleet.nodes[dies]
    kept = {key for node in fleet.nodes.values() for key in node.bits}
    fleet.members(*(member(id) for id in fleet.nodes))
    turns(fleet, 30.0)
    assert [ino for _, ino in lacking(fleet, inos) if key_of(ino) in kept] == []


def test_when_more_own_it_than_before_it_goes_to_them() -> None:
    fleet = fleet_of_three(replicas=1)
    inos = range(2, 60)
    for ino in inos:
        first(fleet, ino).fill(ino, SMALL)
    turns(fleet, 3.0)
    assert lacking(fleet, inos, 1) == []
    assert sum(len(node.bits) for node in fleet.nodes.values()) == len(inos)
    for node in fleet.nodes.values():
        node.replicas = 3
        node.act(OwnersChanged())
    turns(fleet, 10.0)
    assert lacking(fleet, inos, 3) == []


def test_more_than_can_be_on_their_way_at_once_are_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.migration.sender.WINDOW_BLOCKS", 20)
    fleet = fleet_of_three()
    inos = range(2, 200)
    for ino in inos:
        first(fleet, ino).fill(ino, SMALL)
    assert max(node.migration.giver.blocks for node in fleet.nodes.values()) <= 20
    turns(fleet, 60.0)
    assert lacking(fleet, inos) == []


def test_nobody_is_settled_before_the_takers_have_it() -> None:
    fleet = fleet_of_two(40)
    new = fleet.add("c")
    new.fails_to_bring = Unreachable("not now")
    fleet.members(member("a"), member("b"), member("c"))
    for _ in range(200):
        fleet.turn()
    assert {fleet.nodes[id].migration.settled for id in "ab"} == {1}
    new.fails_to_bring = None
    fleet.run()
    assert owned_elsewhere(fleet) == []


def test_an_unchanged_set_of_owners_is_settled_at_once() -> None:
    fleet = fleet_of_two(10)
    calls = sum(node.calls for node in fleet.nodes.values())
    fleet.members(member("a"), member("b"), member("idle", 0.0))
    assert {node.migration.settled for node in fleet.nodes.values()} == {2}
    assert sum(node.calls for node in fleet.nodes.values()) == calls


def test_who_comes_back_before_anything_changed_has_nothing_to_hand_over() -> None:
    """Else each restart would bring owners what they evicted."""
    fleet = fleet_of_two(10)
    fleet.nodes["b"].bits.clear()
    copies = dict(fleet.nodes["a"].bits)
    again = fleet.add("a")
    again.bits = {**copies, key_of(3): 1, key_of(4): 1}
    again.act(ViewReceived(View(fleet.view.epoch, fleet.view.members, version=7)))
    assert again.migration.settled == fleet.view.epoch
    for _ in range(100):
        fleet.turn()
    assert again.calls == 0


def test_a_taker_without_room_is_given_up_at_once() -> None:
    fleet = fleet_of_two(2000)
    new = fleet.add("c")
    new.room_bytes = 20 * SMALL
    fleet.members(member("a"), member("b"), member("c"))
    took_s = fleet.run(GIVE_UP_S)
    assert took_s < 30
    assert len(new.bits) == 20
    assert sum(node.migration.giver.given_up for node in fleet.nodes.values()) > 100


def test_a_taker_that_never_answers_is_given_up_after_a_while() -> None:
    fleet = fleet_of_two(200)
    fleet.add("c").is_mute = True
    fleet.members(member("a"), member("b"), member("c"))
    took_s = fleet.run(2 * GIVE_UP_S)
    assert took_s >= GIVE_UP_S - 1
    assert sum(node.calls for node in fleet.nodes.values()) < 300, "it is asked ever less often"


def test_a_taker_that_accepts_everything_and_brings_nothing_is_given_up_at_last() -> None:
    fleet = fleet_of_two(3)
    fleet.add("c").fails_to_bring = Unreachable("never")
    fleet.members(member("a", 0.0), member("b", 0.0), member("c"))
    took_s = fleet.run(PATIENT_OFFERS * REOFFER_S + 2 * GIVE_UP_S)
    assert took_s > PATIENT_OFFERS * REOFFER_S
    assert sum(node.migration.giver.given_up for node in fleet.nodes.values()) == 3


def test_a_taker_that_starts_again_gets_everything_again() -> None:
    fleet = fleet_of_two(400, MIB, bytes_per_s=20 * MIB)
    fleet.add("c")
    view = fleet.members(member("a"), member("b"), member("c"))
    for _ in range(40):
        fleet.turn()
    assert fleet.nodes["c"].bits, "it was at it"
    fleet.add("c").act(ViewReceived(view))
    fleet.run()
    assert owned_elsewhere(fleet) == []


def test_the_rate_is_kept_by_takers_and_givers() -> None:
    rate = 10 * MIB
    fleet = fleet_of_two(120, 2 * MIB, bytes_per_s=rate)
    new = fleet.add("c")
    fleet.members(member("a"), member("b"), member("c"))
    took_s = fleet.run()
    assert new.brought_bytes > 5 * rate
    assert took_s >= new.brought_bytes / rate - 2.5, "a second's worth at once, and a few pieces"
    assert took_s <= new.brought_bytes / rate + 5


def test_an_offer_of_another_epoch_is_refused() -> None:
    taker = MigrationDecisions("b")
    taker.handle(ViewReceived(View(5, (member("a"), member("b")))), 0.0)
    offer = Offer("a", "http://a:1", 4, [(key_of(2), 0)])
    (answer,) = taker.handle(OfferReceived(offer), 0.0)
    assert isinstance(answer, OfferReply)
    assert isinstance(answer.failure, Stale)
    newer = Offer("a", "http://a:1", 6, [(key_of(2), 0)])
    answer, refresh = taker.handle(OfferReceived(newer), 0.0)
    assert isinstance(answer, OfferReply)
    assert isinstance(answer.failure, Unavailable)
    assert refresh == RefreshView()
    assert taker.taker.is_idle


def test_what_is_not_ours_is_not_taken() -> None:
    taker = MigrationDecisions("b")
    view = View(1, (member("a"), member("b")))
    taker.handle(ViewReceived(view), 0.0)
    others = [i for i in range(2, 50) if Placement(view.members).owners(i, 0)[0].id == "a"]
    offer = Offer("a", "http://a:1", 1, [(key_of(ino), 0) for ino in others])
    assert taker.handle(OfferReceived(offer), 0.0) == [OfferReply(None)]
    assert taker.taker.blocks == 0


def test_a_newer_epoch_starts_anew_and_old_answers_mean_nothing() -> None:
    giver = MigrationDecisions("a")
    assert giver.handle(ViewReceived(View(1, (member("b"),), (member("a"),))), -2.0) == []
    (scan,) = giver.handle(TimePassed(), 0.0)
    assert isinstance(scan, Scan)
    held = Holding(key_of(2), SMALL, 1)
    (ask,) = giver.handle(Scanned(1, (held,), b""), 0.0)
    assert isinstance(ask, AskHave)
    assert giver.handle(ViewReceived(View(2, (member("c"),))), -1.0) == []
    assert giver.handle(TimePassed(), 1.0) == [Scan(2, b"", scan.limit)]
    assert giver.handle(HaveReplied(1, "b", {}), 1.0) == []
    assert giver.handle(Scanned(1, (held,), b""), 1.0) == []
    (ask,) = giver.handle(Scanned(2, (held,), b""), 1.0)
    assert isinstance(ask, AskHave)
    assert ask.peer.id == "c"
    (offer,) = giver.handle(HaveReplied(2, "c", {}), 1.0)
    assert isinstance(offer, SendOffer)
    assert giver.handle(OfferReplied(1, "b", None), 1.0) == []


def test_a_taker_that_moved_is_found_at_its_new_address() -> None:
    giver = MigrationDecisions("a")
    giver.handle(ViewReceived(View(1, (Member("b", "http://old:1", 1.0),), (member("a"),))), -2.0)
    giver.handle(TimePassed(), 0.0)
    giver.handle(Scanned(1, (Holding(key_of(2), SMALL, 1),), b""), 0.0)
    assert giver.handle(HaveReplied(1, "b", None), 0.0) == [], "it does not answer"
    assert (
        giver.handle(
            ViewReceived(View(1, (Member("b", "http://new:1", 1.0),), (member("a"),))), 0.1
        )
        == []
    )
    (ask,) = giver.handle(TimePassed(), 0.2)
    assert isinstance(ask, AskHave)
    assert ask.peer.url == "http://new:1"


def test_a_master_that_lost_its_store_is_followed() -> None:
    fleet = fleet_of_two(100)
    fleet.members(member("a"), member("b"), member("idle", 0.0))
    fleet.add("c")
    fleet.view = View(0, (member("a"),))
    fleet.members(member("a"), member("b"), member("c"))
    assert {node.migration.settled for node in fleet.nodes.values()} == {0}
    fleet.run()
    assert owned_elsewhere(fleet) == []


def test_an_index_that_cannot_be_read_is_tried_again() -> None:
    fleet = Fleet("a")
    giver = fleet.nodes["a"].migration
    giver.handle(ViewReceived(View(1, (member("b"),), (member("a"),))), -2.0)
    (scan,) = giver.handle(TimePassed(), 0.0)
    assert giver.handle(Scanned(1, (), b"", failed=True), 0.0) == []
    assert giver.settled == 0
    assert giver.giver.advance(1.0) == []
    assert giver.giver.advance(10.0) == [scan]


def test_much_to_hand_over_is_looked_at_in_a_window() -> None:
    fleet = fleet_of_two(3 * WINDOW_BLOCKS)
    fleet.members(member("a", 0.0), member("b"))
    most = 0
    while fleet.nodes["a"].migration.settled < fleet.view.epoch:
        fleet.turn()
        most = max(most, fleet.nodes["a"].migration.giver.blocks)
    assert BATCH_LIMIT < most < WINDOW_BLOCKS + 300
    assert len(fleet.nodes["b"].bits) == 3 * WINDOW_BLOCKS


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 32), st.lists(st.sampled_from(["add", "drain", "lose", "wait"]),
                                         min_size=1, max_size=6))  # fmt: skip
def test_whatever_changes_and_gets_lost_everything_finds_its_place(
    seed: int, steps: list[str]
) -> None:
    fleet = Fleet("a", "b", seed=seed, loss=0.2)
    weights = {"a": 1.0, "b": 1.0}
    fleet.members(member("a"), member("b"))
    for ino in range(2, 60):
        size_bytes = fleet.random.choice([1, SMALL, 3 * MIB, BLOCK_BYTES + 5])
        node = fleet.random.choice([*fleet.nodes.values()])
        node.put(ino, size_bytes, fleet.random.getrandbits(-(-size_bytes // PAGE_BYTES)) or 1)
    for step in steps:
        _change(fleet, weights, step)
        for _ in range(fleet.random.randrange(30)):
            fleet.turn()
    fleet.run(GIVE_UP_S)
    assert owned_elsewhere(fleet) == []


def _change(fleet: Fleet, weights: dict[str, float], step: str) -> None:
    owning = [id for id, weight in weights.items() if weight]
    if step == "add":
        id = f"n{fleet.view.epoch}"
        weights[id] = fleet.random.choice([0.5, 1.0, 2.0])
        fleet.add(id)
    elif step == "drain" and len(owning) > 1:
        weights[fleet.random.choice(owning)] = 0.0
    elif step == "lose" and len(owning) > 1:
        id = fleet.random.choice(owning)
        del weights[id], fleet.nodes[id]
    else:
        return
    fleet.members(*(member(id, weight) for id, weight in weights.items()))


def test_a_disk_without_answers_is_left_out_of_the_scan_in_the_end() -> None:
    """Until then nothing is settled: the new owners look for its blocks here."""
    giver = MigrationDecisions("a")
    giver.handle(ViewReceived(View(1, (member("b"),), (member("a"),))), 0.0)
    now_s, scans = 0.0, list[Scan]()
    while not scans or not scans[-1].leaves_out_silent:
        now_s += SCAN_PAUSE_S
        actions = giver.handle(TimePassed(), now_s)
        scans += [action for action in actions if isinstance(action, Scan)]
        giver.handle(Scanned(1, (), b"", failed=True), now_s)
        giver.check_invariants()
        assert giver.settled == 0
    assert GIVE_UP_S <= now_s <= GIVE_UP_S + 3 * SCAN_PAUSE_S
    (scan,) = giver.handle(TimePassed(), now_s + SCAN_PAUSE_S)
    assert scan == Scan(1, b"", SCAN_CONTENTS, leaves_out_silent=True)
    (scan,) = giver.handle(Scanned(1, (), b"k"), now_s + SCAN_PAUSE_S)
    assert scan == Scan(1, b"k", SCAN_CONTENTS, leaves_out_silent=True), "also the rest of it"
    giver.handle(Scanned(1, (), b""), now_s + SCAN_PAUSE_S)
    assert giver.settled == 1
    giver.handle(ViewReceived(View(2, (member("c"),), (member("b"),))), now_s)
    (scan,) = giver.handle(TimePassed(), now_s + SCAN_PAUSE_S)
    assert scan == Scan(2, b"", SCAN_CONTENTS)


def test_a_bucket_owes_what_was_charged_too_much() -> None:
    bucket = TokenBucket(100.0)
    bucket.charge(110.0, 0.0)
    assert bucket.wait_s(0.0) == pytest.approx(1.0)
    assert not bucket.is_open(0.9)
    assert bucket.is_open(1.1)
    assert bucket.wait_s(1000.0) == 0.0
    bucket.charge(20.0, 1000.0)
    assert bucket.wait_s(1000.0) == pytest.approx(0.1), "no more than the burst was saved"
    with pytest.raises(ValueError, match="rate"):
        TokenBucket(0.0)
