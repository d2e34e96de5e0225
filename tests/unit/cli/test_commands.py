"""The commands against a scripted server: what they print, and how they fail."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachefs.cli import clusters, job_servers, mountpoint, session, settings
from cachefs.cli.commands import doctor, down, logs, mount, umount
from cachefs.cli.commands import status as status_module
from cachefs.cli.masters import Masters
from cachefs.core import errors
from cachefs.core import messages as m
from cachefs.core.model import UfsSpec
from cachefs.core.mountinfo import Mount, Mounts
from cachefs.core.settings import BY_NAME
from cachefs.launcher.state import MountRecord, StateHome
from tests.unit.cli.fake_node import FakeNode
from tests.unit.cli.test_documented_commands import commands

MIB = 1 << 20
FILES = {b"a.bin": MIB, b"d/x": 10, b"d/y": 20, b"d/z": 0, b"d/e/deep": 5, b"odd\xff\n": 1}
TIER = {"path": "/ssd", "state": "normal", "files": 3, "used_bytes": MIB, "limit_bytes": 4 * MIB}
CACHE = {"used_bytes": 10, "limit_bytes": 40, "hits": 3, "paths": {}, "slow_fills": {}}
CACHED = {b"a.bin": MIB // 2, b"d/x": 10}

GROUPS = {
    "ufs": ["add", "ls", "rm", "set"],
    "cache": ["ls", "rm"],
    "workers": ["drain", "remove"],
    "policy": ["show", "set", "unset"],
    "bench": ["au"],
    "jobs": ["ls", "show", "stop", "resume", "retry", "forget"],
}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def node(home: StateHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNode]:
    """A server, and a record and a line in the mount table that lead to it."""
    spec = UfsSpec("s3://bucket/p")
    socket_path = home.source_dir(spec) / "server.sock"
    home.write_mount(MountRecord("/mnt/data", spec, os.getpid(), str(socket_path), uid=0, gid=0))
    line = Mount("0:50", "/", "/mnt/data", "fuse.cachefs", "s3://bucket/p", ())
    table = Mounts([line])
    for module in (session, job_servers):
        monkeypatch.setattr(module, "read_mounts", lambda: table)
    monkeypatch.setattr("cachefs.cli.commands.status.read_mounts", lambda: table)
    with FakeNode(FILES, CACHED).listening(socket_path) as served:
        yield served


def ok(result: tuple[int, str, str]) -> str:
    assert (result[0], result[2]) == (0, "")
    return result[1]


def refused(result: tuple[int, str, str], code: int = 1) -> str:
    """The one line of a failure."""
    assert result[0] == code
    assert result[1] == ""
    assert result[2].startswith(("cachefs: ", "{"))  # a document with --json
    assert len(result[2].splitlines()) == 1
    return result[2]


# ---- ls, stat, free ----


def test_ls_is_names_in_pages(node: FakeNode, run: Run) -> None:
    assert ok(run("ls", "/mnt/data")).splitlines() == ["a.bin", "d/", r"odd\xff\n"]
    assert ok(run("ls", "/mnt/data/d")).splitlines() == ["e/", "x", "y", "z"]
    assert ok(run("ls", "/mnt/data/d/x")).splitlines() == ["x"]
    assert ok(run("ls", "s3://bucket/p/d/e")).splitlines() == ["deep"]


def test_ls_long_shows_what_is_cached(node: FakeNode, run: Run) -> None:
    lines = [line.split() for line in ok(run("ls", "-l", "/mnt/data")).splitlines()]
    assert lines[0][:4] == ["-rw-r--r--", "root", "root", str(MIB)]
    assert lines[0][-2:] == ["50%", "/mnt/data/a.bin"]
    assert lines[1][0] == "drwxr-xr-x"
    assert lines[1][-2:] == ["-", "/mnt/data/d"]
    shares = {w[-1]: w[-2] for w in map(str.split, ok(run("ls", "-l", "/mnt/data/d")).splitlines())}
    assert shares["/mnt/data/d/x"] == "100%"
    assert shares["/mnt/data/d/y"] == "0%"
    assert shares["/mnt/data/d/z"] == "100%", "an empty file is whole"


def test_ls_recursive_and_json(node: FakeNode, run: Run) -> None:
    names = ok(run("ls", "-R", "/mnt/data")).splitlines()
    assert sorted(names) == sorted(
        f"/mnt/data/{name}"
        for name in ("a.bin", "d/", "d/e/", "d/e/deep", "d/x", "d/y", "d/z", r"odd\xff\n")
    )
    rows = json.loads(ok(run("ls", "--json", "-R", "/mnt/data")))
    assert len(rows) == 8
    row = next(row for row in rows if row["path"] == "/mnt/data/a.bin")
    assert (row["type"], row["size_bytes"], row["cached_bytes"]) == ("file", MIB, MIB // 2)


@pytest.mark.parametrize("error", [errors.NotFound, errors.Stale])
@pytest.mark.parametrize("words", [["ls", "--json", "-R"], ["du", "--json"]])
def test_a_directory_that_is_removed_meanwhile_is_left_out(
    node: FakeNode,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    error: type[errors.CacheFSError],
    words: list[str],
) -> None:
    gone, listed = {b"d/e"}, node._list

    def answered(body: m.ListDir) -> m.Listing:
        if body.ino in (node.inodes[path].ino for path in gone):
            raise error("it was removed")
        return listed(body)

    whole = json.loads(ok(run(*words, "/mnt/data")))
    monkeypatch.setattr(node, "_list", answered)
    rest = json.loads(ok(run(*words, "/mnt/data")))
    if "ls" in words:
        assert rest == [row for row in whole if row["path"] != "/mnt/data/d/e/deep"]
    else:
        assert rest[0]["files"] == whole[0]["files"] - 1
    gone.add(b"")
    assert run(*words, "/mnt/data")[0] == 1


def test_ls_of_an_empty_directory_is_valid_json(node: FakeNode, run: Run) -> None:
    node.inodes = {b"": node.inodes[b""]}
    assert json.loads(ok(run("ls", "--json", "/mnt/data"))) == []
    assert ok(run("ls", "/mnt/data")) == ""


@pytest.mark.parametrize("good_pages", [0, 1])
def test_a_listing_that_fails_is_never_taken_for_a_whole_one(
    node: FakeNode, run: Run, monkeypatch: pytest.MonkeyPatch, good_pages: int
) -> None:
    """Rows are printed as they come, so a failure leaves the array open: no parser accepts it."""
    left, listed = iter(range(good_pages)), node._list

    def answered(body: m.ListDir) -> m.Listing:
        if next(left, None) is None:
            raise errors.Unreachable("the origin is away")
        return listed(body)

    monkeypatch.setattr(node, "_list", answered)
    code, out, err = run("ls", "--json", "/mnt/data/d")
    assert (code, json.loads(err)["code"]) == (1, errors.Unreachable.code)
    assert bool(out) is bool(good_pages)
    with pytest.raises(json.JSONDecodeError):
        json.loads(out)


def test_stat(node: FakeNode, run: Run) -> None:
    text = ok(run("stat", "/mnt/data/a.bin"))
    assert "1048576 (1 MiB)" in text
    assert "512 KiB (50%)" in text
    assert "s3://bucket/p/a.bin" in text
    facts = json.loads(ok(run("stat", "--json", "/mnt/data/a.bin")))
    assert facts["mode"] == "0644"
    assert len(facts["content_id"]) == 72
    assert "cached" not in ok(run("stat", "/mnt/data/d"))


def test_free_is_one_line(node: FakeNode, run: Run) -> None:
    expected = "freed 3 MiB of 2 files; 1 still open, freed at the last close\n"
    assert ok(run("free", "/mnt/data/d")) == expected
    asked = [body for body in node.asked if isinstance(body, m.Free)]
    assert [body.path for body in asked] == [b"d"]
    assert json.loads(ok(run("free", "/mnt/data/d", "--json")))["busy_files"] == 1


def test_paths_that_lead_nowhere(node: FakeNode, run: Run, tmp_path: Path) -> None:
    assert "/mnt/data/nope: no such file or directory" in refused(run("ls", "/mnt/data/nope"))
    assert "not under a CacheFS mount" in refused(run("stat", str(tmp_path)))
    assert "no mount of this source" in refused(run("stat", "s3://elsewhere/x"))


def test_an_error_of_the_server_is_one_line(node: FakeNode, run: Run) -> None:
    node.failure = errors.AccessDenied("the bucket\nrefuses", remedy="ask", request_id="R1")
    assert refused(run("ls", "/mnt/data")) == "cachefs: the bucket refuses (request id R1); ask\n"
    code, _, said = run("ls", "/mnt/data", "--debug")
    assert code == 1
    assert "Traceback" in said


def test_no_server(home: StateHome, run: Run) -> None:
    record = MountRecord("/mnt/x", UfsSpec("s3://gone"), 1, str(home.path / "none.sock"))
    home.write_mount(record)
    line = refused(run("ls", "s3://gone/a"))
    assert "/mnt/x: its server does not answer" in line
    assert "cachefs umount /mnt/x" in line


# ---- status ----


def test_status_of_one_mount(node: FakeNode, run: Run) -> None:
    node.status = {
        "processes": [{"role": "server", "pid": 7}],
        "cache": {"origin_bytes": 3 * MIB, "tiers": [TIER]},
        "uptime_s": 90,
    }
    tree = json.loads(ok(run("status", "/mnt/data", "--json")))
    assert tree["processes"] == [{"role": "server", "pid": 7}]
    assert (tree["mountpoint"], tree["state"]) == ("/mnt/data", "ok")
    text = ok(run("status", "/mnt/data"))
    assert text.startswith("/mnt/data  s3://bucket/p  OK\n")
    assert "3 MiB from the origin" in text
    assert "/ssd: 1 MiB of 4 MiB, 3 files, normal" in text
    assert "up 1m30s" in text
    assert tree["server_log"] in text
    assert len(text.splitlines()) <= 25


def test_status_and_doctor_and_health_name_the_same_problems(
    node: FakeNode, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("commands.doctor", "commands.health"):
        monkeypatch.setattr(f"cachefs.cli.{module}.read_mounts", status_module.read_mounts)
        monkeypatch.setattr(f"cachefs.cli.{module}.is_unserved", lambda mountpoint, record: False)
    node.status = {
        "cache": {"tiers": [{**TIER, "state": "offline", "cause": "the disk does not answer"}]},
        "sources": [
            {
                "source": "s3://bucket/p",
                "sources": [
                    {
                        "url": "s3://bucket/p",
                        "origin_down": True,
                        "down_code": "credentials-missing",
                        "down_cause": "the credentials have expired",
                        "down_remedy": "renew the credentials",
                    }
                ],
            }
        ],
    }
    code, out, _ = run("health", "/mnt/data")
    assert code == 2
    expired, offline = out.splitlines()
    assert expired.startswith("error: CREDENTIALS_EXPIRED: s3://bucket/p: ")
    assert expired.endswith("; renew the credentials")
    assert offline.startswith("error: TIER_DEGRADED: /ssd: offline: the disk does not answer")
    assert run("health")[1] == out
    found = json.loads(run("health", "/mnt/data", "--json")[1])
    assert [one["code"] for one in found] == ["CREDENTIALS_EXPIRED", "TIER_DEGRADED"]
    text = ok(run("status", "/mnt/data"))
    assert "2 problems" in text.splitlines()[0]
    assert expired in text
    assert offline in text
    code, out, _ = run("doctor", "--json")
    named = {row["name"]: row["state"] for row in json.loads(out)}
    assert (code, named["CREDENTIALS_EXPIRED"], named["TIER_DEGRADED"]) == (1, "problem", "problem")


def test_health_of_what_is_well(node: FakeNode, run: Run) -> None:
    quota = {"path": "/d", "quota_bytes": MIB, "used_bytes": MIB * 3 // 4}
    node.status = {"cache": {"tiers": [TIER]}, "quotas": [quota]}
    assert ok(run("health", "/mnt/data")) == "OK, nothing is wrong\n"


def test_a_quota_that_is_used_up_is_named_by_all_commands(
    node: FakeNode, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachefs.cli.commands.doctor.read_mounts", status_module.read_mounts)
    monkeypatch.setattr("cachefs.cli.commands.doctor.is_unserved", lambda mountpoint, record: False)
    quota = {"path": "/d", "quota_bytes": MIB, "used_bytes": MIB}
    node.status = {"cache": {**CACHE, "tiers": [TIER]}, "quotas": [quota]}
    code, out, _ = run("health", "/mnt/data")
    assert (code, out.split(":")[1]) == (1, " QUOTA_FULL")
    assert out.strip() in ok(run("status", "/mnt/data"))
    assert out.strip() in ok(run("top", "/mnt/data", "-n", "1", "--interval", "200ms"))
    code, out, _ = run("doctor", "--json")
    assert "QUOTA_FULL" in [row["name"] for row in json.loads(out)]


def test_health_of_a_server_that_does_not_answer(home: StateHome, node: FakeNode, run: Run) -> None:
    node.failure = errors.Unavailable("it ends just now")
    code, out, _ = run("health", "/mnt/data")
    assert code == 2
    assert "MOUNT_DEAD: /mnt/data: its server does not answer (it ends just now)" in out


def test_health_of_mounts_beside_a_cluster_that_refuses_the_token(
    node: FakeNode, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token may be limited to a path. Its refusal hides no problem, and is not `OK`."""

    def refuse(chosen: object) -> None:
        raise errors.AccessDenied("the token is limited to /a")

    monkeypatch.setattr(clusters, "is_cluster_configured", lambda chosen: True)
    monkeypatch.setattr(clusters, "connect_admin", refuse)
    monkeypatch.setattr("cachefs.cli.commands.health.read_mounts", status_module.read_mounts)
    monkeypatch.setattr("cachefs.cli.commands.health.is_unserved", lambda mountpoint, record: False)
    node.status = {"cache": {"tiers": [TIER]}}
    refusal = "cachefs: warning: the cluster is not looked at: the token is limited to /a\n"
    assert run("health") == (1, "", refusal)
    assert run("health", "--json") == (1, "[]\n", refusal)
    node.failure = errors.Unavailable("it ends just now")
    code, out, err = run("health")
    assert (code, err) == (2, refusal)
    assert out.startswith("error: MOUNT_DEAD: /mnt/data: ")


