"""A worker's process: member of the cluster, server of its peers, reader for its mounts; with the
real decisions of peers, searches and migration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from cachefs.core import cluster as c
from cachefs.core.errors import CacheFSError, NoSpace, NotFound, Unreachable
from cachefs.core.messages import Done
from cachefs.core.pages import split
from cachefs.core.placement import Member, View
from connectors.reach import Reach
from tests.simulator import master
from tests.simulator.cache import MAKES_ROOM, Cache, Disk
from tests.simulator.fetch import PIECE_PAGES, Data, Doubt, Fetch, GetData
from tests.simulator.mounts import Mount
from tests.simulator.network import Call, failed
from tests.simulator.network import Done as Reply
from tests.simulator.origin import NAMESPACE, File, Page
from tests.simulator.schedule import Process
from tests.simulator.trees import Tree
from tests.simulator.views import NodeViews
from worker.cache.peer_reads import with_replicas
from worker.fill.source import NO_EPOCH, NotHere, Purpose
from worker.membership.member import is_newer
from worker.migration import events as mv
from worker.migration.decisions import MigrationDecisions
from worker.peers.ownership_map import OwnershipMap
from worker.peers.peer_health import PeerHealth
from worker.peers.server import LOOK_S
from worker.peers.source import Holders
from worker.peers.source_selection import Answer, Candidate, RequestMode

if TYPE_CHECKING:
    from tests.simulator.world import World

CALL_S = 5.0
COPY_S = 0.05  # from one tier to another
MIGRATION_TICK_S = 0.5
PERMISSION_WAIT_S = 5.0
Bytes = dict[int, Page]
Waiter = Callable[[int, Page | None, CacheFSError | None], None]  # page; its bytes, or why not


class WorkerHost:
    """A machine with a worker: what outlives the process."""

    def __init__(
        self,
        world: World,
        id: str,
        weight: float,
        limits_bytes: Sequence[int],
        admission: str,
        *,
        url: str = "",
    ) -> None:
        self.world = world
        self.id = id
        self.url = url or f"http://{id}:1"
        self.weight = weight
        self.limits_bytes = limits_bytes
        self.admission = admission
        self.disk = Disk()
        self.trees: dict[int, Tree] = {}
        self.mounts: list[Mount] = []
        self.is_blind = False  # its worker cannot see the mounts of others
        self.served: WorkerServer | None = None

    @property
    def is_up(self) -> bool:
        return self.served is not None and self.served.process.is_alive

    def start(self) -> None:
        if not self.is_up:
            self.served = WorkerServer(self)
            self.world.network.listen(self.url, self.served)
            self.served.start()

    def crash(self) -> None:
        if self.served is not None and self.served.process.is_alive:
            self.served.process.is_alive = False
            self.world.network.died(self.served.process)
            self.world.ended(self.served)
            if self.served.views is not None:
                self.served.views.died()

    def leave(self) -> None:
        """Ends in order: says so, then dies."""
        if self.served is not None and self.served.process.is_alive:
            self.served.call(master.URL, c.Leave(self.id), lambda answer: None, limit_s=2.0)
            self.world.schedule.after(2.0, self.crash, self.served.process)

    # ---- mounts ----

    def is_shown(self, tree: Tree) -> bool:
        covers = [laid.tree for mount in self.mounts for laid in mount.covers.values()]
        return tree in covers and not self.is_blind

    def is_nowhere(self, tree: Tree) -> bool:
        return not self.is_blind and not self.is_shown(tree)

    def remove_covers(self, tree: Tree) -> None:
        """As the worker does it."""
        for mount in self.mounts if not self.is_blind else ():
            for number, laid in [*mount.covers.items()]:
                if laid.tree is tree:
                    del mount.covers[number]

    def check_mounts(self) -> None:
        for mount in self.mounts:
            mount.check()

    def check_unlinked(self, key: bytes) -> None:
        for tree in self.trees.values():
            shown = any(file.key == key for file in tree.links.values())
            assert not shown, "a content of a tree was dropped"


class Piece:
    """Pages on their way here, and who waits for them. `epoch`: by the view of which a `READ` waits
    for peers."""

    def __init__(self, first: int, end: int, epoch: int | None) -> None:
        self.epoch = epoch
        self.fetch: Fetch
        self.left = set(range(first, end))
        self.waiters: list[Waiter] = []
        self.peers: list[tuple[GetData, Once]] = []  # that wait for it

    def cut_off(self) -> None:
        """It may have to wait for peers from now on, so they wait for it no longer."""
        self.epoch = NO_EPOCH
        for data, once in self.peers:
            data.asker.waits_for.pop(data.candidate, None)
            once.reply(Data(Answer.CUT_OFF))

    def tell(self, page: int, value: Page | None, error: CacheFSError | None) -> None:
        self.left.discard(page)
        for waiter in [*self.waiters]:
            waiter(page, value, error)


class Once:
    """A reply that is sent once, whatever is said later."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self.is_over = False

    def reply(self, answer: object) -> None:
        if not self.is_over:
            self.is_over = True
            self._reply(answer)


