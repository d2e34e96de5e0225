"""Load jobs and syncs by the command line, against a scripted server: what is asked, what is shown
of how far they are and of what failed, and the exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cachefs.cli import job_servers, job_views
from cachefs.cli.commands import load, sync
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.errors import BadConfig, Unreachable
from cachefs.core.jobs import JobFailure, JobSpec, JobState, JobStatus
from cachefs.core.model import NamespaceId, UfsSpec
from cachefs.core.mountinfo import Mount, Mounts
from cachefs.core.policies import Policy
from cachefs.core.syncs import Change, ChangeKind, SyncStatus
from cachefs.launcher.state import MountRecord, StateHome
from tests.unit.cli.fake_master import FakeMaster
from tests.unit.cli.fake_node import FakeNode
from tests.unit.cli.test_commands import FILES, Run, node, ok, refused

__all__ = ["node"]  # a fixture
MIB = 1 << 20
COMMAND_S = 60.0
SPEC = JobSpec((b"d",))
RUNS, ENDED = JobState.LOADING, JobState.SUCCEEDED


def shown(state: JobState, done: int, failed: int = 0, **more: object) -> JobStatus:
    """Job 7, of four files of 1 MiB."""
    fields: dict[str, object] = {"listing_done": True, "elapsed_s": 2.0, "path_count": 1, **more}
    return JobStatus(
        job=7,
        state=state,
        paths=[b"d"],
        spec=fields.pop("spec", SPEC),  # type: ignore[arg-type]
        files_found=fields.pop("files_found", 4),  # type: ignore[arg-type]
        files_done=done,
        files_failed=failed,
        bytes_found=4 * MIB,
        bytes_done=done * MIB,
        bytes_fetched=done * MIB,
        **fields,  # type: ignore[arg-type]
    )


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the commands would have waited."""
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    return waited


@pytest.fixture(autouse=True)
def mounted(monkeypatch: pytest.MonkeyPatch) -> Mounts:
    table = Mounts([Mount("0:50", "/", "/mnt/data", "fuse.cachefs", "s3://bucket/p", ())])
    monkeypatch.setattr(job_servers, "read_mounts", lambda: table)
    return table


def submitted(node: FakeNode) -> list[m.SubmitJob]:
    return [body for body in node.asked if isinstance(body, m.SubmitJob)]


# ---- load ----------------------------------------------------------------------------------------


def test_load_submits_one_job_and_says_how_to_see_it(node: FakeNode, run: Run) -> None:
    assert ok(run("load", "/mnt/data/d", "/mnt/data//x/../*.bin/")) == (
        "OK, job 7 is started; `cachefs jobs show 7 /mnt/data` shows it\n"
    )
    (asked,) = submitted(node)
    assert asked.spec == JobSpec((b"d", b"*.bin"))
    assert asked.key
    assert not asked.more


def test_what_a_load_is_asked(node: FakeNode, run: Run) -> None:
    flags = ["--bandwidth", "2GiB/s", "--hold", "24h", "--verify", "--priority", "low", "--json"]
    said = json.loads(ok(run("load", "/mnt/data", *flags)))
    assert said == {"job": 7, "where": "/mnt/data", "updated": True}
    (asked,) = submitted(node)
    assert asked.spec == JobSpec((b"",), 2 << 30, 86400.0, True, "low")
    for flag, value in (("--bandwidth", "fast"), ("--hold", "-1"), ("--hold", "long")):
        refused(run("load", "/mnt/data", flag, value))
    refused(run("load", "/mnt/data", "--priority", "urgent"), code=2)
    assert "leave --replicas out" in refused(run("load", "/mnt/data", "--replicas", "2"))
    assert len(submitted(node)) == 1


def test_load_and_wait(node: FakeNode, run: Run, pauses: list[float]) -> None:
    node.jobs[7] = [shown(RUNS, 1), shown(JobState.VERIFYING, 4), shown(ENDED, 4)]
    said = ok(run("load", "--wait", "/mnt/data"))
    assert said == "OK, loaded 4 of 4 files (4 MiB of 4 MiB; 4 MiB from the origin) in 2s\n"
    assert len(pauses) == 2


