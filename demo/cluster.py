"""The demo's second part: many nodes, one cache. Three workers on this machine stand for three
nodes; one is killed while an epoch is read, and a machine without a worker reads what they have.

A proxy in front of the bucket's server counts what the origin hands out.
"""

from __future__ import annotations

import concurrent.futures
import json
import re
import urllib.request
from typing import Any

from cachefs.client.credentials import presented_token
from cachefs.core.access import HEADER, header_of
from cachefs.core.specs import Security
from cachefs.launcher import tokens
from cachefs.launcher.state import StateHome
from demo import readers
from demo.console import cachefs, expect, header, row, say
from demo.dataset import Dataset
from demo.readers import Rates
from demo.sandbox import END_LIMIT_S, Sandbox, is_running, wait_until
from demo.servers import SOURCE
from tests.services.proxy import FaultProxy
from tests.services.s3_server import S3Server

WORKERS = 3
WORKER_SIZE = "256MiB"
TRAINER_SIZE = "64MiB"
PATH = "/imagenet"
UNDER_WAY_BYTES = 16 << 20  # requests of the killed worker that nobody heard the end of
BROUGHT = re.compile(r'^cachefs_worker_bytes_total\{source="origin"\} (\S+)$', re.MULTILINE)


class ClusterDemo:
    """The steps, in order. `up` is what `cachefs up` said."""

    def __init__(self, box: Sandbox, dataset: Dataset, proxy: FaultProxy) -> None:
        self.box = box
        self.dataset = dataset
        self.proxy = proxy
        self.mountpoint = box.mountpoint
        self.up: dict[str, Any] = {}
        self._counted = 0
        self._lost_bytes = 0  # what only the killed worker may have had

    def start(self) -> None:
        """A master, its workers, a source, a mount."""
        cachefs("up", "--workers", str(WORKERS), "--cache-size", WORKER_SIZE)
        self.up = json.loads(cachefs("up", "--json", quiet=True))
        cachefs("ufs", "add", SOURCE, PATH, "--endpoint-url", self.proxy.endpoint_url)
        cachefs("mount", self.source, str(self.mountpoint))

    @property
    def source(self) -> str:
        """What is mounted."""
        return str(self.up["mount"]).rstrip("/") + PATH

    def origin_bytes(self) -> int:
        """Bytes of objects that the origin handed out since this was last asked."""
        before, self._counted = self._counted, self.proxy.counters().object_bytes
        return self._counted - before

    def lose_a_worker(self) -> None:
        """An epoch, cold; in the middle of the images one worker is killed."""
        victim = self._other_worker()
        self.origin_bytes()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            epoch = pool.submit(readers.from_directory, self.dataset, self.mountpoint)
            half = self._counted + self.dataset.image_bytes // 2
            self.proxy.wait_until(lambda counters: counters.object_bytes >= half)
            brought = brought_by(victim["url"], self._headers())
            self._lost_bytes = brought + UNDER_WAY_BYTES
            self.box.kill([victim["pid"]])
            say(f"\n$ kill -9 {victim['pid']}   # {victim['name']}, in the middle of an epoch")
            rates = epoch.result()
        header()
        self._show("the epoch, cold, one worker killed", rates, brought)

    def read_elsewhere(self) -> None:
        """A machine without a worker (here: with a state home of its own) reads what the others
        have."""
        home, mountpoint = str(self.box.folder / "elsewhere"), self.box.folder / "mnt2"
        mountpoint.mkdir()
        flags = ["--home", home, "--cache-size", TRAINER_SIZE, "--token-file", self._token_file]
        cachefs("mount", self.source, str(mountpoint), *flags)
        header()
        rates = readers.from_directory(self.dataset, mountpoint)
        fetched = self.origin_bytes()
        row("a machine without a worker", rates, fetched)
        of_peers = self.dataset.total_bytes - fetched
        say(f"  {of_peers / 1e6:.1f} MB came from the other workers; the rest the dead one had")
        expect(fetched <= self._lost_bytes, f"the origin gave {fetched} bytes again")
        cachefs("umount", str(mountpoint), "--home", home)

    def end(self) -> None:
        """Ends the cluster, and looks for what must not be there any more."""
        cachefs("down")
        expect(not self.box.mounts(), "still mounted after down")
        pids = [process["pid"] for process in self.up["processes"]]
        ended = wait_until(lambda: not any(map(is_running, pids)), END_LIMIT_S)
        expect(ended, f"processes left after down: {pids}")

    @property
    def _token_file(self) -> str:
        """Of the cluster: another machine would have a copy."""
        home = StateHome(self.box.folder / "home" / "cachefs")
        return str(tokens.path_of(home, int(self.up["processes"][0]["url"].rpartition(":")[2])))

    def _headers(self) -> dict[str, str]:
        """What a monitoring agent presents."""
        return {HEADER: header_of(presented_token(Security(self._token_file)))}

    def _other_worker(self) -> dict[str, Any]:
        """A worker that is not the one of this node's mount."""
        status = json.loads(cachefs("status", "--json", str(self.mountpoint), quiet=True))
        used = {process["pid"] for process in status["processes"]}
        workers: list[dict[str, Any]] = self.up["processes"][1:]
        return next(process for process in workers if process["pid"] not in used)

    def _show(self, name: str, rates: Rates, brought: int) -> None:
        fetched = self.origin_bytes()
        row(name, rates, fetched)
        again = fetched - self.dataset.total_bytes
        say(
            f"  no error, no wrong byte; of {self.dataset.total_bytes / 1e6:.1f} MB the origin gave"
            f" {max(0, again) / 1e6:.1f} MB again\n  (the dead worker had brought"
            f" {brought / 1e6:.1f} MB)"
        )
        expect(0 <= again <= self._lost_bytes, f"the origin gave {again} bytes again")


def brought_by(url: str, headers: dict[str, str]) -> int:
    """What a worker brought from the origin so far, as its metrics say."""
    request = urllib.request.Request(f"{url}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=END_LIMIT_S) as reply:
        found = BROUGHT.search(reply.read().decode())
    return int(float(found[1])) if found else 0


def play(box: Sandbox, dataset: Dataset, server: S3Server) -> None:
    """All of this part. The proxy speaks what the server does; their certificate is one."""
    trusted = server.ca_bundle
    with FaultProxy(server.endpoint_url, certificate=trusted, upstream_ca=trusted) as proxy:
        demo = ClusterDemo(box, dataset, proxy)
        demo.start()
        demo.lose_a_worker()
        demo.read_elsewhere()
        demo.end()