class OnItsWay(NotHere):
    """A reader here waits for peers to bring it: nothing for a peer to wait for."""


def is_meant(data: GetData, id: str) -> bool:
    """An address may be another worker's by now, even the asker's own."""
    return data.candidate.peer == id


def is_safe(data: GetData, piece: Piece) -> bool:
    """May a peer wait for that, without ever waiting for itself?"""
    return piece.epoch in (None, data.epoch)


class WorkerServer:
    """One process."""

    def __init__(self, host: WorkerHost) -> None:
        world = host.world
        self.host = host
        self.world = world
        self.process = Process(world.schedule, host.id)
        self.view = View(-1)
        self.ring = OwnershipMap(host.id)
        self.heard = dict(world.replicas)  # how many own each content, by policies: for reads
        self.known: dict[bytes, int] = {}  # the same, for what is cached
        self.holders = Holders()
        self.peers = PeerHealth()
        self.reach = Reach()
        self.migration = MigrationDecisions(host.id, bytes_per_s=world.migration_bytes_per_s)
        self.cache = Cache(
            host.disk, world.origin, host.limits_bytes, self._owns_first, admission=host.admission
        )
        self.views = NodeViews(self) if world.names is not None else None
        self._coming: dict[Page, Piece] = {}
        self._is_ticking = self._is_making_room = False

    def start(self) -> None:
        self._register()
        self.process.after(self.world.random.uniform(0.0, 3.0), self._learn)
        if self.views is not None:
            self.views.start()

    def policies_changed(self) -> None:
        """What is open hears of it at once, what is cached is asked about a little later."""
        random = self.world.random
        self.process.after(random.uniform(0.0, 0.5), lambda: self.heard.update(self.world.replicas))
        self.process.after(random.uniform(0.5, 3.0), self._learn)

    def _learn(self) -> None:
        known = {key: self.world.replicas.get(key, 1) for key in self.host.disk.pages}
        changed = any(self.known.get(key, 1) != count for key, count in known.items())
        self.known.update(known)
        if changed:
            self.cache.look_at_owners()
            self.migrate(mv.OwnersChanged())

    def call(self, url: str, request: object, done: Reply, *, limit_s: float = CALL_S) -> Call:
        return self.world.network.call(self.process, url, request, done, limit_s=limit_s)

    # ---- member ----

    def _register(self) -> None:
        me = c.Register(self.host.id, self.host.url, self.host.weight, self.host.id)

        def answered(answer: object) -> None:
            if isinstance(answer, c.Registered):
                if answer.view.epoch < self.view.epoch:
                    self.view = View(-1)
                self._adopt(answer.view)
                self._beat_later()
            else:
                self.process.after(0.5, self._register)

        self.call(master.URL, me, answered)

    def _beat_later(self) -> None:
        self.process.after(c.HEARTBEAT_S * (1 - 0.1 * self.world.random.random()), self._beat)

    def _beat(self) -> None:
        view, settled = self.view, self.migration.settled
        beat = c.Heartbeat(self.host.id, view.epoch, settled=settled, version=view.version)

        def answered(answer: object) -> None:
            if isinstance(answer, c.Beaten) and not answer.known:
                return self._register()
            if isinstance(answer, c.Beaten) and answer.view is not None:
                self._adopt(answer.view)
            self._beat_later()

        self.call(master.URL, beat, answered, limit_s=c.HEARTBEAT_S + 1.0)

    def _adopt(self, view: View) -> None:
        if not is_newer(view, self.view):
            return
        self.view = view
        self.ring.update(view)
        self.world.saw(self, view)
        self.cache.look_at_owners()
        self.migrate(mv.ViewReceived(view))

    def refresh_view(self, then: Callable[[], None]) -> None:
        def answered(answer: object) -> None:
            if isinstance(answer, c.ViewReply):
                self._adopt(answer.view)
            then()

        self.call(master.URL, c.GetView(), answered)

    def _owns_first(self, key: bytes) -> bool:
        return self.ring.owns_content(key, replicas=self.known.get(key, 1))

    # ---- reads ----

    def avoided(self, asked: Sequence[Candidate]) -> set[str]:
        """Those of them that are not known to live, by what this node saw of them."""
        known = self.peers._peers
        return {one.peer for one in asked if one.peer in known and known[one.peer].failures}

    def candidates(self, file: File, page: int, purpose: Purpose) -> list[Candidate]:
        block = page // mv.BLOCK_PAGES
        held, replicas = self.holders.of(file.key, block), self.replicas_of(file.key)
        if purpose is Purpose.SERVE and self.reach.is_cut(self.process.now_s):
            held += self.ring.owners(file.ino, block, replicas + 1)[replicas:]
        return self.ring.candidates(file.ino, block, purpose, held, replicas=replicas)

    def replicas_of(self, key: bytes) -> int:
        """As this node heard it."""
        return self.heard.get(key, 1)

    def get(
        self,
        file: File,
        first: int,
        end: int,
        purpose: Purpose,
        done: Callable[[Bytes | CacheFSError], None],
        may_wait: Callable[[Piece], bool] = lambda piece: True,
    ) -> None:
        """The bytes of pages of one block, from the cache or by way of it; single-flight.
        `may_wait`: for what is on its way already?"""
        key, cache = file.key, self.cache
        cache.users[key] = cache.users.get(key, 0) + 1
        found: Bytes = {p: cache.read(key, p) for p in range(first, end) if cache.has(key, p)}
        missing = {page for page in range(first, end) if page not in found}
        errors: list[CacheFSError] = []

        def finish() -> None:
            cache.users[key] -= 1
            if not cache.users[key]:
                del cache.users[key]
            done(errors[0] if errors else found)

        def heard(page: int, value: Page | None, error: CacheFSError | None) -> None:
            if page not in missing:
                return
            again = isinstance(error, NotHere | NoSpace) and not isinstance(error, OnItsWay)
            if again and purpose is not Purpose.MIGRATE:
                # It came for migration, which gives up early: whoever reads asks for himself.
                return self._wait_for({page}, file, purpose, heard, may_wait)
            missing.discard(page)
            if value is not None:
                found[page] = value
            elif error is not None:
                errors.append(error)
            if not missing:
                finish()

        self._use(key)
        if not missing:
            self.process.after(self.host.disk.answer_s, finish)
            return
        self._wait_for({*missing}, file, purpose, heard, may_wait)

    def _wait_for(
        self,
        pages: set[int],
        file: File,
        purpose: Purpose,
        heard: Waiter,
        may_wait: Callable[[Piece], bool],
    ) -> None:
        pieces: dict[Piece, None] = {}
        new: list[int] = []
        for page in sorted(pages):
            piece = self._coming.get((file.key, page))
            if piece is None:
                new.append(page)
            elif not may_wait(piece):
                heard(page, None, OnItsWay("from a peer"))
            else:
                pieces[piece] = None
        for first, end in _runs(new):
            for part in split(first, end, PIECE_PAGES):
                kind, waits = self._purpose(file, part[0] // mv.BLOCK_PAGES, purpose)
                piece = Piece(*part, waits)
                pieces[piece] = None
                for page in range(*part):
                    self._coming[file.key, page] = piece
                self._begin(piece, file, part, kind)
                may_wait(piece)
        for piece in pieces:
            piece.waiters.append(heard)

    def _purpose(self, file: File, block: int, purpose: Purpose) -> tuple[Purpose, int | None]:
        """What a reader's request becomes, and the view by which peers may wait for it."""
        if purpose is not Purpose.READ:
            return purpose, None
        if self.is_cut_off(file, block):
            return Purpose.CUT_OFF, NO_EPOCH
        waits = self.ring.waits(file.ino, block)
        return (Purpose.SERVE, None) if waits is None else (purpose, waits)

    def is_cut_off(self, file: File, block: int) -> bool:
        """Does an owner's own reader ask others? Who reads so tries the way now and then."""
        now_s = self.process.now_s
        if not self.reach.is_cut(now_s):
            return False
        if not self.ring.shares(file.ino, block, self.replicas_of(file.key)):
            return False
        if self.reach.may_try(now_s):
            self._try_origin()
        return True

    def _try_origin(self) -> None:
        asked_s = self.process.now_s

        def heard(error: CacheFSError | None) -> None:
            self.reach.ended(error.code if error else "", asked_s, self.process.now_s)

        self.world.origin.try_way(self.process, heard)

    def _begin(
        self,
        piece: Piece,
        file: File,
        pages: tuple[int, int],
        purpose: Purpose,
    ) -> None:
        def on_page(page: int, value: Page, from_peer: bool) -> None:
            self._store(file, page, value, purpose, piece)

        def on_end(error: CacheFSError | None) -> None:
            for page in sorted(piece.left):
                if self._coming.get((file.key, page)) is piece:
                    del self._coming[file.key, page]
            for page in sorted(piece.left):
                piece.tell(page, None, error or Unreachable("it ended early"))

        piece.fetch = fetch = Fetch(
            self, file, *pages, purpose, on_page=on_page, on_end=on_end, on_cut_off=piece.cut_off
        )
        self.process.after(0.0, fetch.start)

    def _store(self, file: File, page: int, value: Page, purpose: Purpose, piece: Piece) -> None:
        assert value == (file.key, page), "an unverified page is taken"
        self._coming.pop((file.key, page), None)
        now_s = self.process.now_s
        kept = self.cache.put(file, page, value, now_s)
        if not kept:
            self._make_room(file, page, value)
            if purpose is Purpose.MIGRATE:
                return piece.tell(page, None, NoSpace("the cache is full"))
        self.cache.check_invariants()
        if kept:
            self._came(file)
        piece.tell(page, value, None)

    def _came(self, file: File) -> None:
        replicas = self.known[file.key] = self.replicas_of(file.key)
        if replicas > 1:
            bits = self.cache.bits(file.key)
            self.migrate(mv.Filled((mv.Holding(file.key, file.size_bytes, bits, replicas),)))

    # ---- eviction ----

    def _make_room(self, file: File, page: int, value: Page) -> None:
        """One at a time, as everywhere; who comes meanwhile reads past the cache."""
        cache, now_s, size_bytes = self.cache, self.process.now_s, file.page_bytes(page)
        verdict = cache.verdict(file, size_bytes, now_s)
        if self._is_making_room or verdict not in MAKES_ROOM:
            return
        tier = cache.tier_for(file, now_s)
        keys = cache.candidates(tier, verdict, now_s)

        def answered(answer: object) -> None:
            self._is_making_room = False
            if not isinstance(answer, c.Permitted):
                return
            for key, allowed in zip(keys, answer.allowed, strict=True):
                if not allowed:
                    cache.keep(key)
                elif cache.is_short(tier, size_bytes) and not cache.demote(key):
                    self._evict(key, now_s + answer.valid_for_s)
            cache.put(file, page, value, self.process.now_s)
            cache.check_invariants()

        if not keys and self.views is not None:
            self.views.give_way()
        if keys:
            self._is_making_room = True
            request = c.PermitEviction(NAMESPACE, keys)
            self.call(master.URL, request, answered, limit_s=PERMISSION_WAIT_S)

    def _evict(self, key: bytes, until_s: float) -> None:
        if key in self.cache.users or self.process.now_s >= until_s or self._is_shown(key):
            return
        self.world.evicts(self, key)
        self.cache.drop(key)

    def _is_shown(self, key: bytes) -> bool:
        """Is it in a view, or about to be?"""
        return self.views is not None and (self.cache.in_view(key) or key in self.views.fenced)

    def drop(self, key: bytes) -> None:
        self.host.check_unlinked(key)
        if key not in self.cache.users:
            self.cache.drop(key)

    def _use(self, key: bytes) -> None:
        for promote in self.cache.use(key, self.process.now_s):
            self.process.after(COPY_S, partial(self._promote, promote.key))

    def _promote(self, key: bytes) -> None:
        self.cache.promote(key, self.process.now_s)
        self.cache.check_invariants()

    # ---- server ----

    def serve(self, request: object, reply: Reply) -> None:
        match request:
            case GetData():
                self._serve_data(request, reply)
            case c.Have(contents):
                bits = [self.cache.bits(key) for key in contents]
                reply(c.Had([one.to_bytes(256, "little") for one in bits]))
            case c.Offer():
                reply(self._offered(request))
            case Doubt(key, page):
                if (key, page) in self.host.disk.flipped:
                    if self.views is not None:
                        self.views.drop([key])
                    else:
                        self.drop(key)
                reply(Done())
            case _:
                raise AssertionError(f"not for a worker: {request}")

    def _serve_data(self, data: GetData, reply: Reply) -> None:
        body = self._here(data)
        if body or data.way is RequestMode.HAVE:
            answer = Data(Answer.HAS, body) if body else Data(Answer.HAS_NOT)
            self.process.after(self.host.disk.answer_s, lambda: reply(answer))
        elif data.epoch > self.view.epoch:
            self.refresh_view(lambda: self._provide(data, reply))
        else:
            self._provide(data, reply)

    def _here(self, data: GetData) -> tuple[tuple[Page, Page], ...]:
        body, page = [], data.first
        while page < data.end and self.cache.has(data.key, page):
            body.append((self.cache.read(data.key, page), (data.key, page)))
            page += 1
        if body:
            self._use(data.key)
        return tuple(body)

    def _provide(self, data: GetData, reply: Reply) -> None:
        """Only the first owner brings things for whoever has another view."""
        if not is_meant(data, self.host.id):
            return reply(Data(Answer.NOT_OWNER))
        rank = self.ring.rank(data.ino, data.first // mv.BLOCK_PAGES, data.replicas)
        most = data.replicas - (data.way is not RequestMode.NEXT)
        if rank != 0 and not (0 < rank <= most and data.epoch == self.view.epoch):
            return reply(Data(Answer.NOT_OWNER))
        if not self.reach.may_try(self.process.now_s):
            return reply(Data(Answer.CUT_OFF))
        self._fill_for(data, Once(reply))

    def _watch(self, once: Once) -> None:
        """Tells who waits for a fill that this worker does not reach the origin."""
        if self.reach.is_cut(self.process.now_s):
            once.reply(Data(Answer.CUT_OFF))
        elif not once.is_over:
            self.process.after(LOOK_S, lambda: self._watch(once))

    def _fill_for(self, data: GetData, once: Once) -> None:
        file, reply = self.world.origin.by_key[data.key], once.reply
        self._watch(once)

        def got(found: Bytes | CacheFSError) -> None:
            if isinstance(found, OnItsWay):
                body = self._here(data)
                return reply(Data(Answer.HAS if body else Answer.HAS_NOT, body, False))
            if isinstance(found, CacheFSError):
                return reply(Data(Answer.CUT_OFF))
            pages = range(data.first, data.end)
            reply(Data(Answer.HAS, tuple((found[p], (data.key, p)) for p in pages), False))

        may_wait = partial(self._may_wait, data, once)
        self.get(file, data.first, data.end, Purpose.SERVE, got, may_wait)

    def _may_wait(self, data: GetData, once: Once, piece: Piece) -> bool:
        if not is_safe(data, piece):
            return False
        piece.peers.append((data, once))
        data.asker.waits_for[data.candidate] = piece.fetch
        data.asker.check_waits()
        return True

    # ---- migration ----

    def migrate(self, event: mv.Event) -> None:
        for action in self._decide(event):
            self._act(action)

    def _decide(self, event: mv.Event) -> list[mv.Action]:
        actions = self.migration.handle(event, self.process.now_s)
        self.migration.check_invariants()
        if self.migration.is_at_work and not self._is_ticking:
            self._is_ticking = True
            self.process.after(MIGRATION_TICK_S, self._tick)
        return actions

    def _tick(self) -> None:
        self._is_ticking = False
        self.migrate(mv.TimePassed())

    def _offered(self, offer: c.Offer) -> object:
        answer, *rest = self._decide(mv.OfferReceived(offer))
        for action in rest:
            self._act(action)
        assert isinstance(answer, mv.OfferReply)
        if answer.failure is None:
            giver = Member(offer.worker, offer.url, 0.0)
            for key, block in offer.blocks:
                self.holders.add(key, block, giver)
        return answer.failure or Done()

    def _act(self, action: mv.Action) -> None:
        match action:
            case mv.Scan(epoch, after, limit):
                self.process.after(self.host.disk.answer_s, lambda: self._scan(epoch, after, limit))
            case mv.AskHave(epoch, peer, contents):
                self._have(
                    peer.url,
                    contents,
                    lambda pages: self.migrate(mv.HaveReplied(epoch, peer.id, pages)),
                )
            case mv.SendOffer(epoch, peer, blocks, counts):
                offer = c.Offer(self.host.id, self.host.url, epoch, [*blocks], [*counts])
                self.call(
                    peer.url,
                    offer,
                    lambda answer: self.migrate(mv.OfferReplied(epoch, peer.id, failed(answer))),
                )
            case mv.LookAt(epoch, giver, url, contents):
                self._have(url, contents, lambda pages: self._looked(epoch, giver, pages))
            case mv.Bring():
                self._bring(action)
            case mv.RefreshView():
                self.refresh_view(lambda: None)

    def _scan(self, epoch: int, after: bytes, limit: int) -> None:
        found = self.cache.holdings(after, limit)
        found = with_replicas(found, lambda key: self.known.get(key, 1))
        rest = found[-1].key if len(found) == limit else b""
        self.migrate(mv.Scanned(epoch, found, rest))

    def _have(
        self,
        url: str,
        contents: tuple[bytes, ...],
        then: Callable[[dict[bytes, int] | None], None],
    ) -> None:
        def answered(answer: object) -> None:
            if not isinstance(answer, c.Had):
                return then(None)
            bits = [int.from_bytes(data, "little") for data in answer.pages]
            then(dict(zip(contents, bits, strict=True)))

        self.call(url, c.Have([*contents]), answered)

    def _looked(self, epoch: int, giver: str, pages: dict[bytes, int] | None) -> None:
        if pages is not None:
            pages = {key: bits & ~self.cache.bits(key) for key, bits in pages.items()}
        self.migrate(mv.PagesCompared(epoch, giver, pages))

    def _bring(self, bring: mv.Bring) -> None:
        file = self.world.origin.by_key[bring.key]

        def got(found: Bytes | CacheFSError) -> None:
            pages = range(bring.first, bring.end)
            here = sum(self.cache.has(bring.key, page) for page in pages)
            size_bytes = sum(file.page_bytes(p) for p in pages if self.cache.has(bring.key, p))
            error: CacheFSError | None = None
            if here < len(pages):
                need_bytes = sum(file.page_bytes(page) for page in pages)
                full = self.cache.free_bytes < need_bytes
                error = NoSpace("full") if full else NotFound("the pages did not come")
            self.migrate(mv.PagesFetched(bring, size_bytes, error))

        self.get(file, bring.first, bring.end, Purpose.MIGRATE, got)


def _runs(pages: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for page in pages:
        if runs and runs[-1][1] == page:
            runs[-1] = runs[-1][0], page + 1
        else:
            runs.append((page, page + 1))
    return runs
