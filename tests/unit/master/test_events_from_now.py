"""The event stream from now on."""

from __future__ import annotations

import asyncio

from cachefs.core.model import ROOT_INO, NamespaceId
from master.events import EventStream
from master.store.transaction import initialise, transact
from tests.services.memory_store import MemoryStore


def test_a_negative_position_is_now() -> None:
    async def run() -> list[bytes]:
        store = MemoryStore()
        meta = initialise(store, NamespaceId(b"n" * 16))
        transact(store, lambda txn: txn.announce(ROOT_INO, b"before")).result()
        stream = EventStream(store, meta.namespace)
        events = stream.after(-1)
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        transact(store, lambda txn: txn.announce(ROOT_INO, b"after")).result()
        stream.wake()
        event = await asyncio.wait_for(waiting, 10)
        stream.close()
        store.close()
        return [name for _, name in event.entries]

    assert asyncio.run(run()) == [b"after"]
