"""Load jobs and syncs of a real mount, by the command line: jobs outlive every process,
bring every byte about once, and say the truth of what failed and of what cannot fit."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

from tests.integration.conftest import Bucket, Node
from tests.integration.dataset import body
from tests.integration.loading import (
    FILE_BYTES,
    LOST_BYTES,
    MANY,
    du,
    ended,
    put_many,
    waiting,
)
from tests.services.processes import is_running, wait_until
from tests.services.proxy import FaultProxy, hang, status
from worker.loads.schedule import REQUESTS

MIB = 1 << 20
DEATHS = 3
HELD = "train/n07/00007.bin"  # a file of many that a test holds back


def kill_server(node: Node, mounted: Path) -> None:
    pid = next(p["pid"] for p in node.processes(mounted) if p["role"] == "server")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid), "the server ends")


def rows(node: Node, *arguments: str | Path) -> list[dict[str, Any]]:
    """What a command says in JSON lines."""
    return [json.loads(line) for line in node.ok(*arguments, "--json").splitlines()]


# ---- one node ------------------------------------------------------------------------------------


def test_a_load_goes_on_over_deaths_of_the_server_and_brings_every_byte_about_once(
    node: Node, bucket: Bucket, proxy: FaultProxy
) -> None:
    """[S-load] A job needs nobody who waits for it: it is durable, goes on when its server is
    started again, is stopped and resumed, and has ended well only when all is cached."""
    node.allowed_log += ["the connection to the server is lost"]
    total = put_many(bucket, MANY, FILE_BYTES)
    mounted = node.mount(bucket.url, *bucket.options, "--cache-size", "256MiB")
    let_go = threading.Event()  # before that the job cannot end
    proxy.script(hang(let_go), method="GET", key=HELD, times=None)
    with waiting(node.environment, "load", "--wait", mounted / "train") as load:
        for part in (0.2, 0.5):
            proxy.wait_until(lambda seen, part=part: seen.object_bytes > part * total, 30)
            kill_server(node, mounted)
        proxy.wait_until(lambda seen: seen.object_bytes > 0.6 * total, 30)
        said = node.ok("jobs", "stop", "1")
        assert said.startswith("OK, job 1 is stopped: ")
        code, out, _ = ended(load)
        assert code == 1
        assert "`cachefs jobs resume 1" in out
    node.processes(mounted)
    kill_server(node, mounted)
    (shown,) = json.loads(node.ok("jobs", "--json"))
    assert (shown["state"], shown["files_done"] < MANY) == ("stopped", True), "it stays stopped"
    let_go.set()
    said = node.ok("jobs", "resume", "1", "--wait")
    assert said.startswith(f"OK, loaded {MANY:,} of {MANY:,} files"), said
    fetched = proxy.counters().object_bytes
    assert total <= fetched <= total + DEATHS * LOST_BYTES, f"{fetched / total:.2f} times"
    assert du(node, mounted)["cached_bytes"] == total
    node.processes(mounted)


def test_a_load_of_one_large_file_shows_the_bytes_that_have_arrived(
    node: Node, bucket: Bucket, proxy: FaultProxy
) -> None:
    """[S-load] A page that the origin holds back keeps the file from its end, and not from being
    shown with its rate and its remaining time."""
    bucket.fill({"train/large": body(1, 48 * MIB)})
    mounted = node.mount(bucket.url, *bucket.options, "--cache-size", "256MiB")
    let_go = threading.Event()
    page = 32 * MIB, 33 * MIB
    proxy.script(hang(let_go), method="GET", key="large", range_bytes=page, times=None)
    with waiting(node.environment, "load", "--wait", mounted / "train") as load:
        proxy.wait_until(lambda seen: seen.object_bytes > 0, 30)
        shown: list[dict[str, Any]] = []

        def has_arrived() -> bool:
            shown.extend(json.loads(node.ok("jobs", "ls", mounted, "--json")))
            return bool(shown[-1]["bytes_done"] >= 40 * MIB)

        wait_until(has_arrived, "all but the piece with that page is shown")
        last = shown[-1]
        assert (last["state"], last["files_done"]) == ("loading", 0)
        assert 40 * MIB <= last["bytes_done"] < last["bytes_found"] == 48 * MIB
        assert last["rate_bytes_s"] > 0
        assert last["eta_s"] > 0
        let_go.set()
        code, out, _ = ended(load)
        assert (code, out.startswith("OK, loaded 1 of 1 files (48 MiB of 48 MiB;")) == (0, True)
    assert proxy.counters().object_bytes == 48 * MIB


def test_what_the_origin_refuses_is_named_and_tried_again(
    node: Node, bucket: Bucket, proxy: FaultProxy
) -> None:
    """[S-load-failures] One failed file fails the job, and no other file; what changed while it was
    loaded is loaded as it is now."""
    node.allowed_log += ["changed at its origin", "train/0(07|70): "]
    files = {f"train/{n:03d}": body(n, 20_000) for n in range(100)}
    bucket.fill(files)
    mounted = node.mount(bucket.url, *bucket.options)
    proxy.script(status(403, code="AccessDenied"), method="GET", key="train/007", times=None)
    proxy.script(status(404, code="NoSuchKey"), method="GET", key="train/070", times=None)
    let_go = threading.Event()
    proxy.script(hang(let_go), method="GET", key="train/042")
    with waiting(node.environment, "load", "--wait", mounted / "train") as load:
        proxy.wait_until(lambda seen: seen.faults >= 3)
        files["train/042"] = body(1042, 30_000)
        bucket.put("train/042", files["train/042"])
        let_go.set()
        code, out, err = ended(load)
    assert code == 1
    assert "loaded 98 of 100 files" in out
    assert "2 failed" in out
    named = rows(node, "jobs", "show", "1", "--failures")
    assert sorted(row["path"] for row in named) == [
        str(mounted / f"train/{n}") for n in ("007", "070")
    ]
    assert {row["code"] for row in named} == {"access-denied", "not-found"}
    assert all(str(mounted / f"train/{n}:") in err for n in ("007", "070"))
    proxy.clear()
    assert node.ok("jobs", "retry", "1", "--wait").startswith("OK, loaded 100 of 100 files")
    proxy.reset()
    assert (mounted / "train/042").read_bytes() == files["train/042"]
    assert (mounted / "train/007").read_bytes() == files["train/007"]
    assert proxy.counters().object_bytes == 0, "all of it was cached"


def test_what_cannot_fit_says_so_with_figures_and_evicts_nothing_that_is_kept(
    node: Node, bucket: Bucket
) -> None:
    """[S-load-room] A load that does not fit ends before it evicts what is pinned or held."""
    bucket.fill({f"kept/{n}": body(n, MIB) for n in range(8)})
    bucket.fill({f"held/{n}": body(50 + n, MIB) for n in range(8)})
    bucket.fill({f"more/{n}": body(100 + n, 2 * MIB) for n in range(7)})
    mounted = node.mount(bucket.url, *bucket.options, "--cache-size", "32MiB")
    node.ok("pin", mounted / "kept", "--wait")
    node.ok("load", mounted / "held", "--wait", "--hold", "1h")
    done = node.run("load", mounted / "more", "--wait")
    assert done.returncode == 1
    assert done.stdout.startswith("FAILED: loaded ")
    assert re.search("does not fit.* limit is .* MiB is held, 8 MiB pinned", done.stdout), done
    for name in ("kept", "held"):
        assert du(node, mounted / name)["cached_bytes"] == 8 * MIB, name
    done = node.run("pin", mounted, "--wait")
    assert done.returncode == 1
    # Before it begins, or where a worker has no more room: there it is known what is pinned.
    figures = r"it needs .* MiB, the caches hold [\d.]+ MiB|limit is [\d.]+ MiB, .* MiB pinned"
    assert re.search(f"does not fit: .*({figures})", done.stdout), done
    assert "is pinned, and not all of it is cached" in done.stderr
    assert du(node, mounted / "kept")["cached_bytes"] == 8 * MIB


def test_what_a_quota_refuses_says_which_and_how_much_of_it_is_used(
    node: Node, bucket: Bucket
) -> None:
    """[S-load-quota] What is more than a quota ends before it is loaded; a quota that others have
    filled ends what lies below it; where only some lies below it the rest is loaded."""
    bucket.fill({f"set/old-{n}": body(n, MIB) for n in range(4)})
    bucket.fill({f"set/new-{n}": body(50 + n, MIB) for n in range(6)})
    bucket.fill({f"other/{n}": body(100 + n, MIB) for n in range(3)})
    mounted = node.mount(bucket.url, *bucket.options, "--cache-size", "64MiB")
    node.ok("quota", mounted / "set", "8MiB")
    done = node.run("load", mounted / "set", "--wait")
    assert done.returncode == 1
    needs = "it needs (at least )?10 MiB, the quota of /set is 8 MiB; give"
    assert re.search(needs, done.stdout), done
    assert du(node, mounted / "set")["cached_bytes"] == 0, "it was known with the first listing"
    node.ok("load", mounted / "set/old-*", "--wait")
    done = node.run("load", mounted / "set/new-*", "--wait")
    assert done.returncode == 1
    full = "the quota of /set is full: 8 MiB of 8 MiB are used, .* to go; give a larger one"
    assert re.search(full, done.stdout), done
    done = node.run("load", mounted, "--wait")
    assert "2 of 13 files could not be loaded" in done.stdout, done
    assert "2 files: the quota of /set has no room for it: 8 MiB of 8 MiB are used" in done.stderr
    assert du(node, mounted / "other")["cached_bytes"] == 3 * MIB
    told = "QUOTA_FULL: /set: 8 MiB of 8 MiB are used"
    wait_until(lambda: told in node.run("health", mounted).stdout, "the full quota is named")
    for command in (["status"], ["top", "-n", "1", "--interval", "200ms"]):
        said = node.run(command[0], mounted, *command[1:]).stdout
        assert told in said, said
    node.ok("quota", mounted / "set", "10MiB")
    wait_until(lambda: told not in node.run("health", mounted).stdout, "it is full no more")
    job = node.ok("jobs", "resume", "3", mounted, "--wait")
    assert job.startswith("OK, loaded 6 of 6 files"), job


def test_of_two_loads_the_urgent_one_does_not_wait_for_the_slow_one(
    node: Node, bucket: Bucket, proxy: FaultProxy
) -> None:
    """Asked for again, the slow one goes on with what is asked now."""
    total = put_many(bucket, 300, 50_000, "slow")
    put_many(bucket, 100, 50_000, "urgent")
    mounted = node.mount(bucket.url, *bucket.options)
    flags = ("--bandwidth", "300KB/s", "--priority", "low")
    assert "job 1 is started" in node.ok("load", mounted / "slow", *flags)
    proxy.wait_until(lambda seen: seen.object_bytes > 0)
    node.ok("load", mounted / "urgent", "--wait", "--priority", "high")
    first = json.loads(node.ok("jobs", "show", "1", "--json"))
    assert first["state"] == "loading"
    assert first["bytes_done"] < total
    said = node.ok("load", mounted / "slow", "--wait", "--verify")
    assert said.startswith("OK, loaded 300 of 300 files"), said
    listed = json.loads(node.ok("jobs", "ls", mounted, "--json"))
    assert [(row["job"], row["state"]) for row in listed] == [(2, "succeeded"), (1, "succeeded")]
    settings = listed[1]["settings"]
    assert (settings["bandwidth_bytes_s"], settings["verify"]) == (0, True)
    node.ok("jobs", "forget", "2", mounted)
    assert "no job 2" in node.fails("jobs", "show", "2")


def test_a_load_keeps_to_its_bandwidth(node: Node, bucket: Bucket) -> None:
    rate, size = 5_000_000, 50_000
    total = put_many(bucket, 300, size)
    mounted = node.mount(bucket.url, *bucket.options)
    started = time.monotonic()
    node.ok("load", mounted / "train", "--bandwidth", "5MB/s", "--wait")
    at_once = rate + REQUESTS * size  # after a pause, and what is under way when that is used up
    assert time.monotonic() - started >= (total - at_once) / rate


def test_the_same_long_list_again_updates_the_job_that_runs(
    node: Node, bucket: Bucket, tmp_path: Path
) -> None:
    put_many(bucket, MANY, FILE_BYTES)
    mounted = node.mount(bucket.url, *bucket.options)
    names = [str(mounted / f"train/n{n % 20:02d}/{n:05d}.bin") for n in range(MANY)]
    for file, listed in (("one", names), ("two", names[::-1])):
        (tmp_path / file).write_text("\n".join(listed))
    said = node.ok("load", "--files-from", tmp_path / "one", "--bandwidth", "10KiB/s")
    assert said.startswith("OK, job 1 is started"), said
    said = node.ok("load", "--files-from", tmp_path / "two", "--wait")
    assert said.startswith(f"OK, loaded {MANY:,} of {MANY:,} files"), said
    (job,) = json.loads(node.ok("jobs", "ls", mounted, "--json"))
    assert (job["job"], job["settings"]["bandwidth_bytes_s"]) == (1, 0)


def test_a_sync_takes_over_what_changed_and_says_it(node: Node, bucket: Bucket) -> None:
    """[S-sync-now] [C-sync] `cachefs sync` sees what changed at once, whatever is fresh; a dry
    run says it and changes nothing."""
    bucket.fill({f"d/{n}": b"1" for n in range(5)})
    mounted = node.mount(bucket.url, *bucket.options, "--sync-interval", "1h")
    before = sorted(os.listdir(mounted / "d"))
    assert (mounted / "d/1").read_bytes() == b"1"
    bucket.fill({"d/1": b"22", "d/new": b"1", "d/e/deep": b"1"})
    bucket.delete("d/2")
    wanted = [f"+ {mounted}/d/e/", f"+ {mounted}/d/new", f"- {mounted}/d/2", f"~ {mounted}/d/1"]
    for flag in ("--dry-run", "--recursive"):
        lines = node.ok("sync", mounted / "d", flag).splitlines()
        assert sorted(line for line in lines[:-1] if not line.endswith("deep")) == wanted
        assert lines[-1].startswith("OK, compared ")
        if flag == "--dry-run":
            assert sorted(os.listdir(mounted / "d")) == before
    assert sorted(os.listdir(mounted / "d")) == ["0", "1", "3", "4", "e", "new"]
    assert (mounted / "d/1").read_bytes() == b"22"
    assert "0 added, 0 replaced, 0 gone" in node.ok("sync", "-R", mounted)
    assert "no such" in node.fails("sync", mounted / "nothing")