def test_a_job_that_failed_names_what_failed_and_how_to_go_on(node: FakeNode, run: Run) -> None:
    node.failed = [JobFailure(b"d/f%d" % n, "access-denied", "denied") for n in range(50)]
    node.jobs[7] = [shown(JobState.FAILED, 1, 50, files_found=51, message="50 files failed")]
    code, out, err = run("load", "--wait", "/mnt/data")
    assert code == 1
    assert err.splitlines() == [
        "cachefs: 50 files: denied; the first is /mnt/data/d/f0",
        "cachefs: each of the 50 files: cachefs jobs show 7 /mnt/data --failures",
    ]
    assert out.startswith("FAILED: loaded 1 of 51 files")
    assert out.endswith("; `cachefs jobs retry 7 /mnt/data` tries them again\n")
    listed = ok(run("jobs", "show", "7", "--failures")).splitlines()
    assert listed == [f"/mnt/data/d/f{n}: denied" for n in range(50)]
    rows = [
        json.loads(line)
        for line in ok(run("jobs", "show", "7", "--failures", "--json")).split("\n")
        if line
    ]
    assert rows[49] == {
        "path": "/mnt/data/d/f49",
        "code": "access-denied",
        "cause": "denied",
        "attempts": 1,
    }


def test_each_cause_of_failures_has_one_line(node: FakeNode, run: Run) -> None:
    gone = JobFailure(b"d/a", "not-found", "/d/a: gone")
    denied = [JobFailure(b"d/b%d" % n, "access-denied", f"d/b{n}: denied") for n in range(3)]
    node.failed = [gone, *denied]
    node.jobs[7] = [shown(JobState.FAILED, 1, 4, files_found=5, message="4 files failed")]
    lines = run("load", "--wait", "/mnt/data")[2].splitlines()
    assert lines[:2] == [
        "cachefs: 3 files: denied; the first is /mnt/data/d/b0",
        "cachefs: /mnt/data/d/a: gone",
    ]
    node.failed = [gone]
    node.jobs[7] = [shown(JobState.FAILED, 1, 1, files_found=2, message="1 file failed")]
    assert run("load", "--wait", "/mnt/data")[2] == "cachefs: /mnt/data/d/a: gone\n"


def test_partial_is_not_success(node: FakeNode, run: Run) -> None:
    for state in (JobState.FAILED, JobState.STOPPED):
        node.jobs[7] = [shown(state, 2, message="it needs 4 MiB")]
        code, out, _ = run("load", "--wait", "/mnt/data")
        assert code == 1
        assert "OK" not in out
        assert "it needs 4 MiB" in out
        assert "`cachefs jobs resume 7 /mnt/data` continues it" in out


def test_load_in_json_lines(node: FakeNode, run: Run) -> None:
    node.jobs[7] = [
        shown(RUNS, 1, elapsed_s=1.0, eta_s=3.04, rate_bytes_s=5.4),
        shown(RUNS, 1, elapsed_s=1.5),
        shown(RUNS, 2, elapsed_s=2.0),
        shown(JobState.FAILED, 3, failed=1, message="no"),
    ]
    node.failed = [JobFailure(b"f0", "not-found", "gone", 3)]
    code, out, err = run("load", "--wait", "--json", "/mnt/data")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (1, "")
    assert [line["state"] for line in lines] == ["loading", "loading", "failed"]
    assert (lines[0]["eta_s"], lines[0]["rate_bytes_s"], lines[0]["bytes_done"]) == (3.0, 5, MIB)
    assert lines[0]["paths"] == ["/mnt/data/d"]
    failure = {"path": "/mnt/data/f0", "code": "not-found", "cause": "gone", "attempts": 3}
    assert lines[-1]["failures"] == [failure]


