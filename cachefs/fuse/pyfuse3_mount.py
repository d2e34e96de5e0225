"""Serves a mount through pyfuse3: libfuse mounts; no supervisor, no passthrough."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import trio

from cachefs.core import messages as m
from cachefs.core.errors import CannotMount
from cachefs.core.specs import Started
from cachefs.fuse import mounting
from cachefs.fuse.vfs import Vfs
from cachefs.fuse.workers import Workers

if TYPE_CHECKING:
    from cachefs.client.connection import Connection
    from cachefs.fuse.client import Client

log = logging.getLogger("cachefs.client")

INIT_DEADLINE_S: Final = 10.0
WHY_NOT: Final = "the transport pyfuse3 has none"
# The end of pyfuse3's line for a reply that the kernel took with ENOENT: nothing waits for it.
ABORTED: Final = f"failed with {os.strerror(errno.ENOENT)}"


async def serve(client: Client, conn: Connection, vfs: Vfs, warning: str) -> None:
    """Mounts, announces the mount, serves it and unmounts. Raises CannotMount."""
    from cachefs.fuse.pyfuse3_transport import Session  # needs libfuse

    logging.getLogger("pyfuse3").addFilter(is_awaited)
    spec = client.spec
    assert isinstance(client.runs, Workers)
    with _capturing_stderr() as said:
        try:
            options = mounting.mount_options(spec)
            session = Session(vfs, client.runs, spec.mountpoint, options)
        except RuntimeError as err:
            raise cannot_mount(spec.mountpoint, said()) from err
    device = mounting.device_at(spec.mountpoint)
    client.tell_facts = lambda: conn.post(m.MountFacts("pyfuse3", False, WHY_NOT))
    client.tell_facts()
    try:
        async with trio.open_nursery() as nursery:
            await client.start_tasks(nursery, vfs, device)
            nursery.start_soon(_announce, client, session.operations.ready, device, warning)
            await session.serve()
            log.info("the mount is gone")
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(mounting.unmount, spec.mountpoint, device)
        session.close()
        client.record.remove()


async def _announce(client: Client, answering: trio.Event, device: str, warning: str) -> None:
    spec = client.spec
    with trio.move_on_after(INIT_DEADLINE_S):
        await answering.wait()
    if not answering.is_set():
        raise CannotMount("the kernel did not start the session", path=spec.mountpoint)
    mounting.raise_read_ahead(device)
    mounting.raise_background(device)
    client.record.write()
    log.info("%s is ready at %s", spec.source.url, spec.mountpoint)
    client.ready.say(Started(os.getpid(), warning=warning))


def is_awaited(record: logging.LogRecord) -> bool:
    """Returns False for the line about a reply to a request that the kernel has ended.

    An unmount ends the reads ahead and the releases that are under way, and the kernel then takes
    their replies with ENOENT (`fuse_dev_do_write` in `fs/fuse/dev.c`). That is no failure.
    """
    return not record.getMessage().endswith(ABORTED)


@contextlib.contextmanager
def _capturing_stderr() -> Iterator[Callable[[], str]]:
    """Captures what libfuse writes to standard error, for the caller and for the log."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as caught:

        def said() -> str:
            caught.seek(0)
            return caught.read().decode(errors="replace").strip()

        os.dup2(caught.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            if text := said():
                log.info("libfuse: %s", text)


def cannot_mount(mountpoint: str, said: str) -> CannotMount:
    """Returns the error for a failed mount, with its cause and remedy."""
    if not os.path.exists("/dev/fuse"):
        return CannotMount(
            "there is no /dev/fuse", remedy="load the kernel module: modprobe fuse", path=mountpoint
        )
    line = said.splitlines()[-1] if said else "libfuse gives no reason"
    remedy = "see the client's log"
    if "allow_other" in said:
        remedy = "add user_allow_other to /etc/fuse.conf, or mount without --allow-other"
    elif "fusermount" in said and "not found" in said:
        remedy = "install the package fuse3"
    return CannotMount(line.removeprefix("fuse: "), remedy=remedy, path=mountpoint)