def test_logs_of_a_mount(node: FakeNode, run: Run, home: StateHome) -> None:
    files = json.loads(ok(run("logs", "/mnt/data", "--json")))
    home.log_dir(UfsSpec("s3://bucket/p"))
    Path(files["server"]).write_text("".join(f"line {n}\n" for n in range(100)))
    Path(files["client"]).write_text("only one\n")
    said = ok(run("logs", "-n", "2", "/mnt/data")).splitlines()
    assert said == ["server: line 98", "server: line 99", "client: only one"]


def test_a_log_is_followed_over_its_rotation(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("old\n")
    tail = logs.new_lines(path)
    assert next(tail) == []
    with path.open("a") as file:
        file.write("new\nha")
    assert next(tail) == ["new"]
    path.write_text("")
    path.rename(tmp_path / "server.log.1")
    assert next(tail) == []
    path.write_text("rotated\n")
    assert next(tail)[-1].endswith("rotated")
    tail.close()


def test_status_of_all(node: FakeNode, run: Run, home: StateHome) -> None:
    trees = json.loads(ok(run("status", "--json")))
    assert [tree["mountpoint"] for tree in trees] == ["/mnt/data"]
    home.remove_mount("/mnt/data")
    assert "not recorded here" in ok(run("status"))


def test_status_of_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachefs.cli.commands.status.read_mounts", lambda: Mounts([]))
    assert ok(run("status")) == "nothing is mounted\n"
    assert json.loads(ok(run("status", "--json"))) == []


# ---- usage, help, configuration ----


@pytest.mark.parametrize(
    "args",
    [("nope",), ("ls", "--nope"), ("mount",), ("mount", "s3://b"), ("umount",), ("stat",)],
)
def test_usage_errors_are_one_line_and_2(run: Run, args: tuple[str, ...]) -> None:
    assert "--help" in refused(run(*args), code=2)


def test_every_command_has_help_and_json(run: Run) -> None:
    from cachefs.cli.app import COMMANDS

    listed = ok(run("--help"))
    for name in COMMANDS:
        assert f"  {name} " in listed
        text = ok(run(name, "--help"))
        for words in GROUPS.get(name, []):
            assert words in text
            assert "--json" in ok(run(name, words, "--help"))
        assert "--json" in text or name in GROUPS


def test_the_version_is_a_flag_and_a_command(run: Run) -> None:
    version = ok(run("version"))
    assert version.startswith("cachefs ")
    assert ok(run("--version")) == ok(run("-V")) == version


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("unmount", "cachefs umount"),
        ("setTtl", "cachefs ttl"),
        ("warmup", "cachefs load"),
        ("stats", "cachefs top"),
        ("info", "cachefs stat"),
        ("lod", "cachefs load"),
        ("statuss", "cachefs status"),
    ],
)
def test_an_unknown_command_names_the_one_that_is_meant(run: Run, typed: str, command: str) -> None:
    line = refused(run(typed), code=2)
    assert f"no such command '{typed}'" in line
    assert command in line