def test_paths_of_a_list_mean_themselves_and_those_of_arguments_match(
    node: FakeNode, run: Run, tmp_path: Path
) -> None:
    names = tmp_path / "names"
    names.write_bytes(b"/mnt/data/a[1].bin\n\n/mnt/data/odd\xff\r\n")
    ok(run("load", "--files-from", str(names), "/mnt/data/d/*"))
    (asked,) = submitted(node)
    assert asked.spec.paths == (b"d/*", b"a[[]1].bin", b"odd\xff")
    line = refused(run("load", "--files-from", str(tmp_path / "none")))
    assert "--files-from: No such file" in line
    assert "nothing to load" in refused(run("load"), code=2)


def test_names_from_standard_input_are_bytes() -> None:
    """Whatever the locale says: here, that they are UTF-8 and nothing else."""
    program = "from cachefs.cli.commands.load import read_list; print(ascii([*read_list('-')]))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=b"/mnt/data/odd\xff\r\n\n/mnt/data/a\rb\n",
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        timeout=COMMAND_S,
    )
    assert (done.stdout, done.stderr) == (b"['/mnt/data/odd\\udcff', '/mnt/data/a\\rb']\n", b"")


def test_a_long_list_becomes_several_requests(node: FakeNode, run: Run, tmp_path: Path) -> None:
    paths = [b"p%04d" % n for n in range(2500)]
    names = tmp_path / "names"
    names.write_bytes(b"".join(b"/mnt/data/%s\n" % path for path in paths))
    node.jobs[7] = [shown(RUNS, 0)]
    assert ok(run("load", "--files-from", str(names))).startswith("OK, job 7 is started")
    (first,) = submitted(node)
    rest = [body for body in node.asked if isinstance(body, m.AddJobPaths)]
    assert first.more
    assert [(one.first, len(one.paths), one.last) for one in rest] == [
        (1000, 1000, False),
        (2000, 500, True),
    ]
    assert [*first.spec.paths, *rest[0].paths, *rest[1].paths] == paths
    node.jobs[7] = [msgspec.structs.replace(shown(RUNS, 1), job=5)]
    assert ok(run("load", "--files-from", str(names))).startswith("OK, job 5 already exists")
    parts = list(load.batches(paths, 100))
    assert (max(map(len, parts)), sum(map(len, parts))) == (10, 2500)
    with pytest.raises(BadConfig):
        list(load.batches([b"x" * 200], 100))


def test_a_suggested_command_has_the_flags_that_it_needs(
    node: FakeNode, run: Run, home: StateHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--home" not in ok(run("load", "/mnt/data")), "the environment says it"
    monkeypatch.delenv("CACHEFS_HOME")
    said = ok(run("load", "/mnt/data", "--home", str(home.path)))
    suggested = f"cachefs jobs show 7 /mnt/data --home {home.path}"
    assert f"`{suggested}` shows it" in said
    node.jobs[7] = [shown(ENDED, 4)]
    assert "job 7: succeeded" in ok(run(*suggested.split()[1:]))


def test_a_silence_is_said_once_for_each_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_servers, "PAUSE_S", 0.0)
    causes = ["refused", "refused", "refused", "reset", "refused"]
    heard: list[str] = []

    def ask() -> str:
        if causes:
            raise Unreachable(causes.pop(0))
        return "an answer"

    assert job_servers.insist(ask, lambda err: heard.append(err.cause)) == "an answer"
    assert heard == ["refused", "reset", "refused"]


def test_a_server_that_dies_is_asked_again(node: FakeNode, run: Run) -> None:
    node.jobs[7] = [shown(ENDED, 4)]
    node.hang_ups = 3  # of a submit, and of looks at the job
    code, out, err = run("load", "--wait", "/mnt/data")
    assert (code, out[:10]) == (0, "OK, loaded")
    assert "no answer, retrying" in err
    first, second = submitted(node)[:1], submitted(node)[-1:]
    assert first[0].key == second[0].key, "one job, however often it was asked for"


