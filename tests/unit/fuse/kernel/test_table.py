"""The takeover table against a dict, over many lives of its writer, and its death at any byte."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachefs.core.errors import TooManyOpenFiles, Unsupported
from cachefs.core.model import MAX_INO, Inode, Kind
from cachefs.fuse.kernel import table as module
from cachefs.fuse.kernel.table import Mode, Slot, TakeoverTable
from tests.services.examples import examples

FEW_SLOTS = 8


@pytest.fixture
def few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOTS", FEW_SLOTS)


@pytest.fixture
def table() -> Iterator[TakeoverTable]:
    made = TakeoverTable.create()
    yield made
    made.close()


def again(table: TakeoverTable) -> TakeoverTable:
    """As a successor maps it."""
    return TakeoverTable(os.dup(table.fd))


def content(nodeid: int, size: int, nonce: int = 0) -> Inode:
    """An inode whose attributes all have a sign or more than one byte."""
    return Inode(
        nodeid & MAX_INO, Kind.FILE, size, size - 1_700_000_000_123_456_789, version=1 << 31,
        nonce=nonce, mode=0o640, uid=70_000, gid=-1,
    )  # fmt: skip


def by_fh(table: TakeoverTable) -> dict[int, Slot]:
    return {slot.fh: slot for slot in table.slots()}


# ---- what it does ----


def test_a_successor_finds_what_is_open(table: TakeoverTable) -> None:
    table.add(7, 1 << 48 | 5, Mode.PASSTHROUGH, content(1 << 48 | 5, 9 << 30))
    table.set_backing(7, 70_000, is_new=True)
    table.add(8, 6, Mode.CACHED, content(6, 0))
    successor = again(table)
    assert by_fh(successor) == {
        7: Slot(7, 1 << 48 | 5, content(1 << 48 | 5, 9 << 30), 70_000, Mode.PASSTHROUGH),
        8: Slot(8, 6, content(6, 0), 0, Mode.CACHED),
    }
    assert len(successor) == 2
    assert 7 in successor
    assert 9 not in successor
    assert successor.last_backing_id == 70_000
    successor.close()


def test_an_id_that_another_handle_registered_is_not_the_last_one(table: TakeoverTable) -> None:
    for fh, backing_id in ((1, 5), (2, 9)):
        table.add(fh, fh, Mode.PASSTHROUGH, content(fh, 1))
        table.set_backing(fh, backing_id, is_new=True)
    table.add(3, 1, Mode.PASSTHROUGH, content(1, 1))
    table.set_backing(3, 5, is_new=False)
    assert table.last_backing_id == 9


def test_a_handle_that_is_closed_twice_is_gone_once(table: TakeoverTable) -> None:
    table.add(7, 5, Mode.CACHED, content(5, 1))
    table.remove(7)
    table.remove(7)
    assert len(table) == 0
    table.add(8, 5, Mode.CACHED, content(5, 1))
    table.add(9, 5, Mode.CACHED, content(5, 1))
    assert set(by_fh(again(table))) == {8, 9}, "the slot was given to one of them only"


def test_what_was_being_given_back_is_told_once(table: TakeoverTable) -> None:
    table.add(7, 5, Mode.PASSTHROUGH, content(5, 1))
    table.set_backing(7, 3, is_new=True)
    table.closing(7)
    successor = again(table)
    assert len(successor) == 0
    assert successor.take_closing() == [3]
    assert successor.take_closing() == []
    assert again(table).take_closing() == []


def test_a_full_table_refuses_and_goes_on(few_slots: None) -> None:
    table = TakeoverTable.create()
    for fh in range(FEW_SLOTS):
        table.add(fh, 5, Mode.CACHED, content(5, 1))
    with pytest.raises(TooManyOpenFiles):
        table.add(99, 5, Mode.CACHED, content(5, 1))
    assert len(table) == FEW_SLOTS
    table.add(3, 6, Mode.CACHED, content(6, 1))  # is there already
    table.remove(0)
    table.add(99, 5, Mode.CACHED, content(5, 1))
    successor = again(table)
    assert set(by_fh(successor)) == {1, 2, 3, 4, 5, 6, 7, 99}
    with pytest.raises(TooManyOpenFiles):
        successor.add(100, 5, Mode.CACHED, content(5, 1))
    table.close()
    successor.close()


# ---- tables of others ----


def test_a_table_of_another_version_is_refused(table: TakeoverTable) -> None:
    os.pwrite(table.fd, struct.pack("<I", module.VERSION + 1), 8)
    with pytest.raises(Unsupported, match=f"version {module.VERSION + 1}"):
        again(table)


def made_by(version: int) -> TakeoverTable:
    """A table as that version made it, with an open handle."""
    fd = os.memfd_create(f"version {version}")
    nonces_at = 4096 + 32 * module.SLOTS
    os.ftruncate(fd, nonces_at + (8 * module.SLOTS if version == 2 else 0))
    os.pwrite(fd, struct.pack("<8sIIIII", b"cachefs\0", version, 32, module.SLOTS, 1, 0), 0)
    os.pwrite(fd, struct.pack("<QQQiBxxB", 7, 6, 5, 0, Mode.CACHED, 1), 4096)
    if version == 2:
        os.pwrite(fd, struct.pack("<Q", 1 << 63 | 4), nonces_at)
    return TakeoverTable(fd)


@pytest.mark.parametrize("version", [1, 2])
def test_a_table_of_an_earlier_version_is_taken_over_with_what_it_has(version: int) -> None:
    table = made_by(version)
    assert table.has_nonces == (version == 2)
    nonce = 1 << 63 | 4 if version == 2 else 0
    old = by_fh(table)[7]
    assert (old.inode.ino, old.inode.size, old.inode.nonce) == (6, 5, nonce)
    assert not old.has_attributes
    table.add(8, 6, Mode.CACHED, content(6, 5, nonce=9))
    assert table.slot(8).inode == content(6, 5, nonce=9), "the client itself keeps the rest"
    successor = again(table)
    assert successor.slot(7) == old
    assert successor.slot(8).inode.nonce == (9 if version == 2 else 0)
    assert not successor.slot(8).has_attributes
    table.close()
    successor.close()


def test_attributes_that_are_not_known_stay_unknown(table: TakeoverTable) -> None:
    table.add(7, 5, Mode.CACHED, content(5, 1), has_attributes=False)
    assert not again(table).slot(7).has_attributes
    table.remove(7)
    table.add(8, 5, Mode.CACHED, content(5, 1))
    assert again(table).slot(8).has_attributes


@pytest.mark.parametrize("at", [0, 12, 16], ids=["magic", "slot size", "slots"])
def test_a_table_of_another_shape_is_refused(table: TakeoverTable, at: int) -> None:
    os.pwrite(table.fd, b"\x7f", at)
    with pytest.raises(Unsupported):
        again(table)


@pytest.mark.parametrize("size", [0, 27, 4096, 1 << 20])
def test_a_file_of_another_size_is_refused(size: int) -> None:
    fd = os.memfd_create("short")
    os.ftruncate(fd, size)
    with pytest.raises(Unsupported):
        TakeoverTable(fd)
    os.close(fd)


# ---- against a dict ----

fhs = st.integers(1, 12)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), fhs, st.sampled_from(list(Mode))),
        st.tuples(st.just("id"), fhs, st.integers(1, 2**31 - 1)),
        st.tuples(st.just("closing"), fhs, st.none()),
        st.tuples(st.just("remove"), fhs, st.none()),
        st.tuples(st.just("again"), st.none(), st.none()),
    ),
    max_size=40,
)


class Model:
    """What a table should hold."""

    def __init__(self) -> None:
        self.slots: dict[int, Slot] = {}
        self.closing: dict[int, int] = {}

    def apply(self, table: TakeoverTable, what: str, fh: Any, value: Any) -> None:
        if what == "add" and fh not in self.closing:
            nonce = fh << 40 | 0x0102030405
            inode = content(fh << 48 | 5, fh * 1000, nonce)
            self.slots[fh] = Slot(fh, fh << 48 | 5, inode, 0, value)
            table.add(fh, fh << 48 | 5, value, inode)
        elif what == "id" and fh in self.slots:
            self.slots[fh] = self.slots[fh]._replace(backing_id=value)
            table.set_backing(fh, value, is_new=True)
        elif what == "closing" and fh in self.slots:
            self.closing[fh] = self.slots.pop(fh).backing_id
            table.closing(fh)
        elif what == "remove":
            self.slots.pop(fh, None)
            self.closing.pop(fh, None)
            table.remove(fh)


@settings(max_examples=examples(200), deadline=None)
@given(operations)
def test_any_history_reads_as_a_dict_does(history: list[tuple[str, Any, Any]]) -> None:
    table, model = TakeoverTable.create(), Model()
    tables = [table]
    for what, fh, value in history:
        if what == "again":
            tables.append(again(tables[-1]))
            assert sorted(tables[-1].take_closing()) == sorted(model.closing.values())
            model.closing.clear()
        model.apply(tables[-1], what, fh, value)
        open_or_closing = {*model.slots, *model.closing}
        assert set(by_fh(tables[-1])) | set(model.closing) == open_or_closing
    successor = again(tables[-1])
    assert by_fh(successor) == model.slots
    assert sorted(successor.take_closing()) == sorted(model.closing.values())
    for each in (*tables, successor):
        each.close()


# ---- death at any byte ----


class Recorder:
    """Stands for the mapping: notes every store, in order, as (offset, bytes).

    A `struct` packs by zeroing all of its bytes and storing them one by one; an item of a cast
    memoryview is one store.
    """

    def __init__(self, real: Any, item_bytes: int, stores: list[tuple[int, bytes]]) -> None:
        self.real = real
        self.stores = stores
        self.item_bytes = item_bytes

    def __getitem__(self, index: Any) -> Any:
        return self.real[index]

    def __setitem__(self, index: int, value: int) -> None:
        self.real[index] = value
        data = value.to_bytes(self.item_bytes, "little", signed=value < 0)
        self.stores.append((index * self.item_bytes, data))

    def release(self) -> None:
        self.real.release()

    def close(self) -> None:
        self.real.close()


class RecordingStruct:
    """Stands for a `struct.Struct`."""

    def __init__(self, real: struct.Struct) -> None:
        self.real = real
        self.size = real.size
        self.pack = real.pack
        self.unpack = real.unpack

    def unpack_from(self, buffer: Any, offset: int = 0) -> tuple[Any, ...]:
        return self.real.unpack_from(getattr(buffer, "real", buffer), offset)

    def pack_into(self, buffer: Any, offset: int, *values: int) -> None:
        self.real.pack_into(getattr(buffer, "real", buffer), offset, *values)
        if isinstance(buffer, Recorder):
            packed = self.real.pack(*values)
            for data in (bytes(len(packed)), packed):
                buffer.stores += [(offset + at, data[at : at + 1]) for at in range(len(packed))]


def recorded(monkeypatch: pytest.MonkeyPatch) -> tuple[TakeoverTable, list[tuple[int, bytes]]]:
    stores: list[tuple[int, bytes]] = []
    for name, value in list(vars(module).items()):
        if isinstance(value, struct.Struct):
            monkeypatch.setattr(module, name, RecordingStruct(value))
    table = TakeoverTable.create()
    for name, value in list(vars(table).items()):
        if name in ("_map", "_nonces", "_attributes", "_words"):
            size = 4 if name == "_words" else 1
            monkeypatch.setattr(table, name, Recorder(value, size, stores))
    return table, stores


def died_after(memory: bytearray) -> TakeoverTable:
    fd = os.memfd_create("died")
    os.write(fd, memory)
    os.ftruncate(fd, module._table_bytes(module.VERSION))
    return TakeoverTable(fd)


def whole(slot: Slot, states: list[dict[int, Slot]]) -> bool:
    """Is it one that the writer meant, with its id or without yet?"""
    meant = [state[slot.fh] for state in states if slot.fh in state]
    return slot in meant or any(slot == other._replace(backing_id=0) for other in meant)


def histories() -> list[list[tuple[str, Any, Any]]]:
    """Short ones that use every transition, with numbers of more than one byte."""
    grown = [("add", fh, Mode.CACHED) for fh in range(1, 300)]  # more than 255 slots were used
    passed = [("add", 400, Mode.PASSTHROUGH), ("id", 400, 0x010203)]
    return [
        grown[:5] + passed + [("closing", 400, None), ("remove", 400, None)],
        [*passed, ("add", 400, Mode.PASSTHROUGH), ("id", 400, 0x040506)],
        grown[250:262],
        [("add", 1, Mode.CACHED), ("remove", 1, None), *passed, ("add", 2, Mode.CACHED)],
        [*passed, ("add", 401, Mode.PASSTHROUGH), ("id", 401, 0x010204), ("remove", 400, None)],
    ]


@pytest.mark.no_cover
@pytest.mark.parametrize("history", histories())
def test_death_at_any_store_leaves_whole_slots_only(
    history: list[tuple[str, Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLOTS", 512)
    table, stores = recorded(monkeypatch)
    memory, model, last_ids = bytearray(os.pread(table.fd, 8 << 10, 0)), Model(), [0]
    memory = memory.ljust(module._table_bytes(module.VERSION), b"\0")
    if history[0][1] == 251:  # those before it need no look at each store
        for fh in range(1, 251):
            model.apply(table, "add", fh, Mode.CACHED)
    for what, fh, value in history:
        before = dict(model.slots)
        replay(stores, memory)
        model.apply(table, what, fh, value)
        last_ids += [value] if what == "id" else []
        states = [before, dict(model.slots)]
        check(died_after(memory), states, last_ids[-2:])
        for at, data in stores:
            if memory[at : at + len(data)] != data:  # else a death here leaves what one before did
                memory[at : at + len(data)] = data
                check(died_after(memory), states, last_ids[-2:])
        stores.clear()


def replay(stores: list[tuple[int, bytes]], memory: bytearray) -> None:
    for at, data in stores:
        memory[at : at + len(data)] = data
    stores.clear()


def check(died: TakeoverTable, states: list[dict[int, Slot]], last_ids: list[int]) -> None:
    before, after = states
    found = by_fh(died)
    for slot in found.values():
        assert whole(slot, states), f"half a slot: {slot}"
    untouched = {fh for fh in before if before[fh] == after.get(fh)}
    assert untouched <= set(found), "a slot that nobody touched is lost"
    assert died.last_backing_id in last_ids
    died.close()
