"""A tier's directory: the lock, the header, the index, and the cache files by name.

    TIER           header (`worker.store.records`), replaced atomically
    lock           flock of the server that owns the tier; its pid inside
    index/         LMDB (`worker.store.index`)
    files/xx/NAME  cache files, sparse; xx: the last two digits of the name (of its nonce)
    pub/NAME       hard link to a complete cache file: a client that opens it may read every byte
    views/ID/      the tree of a view: directories, hard links to cache files (`worker.store.trees`)
    scratch/       unlinked files for data that the cache refused
    trash/         folders to be deleted

Everything is opened relative to descriptors that were opened without following links. All methods
block; threads of the worker call them, never an event loop. A link in `pub/` is made after its
index record is committed and removed before that record; after a boot `pub/` starts empty.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import uuid
from typing import Final

import msgspec

from cachefs.core.errors import BadConfig
from cachefs.core.model import PAGE_BYTES
from worker.store import filesystem
from worker.store.index import Index, IndexDamaged, WritesLost
from worker.store.ownership import ANOTHER, DIRECTORY, lock, open_directory, typed_error
from worker.store.records import (
    NAME_CHARS,
    Header,
    decode_header,
    encode_header,
    failed,
    next_start,
    synced,
)
from worker.store.tree_watches import TreeWatches

log = logging.getLogger(__name__)

# The umask of a worker takes the group's rights away, unless the worker shares its socket with its
# group: a root without capabilities then opens published files. The folder above is 0700.
FILE_MODE: Final = 0o640
PUB_MODE: Final = 0o750
_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDERS: Final = ("files", "pub", "scratch", "trash", "views")
_PROBE_BYTES: Final = 4096
_TRIAL_BYTES: Final = 8 << 20
_SCAN_FILES: Final = 20_000


class TierDirectory:
    """The open directory of a tier, locked from `take` to `close`."""

    def __init__(self, path: str, dir_fd: int, lock_fd: int) -> None:
        self.path = path
        self._dir_fd = dir_fd
        self._lock_fd = lock_fd
        self._fds: dict[str, int] = {}
        self.tree_watches = TreeWatches()
        self.kind = ""  # of the file system
        self.cached_at_start_bytes = 0
        self.has_unsynced = False  # an earlier process left records that it did not sync
        self._boot = b""
        self.header: Header
        self.index: Index

    @classmethod
    def take(cls, path: str, boot: bytes | None = None) -> TierDirectory:
        """Opens or creates the tier in the directory `path` and locks it. Raises InUse with the
        owner's pid, AccessDenied, BadConfig, NoSpace."""
        boot = filesystem.boot_id() if boot is None else boot
        try:
            dir_fd = open_directory(path)
            try:
                tier = cls(path, dir_fd, lock(path, dir_fd))
            except BaseException:
                os.close(dir_fd)
                raise
            try:
                tier._open(boot)
            except BaseException:
                tier.close()
                raise
        except OSError as err:
            raise typed_error(err, path) from err
        return tier

    def _open(self, boot: bytes) -> None:
        self.kind = filesystem.kind_of_mount(self._dir_fd)
        if self.kind in filesystem.NETWORK:
            raise BadConfig(
                f"the cache directory is on a network file system ({self.kind})",
                remedy="give a directory of a local disk or of tmpfs as --cache-dir",
                path=self.path,
            )
        known = self._known_header() or Header(uuid.uuid4().bytes, boot)
        self._boot = boot
        self.has_unsynced = known.synced_epoch < known.epoch
        self.header = next_start(known, boot)
        for name in (*_FOLDERS, "index"):
            self._make_folder(name)
        self._fds["trash"] = os.open("trash", DIRECTORY, dir_fd=self._dir_fd)
        if boot != known.boot:  # before the header says that this boot has published the files
            self._unpublish_all()
        self._write_header()
        self._move_to_trash("scratch")
        self.index = self._open_index()
        self.cached_at_start_bytes = self.index.totals().allocated_bytes
        if self.index.fresh:
            self._unpublish_all()
        for name in ("files", "pub", "scratch", "views"):
            self._fds[name] = os.open(name, DIRECTORY, dir_fd=self._dir_fd)

    def _known_header(self) -> Header | None:
        """Returns the header; None: the tier starts empty, as it is new or its header damaged."""
        data = self._read_header()
        if data is None:
            self._check_unused()
            return None
        header = decode_header(data)
        if header is None:
            log.warning("%s: the tier's header is damaged; the cache starts empty", self.path)
            self._discard_all()
        return header

    def _check_unused(self) -> None:
        """Raises BadConfig if a directory without a header has files in the tier's folders."""
        for name in (*_FOLDERS, "index"):
            try:
                fd = os.open(name, DIRECTORY, dir_fd=self._dir_fd)
            except FileNotFoundError:
                continue
            names = os.listdir(fd)
            os.close(fd)
            if names:
                raise BadConfig(
                    f"not a cache directory, but it has a non-empty directory {name!r}",
                    remedy=ANOTHER,
                    path=self.path,
                )

    def _make_folder(self, name: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, PUB_MODE if name == "pub" else 0o700, dir_fd=self._dir_fd)

    def _unpublish_all(self) -> None:
        self._move_to_trash("pub")
        self._move_to_trash("views")

    def _move_to_trash(self, name: str) -> None:
        """Replaces a folder by an empty one; `empty_trash` deletes the old one later."""
        trash = f"{name}-{uuid.uuid4().hex}"
        os.rename(name, trash, src_dir_fd=self._dir_fd, dst_dir_fd=self._fds["trash"])
        self._make_folder(name)

    def _open_index(self) -> Index:
        path = f"/proc/self/fd/{self._dir_fd}/index"
        try:
            return Index(path, self.header.tier)
        except IndexDamaged as err:
            log.warning("%s: the index is unusable (%s); the cache starts empty", self.path, err)
        self._move_to_trash("index")
        try:
            return Index(path, self.header.tier)
        except IndexDamaged as err:
            raise BadConfig(f"the index cannot be created: {err}", path=self.path) from err

    # ---- header ----

    def _read_header(self) -> bytes | None:
        try:
            fd = os.open("TIER", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._dir_fd)
        except FileNotFoundError:
            return None
        with open(fd, "rb") as file:
            return file.read(1 << 16)

    def _discard_all(self) -> None:
        for name in ("trash", "index", "pub", "views"):
            self._make_folder(name)
        self._fds["trash"] = os.open("trash", DIRECTORY, dir_fd=self._dir_fd)
        for name in ("index", "pub", "files", "views"):
            self._make_folder(name)
            self._move_to_trash(name)
        os.close(self._fds.pop("trash"))

    def _write_header(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._write_header_to(os.open("TIER.new", flags, 0o600, dir_fd=self._dir_fd))
        os.rename("TIER.new", "TIER", src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd)
        os.fsync(self._dir_fd)

    def _write_header_or_overwrite(self) -> None:
        """Writes the header, over the old one if the disk has no room for a second file. If that
        write is interrupted, the next start is empty."""
        try:
            self._write_header()
        except OSError:
            flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._write_header_to(os.open("TIER", flags, dir_fd=self._dir_fd))

    def _write_header_to(self, fd: int) -> None:
        with open(fd, "wb") as file:
            file.write(encode_header(self.header))
            file.flush()
            os.fsync(fd)

    def note_views(self, *, has_views: bool) -> None:
        """Records in the header whether the tier has views. Raises OSError."""
        if self.header.views != has_views:
            self.header = msgspec.structs.replace(self.header, views=has_views)
            self._write_header_or_overwrite()

    def sync(self, epoch: int) -> None:
        """Forces everything recorded up to `epoch` to the disk and writes that to the header. The
        caller has committed those records, and uses later epochs from now on.

        Raises WritesLost, or IndexLost if the index lost writes. The caller must then call
        `distrust` or `abandon`, since the kernel reports a loss only once per descriptor. The
        directory's descriptor is open since the start, so it gets every later loss, and an earlier
        one that was not reported yet. Raises another OSError if only the header cannot be written
        (a full disk): nothing is lost, and the next sync covers this one."""
        before = self.header
        try:
            self._force()
        except WritesLost:
            self.header = failed(before, epoch)
            with contextlib.suppress(OSError):  # `distrust` writes it again
                self._write_header_or_overwrite()
            raise
        try:
            self.header = synced(before, epoch)
            self._write_header()
        except OSError:
            self.header = before
            raise

    def _force(self) -> None:
        """Forces the file system and the index to the disk. Raises WritesLost, IndexLost."""
        try:
            filesystem.syncfs(self._dir_fd)
        except OSError as err:
            self.index.sync()  # raises IndexLost if its file lost writes
            raise WritesLost(err.errno, err.strerror) from err
        self.index.sync()

    def distrust(self) -> None:
        """Unpublishes the files recorded since the last good sync, after a failed sync. Raises
        OSError if the disk fails: the caller must then call `abandon`."""
        self._write_header_or_overwrite()
        after = b""
        while batch := self.index.scan(after, _SCAN_FILES):
            for key, record in batch:
                if not self.header.trusts(record.epoch):
                    self.unpublish(key.hex())
            after = batch[-1][0]
        self.header = msgspec.structs.replace(self.header, boot=self._boot)
        self._write_header_or_overwrite()

    def abandon(self) -> None:
        """Drops the whole cache, since its index is unreliable: unpublishes all files and discards
        the index, so that the next start is empty. Raises OSError."""
        try:
            for name in os.listdir(self._fds["pub"]):
                self.unpublish(name)
        finally:
            self._move_to_trash("index")

    # ---- cache files ----

    @property
    def in_memory(self) -> bool:
        """True if the files are memory of this machine."""
        return self.kind in filesystem.MEMORY

    @property
    def reopens_at_once(self) -> bool:
        """True if an open file can be reopened and closed without waiting for a disk."""
        return self.kind in filesystem.LOCAL

    def probe(self) -> bool:
        """Returns whether a small write can be read back. Raises OSError."""
        data = os.urandom(_PROBE_BYTES)
        fd = self.scratch_file(_PROBE_BYTES)
        try:
            os.pwrite(fd, data, 0)
            right = os.pread(fd, _PROBE_BYTES, 0) == data
        finally:
            os.close(fd)
        filesystem.read_from_disk("TIER", self._dir_fd)
        return right

    def try_to_write(self) -> None:
        """Writes some MiB and forces them to the disk. Raises OSError."""
        fd = self.scratch_file(_TRIAL_BYTES)
        try:
            for offset in range(0, _TRIAL_BYTES, PAGE_BYTES):
                os.pwrite(fd, os.urandom(PAGE_BYTES), offset)
            os.fsync(fd)
        finally:
            os.close(fd)

    @property
    def pub_fd(self) -> int:
        return self._fds["pub"]

    @property
    def files_fd(self) -> int:
        return self._fds["files"]

    @property
    def views_fd(self) -> int:
        return self._fds["views"]

    def create(self, name: str, size_bytes: int) -> int:
        """Creates a sparse cache file (empty if it has one page only) and opens it for reading and
        writing. Replaces a leftover file, which has no record."""
        path = place(name)
        for _ in range(3):
            try:
                fd = os.open(path, _NEW, FILE_MODE, dir_fd=self._fds["files"])
                break
            except FileExistsError:
                self._remove(self._fds["files"], path)
            except FileNotFoundError:
                self._make_fan_folder(path[:2])
        else:
            raise OSError(errno.EBUSY, f"cannot create {path}")
        if size_bytes <= PAGE_BYTES:
            return fd  # one write makes it complete; before that its length does not match
        try:
            os.ftruncate(fd, size_bytes)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _make_fan_folder(self, name: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self._fds["files"])

    def open_file(self, name: str, flags: int = os.O_RDWR) -> int | None:
        """Returns a descriptor of a cache file, or None if it does not exist."""
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            return os.open(place(name), flags, dir_fd=self._fds["files"])
        except FileNotFoundError:
            return None

    def has_file(self, name: str, size_bytes: int) -> bool:
        """Returns whether a cache file of that name and length exists."""
        try:
            info = os.stat(place(name), dir_fd=self._fds["files"], follow_symlinks=False)
        except FileNotFoundError:
            return False
        return info.st_size == size_bytes

    def open_published(self, name: str, size_bytes: int) -> int | None:
        """Returns a read-only descriptor of a complete file, or None if it is not published."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(name, flags, dir_fd=self._fds["pub"])
        except (FileNotFoundError, BlockingIOError):
            return None
        info = os.fstat(fd)
        if info.st_nlink >= 2 and info.st_size == size_bytes:
            return fd
        os.close(fd)
        return None

    def publish(self, name: str) -> None:
        """Publishes a file, whose record the caller has committed. Idempotent."""
        try:
            os.link(place(name), name, src_dir_fd=self._fds["files"], dst_dir_fd=self._fds["pub"])
        except FileExistsError:
            pass

    def unpublish(self, name: str) -> bool:
        """Returns False if the file was not published."""
        return self._remove(self._fds["pub"], name)

    def unlink(self, name: str) -> bool:
        """Returns False if the cache file did not exist."""
        return self._remove(self._fds["files"], place(name))

    @staticmethod
    def _remove(dir_fd: int, name: str) -> bool:
        try:
            os.unlink(name, dir_fd=dir_fd)
        except FileNotFoundError:
            return False
        return True

    def fans(self) -> list[str]:
        return [name for name in os.listdir(self._fds["files"]) if len(name) == 2]

    def names(self, fan: str) -> list[str]:
        """Returns the names of the cache files in one folder of the fan-out; skips other files."""
        try:
            fd = os.open(fan, DIRECTORY, dir_fd=self._fds["files"])
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            return [name for name in os.listdir(fd) if _is_name(name)]
        finally:
            os.close(fd)

    # ---- the rest ----

    def scratch_file(self, size_bytes: int) -> int:
        """Creates an unlinked file of that size, opened for reading and writing."""
        try:
            flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
            fd = os.open("scratch", flags, 0o600, dir_fd=self._dir_fd)
        except OSError as err:
            if err.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
            fd = self._named_scratch_file()
        try:
            os.ftruncate(fd, size_bytes)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _named_scratch_file(self) -> int:
        name = uuid.uuid4().hex
        fd = os.open(name, _NEW, 0o600, dir_fd=self._fds["scratch"])
        os.unlink(name, dir_fd=self._fds["scratch"])
        return fd

    def empty_trash(self) -> None:
        for name in os.listdir(self._fds["trash"]):
            shutil.rmtree(name, ignore_errors=True, dir_fd=self._fds["trash"])

    def overhead_bytes(self) -> int:
        """Returns the disk space of the index and the directories."""
        folders = [self._fds["files"], self._fds["pub"]]
        blocks = sum(os.fstat(fd).st_blocks for fd in folders)
        with os.scandir(self._fds["files"]) as fans:
            blocks += sum(fan.stat(follow_symlinks=False).st_blocks for fan in fans)
        return blocks * 512 + self.index.allocated_bytes()

    def close(self, *, in_use: bool = False) -> None:
        """Closes the tier and releases its lock last. Idempotent. `in_use`: a thread may still read
        the index, see `Index.close`."""
        if hasattr(self, "index"):
            self.index.close(in_use=in_use)
            if not in_use:
                self.tree_watches.close()
        for fd in (*self._fds.values(), self._dir_fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._fds.clear()
        self._dir_fd = self._lock_fd = -1


def place(name: str) -> str:
    """Returns the path of a cache file below `files/`."""
    return f"{name[-2:]}/{name}"


def _is_name(name: str) -> bool:
    return len(name) == NAME_CHARS and set(name) <= set("0123456789abcdef")
