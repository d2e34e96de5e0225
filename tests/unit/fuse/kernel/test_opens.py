"""OPEN and RELEASE against a kernel that answers EIO where the real one does, with deaths of the
process at every step that matters."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cachefs.core.errors import ReadOnly, Stale, TooManyOpenFiles
from cachefs.core.model import nodeid, split_nodeid
from cachefs.fuse.handles import FileHandle
from cachefs.fuse.kernel import table as table_module
from cachefs.fuse.kernel.codec import RESENT
from cachefs.fuse.kernel.opens import Opens
from cachefs.fuse.kernel.table import Mode, TakeoverTable
from cachefs.fuse.server_calls import MUST_WAIT
from tests.services.examples import examples
from tests.unit.fuse.kernel.fake_kernel import Died, FakeDevice, FakeKernel, FakeVfs

INO = 5


def done(coroutine: Coroutine[Any, Any, bytes]) -> bytes:
    """The result of what never has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: bytes = end.value
        return result
    raise AssertionError("it waits")


class Client:
    """A process that serves opens, its successors, and the kernel in front of them."""

    def __init__(self, why_not: str = "") -> None:
        self.vfs = FakeVfs()
        self.device = FakeDevice()
        self.kernel = FakeKernel(self.device)
        self.table = TakeoverTable.create()
        self.why_not = why_not
        self.opens = self._opens()
        self.unique = 0

    def _opens(self) -> Opens:
        return Opens(self.vfs, self.device, self.table, self.why_not)  # type: ignore[arg-type]

    def answer(self, unique: int, where: int) -> bytes:
        reply = self.opens.open_nowait(unique, where, os.O_RDONLY, 1)
        if reply is MUST_WAIT:
            reply = done(self.opens.open(unique, where, os.O_RDONLY, 1))
        assert not isinstance(reply, type(MUST_WAIT))
        return reply

    def open(self, where: int) -> int:
        """The handle."""
        self.unique += 2
        return self.kernel.take(self.unique, where, self.answer(self.unique, where))

    def close(self, where: int, fh: int) -> None:
        self.kernel.close(where, fh)
        self.opens.release(where, fh)

    def die(self) -> None:
        """A successor takes over; the table is all it has."""
        self.vfs.table = type(self.vfs.table)()
        table = TakeoverTable(os.dup(self.table.fd))
        self.table.close()
        self.table = table
        self.opens = self._opens()
        self.opens.adopt()

    def mode(self, where: int) -> Mode | None:
        node = self.opens.nodes.get(where)
        return node.mode if node is not None else None


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    made.vfs.add(INO)
    yield made
    made.table.close()
    made.vfs.close()


# ---- modes ----


def test_a_complete_file_goes_to_the_kernel_and_is_given_back(client: Client) -> None:
    client.vfs.complete.add(INO)
    first, second = client.open(INO), client.open(INO)
    assert client.device.tries == 1, "one backing file for all opens"
    assert len(client.vfs.table) == 0, "no descriptor stays"
    client.close(INO, first)
    assert client.device.backing
    client.close(INO, second)
    assert client.device.backing == {}
    assert len(client.table) == 0


def test_an_open_for_writing_does_not_join(client: Client) -> None:
    """The kernel would open the cache file as the caller asks, and write into it."""
    client.vfs.complete.add(INO)
    client.open(INO)
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_TRUNC, os.O_CREAT, os.O_ACCMODE):
        with pytest.raises(ReadOnly):
            client.opens.open_nowait(1000, INO, flags, 1)
    assert len(client.table) == 1


def test_a_partial_file_is_asked_for(client: Client) -> None:
    fh = client.open(INO)
    assert client.mode(INO) is Mode.CACHED
    assert client.device.tries == 0
    assert client.vfs.table.get(fh).ino == INO
    client.close(INO, fh)
    assert len(client.vfs.table) == len(client.table) == 0