def test_verbs_from_elsewhere_name_commands_that_exist() -> None:
    from cachefs.cli.app import COMMANDS, VERBS_ELSEWHERE

    named = {text.split()[0] for text in VERBS_ELSEWHERE.values()} - {"--help"}
    assert named <= set(COMMANDS)
    assert not set(VERBS_ELSEWHERE) & set(COMMANDS)


def test_every_command_takes_the_settings_that_the_table_says() -> None:
    """Also that of connections: on each command that asks, and on groups."""
    from cachefs.cli.app import cachefs
    from cachefs.core.setting import CLIENT_COMMANDS, EVERY
    from cachefs.core.settings import SETTINGS

    found = {
        name.removeprefix("cachefs "): {param.name for param in command.params} & set(BY_NAME)
        for name, command in commands(cachefs)
    }
    for name, taken in found.items():
        known = name if name in EVERY else name.split()[0]
        said = {one.name for one in SETTINGS if known in one.commands}
        assert taken == said, f"cachefs {name}"
        if known in CLIENT_COMMANDS:
            assert {"master", "token_file", "tls", "tls_ca", "home"} <= taken
    assert set(EVERY) <= set(found)


def test_config_names_sources(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.toml"
    file.write_text('cache_size = "1GiB"\n')
    monkeypatch.setenv("CACHEFS_UID", "7")
    text = ok(run("config", "--source", "--config", str(file)))
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in text.splitlines()}
    assert rows["cache_size"].endswith(f"file {file}")
    assert rows["uid"].endswith("environment CACHEFS_UID")
    assert set(rows) == set(BY_NAME)
    values = json.loads(ok(run("config", "--json", "--config", str(file))))
    assert values["cache_size"] == {"value": 1 << 30, "source": f"file {file}"}
    assert "no such configuration file" in refused(run("config", "--config", "/nope.toml"))


