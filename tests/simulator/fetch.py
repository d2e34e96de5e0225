"""One piece of a file on its way to a node: the real search decides whom to ask, this does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachefs.core.errors import CacheFSError, Unreachable
from tests.simulator.network import Call
from tests.simulator.origin import BAD, File, Page
from worker.fill.source import NotHere, Purpose
from worker.migration import events as mv
from worker.peers.source_selection import (
    Action,
    Answer,
    Answered,
    Ask,
    BodyFailed,
    Candidate,
    Close,
    Event,
    Failed,
    GiveUp,
    Refresh,
    Refreshed,
    RequestMode,
    SourceSelection,
    Take,
    Tick,
    UseOrigin,
)

if TYPE_CHECKING:
    from tests.simulator.worker import WorkerServer

PIECE_PAGES = 8
ORIGIN_DEADLINE_S = 20.0
ORIGIN_PAUSE_S = 0.5
CLOCK_S = 1e-4  # nobody is woken before his time, however it is rounded
CALL_S = 60.0  # longer than a search waits


@dataclass(frozen=True, slots=True)
class GetData:
    """Pages of one block."""

    key: bytes
    ino: int
    first: int
    end: int
    epoch: int
    way: RequestMode
    replicas: int
    asker: Fetch  # whose question it is, and to whom: for checks only
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Data:
    """An answer to `GetData`: with `HAS`, (bytes, checksum) of the pages from the first one on."""

    answer: Answer
    body: tuple[tuple[Page, Page], ...] = ()
    at_once: bool = True


@dataclass(frozen=True, slots=True)
class Doubt:
    """A page of yours had not its checksum."""

    key: bytes
    page: int


Heard = Callable[[int, Page, bool], None]  # page, its bytes, from a peer
Ended = Callable[[CacheFSError | None], None]


class Fetch:
    """Pages [first, end) of one block. `on_page` hears of each as it comes, `on_end` of the end."""

    def __init__(
        self,
        node: WorkerServer,
        file: File,
        first: int,
        end: int,
        purpose: Purpose,
        *,
        on_page: Heard,
        on_end: Ended,
        on_cut_off: Callable[[], None],
    ) -> None:
        self._node = node
        self._file = file
        self._first = first
        self._end = end
        self._purpose = purpose
        self._on_page = on_page
        self._on_end = on_end
        self._on_cut_off = on_cut_off
        self._calls: dict[Candidate, Call] = {}
        self.waits_for: dict[Candidate, Fetch] = {}  # what is on its way to who was asked for it
        self._started_s = node.process.now_s
        self._until_s = node.process.now_s + ORIGIN_DEADLINE_S
        self._waking_s = float("inf")
        self._troubled: set[str] = set()  # peers with whom something went, or had gone, wrong
        self._said_no: dict[str, int] = {}  # asked for which page a peer said so
        self._bodies: dict[Candidate, Data] = {}
        self._is_cut_off = self._is_refreshing = False
        self._asked_origin_s = 0.0
        self._search: SourceSelection

    def start(self) -> None:
        """Also for what is still to come after a part of it."""
        self._started_s = self._node.process.now_s
        self._candidates = self._find()
        self._search = SourceSelection(
            self._node.peers,
            self._file.key,
            self._candidates,
            may_ask_origin=self._purpose is not Purpose.MIGRATE,
        )
        self._tell(Tick())

    def check_waits(self) -> None:
        """Nothing on its way waits, by way of others, for itself."""
        seen: set[Fetch] = set()
        next_ones = [*self._waited]
        while next_ones:
            fetch = next_ones.pop()
            assert fetch is not self, "nodes wait for each other"
            if fetch not in seen:
                seen.add(fetch)
                next_ones += fetch._waited

    @property
    def _waited(self) -> list[Fetch]:
        return [
            fetch
            for candidate, fetch in self.waits_for.items()
            if candidate in self._calls
            and not self._calls[candidate].is_over
            and fetch._node.process.is_alive
            and fetch._first < fetch._end
        ]

    def _find(self) -> list[Candidate]:
        return self._node.candidates(self._file, self._first, self._purpose)

    def _tell(self, event: Event) -> None:
        search = self._search
        self._troubled |= self._node.avoided(self._candidates)
        actions = search.handle(event, self._node.process.now_s)
        search.check_invariants()
        for action in actions:
            self._act(action)
        if search is self._search:
            self._wake_later(search)

    def _wake_later(self, search: SourceSelection) -> None:
        if search.wake_at_s < self._waking_s:
            self._waking_s = search.wake_at_s
            delay_s = max(0.0, search.wake_at_s - self._node.process.now_s) + CLOCK_S
            self._node.process.after(delay_s, lambda: self._wake(search))

    def _wake(self, search: SourceSelection) -> None:
        if search is not self._search or self._first == self._end:
            return
        self._waking_s = float("inf")
        if self._is_refreshing:
            return
        if self._node.process.now_s >= search.wake_at_s:
            self._tell(Tick())
        else:
            self._wake_later(search)

    def _act(self, action: Action) -> None:
        match action:
            case Ask(candidate):
                self._ask(candidate)
            case Close(candidate):
                call = self._calls.pop(candidate, None)
                if call is not None:
                    if not call.is_over:
                        self._troubled.add(candidate.peer)  # nobody knows what it would have said
                    call.cancel()
            case Take(candidate):
                self._take(self._bodies.pop(candidate))
            case Refresh():
                self._is_refreshing = True  # which is waited for, with nothing else
                self._node.refresh_view(self._refreshed)
            case UseOrigin():
                self._ask_origin()
            case GiveUp():
                self._finish(NotHere("nobody has it"))

    # ---- peers ----

    def _ask(self, candidate: Candidate) -> None:
        node = self._node
        file, replicas = self._file, node.replicas_of(self._file.key)
        data = GetData(
            file.key, file.ino, self._first, self._end, candidate.epoch, candidate.way, replicas,
            self, candidate,
        )  # fmt: skip
        asks = self._purpose in (Purpose.READ, Purpose.CUT_OFF)
        assert candidate.way is RequestMode.HAVE or asks, (
            "who brings something for a peer waits for another peer"
        )

        def answered(answer: object) -> None:
            if isinstance(answer, Data):
                self._is_cut_off |= answer.answer is Answer.CUT_OFF
                if answer.answer is Answer.HAS_NOT:
                    self._said_no[candidate.peer] = data.first
                self._bodies[candidate] = answer
                self._tell(Answered(candidate, answer.answer, answer.at_once))
            else:
                self._troubled.add(candidate.peer)
                self._tell(Failed(candidate))

        self.waits_for.pop(candidate, None)
        self._calls[candidate] = node.call(candidate.url, data, answered, limit_s=CALL_S)

    def _refreshed(self) -> None:
        self._is_refreshing = False
        self._candidates = self._find()
        self._tell(Refreshed(self._candidates))

    def _take(self, data: Data) -> None:
        """The body as it comes: a wrong page, or an early end, is known when it is reached."""
        taken = self._taken_from = self._search._taken
        assert taken is not None
        for value, checksum in data.body:
            if self._node.world.garbles():
                value = BAD
            if value != checksum:
                doubt = Doubt(self._file.key, self._first)
                self._node.call(taken.url, doubt, lambda answer: None, limit_s=5.0)
                self._troubled.add(taken.peer)
                return self._tell(BodyFailed(wrong=True))
            self._on_page(self._first, value, True)
            self._first += 1
        if self._first == self._end:
            return self._finish(None)
        if len(data.body) == 0:
            self._troubled.add(taken.peer)
            return self._tell(BodyFailed())
        self._waking_s = float("inf")
        self.start()

    # ---- the origin ----

    def _ask_origin(self) -> None:
        node = self._node
        elsewhere = {peer for peer, page in self._said_no.items() if page != self._first}
        excused = self._troubled | elsewhere
        self._asked_origin_s = node.process.now_s
        if not self._is_cut_off:
            node.world.check_use_of_origin(
                node, self._file, self._first, self._candidates, excused, self._started_s
            )
        up_to_date = node.view.epoch == node.world.master.view().epoch
        node.world.origin.read(
            node.process,
            self._file,
            self._first,
            self._end,
            self._from_origin,
            up_to_date=up_to_date,
        )

    def _from_origin(self, found: list[Page] | CacheFSError) -> None:
        code = found.code if isinstance(found, CacheFSError) else ""
        self._node.reach.ended(code, self._asked_origin_s, self._node.process.now_s)
        if not isinstance(found, CacheFSError):
            for value in found:
                self._on_page(self._first, value, False)
                self._first += 1
            return self._finish(None)
        if self._node.process.now_s + ORIGIN_PAUSE_S >= self._until_s:
            return self._finish(Unreachable("the origin is not there"))
        block = self._first // mv.BLOCK_PAGES
        if self._purpose is Purpose.SERVE and self._node.is_cut_off(self._file, block):
            self._purpose = Purpose.CUT_OFF
            self._on_cut_off()
        self._node.process.after(ORIGIN_PAUSE_S, self._again)

    def _again(self) -> None:
        self._waking_s = float("inf")
        self.start()

    def _finish(self, error: CacheFSError | None) -> None:
        self._end = self._first
        for call in self._calls.values():
            call.cancel()
        self._on_end(error)
