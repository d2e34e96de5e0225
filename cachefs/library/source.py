"""One source in this process: its session, its names, its open files. Threads share it."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError, IsADirectory, Stale
from cachefs.core.model import Kind, NamespaceId
from cachefs.library.cold_reads import ColdReads, Wanted
from cachefs.library.names import STALE_TRIES, KnownPath, ListedName, Names
from cachefs.library.node_session import TRIES, Dialer, NodeSession
from cachefs.library.open_file import Doubts, OpenFile
from cachefs.library.pipeline import Pipeline
from cachefs.library.published_files import PublishedFiles, read_all
from cachefs.library.shared_socket import Reply, SocketLost

MOST_USES: Final = 256  # per report: each one wakes the server
TIDY_S: Final = 1.0  # between reports of uses, and between checks of idle files

_T = TypeVar("_T")
_Used = TypeVar("_Used", covariant=True)
Failed = CacheFSError | OSError


class ByteRange(msgspec.Struct, frozen=True, gc=False):
    """A part of a file as callers write it: None is the start or the end, negative numbers count
    from the end."""

    path: bytes
    start: int | None = None
    stop: int | None = None

    def within(self, size: int) -> tuple[int, int]:
        start, stop, _ = slice(self.start, self.stop).indices(size)
        return start, max(start, stop)


class _Use(Protocol[_Used]):
    """What is done with files: at once if they are complete here, else by the server."""

    def warm(self, number: int, known: KnownPath, /) -> _Used | None: ...
    def cold(self, missing: Mapping[int, KnownPath], /) -> Mapping[int, _Used | Failed]: ...


class Source:
    """A source. Methods raise the typed errors, and OSError of the cache's disk."""

    def __init__(self, dialer: Dialer) -> None:
        self.session = NodeSession(dialer, self)
        self.names = Names(self.session)
        self._published = PublishedFiles(self.session.published)
        self._doubts = Doubts()
        self._lent: weakref.WeakSet[OpenFile] = weakref.WeakSet()  # those with segments
        self._uses: list[str] = []
        self._hit_bytes = 0
        self._tidied_at_s = 0.0
        self._lock = threading.Lock()

    @property
    def namespace(self) -> NamespaceId:
        return self.session.attached.namespace

    # ---- reading ----

    def read_files(self, paths: Sequence[bytes]) -> list[bytes | Failed]:
        """Returns the bytes of each file, or its error."""
        self._catch_up()
        results: list[bytes | Failed | None] = []
        add, known, read = results.append, self.names.known, self._published.read
        now, uses, size = time.monotonic(), self._uses.append, 0
        for path in paths:
            found = known(path, now)
            try:
                data = read(found.content, found.inode.size) if found is not None else None
            except OSError as err:
                add(err)
                continue
            if data:
                uses(found.content)  # type: ignore[union-attr]  # it was found
                size += len(data)
            add(data)
        self._count_uses(size)
        if None in results:
            left = [number for number, one in enumerate(results) if one is None]
            rest = _Reads(self, {number: ByteRange(paths[number]) for number in left})
            for number, result in self._in_rounds([(n, paths[n]) for n in left], rest):
                results[number] = result
        return results  # type: ignore[return-value]  # no None is left

    def read_all(self, ranges: Sequence[ByteRange]) -> list[bytes | Failed]:
        """Returns the bytes of each range, or its error."""
        self._catch_up()
        results: list[bytes | Failed | None] = [None] * len(ranges)
        left = []
        now = time.monotonic()
        for number, one in enumerate(ranges):
            known = self.names.known(one.path, now)
            try:
                results[number] = self.read_warm(one, known) if known is not None else None
            except OSError as err:
                results[number] = err
            if results[number] is None:
                left.append(number)
        if left:
            reads = _Reads(self, dict(enumerate(ranges)))
            for number, result in self._in_rounds([(n, ranges[n].path) for n in left], reads):
                results[number] = result
        return [one for one in results if one is not None]

    def read_warm(self, one: ByteRange, known: KnownPath) -> bytes | None:
        """Returns the bytes if the file is complete here."""
        inode = known.inode
        if inode.kind is not Kind.FILE:
            return None
        if not inode.size:
            return b""
        if one.start is None and one.stop is None:
            data = self._published.read(known.content, inode.size)
            if data is None:
                return None
        else:
            opened = self._published.open(known.content, inode.size)
            if opened is None:
                return None
            with opened[0] as file:
                start, stop = one.within(inode.size)
                data = read_all(file.fileno(), start, stop - start) if stop > start else b""
        self._note_use(known.content, len(data))
        return data

    def read_cold(
        self, ranges: Mapping[int, ByteRange], missing: Mapping[int, KnownPath]
    ) -> Mapping[int, bytes | Failed]:
        """Returns the bytes of the ranges with these numbers, by the server."""
        wanted = {
            number: Wanted(known.inode, *ranges[number].within(known.inode.size))
            for number, known in missing.items()
        }
        return ColdReads(self.session, self.namespace, wanted).run()

    # ---- names ----

    def resolve_all(self, paths: Sequence[bytes]) -> list[KnownPath | CacheFSError]:
        """Returns what each path leads to, or its error."""
        self._catch_up()
        now = time.monotonic()
        known = [self.names.known(path, now) for path in paths]
        left = [path for path, one in zip(paths, known, strict=True) if one is None]
        found = iter(self.names.resolve_all(left) if left else ())
        return [one if one is not None else next(found) for one in known]

    def list_all(self, paths: Sequence[bytes]) -> list[list[ListedName] | CacheFSError]:
        """Returns the entries of each directory, or its error."""
        self._catch_up()
        return self.names.list_all(paths)

    # ---- opening ----

    def open(self, path: bytes) -> OpenFile:
        """Opens a file. The caller closes it."""
        self._catch_up()
        known = self.names.known(path, time.monotonic())
        warm = self.open_warm(known) if known is not None else None
        if warm is not None:
            return warm
        file = self.open_all([path])[0]
        if isinstance(file, OpenFile):
            return file
        raise file

    def open_all(self, paths: Sequence[bytes]) -> list[OpenFile | Failed]:
        """Opens files, those that are not complete here pipelined. The caller closes them."""
        self._catch_up()
        opened = dict(self._in_rounds([*enumerate(paths)], _Opens(self)))
        return [opened[number] for number in range(len(paths))]

    def open_warm(self, known: KnownPath) -> OpenFile | None:
        """Opens a file that is complete here without a request."""
        inode = known.inode
        if inode.kind is not Kind.FILE:
            return None
        file = self.new_file(known)
        if inode.size:
            opened = self._published.open(known.content, inode.size)
            if opened is None:
                return None
            file.use_published(*opened)
            self._note_use(known.content, inode.size)
        return file

    def new_file(self, known: KnownPath) -> OpenFile:
        namespace = self.names.namespace
        return OpenFile(self.session, namespace, known.inode, self._doubts, self._note_lent)

    def _note_lent(self, file: OpenFile) -> None:
        with self._lock:
            self._lent.add(file)

    def open_cold(self, missing: Mapping[int, KnownPath]) -> Mapping[int, OpenFile | Failed]:
        """Opens files at the server."""
        done: dict[int, OpenFile | Failed] = {}
        for _ in range(TRIES - 1):
            try:
                self._open_at_server(missing, done)
            except SocketLost:
                continue
            return done
        self._open_at_server(missing, done)
        return done

    def _open_at_server(
        self, missing: Mapping[int, KnownPath], done: dict[int, OpenFile | Failed]
    ) -> None:
        """Opens the files that are not in `done`, and adds them to it."""
        files = {n: self.new_file(known) for n, known in missing.items() if n not in done}
        with self.session.exchange() as exchange:

            def take(number: int, reply: Reply) -> None:
                try:
                    files[number].use_opened(reply, exchange.shared.epoch)
                    done[number] = files[number]
                except CacheFSError as err:
                    done[number] = err

            requests = ((number, file.open_request()) for number, file in files.items())
            Pipeline(exchange, take).run(requests)

    # ---- names, then files ----

    def _in_rounds(
        self, paths: Sequence[tuple[int, bytes]], use: _Use[_T]
    ) -> Iterator[tuple[int, _T | Failed]]:
        """Resolves paths and uses their files. Resolves a path again if its file was replaced
        in between."""
        for round in range(1, STALE_TRIES + 1):
            found = self.resolve_all([path for _, path in paths])
            missing: dict[int, KnownPath] = {}
            for (number, _), known in zip(paths, found, strict=True):
                if isinstance(known, CacheFSError):
                    yield number, known
                elif known.inode.kind is Kind.DIRECTORY:
                    yield number, IsADirectory("is a directory")
                elif (warm := _tried(use, number, known)) is not None:
                    yield number, warm
                else:
                    missing[number] = known
            done = use.cold(missing) if missing else {}
            again = {number for number, one in done.items() if isinstance(one, Stale)}
            if round == STALE_TRIES:
                again = set()
            yield from ((number, one) for number, one in done.items() if number not in again)
            paths = [(number, path) for number, path in paths if number in again]
            if not paths:
                return
            for _, path in paths:
                self.names.forget(path)

    # ---- events ----

    def on_event(self, event: m.Message) -> None:
        if isinstance(event, m.Invalidate):
            if event.everything:
                self.names.invalidate_everything()
            elif event.entries:
                self.names.invalidate(event.entries)
        elif isinstance(event, m.TierState):
            self._published.tier_changed(event.tier, in_service=event.in_service)
            if event.doubtful:
                self._doubts.add(event.tier)

    def on_connecting(self) -> None:
        self._published.trust_all()

    def on_attached(self, attached: m.Attached) -> None:
        self.names.invalidate_everything(attached)

    # ---- upkeep ----

    def _catch_up(self) -> None:
        """Handles the events that have arrived; reports uses and closes idle segments once a
        second."""
        self.session.catch_up()
        now = time.monotonic()
        if now - self._tidied_at_s > TIDY_S:
            self._tidied_at_s = now
            self._report_uses()
            with self._lock:
                lent = [*self._lent]
            for file in lent:
                if file.give_back_if_idle():
                    with self._lock:
                        self._lent.discard(file)

    def _note_use(self, content: str, size: int) -> None:
        self._uses.append(content)
        self._count_uses(size)

    def _count_uses(self, size: int) -> None:
        """Counts bytes that were read without a request."""
        self._hit_bytes += size
        if len(self._uses) >= MOST_USES:
            self._report_uses()

    def _report_uses(self) -> None:
        with self._lock:
            uses, self._uses = self._uses, []
            size, self._hit_bytes = self._hit_bytes, 0
        for first in range(0, len(uses), MOST_USES):
            self.session.post(m.Used(uses[first : first + MOST_USES], 0 if first else size))

    def close(self) -> None:
        """Ends the session. Open files stay usable, and the next use connects again."""
        self._report_uses()
        self.session.close()

    def abandon(self) -> None:
        """Makes the source one of this process, after a fork."""
        self._lock = threading.Lock()
        self._uses = []
        self.session.abandon()
        self.names.abandon()


def _tried(use: _Use[_T], number: int, known: KnownPath) -> _T | OSError | None:
    """Returns what `use.warm` does, or its error: that of one file."""
    try:
        return use.warm(number, known)
    except OSError as err:
        return err


class _Reads:
    """Reads ranges, whose paths are resolved."""

    def __init__(self, source: Source, ranges: Mapping[int, ByteRange]) -> None:
        self._source = source
        self._ranges = ranges

    def warm(self, number: int, known: KnownPath) -> bytes | None:
        return self._source.read_warm(self._ranges[number], known)

    def cold(self, missing: Mapping[int, KnownPath]) -> Mapping[int, bytes | Failed]:
        return self._source.read_cold(self._ranges, missing)


class _Opens:
    """Opens files, whose paths are resolved."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def warm(self, _: int, known: KnownPath) -> OpenFile | None:
        return self._source.open_warm(known)

    def cold(self, missing: Mapping[int, KnownPath]) -> Mapping[int, OpenFile | Failed]:
        return self._source.open_cold(missing)