def test_nothing_is_started_on_a_server_that_stays_away(
    node: FakeNode, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that runs is waited for longer than one that could not be submitted."""
    monkeypatch.setattr("cachefs.cli.commands.load.START_S", 0.0)
    monkeypatch.setattr("cachefs.cli.commands.sync.START_S", 0.0)
    for words in (["load", "/mnt/data"], ["pin", "/mnt/data"]):
        node.refused[m.SubmitJob] = Unreachable("the master does not answer")
        assert "the master does not answer" in refused(run(*words))
    node.refused[m.StartSync] = Unreachable("the master does not answer")
    assert "the master does not answer" in refused(run("sync", "/mnt/data"))


def test_an_interrupt_says_that_the_job_goes_on(
    node: FakeNode, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.jobs[7] = [shown(RUNS, 1)]

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupted)
    code, _, err = run("load", "--wait", "/mnt/data")
    assert code == 130
    assert err.splitlines()[0] == (
        "cachefs: job 7 continues: `cachefs jobs show 7 /mnt/data` shows it,"
        " `cachefs jobs stop 7 /mnt/data` stops it"
    )


# ---- how it looks --------------------------------------------------------------------------------


def test_a_line_says_files_bytes_rate_time_left_and_failures() -> None:
    job = shown(RUNS, 2, failed=1, listing_done=False, rate_bytes_s=3 * MIB, eta_s=7.0)
    assert job_views.line(job) == ("2 of 4+ files, 2 MiB of 4 MiB+, 3 MiB/s, 7s left, 1 failed")
    checking = shown(JobState.VERIFYING, 4, files_verified=3)
    assert job_views.line(checking) == "checking, 3 of 4 files"


def test_bars_fit_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    bars = job_views.Bars()
    for job in (
        shown(RUNS, 0, listing_done=False),
        shown(RUNS, 2, rate_bytes_s=MIB, eta_s=2.0, failed=1),
    ):
        bars.show(job)
    bars.silent(BadConfig("gone"))
    bars.close()
    out, err = capsys.readouterr()
    assert out == ""
    for part in ("50%", "2 MiB of 4 MiB", "1 MiB/s", "2s left", "1 failed", "retrying: gone"):
        assert part in err, part


def test_where_there_is_no_terminal_a_line_comes_now_and_then(node: FakeNode, run: Run) -> None:
    node.jobs[7] = [shown(RUNS, 1, elapsed_s=float(t)) for t in range(0, 30)] + [shown(ENDED, 4)]
    _, _, err = run("load", "--wait", "/mnt/data")
    assert [line.split(":")[0] for line in err.splitlines()] == ["job 7", "job 7"]


def test_what_a_job_waits_for_is_said_once_at_once(node: FakeNode, run: Run) -> None:
    why = "waits: no worker owns blocks"
    waiting = [shown(RUNS, 0, elapsed_s=t / 10, message=why) for t in range(20)]
    node.jobs[7] = [*waiting, shown(RUNS, 1), shown(ENDED, 4)]
    _, out, err = run("load", "--wait", "/mnt/data")
    waits, resumes = err.splitlines()
    assert waits.endswith(f", {why}")
    assert why not in resumes + out
    node.jobs[7] = [waiting[0]]
    assert f"  now       {why}" in ok(run("jobs", "show", "7")).splitlines()


def test_a_list_of_jobs_says_why_they_wait_and_why_they_ended(node: FakeNode, run: Run) -> None:
    waits, failed = "waits: no worker owns blocks", "stopped before the rest was loaded"
    node.jobs = {
        n: [msgspec.structs.replace(shown(state, 1, message=message), job=n)]
        for n, state, message in ((1, ENDED, ""), (2, JobState.FAILED, failed), (3, RUNS, waits))
    }
    lines = ok(run("jobs", "ls")).splitlines()
    assert [line.split()[0] for line in lines] == ["JOB", "3", "now:", "2", "why:", "1"]
    assert lines[2] == f"     now: {waits}"
    assert lines[4] == f"     why: {failed}"
    rows = json.loads(ok(run("jobs", "ls", "--json")))
    assert [row["message"] for row in rows] == [waits, failed, ""]


# ---- jobs ----------------------------------------------------------------------------------------


def test_jobs_are_listed_and_shown(node: FakeNode, run: Run) -> None:
    assert ok(run("jobs")) == "no jobs\n"
    node.jobs = {n: [msgspec.structs.replace(shown(RUNS, 1), job=n)] for n in range(1, 6)}
    rows = json.loads(ok(run("jobs", "ls", "--json", "--all")))
    assert len(rows) == 5
    assert json.loads(ok(run("jobs", "--json"))) == rows
    assert "--json after" in refused(run("jobs", "--json", "ls"), code=2)
    assert len(ok(run("jobs", "ls", "--limit", "3", "/mnt/data")).splitlines()) == 4
    spec = JobSpec((b"d",), 2 << 30, None, True, "high")
    node.jobs[7] = [shown(RUNS, 2, failed=1, spec=spec, rate_bytes_s=MIB, eta_s=2.0, path_count=9)]
    lines = ok(run("jobs", "show", "7")).splitlines()
    assert lines[0] == "job 7: loading"
    assert [line.strip() for line in lines[2:8]] == [
        "paths     /mnt/data/d",
        "and 8 more",
        "settings  2 GiB/s at most, held until it is read, 24h00m at most,"
        " every byte is checked at the end, priority high",
        "files     2 of 4 files, 1 failed",
        "bytes     2 MiB of 4 MiB, 2 MiB from the origin",
        "rate      1 MiB/s, 2s left",
    ]
    assert "no job 9" in refused(run("jobs", "show", "9"))
    assert json.loads(ok(run("jobs", "show", "7", "--json", "/mnt/data")))["path_count"] == 9


def test_where_nothing_is_mounted_a_cluster_must_be_named(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_servers, "read_mounts", lambda: Mounts([]))
    assert "name a cluster" in refused(run("jobs"))
    assert "not under a CacheFS mount" in refused(run("load", "/somewhere"))


def test_what_can_be_done_with_a_job(node: FakeNode, run: Run) -> None:
    node.jobs[7] = [shown(JobState.STOPPED, 2)]
    for action in ("stop", "resume", "retry"):
        said = ok(run("jobs", action, "7"))
        assert said.startswith("OK, job 7 ")
        assert said.endswith(": 2 of 4 files, 2 MiB of 4 MiB are loaded\n")
    assert ok(run("jobs", "forget", "7")) == "OK, job 7 is forgotten; what it loaded stays\n"
    asked = [body.action for body in node.asked if isinstance(body, m.ControlJob)]
    assert asked == ["stop", "resume", "retry", "forget"]
    assert run("jobs", "resume", "7", "--wait")[0] == 1, "it is stopped again"
    node.jobs[7] = [shown(ENDED, 4)]
    assert ok(run("jobs", "show", "7", "--follow")).startswith("OK, loaded 4 of 4")
    assert "no job 8" in refused(run("jobs", "stop", "8"))


def test_a_job_that_may_be_at_a_silent_server_is_not_called_unknown(
    node: FakeNode, run: Run
) -> None:
    for call in (m.GetJob, m.Attach):
        node.refused[call] = Unreachable("the master does not answer")
        code, out, err = run("jobs", "stop", "7")
        assert (code, out) == (1, "")
        assert "no job" not in err
        assert "job 7 may be at /mnt/data: no answer" in err.splitlines()[-1]
        del node.refused[call]
    assert "no job 7" in refused(run("jobs", "stop", "7"))


def test_a_number_that_several_sources_have_needs_a_place(
    node: FakeNode, run: Run, home: StateHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Job ids of an embedded mount are per source."""
    spec = UfsSpec("s3://other")
    socket_path = home.source_dir(spec) / "server.sock"
    home.write_mount(MountRecord("/mnt/b", spec, os.getpid(), str(socket_path), uid=0, gid=0))
    lines = [
        Mount("0:50", "/", "/mnt/data", "fuse.cachefs", "s3://bucket/p", ()),
        Mount("0:51", "/", "/mnt/b", "fuse.cachefs", "s3://other", ()),
    ]
    table = Mounts(lines)
    for module in ("session", "job_servers"):
        monkeypatch.setattr(f"cachefs.cli.{module}.read_mounts", lambda: table)
    node.jobs = {7: [shown(RUNS, 2)]}
    other = FakeNode(FILES)
    other.namespace = NamespaceId(b"o" * 16)
    other.jobs = {7: [shown(RUNS, 3)], 6: [shown(RUNS, 1)]}
    with other.listening(socket_path):
        line = refused(run("jobs", "show", "7"))
        assert "there is a job 7 at /mnt/data and at /mnt/b" in line
        assert "files     3 of 4" in ok(run("jobs", "show", "7", "/mnt/b"))
        assert "files     1 of 4" in ok(run("jobs", "show", "6"))
        listed = ok(run("jobs")).splitlines()
        assert [line for line in listed if line.endswith(":")] == ["/mnt/data:", "/mnt/b:"]
        refusal = refused(run("load", "--wait", "/mnt/data/d", "/mnt/b/d"))
        assert "several mounts" in refusal
        assert len(ok(run("load", "/mnt/data/d", "/mnt/b/d")).splitlines()) == 2


# ---- a cluster -----------------------------------------------------------------------------------


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    job = JobStatus(3, ENDED, [b"imagenet"], 1, SPEC, listing_done=True)
    scripts = {
        m.SetPolicy: lambda call: m.PolicySet(call.policy),
        c.Greeting: lambda _: c.Greeted(NamespaceId(b"n" * 16)),
        m.GetPolicies: lambda _: m.PoliciesAt(Policy(), {}, Policy()),
        m.SubmitJob: lambda _: m.JobSubmitted(3),
        m.GetJob: lambda _: m.JobReply(job),
        m.GetJobFailures: lambda _: m.JobFailures([]),
        m.ListJobs: lambda _: m.JobTable([job]),
    }
    with FakeMaster(scripts).listening() as served:  # type: ignore[arg-type]
        yield served


def test_a_load_of_a_clusters_path_asks_its_master(master: FakeMaster, run: Run) -> None:
    at = f"cachefs://{master.url.removeprefix('http://')}"
    ok(run("load", f"{at}/imagenet", "--wait", "--replicas", "2"))
    said, asked = (body for body in master.asked if isinstance(body, m.SetPolicy | m.SubmitJob))
    assert isinstance(said, m.SetPolicy)
    assert (said.path, said.policy.replicas) == (b"imagenet", 2)
    assert isinstance(asked, m.SubmitJob)
    assert asked.spec.paths == (b"imagenet",)
    assert "/imagenet" in ok(run("jobs", "ls", at))
    assert "job 3: succeeded" in ok(run("jobs", "show", "3", "--master", master.url))
    refusal = refused(run("load", f"{at}/imagenet/n*", "--replicas", "2"))
    assert "cachefs policy set DIR replicas=2" in refusal
    ok(run("pin", f"{at}/imagenet/val*", "--wait"))
    pinned, job = (b for b in master.asked[-8:] if isinstance(b, m.SetPolicy | m.SubmitJob))
    assert isinstance(pinned, m.SetPolicy)
    assert (pinned.path, pinned.policy.pin) == (b"imagenet/val*", True)
    assert isinstance(job, m.SubmitJob)
    assert (job.spec.paths, job.spec.hold_s) == ((b"imagenet/val[*]",), 0.0)


def test_jobs_of_a_named_master_are_those_of_no_mount(
    node: FakeNode, master: FakeMaster, run: Run
) -> None:
    node.namespace = NamespaceId(b"o" * 16)
    node.jobs[3] = [shown(RUNS, 1)]
    assert "job 3: succeeded" in ok(run("jobs", "show", "3", "--master", master.url))
    assert "/mnt/data" not in ok(run("jobs", "ls", "--master", master.url))


# ---- sync ----------------------------------------------------------------------------------------


def syncing(state: str, *changes: Change, **more: object) -> m.SyncReply:
    fields: dict[str, object] = {"directories": 1, "names": 1200, **more}
    return m.SyncReply(SyncStatus(5, state, b"d", **fields), [*changes])  # type: ignore[arg-type]


def test_a_sync_says_what_changed(node: FakeNode, run: Run) -> None:
    changes = [
        Change(ChangeKind.ADDED, b"d/new", True),
        Change(ChangeKind.REPLACED, b"d/x"),
        Change(ChangeKind.GONE, b"d/y"),
    ]
    node.syncs = [
        syncing("running"),
        syncing("running", changes[0]),
        syncing("done", *changes[1:], added=1, replaced=1, gone=1, elapsed_s=0.25),
        syncing("done", added=1, replaced=1, gone=1, elapsed_s=0.25),
    ]
    said = ok(run("sync", "-R", "/mnt/data/d"))
    assert said.splitlines() == [
        "+ /mnt/data/d/new/",
        "~ /mnt/data/d/x",
        "- /mnt/data/d/y",
        "OK, compared 1 directory, 1,200 names: 1 added, 1 replaced, 1 gone; 0.25s",
    ]
    started, *asked = [body for body in node.asked if isinstance(body, m.StartSync | m.GetSync)]
    assert started == m.StartSync(started.namespace, b"d", recursive=True)
    assert [body.after for body in asked if isinstance(body, m.GetSync)] == [0, 1, 3]


def test_a_sync_that_failed_in_part(node: FakeNode, run: Run) -> None:
    node.syncs = [syncing("done", errors=2, message="d/e: denied")]
    code, out, _ = run("sync", "--dry-run", "/mnt/data/d")
    assert code == 1
    assert out.startswith("FAILED: compared 1 directory")
    assert "2 could not be listed; d/e: denied" in out
    node.syncs = [syncing("failed", names=0, message="the origin is down")]
    assert refused(run("sync", "/mnt/data/d")) == "cachefs: the origin is down\n"
    node.syncs = [syncing("failed", names=0, message="/d: no such file or directory")]
    shown = "cachefs: /mnt/data/d: no such file or directory\n"
    assert refused(run("sync", "/mnt/data/d")) == shown
    node.syncs = [syncing("running")]
    assert "the server that ran the sync has restarted" in refused(run("sync", "/mnt/data/d"))


def test_a_sync_in_json_lines(node: FakeNode, run: Run) -> None:
    change = Change(ChangeKind.GONE, b"d/y")
    node.syncs = [
        syncing("running", change, elapsed_s=1.5, dry_run=True),
        syncing("done", dry_run=True),
    ]
    lines = [json.loads(line) for line in ok(run("sync", "--json", "/mnt/data/d")).splitlines()]
    assert lines[0] == {"change": "gone", "path": "/mnt/data/d/y", "is_directory": False}
    assert [line["state"] for line in lines[1:]] == ["running", "done"]
    assert lines[-1]["dry_run"] is True


def test_an_interrupted_sync_is_ended(
    node: FakeNode, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.syncs = [syncing("running"), syncing("stopped")]

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupted)
    assert run("sync", "/mnt/data/d")[0] == 130
    assert isinstance(node.asked[-1], m.GetSync)
    assert node.asked[-1].stop


class Nowhere(job_servers.Place):
    def shown(self, path: bytes) -> str:
        return f"/mnt/{path.decode()}"


def test_on_a_terminal_a_sync_shows_how_far_it_is_below_its_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    view = sync.Terminal(Nowhere())
    view.show(syncing("running", Change(ChangeKind.ADDED, b"a"), added=1))
    view.show(syncing("running", added=2))
    view.close()
    out, err = capsys.readouterr()
    assert out == "+ /mnt/a\n"
    assert "compared 1 directory, 1,200 names: 2 added" in err


def test_words_of_counts() -> None:
    assert sync.counts(SyncStatus(1, "done", b"", names=1)).startswith("0 directories, 1 name: ")