def test_who_opens_what_has_become_complete_is_sent_back_once(client: Client) -> None:
    client.open(INO)
    client.vfs.complete.add(INO)
    with pytest.raises(Stale):
        client.answer(100, INO)
    assert client.opens.nodes.current(INO) == nodeid(INO, 1)
    client.open(nodeid(INO, 1))
    assert client.mode(nodeid(INO, 1)) is Mode.PASSTHROUGH
    client.open(INO)  # through /proc/PID/fd: served where it is
    assert client.mode(INO) is Mode.CACHED
    assert client.vfs.dropped == 1


def test_who_was_sent_back_before_a_death_is_not_sent_back_after_it(client: Client) -> None:
    client.open(INO)
    client.vfs.complete.add(INO)
    with pytest.raises(Stale):
        client.answer(100, INO)
    client.die()
    looked_up = client.opens.nodes.current(INO)
    client.open(looked_up)
    assert client.mode(looked_up) is Mode.PASSTHROUGH


def test_an_open_file_on_a_disk_that_hangs_is_opened_past_it(client: Client) -> None:
    client.vfs.complete.add(INO)
    client.open(INO)
    client.vfs.out = {0}
    with pytest.raises(Stale):
        client.answer(100, INO)
    client.vfs.complete.clear()
    client.open(nodeid(INO, 1))
    assert client.mode(nodeid(INO, 1)) is Mode.CACHED


@pytest.mark.parametrize("complete", [True, False])
def test_an_open_file_of_which_bytes_may_be_lost_is_not_joined(
    client: Client, complete: bool
) -> None:
    """[S-lost-writes]"""
    if complete:
        client.vfs.complete.add(INO)
    client.open(INO)
    client.vfs.on_doubt(1)
    if complete:
        client.open(INO)  # of another tier
    client.vfs.on_doubt(0)
    with pytest.raises(Stale):
        client.answer(100, INO)
    client.open(nodeid(INO, 1))


@pytest.mark.parametrize("complete", [True, False])
def test_a_file_that_a_predecessor_had_open_is_not_joined_where_bytes_may_be_lost(
    client: Client, complete: bool
) -> None:
    """[S-lost-writes] The server has told the successor of the loss before it took over."""
    if complete:
        client.vfs.complete.add(INO)
    client.open(INO)
    before = client.opens.nodes.current(INO)
    client.vfs.keeps_pages = False
    client.die()
    with pytest.raises(Stale):
        client.answer(100, INO)
    assert client.opens.nodes.current(INO) != before
    client.open(client.opens.nodes.current(INO))


@pytest.mark.parametrize("by_a_predecessor", [False, True])
def test_an_open_file_of_another_tier_than_the_one_that_hangs_stays_as_it_is(
    client: Client, by_a_predecessor: bool
) -> None:
    """Unless a predecessor opened it: which tier it is of is not known then."""
    client.vfs.complete.add(INO)
    client.vfs.tier = 1
    client.open(INO)
    if by_a_predecessor:
        client.die()
    client.vfs.out = {0}
    if by_a_predecessor:
        with pytest.raises(Stale):
            client.answer(100, INO)
    else:
        client.open(INO)
        client.vfs.out = {1}
        with pytest.raises(Stale):
            client.answer(102, INO)


@pytest.mark.parametrize("complete", [False, True])
def test_the_nodeid_of_a_former_file_never_opens_the_one_that_has_its_ino(
    client: Client, complete: bool
) -> None:
    if complete:
        client.vfs.complete.add(INO)
    fh = client.open(INO)
    client.vfs.on_given_again(INO)
    client.vfs.add(INO, complete=True)  # the other file
    if complete:
        client.open(INO)  # through /proc/PID/fd: the file that the kernel has
        assert client.device.tries == 1
    else:
        with pytest.raises(Stale):
            client.answer(100, INO)
    client.open(client.opens.nodes.current(INO))
    assert client.mode(nodeid(INO, 1)) is Mode.PASSTHROUGH
    assert client.device.tries == 1 + complete
    client.close(INO, fh)


def test_a_former_file_that_nobody_has_open_is_stale(client: Client) -> None:
    client.vfs.complete.add(INO)
    client.vfs.on_given_again(INO)
    with pytest.raises(Stale):
        client.answer(100, INO)