def test_help_is_cheap_and_imports_nothing_heavy() -> None:
    script = (
        "import sys, resource; from cachefs.cli.main import main; code = main(['--help']);"
        "use = resource.getrusage(resource.RUSAGE_SELF);"
        "heavy = [n for n in ('rich', 'trio', 'boto3', 'pycurl', 'lmdb', 'aiohttp', 'pyfuse3')"
        " if n in sys.modules];"
        "print(code, heavy, file=sys.stderr); print(use.ru_utime + use.ru_stime, file=sys.stderr)"
    )
    command = [sys.executable, "-I", "-c", script]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(3)]
    outcome, cpu_s = runs[0].stderr.splitlines()
    assert outcome == "0 []"
    assert min(float(run.stderr.splitlines()[1]) for run in runs) < 0.25, cpu_s


# ---- mount: what is checked before anything starts ----


@pytest.fixture
def mount_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The one line of a mount that must be refused without starting a process."""

    def never(*args: object, **more: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("cachefs.launcher.processes.ensure_server", never)
    (tmp_path / "mnt").mkdir()

    def call(source: str, *options: str, where: Path | None = None) -> str:
        return refused(run("mount", source, str(where or tmp_path / "mnt"), *options))

    return call


def test_bad_sources_and_values(mount_line: Callable[..., str]) -> None:
    assert "unknown scheme ftp://" in mount_line("ftp://host")
    line = mount_line("https://bucket.s3.amazonaws.com/p")
    assert "write a bucket as s3://BUCKET/PREFIX" in line
    line = mount_line("data")
    assert "not a source" in line
    assert "arrow+PROTOCOL://, az://" in line
    assert "bad size '20 apples'" in mount_line("s3://bucket", "--cache-size", "20 apples")
    assert "bad size '-1'" in mount_line("s3://bucket", "--cache-size=-1")
    assert "bad duration 'soon'" in mount_line("s3://bucket", "--sync-interval", "soon")
    line = mount_line("file:///data", "--endpoint-url", "http://h")
    assert "file:// sources have no options" in line


def test_bad_mount_points(mount_line: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    cases = {
        tmp_path / "missing": "the mount point does not exist; create it: mkdir -p",
        tmp_path / "full": "the mount point is not empty; give an empty directory",
        tmp_path / "full" / "file": "the mount point is not a directory",
        tmp_path / "full" / "file" / "x": "the mount point is not a directory",
        Path("/proc"): "already a mount point (proc, proc)",
    }
    for where, expected in cases.items():
        line = mount_line("s3://bucket", where=where)
        assert expected in line
        assert str(where) in line


def test_the_machine(
    mount_line: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    find_spec = importlib.util.find_spec
    with monkeypatch.context() as patch:
        patch.setattr(
            "importlib.util.find_spec",
            lambda n, p=None: None if n == "pyfuse3" else find_spec(n, p),
        )
        line = mount_line("s3://bucket", "--transport", "pyfuse3")
        assert "needs the extra of that name; pip install 'cachefs-io[pyfuse3]'" in line
    with monkeypatch.context() as patch:
        patch.setattr(mountpoint, "DEV_FUSE", str(tmp_path / "none"))
        assert "is missing; load the kernel module" in mount_line("s3://bucket")
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        patch.setenv("PATH", str(tmp_path))
        assert "fusermount3 is missing" in mount_line("s3://bucket")
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        patch.setattr(mountpoint, "user_allow_other", lambda: False)
        assert "user_allow_other" in mount_line("s3://bucket", "--allow-other")


def test_writing_is_not_pretended(
    mount_line: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEFS_READ_ONLY", "no")
    assert "environment CACHEFS_READ_ONLY: this version mounts read-only" in mount_line(
        "s3://bucket"
    )


def test_user_allow_other(tmp_path: Path) -> None:
    conf = tmp_path / "fuse.conf"
    assert not mountpoint.user_allow_other(str(conf))
    conf.write_text("# user_allow_other\n")
    assert not mountpoint.user_allow_other(str(conf))
    conf.write_text("mount_max = 3\nuser_allow_other\n")
    assert mountpoint.user_allow_other(str(conf))


def test_the_plan_of_a_mount(home: StateHome, tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    (tmp_path / "link").symlink_to("mnt")
    given = {"cache_size": "1GiB", "uid": "5", "aws_profile": "p", "file_mode": "600"}
    chosen = settings.load_settings(given, None, {"CACHEFS_HOME": str(home.path)})
    client = mount.plan(
        "s3://bucket/p/", str(tmp_path / "link"), chosen, foreground=False, debug=False
    )
    server = client.server
    assert server is not None
    assert server.source == UfsSpec("s3://bucket/p", {"profile": "p"})
    assert server.cache_size_bytes == 1 << 30
    assert client.mountpoint == str(tmp_path / "mnt")
    assert (client.uid, client.file_mode) == (5, 0o600)
    assert client.allow_other is client.default_permissions is (os.geteuid() == 0)


# ---- umount, doctor ----


def test_umount_of_no_mount(run: Run, tmp_path: Path) -> None:
    line = refused(run("umount", str(tmp_path)))
    assert f"{tmp_path}: not a cachefs mount" in line
    assert "not a cachefs mount" in refused(run("umount", "/proc"))


def test_a_busy_mount_names_its_users(
    home: StateHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Mount("0:50", "/", str(tmp_path), "fuse.cachefs", "s3://b", ())

    def busy(path: str, *, lazy: bool) -> None:
        raise errors.InUse("in use", path=path)

    monkeypatch.setattr(umount, "read_mounts", lambda: Mounts([line]))
    monkeypatch.setattr("cachefs.cli.detach.detach", busy)
    with (tmp_path / "f").open("wb"), pytest.raises(errors.InUse) as caught:
        umount.unmount(str(tmp_path), home, lazy=False)
    assert f"(pid {os.getpid()})" in caught.value.cause
    assert "--lazy" in caught.value.remedy


def test_doctor_finds_and_clears_stale_records(run: Run, home: StateHome) -> None:
    home.write_mount(MountRecord("/mnt/gone", UfsSpec("s3://b"), 2**22 + 1, "/s"))
    found = {row["name"]: row for row in json.loads(run("doctor", "--json")[1])}
    assert found["record of /mnt/gone"]["state"] == "note"
    found = {row["name"]: row for row in json.loads(run("doctor", "--json", "--fix")[1])}
    assert found["record of /mnt/gone"]["state"] == "fixed"
    assert home.mount_records() == []
    assert "record of" not in run("doctor")[1]


def test_doctor_clears_dead_mounts(home: StateHome, monkeypatch: pytest.MonkeyPatch) -> None:
    line = Mount("0:50", "/", "/mnt/dead", "fuse.cachefs", "s3://b", (f"user_id={os.geteuid()}",))
    detached: list[str] = []
    monkeypatch.setattr(doctor, "read_mounts", lambda: Mounts([line]))
    monkeypatch.setattr(doctor, "is_unserved", lambda path, record: path not in detached)
    monkeypatch.setattr("cachefs.cli.detach.detach", lambda path, lazy: detached.append(path))
    states = [
        f.state
        for f in doctor.examine_state(Masters(settings.load_settings({}, None)), home, fix=False)
        if "dead" in f.name
    ]
    assert states == ["problem"]
    states = [
        f.state
        for f in doctor.examine_state(Masters(settings.load_settings({}, None)), home, fix=True)
        if "dead" in f.name
    ]
    assert (states, detached) == (["fixed"], ["/mnt/dead"])


def test_doctor_on_other_machines() -> None:
    assert doctor.check_kernel("5.10.0-28-amd64").state == "note"
    assert doctor.check_kernel("6.9.1").state == "ok"
    assert doctor.check_kernel("7.0").state == "ok"
    missing = doctor.check_extra("s3", ("boto3", "pycurl"), lambda name: None)
    assert (missing.state, missing.remedy) == ("note", "pip install 'cachefs-io[s3]'")
    assert doctor.check_extra("pyfuse3", ("pyfuse3",), lambda name: None).state == "note"


def test_a_closed_pipe_is_quiet(node: FakeNode, home: StateHome) -> None:
    command = f"{sys.executable} -m cachefs.cli.main ls -R s3://bucket/p | head -c 1 >/dev/null"
    environment = {**os.environ, "CACHEFS_HOME": str(home.path)}
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stderr == ""


def test_errors_of_the_system_are_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files", "/proc/x")

    monkeypatch.setattr("cachefs.cli.settings.load_settings", broken)
    assert refused(run("config")) == "cachefs: /proc/x: Too many open files\n"


def test_down_goes_on_where_a_mount_was_just_unmounted(
    home: StateHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client may still be ending: that is no reason to leave the cluster running."""
    spec = UfsSpec("cachefs://127.0.0.1:1/data")
    record = MountRecord(str(tmp_path), spec, 0, str(tmp_path / "s"), uid=0, gid=0)
    down.unmount(record, home, lazy=False)
    line = Mount("0:50", "/", str(tmp_path), "fuse.cachefs", spec.url, ())
    monkeypatch.setattr(down, "read_mounts", lambda: Mounts([line]))
    with pytest.raises(errors.CannotMount):
        down.unmount(record, home, lazy=False)


@pytest.mark.parametrize("words", [["order", "--files-from", "-"], ["bench", "au"]])
def test_a_directory_that_cannot_be_read_is_not_called_missing(
    home: StateHome, run: Run, words: list[str]
) -> None:
    line = refused(run(*words, "n" * 300))
    assert "cannot be read: File name too long" in line
    assert "does not exist" in refused(run(*words, "/no/such/directory"), 2)
