"""The shared mounts of this node: makes, finds, binds and removes them.

They lie in `<kubelet dir>/plugins/csi.cachefs.io/mounts/`, one directory each. All state is in the
kernel's mount table and in the holder. One lock, of this process and of other drivers on the node
(flock), covers each change; no wait for a server of FUSE happens under it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cachefs.core.errors import CacheFSError, CannotMount, DeadlineExceeded, InUse
from cachefs.core.model import UfsSpec
from cachefs.core.mountinfo import read_mounts
from cachefs.core.specs import ClientSpec, DepositRef
from cachefs.csi import system_calls
from cachefs.csi.deadlines import Apart
from cachefs.csi.leftovers import keys_of, users
from cachefs.csi.volumes import Volume
from cachefs.fuse import failure_notes, mounting
from cachefs.fuse.deposits import Deposit, HolderClient, new_key
from cachefs.fuse.kernel.mount import INIT_DEADLINE_S, answer_init, mount
from cachefs.fuse.kernel.table import TakeoverTable
from cachefs.fuse.supervisor import wire
from cachefs.launcher.state import lock_within

log = logging.getLogger(__name__)

DRIVER: Final = "csi.cachefs.io"
MOUNTS: Final = "mounts"
CHANGE_S: Final = INIT_DEADLINE_S + 10.0  # for one change, and for a turn at the lock
UNMOUNT_S: Final = 10.0
_PAUSE_S: Final = 0.01


class Node(msgspec.Struct, frozen=True):
    """What the driver knows about its node."""

    kubelet_dir: str
    holder: str  # path of its socket

    @property
    def plugin_dir(self) -> str:
        return os.path.join(os.path.realpath(self.kubelet_dir), "plugins", DRIVER)

    @property
    def mounts_dir(self) -> str:
        return os.path.join(self.plugin_dir, MOUNTS)


class SharedMount(NamedTuple):
    """A shared mount. The kernel may give the next mount at this place the same device."""

    place: str
    device: str
    generation: int  # of the mount at this place, as this process counts
    source: str  # as the mount table shows it


class SharedMounts:
    """The shared mounts. Threads may share this."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._apart = Apart()
        self._generations: Counter[str] = Counter()  # place -> changes by this process
        self._pins: Counter[str] = Counter()  # place -> publishes that use it now
        for name in (MOUNTS, failure_notes.DIRECTORY):
            Path(node.plugin_dir, name).mkdir(mode=0o755, parents=True, exist_ok=True)

    def place_of(self, volume: Volume) -> str:
        return os.path.join(self._node.mounts_dir, volume.mount_name)

    @contextlib.contextmanager
    def pinned(self, volume: Volume) -> Iterator[None]:
        """Keeps the mount of a volume from being removed as unused."""
        place = self.place_of(volume)
        with self._lock:
            self._pins[place] += 1
        try:
            yield
        finally:
            with self._lock:
                self._pins[place] -= 1

    def find_or_make(self, volume: Volume) -> SharedMount:
        """Returns the mount of a volume, which may not answer yet. Raises CannotMount, Unreachable
        (the holder), DeadlineExceeded; then nothing new is mounted."""
        with self._changing():
            place = self.place_of(volume)
            found = self._at(place)
            if found is None:
                self._generations[place] += 1
                self._apart.run(place, lambda: self._make(volume, place), CHANGE_S)
                found = self._at(place)
            if found is None:
                raise CannotMount("the mount ended at once", path=place)
            self._check_source(volume, found)
            return found

    def find(self, volume: Volume) -> SharedMount | None:
        """Returns the mount of a volume, if there is one. Raises InUse, DeadlineExceeded."""
        with self._changing():
            return self._at(self.place_of(volume))

    def bind(self, shared: SharedMount, volume: Volume, target: str) -> bool:
        """Binds a shared mount to a target. Returns False if it is not mounted any more. Raises
        CannotMount, OSError."""
        with self._changing():
            if self._at(shared.place) != shared:
                return False
            with contextlib.suppress(FileExistsError):
                os.mkdir(target, 0o750)
            options = volume.mount_options
            self._apart.run(
                target,
                lambda: system_calls.bind_read_only(shared.place, target, options),
                UNMOUNT_S,
            )
        return True

    def unbind(self, target: str) -> None:
        """Unmounts all that is mounted at a target. Raises CannotMount, DeadlineExceeded."""
        if read_mounts().layers(target):
            self._apart.run(target, lambda: system_calls.detach_all(target), UNMOUNT_S)

    def discard(self, shared: SharedMount) -> None:
        """Removes a dead mount and its deposits, if this mount is still there. Raises as
        `unbind`."""
        with self._changing():
            if self._at(shared.place) == shared:
                self._remove(shared.place)

    def remove_unused(self, place: str, device: str) -> bool:
        """Removes a mount that has no user, with its deposits. Returns False if it has one. Raises
        as `unbind`."""
        with self._changing():
            mounts = read_mounts()
            top = mounts.at(place)
            is_used = users(mounts, device, self._node.mounts_dir) or self._pins[place]
            if top is None or top.device != device or is_used:
                return False
            self._remove(place)
        return True

    def remove_failed(self, volume: Volume) -> None:
        """Removes the mount of a volume that nothing uses: it shows no directory. Raises as
        `unbind`."""
        found = self.find(volume)
        if found is not None:
            self.remove_unused(found.place, found.device)

    def remove_empty_places(self) -> None:
        """Removes the directories of mounts that are removed: a driver that was killed after an
        unmount left its directory. Raises InUse, DeadlineExceeded, OSError."""
        if not self._empty_places():
            return
        with self._changing():
            for place in self._empty_places():
                with contextlib.suppress(OSError):
                    os.rmdir(place)

    def _empty_places(self) -> list[str]:
        mounts = read_mounts()
        places = [os.path.join(self._node.mounts_dir, n) for n in os.listdir(self._node.mounts_dir)]
        return [place for place in places if mounts.at(place) is None]

    def _at(self, place: str) -> SharedMount | None:
        top = read_mounts().at(place)
        if top is None:
            return None
        return SharedMount(place, top.device, self._generations[place], top.source)

    def _check_source(self, volume: Volume, found: SharedMount) -> None:
        """Raises CannotMount if a mount shows another path. Its name is a short hash: the author of
        a pod may search for a path that has the name of another volume."""
        if found.source != mounting.source_name(self._spec(volume, found.place)):
            raise CannotMount("the mount of another volume has this name", path=found.place)

    def _remove(self, place: str) -> None:
        self._generations[place] += 1
        self._apart.run(place, lambda: system_calls.detach_all(place), UNMOUNT_S)
        self._drop_deposits(place)
        failure_notes.remove(place)
        with contextlib.suppress(OSError):
            os.rmdir(place)

    def _drop_deposits(self, place: str) -> None:
        """Drops the deposits of a mount. The reconciler repeats what fails."""
        try:
            with HolderClient(self._node.holder) as holder:
                for key in keys_of(place, holder.claimants()):
                    holder.drop(key)
        except CacheFSError as err:
            log.warning("the deposits of %s stay in the holder: %s", place, err.one_line())

    def _make(self, volume: Volume, place: str) -> None:
        """Mounts, answers INIT, and deposits. Undoes it all if a step fails."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(place, 0o755)
        failure_notes.remove(place)
        spec = self._spec(volume, place)
        try:
            fuse_fd = mount(spec)
            try:
                self._deposit(spec, fuse_fd)
            finally:
                os.close(fuse_fd)
        except BaseException:
            system_calls.detach_all(place)
            with contextlib.suppress(OSError):
                os.rmdir(place)
            raise
        log.info("mounted %s", volume.url, extra={"fields": {"place": place}})

    def _deposit(self, spec: ClientSpec, fuse_fd: int) -> None:
        negotiated = wire.encode_negotiated(answer_init(fuse_fd, spec))
        device = mounting.device_at(spec.mountpoint)
        mounting.raise_read_ahead(device)
        mounting.raise_background(device)
        key = new_key(spec.mountpoint)
        spec = msgspec.structs.replace(spec, deposit=DepositRef(self._node.holder, key, "", device))
        table_fd = TakeoverTable.make()
        try:
            with HolderClient(self._node.holder) as holder:
                holder.put(key, Deposit(spec, negotiated, device), fuse_fd, table_fd)
        finally:
            os.close(table_fd)

    def _spec(self, volume: Volume, place: str) -> ClientSpec:
        """Returns what the volume determines. The agent that serves the mount sets the rest."""
        return ClientSpec(
            home="",
            socket="",
            source=UfsSpec(volume.url),
            mountpoint=place,
            allow_other=True,
            default_permissions=True,
            uid=volume.uid,
            gid=volume.gid,
            file_mode=volume.file_mode,
            dir_mode=volume.dir_mode,
            transport="kernel",
            mount_options=volume.mount_options,
        )

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Holds the lock of this process and that of the node. Raises InUse after `CHANGE_S`."""
        if not self._lock.acquire(timeout=CHANGE_S):
            raise InUse("another change of the node's mounts has not ended")
        try:
            with open(os.path.join(self._node.plugin_dir, "mounts.lock"), "w") as file:
                try:
                    lock_within(file.fileno(), CHANGE_S, _PAUSE_S)
                except BlockingIOError:
                    cause = "another driver changes the node's mounts"
                    raise DeadlineExceeded(cause) from None
                yield  # closing the file unlocks it
        finally:
            self._lock.release()