def test_a_file_that_became_a_former_one_while_the_server_was_asked_is_stale(
    client: Client,
) -> None:
    asking = client.opens.open(100, INO, os.O_RDONLY, 1)
    open_file = client.vfs.open_file

    async def overtaken(nodeid: int, flags: int, pid: int) -> FileHandle:
        client.vfs.on_given_again(INO)
        return await open_file(nodeid, flags, pid)

    client.vfs.open_file = overtaken  # type: ignore[method-assign]
    with pytest.raises(Stale):
        done(asking)
    assert client.vfs.dropped == 1


def test_a_successor_knows_the_nonce_of_what_it_opens_again(client: Client) -> None:
    client.vfs.nonce = 77
    fh = client.open(INO)
    client.die()
    assert client.vfs.table.get(fh).nonce == 77


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("dies", [True, False])
def test_the_attributes_of_an_open_file_are_kept_until_its_last_release(
    client: Client, complete: bool, dies: bool
) -> None:
    """Those with which it was opened, by whichever handle; a former file keeps its own."""
    if complete:
        client.vfs.complete.add(INO)
    client.vfs.nonce = 77
    inode = client.vfs.inode(INO)
    first, second = client.open(INO), client.open(INO)
    client.vfs.on_given_again(INO)
    client.vfs.nonce = 78
    other = client.open(client.opens.nodes.current(INO))
    if dies:
        client.die()
    assert client.vfs.inode_of_open(nodeid(INO, 1)) == client.vfs.inode(INO)
    client.close(nodeid(INO, 1), other)
    assert client.vfs.inode_of_open(nodeid(INO, 1)) is None
    for fh in (first, second):
        assert client.vfs.inode_of_open(INO) == inode
        client.close(INO, fh)
    assert client.vfs.inode_of_open(INO) is None


def test_attributes_that_an_earlier_table_lacks_are_not_made_up(client: Client) -> None:
    client.vfs.complete.add(INO)
    client.table.add(1, INO, Mode.PASSTHROUGH, client.vfs.inode(INO), has_attributes=False)
    client.table.set_backing(1, 1, is_new=True)
    client.die()
    client.unique = 100
    client.answer(100, INO)  # joins
    client.opens.release(INO, 1)
    assert client.vfs.inode_of_open(INO) is None


def test_an_evicted_file_that_is_fetched_again_meets_its_old_opens(client: Client) -> None:
    client.vfs.complete.add(INO)
    client.open(INO)
    client.vfs.complete.discard(INO)
    client.open(INO)  # the kernel still has the file
    client.vfs.add(INO, complete=True)  # another file with the same bytes
    client.open(INO)
    assert client.device.tries == 1


def test_two_cold_opens_that_end_complete_share_one_file(client: Client) -> None:
    """Both asked the server; the second answer finds the nodeid open."""
    client.vfs.complete.add(INO)
    for unique in (2, 4):
        client.kernel.take(unique, INO, done(client.opens.open(unique, INO, os.O_RDONLY, 1)))
    assert client.device.tries == 1
    assert client.vfs.dropped == 2
    assert client.mode(INO) is Mode.PASSTHROUGH


def test_is_open_says_so_for_every_incarnation(client: Client) -> None:
    client.vfs.complete.add(INO)
    assert not client.vfs.is_open_elsewhere(INO)
    fh = client.open(nodeid(INO, 3))
    assert client.vfs.is_open_elsewhere(INO)
    client.close(nodeid(INO, 3), fh)
    assert not client.vfs.is_open_elsewhere(INO)


# ---- delivery at least once ----


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("dies", [True, False])
def test_an_open_that_comes_again_is_the_same(client: Client, complete: bool, dies: bool) -> None:
    if complete:
        client.vfs.complete.add(INO)
    reply = client.answer(10, INO)
    if dies:
        client.die()
    again = client.answer(10 | RESENT, INO)
    assert again == reply[:8] + (10 | RESENT).to_bytes(8, "little") + reply[16:]
    assert client.device.tries == (1 if complete else 0)
    assert len(client.table) == 1
    assert len(client.vfs.table) == (0 if complete else 1)
    client.kernel.take(10 | RESENT, INO, again)
    client.close(INO, 10)
    assert client.device.backing == {}
    assert len(client.table) == len(client.vfs.table) == 0


