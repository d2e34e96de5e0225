"""A queue that speaks the JSON protocol of SQS and delivers computed messages, for benches:
`python -m bench.queue_origin --messages N --rate PER_S --prefix KEYS`.

Each message has one event of S3 and is sent at its time after the first request. A reply has up to
ten messages, `LATENCY_S` after its request or when the first one is sent. Deleted messages are only
counted; none is delivered twice. It prints one JSON line with its URL, one when all messages are
deleted, and ends with its standard input. Signatures are not checked.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from typing import Any, Final

from aiohttp import web

AT_ONCE: Final = 10
LATENCY_S: Final = 0.005


class Queue:
    """The messages, in the order of their numbers."""

    def __init__(self, messages: int, rate: float, prefix: str) -> None:
        self._messages = messages
        self._rate = rate
        self._prefix = prefix
        self._next = 0
        self._deleted = 0
        self._began_s: float | None = None

    async def receive(self, wait_s: float) -> dict[str, Any]:
        until_s = time.monotonic() + wait_s
        if self._began_s is None:
            self._began_s = time.monotonic()
        await asyncio.sleep(LATENCY_S)
        while not (ready := self._ready()) and time.monotonic() < until_s:
            await asyncio.sleep(LATENCY_S)
        numbers = range(self._next, self._next + min(AT_ONCE, ready))
        self._next = numbers.stop
        return {"Messages": [self._message(number) for number in numbers]}

    def _ready(self) -> int:
        assert self._began_s is not None
        sent = int((time.monotonic() - self._began_s) * self._rate) + 1
        return min(sent, self._messages) - self._next

    def _message(self, number: int) -> dict[str, Any]:
        subject = {"bucket": {"name": "bucket"}, "object": {"key": f"{self._prefix}{number}"}}
        return {
            "MessageId": str(number),
            "ReceiptHandle": str(number),
            "Body": json.dumps({"Records": [{"s3": subject}]}),
            "Attributes": {"SentTimestamp": str(int(time.time() * 1000))},
        }

    async def delete(self, handles: int) -> dict[str, Any]:
        await asyncio.sleep(LATENCY_S)
        self._deleted += handles
        if self._deleted == self._messages:
            print(json.dumps({"deleted": self._deleted}), flush=True)
        return {"Successful": [], "Failed": []}

    async def answer(self, request: web.BaseRequest) -> web.Response:
        asked = json.loads(await request.read())
        action = request.headers["X-Amz-Target"].rpartition(".")[2]
        if action == "ReceiveMessage":
            found = await self.receive(asked["WaitTimeSeconds"])
        elif action == "DeleteMessageBatch":
            found = await self.delete(len(asked["Entries"]))
        else:
            found = {"Attributes": {"MessageRetentionPeriod": "345600"}}
        return web.Response(text=json.dumps(found), content_type="application/x-amz-json-1.0")


async def serve(queue: Queue) -> None:
    runner = web.ServerRunner(web.Server(queue.answer, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = runner.addresses[0]
    print(json.dumps({"url": f"http://127.0.0.1:{address[1]}/000000000000/events"}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--prefix", default="")
    chosen = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(Queue(chosen.messages, chosen.rate, chosen.prefix)))
