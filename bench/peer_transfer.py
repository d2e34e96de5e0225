"""A worker that serves cached files to another worker, tmpfs to tmpfs, against curl of the same
files from nginx: one stream >= 0.6 x, four streams >= 0.8 x; CPU of both sides <= 1.5 x curl's and
nginx's.

A stream is one file. Both sides write to the same tmpfs. The taker's time ends when the files are
published, every page verified and recorded.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench import machine
from bench.harness import Lab, main
from bench.mounts import BenchFailed
from bench.origin import REPOSITORY
from bench.peer_node import Spec
from bench.report import Result
from tests.services.s3_server import free_port

MIB = 1 << 20
LIMIT_S = 120.0
NGINX = """
user root;
worker_processes auto;
daemon off;
pid {root}/nginx.pid;
error_log {root}/nginx.log;
events {{ worker_connections 256; }}
http {{
    sendfile on; tcp_nopush on; access_log off;
    client_body_temp_path {root}/t1; proxy_temp_path {root}/t2; fastcgi_temp_path {root}/t3;
    uwsgi_temp_path {root}/t4; scgi_temp_path {root}/t5;
    server {{ listen 127.0.0.1:{port}; root {folder}; }}
}}
"""


@dataclass(frozen=True)
class Took:
    """One transfer of all files."""

    wall_s: float
    cpu_s: float  # of both sides


def run(lab: Lab, result: Result) -> None:
    size_mib = lab.size(512, 64)
    folder = lab.root / "data"
    names = _make(folder, 4, size_mib)
    table = result.table(
        f"files of {size_mib} MiB, median of {lab.runs}",
        "what", "GB/s", "CPU s per GB",
    )  # fmt: skip
    with _nginx(lab.root, folder) as (pids, url), _owner(lab, folder, names) as (pid, owner):
        for streams, least in ((1, 0.6), (4, 0.8)):
            chosen, size_bytes = names[:streams], streams * size_mib * MIB
            theirs, ours = [], []
            for _ in range(lab.runs + 1):  # by turns; the first one warms up
                theirs.append(_curl(lab.root / "out", url, chosen, pids))
                ours.append(_take(lab, folder, chosen, owner, pid))
            curl, peer = _median(theirs[1:]), _median(ours[1:])
            for what, took in ((f"curl from nginx, {streams}", curl), (f"worker, {streams}", peer)):
                gigabytes = size_bytes / 1e9
                table.add(what, gigabytes / took.wall_s, took.cpu_s / gigabytes)
            what = f"{streams} stream{'s' * (streams > 1)}"
            rate = curl.wall_s / peer.wall_s
            result.bar(f"{what}: rate against curl", rate, least, "x", at_least=True)
            result.bar(f"{what}: CPU of both sides", peer.cpu_s / curl.cpu_s, 1.5, "x")


def _median(took: list[Took]) -> Took:
    """Returns the median of each figure separately."""
    return Took(
        statistics.median(one.wall_s for one in took), statistics.median(one.cpu_s for one in took)
    )


def _make(folder: Path, count: int, size_mib: int) -> list[str]:
    folder.mkdir()
    template = random.Random(5).randbytes(MIB)
    names = [f"f{number}" for number in range(count)]
    for name in names:
        with open(folder / name, "wb") as file:
            for page in range(size_mib):
                file.write(b"%s %08d" % (name.encode(), page) + template[11:])
    return names


def _curl(out: Path, url: str, names: list[str], pids: list[int]) -> Took:
    """Runs one curl for each file, all at once."""
    out.mkdir()
    served, before = machine.cpu_s(pids), resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    running = [
        subprocess.Popen(["curl", "-sf", "-o", str(out / name), f"{url}/{name}"]) for name in names
    ]
    codes = [one.wait(LIMIT_S) for one in running]
    wall_s = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(out)
    if any(codes):
        raise BenchFailed(f"curl ended with {codes}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Took(wall_s, cpu_s + machine.cpu_s(pids) - served)


def _take(lab: Lab, folder: Path, names: list[str], owner: str, pid: int) -> Took:
    tier = lab.fresh_cache()
    spec = Spec(str(tier), str(folder), names, 8 << 30, owner)
    served = machine.cpu_s([pid])
    done = subprocess.run(
        _command(spec), cwd=REPOSITORY, capture_output=True, text=True, timeout=LIMIT_S
    )
    shutil.rmtree(tier, ignore_errors=True)
    if done.returncode:
        raise BenchFailed(f"the taker failed: {done.stderr.strip()[-800:]}")
    got = json.loads(done.stdout)
    return Took(got["wall_s"], got["cpu_s"] + machine.cpu_s([pid]) - served)


def _command(spec: Spec) -> list[str]:
    return [sys.executable, "-m", "bench.peer_node", msgspec.json.encode(spec).decode()]


@contextlib.contextmanager
def _owner(lab: Lab, folder: Path, names: list[str]) -> Iterator[tuple[int, str]]:
    """Runs a worker that has all files cached; yields its pid and URL."""
    spec = Spec(str(lab.fresh_cache()), str(folder), names, 8 << 30)
    with subprocess.Popen(
        _command(spec), cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.pid, json.loads(process.stdout.readline())["url"]
        finally:
            process.stdin.close()
            process.wait(LIMIT_S)


@contextlib.contextmanager
def _nginx(root: Path, folder: Path) -> Iterator[tuple[list[int], str]]:
    """Runs nginx; yields the pids of its workers and its URL."""
    port = free_port()
    config = root / "nginx.conf"
    config.write_text(NGINX.format(root=root, folder=folder, port=port))
    process = subprocess.Popen(["nginx", "-c", str(config)])
    try:
        yield _workers(process.pid), f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def _workers(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    deadline = time.monotonic() + 5
    while not (pids := [int(word) for word in children.read_text().split()]):
        if time.monotonic() > deadline:
            raise BenchFailed("nginx started no worker")
        time.sleep(0.01)
    time.sleep(0.2)  # for the remaining workers
    return [int(word) for word in children.read_text().split()] or pids


if __name__ == "__main__":
    main(run)