@pytest.mark.parametrize("complete", [True, False])
def test_a_release_that_comes_twice_is_one(client: Client, complete: bool) -> None:
    if complete:
        client.vfs.complete.add(INO)
    other, fh = client.open(INO), client.open(INO)
    client.close(INO, fh)
    client.opens.release(INO, fh)
    assert client.mode(INO) is not None
    client.close(INO, other)
    client.die()
    client.opens.release(INO, other)
    assert len(client.table) == len(client.opens.nodes) == 0


def test_a_successor_gives_back_what_nobody_knows(client: Client) -> None:
    client.vfs.add(6, complete=True)
    kept = client.open(6)
    fd = os.memfd_create("of a request that is not answered")
    client.device.open_backing(fd)
    os.close(fd)
    client.die()
    assert list(client.device.backing) == [1]
    client.close(6, kept)
    assert client.device.backing == {}


@pytest.mark.parametrize("deaths", [1, 2, 3, 5])
def test_many_deaths_at_the_same_open(client: Client, deaths: int) -> None:
    """Each has registered the file and written nothing down."""

    def on_call(what: str) -> None:
        if what == "after BACKING_OPEN":
            raise Died

    client.vfs.complete.add(INO)
    client.device.on_call = on_call
    for _ in range(deaths):
        with pytest.raises(Died):
            client.answer(10, INO)
        client.die()
        assert client.device.backing == {}
    client.device.on_call = lambda _what: None
    client.kernel.take(10, INO, client.answer(10, INO))


# ---- refusals ----


@pytest.mark.parametrize(
    "refusal", [errno.EPERM, errno.ELOOP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY]
)
@pytest.mark.parametrize("published", [True, False])
def test_a_kernel_that_refuses_asks_us(client: Client, refusal: int, published: bool) -> None:
    client.vfs.complete.add(INO)
    client.device.refusal = refusal
    if published:
        fh = client.open(INO)
    else:
        fh = client.kernel.take(2, INO, done(client.opens.open(2, INO, os.O_RDONLY, 1)))
    assert client.opens.why_not != ""
    assert client.mode(INO) is Mode.CACHED
    assert client.vfs.table.get(fh).complete
    tries = client.device.tries
    client.open(INO)
    assert client.device.tries == tries, "not tried again"
    assert client.opens.cached_opens == 2


def test_passthrough_that_may_not_be_used_is_not_tried() -> None:
    client = Client(why_not="switched off")
    client.vfs.add(INO, complete=True)
    client.open(INO)
    client.open(INO)
    assert client.device.tries == 0
    assert client.mode(INO) is Mode.CACHED
    client.table.close()
    client.vfs.close()


def test_refused_from_now_on_but_what_is_open_goes_on(client: Client) -> None:
    client.vfs.complete.add(INO)
    client.open(INO)
    client.device.refusal = errno.EPERM
    client.vfs.add(6, complete=True)
    client.open(6)
    client.open(INO)
    assert client.mode(INO) is Mode.PASSTHROUGH
    assert client.mode(6) is Mode.CACHED


@pytest.mark.parametrize("failure", [errno.EMFILE, errno.ENFILE])
def test_no_descriptor_left_is_said_and_leaves_nothing(client: Client, failure: int) -> None:
    client.vfs.failure = OSError(failure, "too many")
    with pytest.raises(OSError, match="too many"):
        client.answer(2, INO)
    client.vfs.failure = None
    client.vfs.complete.add(INO)
    client.device.refusal = failure
    with pytest.raises(OSError):
        client.answer(4, INO)
    assert client.opens.why_not == "", "a passing want is no refusal"
    assert len(client.table) == len(client.opens.nodes) == 0


@pytest.mark.parametrize("complete", [True, False])
def test_a_full_table_leaves_nothing_open(
    complete: bool, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    if complete:
        client.vfs.complete.add(INO)
    monkeypatch.setattr(table_module, "SLOTS", 2)
    first = client.open(INO)
    client.open(INO)
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(TooManyOpenFiles):
        client.answer(100, INO)
    client.vfs.add(6, complete=complete)
    with pytest.raises(TooManyOpenFiles):
        client.answer(102, 6)
    assert len(os.listdir("/proc/self/fd")) == descriptors + 1, "the new file's own"
    assert client.mode(6) is None
    client.close(INO, first)
    client.open(6)


# ---- anything, in any order ----

DEATHS = (
    "before BACKING_OPEN", "after BACKING_OPEN", "before the reply", "before BACKING_CLOSE",
    "after BACKING_CLOSE", "never",
)  # fmt: skip
inos = st.integers(5, 7)


class Histories(RuleBasedStateMachine):
    """No answer makes the kernel say EIO, nobody is sent back twice, nothing leaks."""

    @initialize()
    def start(self) -> None:
        self.client = Client()
        for ino in range(5, 8):
            self.client.vfs.add(ino)

    def teardown(self) -> None:
        if hasattr(self, "client"):
            self.client.vfs.close()
            self.client.table.close()

    def surely(self, work: Callable[[], bytes | None], death: str) -> bytes | None:
        """The answer of a process that dies once on the way, or of its successor."""

        def on_call(what: str) -> None:
            if what == death:
                self.client.device.on_call = lambda _what: None
                raise Died

        self.client.device.on_call = on_call
        try:
            answer = work()
            if death == "before the reply":
                raise Died
        except Died:
            self.client.die()
            answer = work()
        finally:
            self.client.device.on_call = lambda _what: None
        return answer

    def open_at(self, where: int, death: str) -> bool:
        self.client.unique += 2
        unique = self.client.unique
        try:
            reply = self.surely(lambda: self.client.answer(unique, where), death)
        except Stale:
            return False
        assert reply is not None
        self.client.kernel.take(unique, where, reply)
        return True

    @rule(ino=inos, death=st.sampled_from(DEATHS))
    def open_by_name(self, ino: int, death: str) -> None:
        current = self.client.opens.nodes.current
        assert self.open_at(current(ino), death) or self.open_at(current(ino), "never"), "ESTALE"

    @precondition(lambda self: self.client.kernel.files)
    @rule(data=st.data(), death=st.sampled_from(DEATHS))
    def open_without_a_name(self, data: st.DataObject, death: str) -> None:
        where = data.draw(st.sampled_from(sorted(self.client.kernel.files)))
        assert self.open_at(where, death) or self.open_at(where, "never"), "ESTALE"

    @precondition(lambda self: self.client.kernel.files)
    @rule(data=st.data(), death=st.sampled_from(DEATHS))
    def release(self, data: st.DataObject, death: str) -> None:
        files = self.client.kernel.files
        where = data.draw(st.sampled_from(sorted(files)))
        fh = data.draw(st.sampled_from(sorted(files[where])))
        self.client.kernel.close(where, fh)
        self.surely(lambda: self.client.opens.release(where, fh), death)

    @rule(ino=inos)
    def complete(self, ino: int) -> None:
        self.client.vfs.complete.add(ino)

    @rule(ino=inos)
    def evict(self, ino: int) -> None:
        self.client.vfs.complete.discard(ino)
        self.client.vfs.add(ino)

    @rule()
    def die(self) -> None:
        self.client.die()

    @invariant()
    def nothing_leaks(self) -> None:
        client = self.client
        client.opens.nodes.check_invariants()
        client.vfs.table.check_invariants()
        handles = {fh for files in client.kernel.files.values() for fh in files}
        cached = {fh for files in client.kernel.files.values() for fh, f in files.items() if not f}
        assert {slot.fh for slot in client.table.slots()} == handles
        assert len(client.vfs.table) == len(cached)
        ids = {slot.backing_id for slot in client.table.slots()} - {0}
        assert set(client.device.backing) == ids
        for ino in range(5, 8):
            is_open = any(split_nodeid(where)[0] == ino for where in client.kernel.files)
            assert client.vfs.is_open_elsewhere(ino) == is_open
        for where in client.kernel.files:
            assert client.vfs.inode_of_open(where) == client.vfs.inode(split_nodeid(where)[0])


Histories.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=30, deadline=None
)
TestHistories = Histories.TestCase
