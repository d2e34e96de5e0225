"""freeze, thaw, views, and the view in other commands, with a server in memory."""

from __future__ import annotations

import array
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.cli.commands import freeze, order, views
from cachefs.cli.view_calls import view_at
from cachefs.core.messages import ViewStatus
from cachefs.core.model import UfsSpec
from cachefs.core.mountinfo import Mount, Mounts
from cachefs.launcher.state import MountRecord, StateHome
from tests.unit.cli import test_commands
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_node import FakeNode
from tests.unit.cli.test_commands import ok, refused

SINCE_S = 1_800_000_000.0


def view(state: str, reason: str = "", path: bytes = b"d") -> ViewStatus:
    return ViewStatus(7, path, 12_000, 5 << 30, state, SINCE_S, int(state == "covered"), reason)


@pytest.fixture
def node(home: StateHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNode]:
    make = test_commands.node.__wrapped__  # type: ignore[attr-defined]
    for served in make(home, tmp_path, monkeypatch):
        served.covers = True
        served.views = [view("covered")]
        yield served


def test_freeze_waits_until_it_is_covered(node: FakeNode, run: Run) -> None:
    node.views = [view("building"), view("ready"), view("covered")]
    text = ok(run("freeze", "/mnt/data/d", "--wait"))
    assert text.startswith("OK, /mnt/data/d: native since 20")
    assert "12,000 files, 5 GiB" in text
    assert node.frozen == [(b"d", True)] * 3


def test_freeze_names_the_frozen_directory_above(node: FakeNode, run: Run) -> None:
    text = ok(run("freeze", "/mnt/data/d/e", "--wait"))
    assert text.startswith("OK, /mnt/data/d/e: below /mnt/data/d, which is frozen: native since")


def test_freeze_without_wait_names_the_command_that_shows_progress(
    node: FakeNode, run: Run
) -> None:
    node.views = [view("building")]
    assert "`cachefs views /mnt/data`" in ok(run("freeze", "/mnt/data/d"))
    assert node.frozen == [(b"d", False)]


def test_freeze_says_why_it_is_not_covered(node: FakeNode, run: Run) -> None:
    node.views = [view("impossible", "it needs 5 GiB, and the tier has 1 GiB")]
    line = refused(run("freeze", "/mnt/data/d", "--wait"))
    assert "it needs 5 GiB, and the tier has 1 GiB" in line
    code, out, _ = run("freeze", "/mnt/data/d", "--wait", "--json")
    assert (code, json.loads(out)["state"]) == (1, "impossible")


def test_freeze_does_not_wait_for_a_mount_that_takes_no_covers(
    node: FakeNode, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freeze, "UNCOVERED_S", 0.0)
    node.views = [view("building"), view("ready", "no mount of this node takes covers")]
    line = refused(run("freeze", "/mnt/data/d", "--wait"))
    assert line.startswith("cachefs: /mnt/data/d is frozen but not covered: no mount of this node")
    assert "a mount of root" in line
    assert node.frozen == [(b"d", True)] * 2


def test_thaw(node: FakeNode, run: Run) -> None:
    assert ok(run("thaw", "/mnt/data/d")) == "OK, /mnt/data/d is no longer frozen\n"
    assert json.loads(ok(run("thaw", "/mnt/data/d", "--json")))["frozen"] is False
    assert node.thawed == [b"d", b"d"]


def test_thaw_shows_any_name_on_one_line(node: FakeNode, run: Run) -> None:
    odd = os.fsdecode(b"/mnt/data/odd\xff\n")
    assert ok(run("thaw", odd)) == "OK, /mnt/data/odd\\xff\\n is no longer frozen\n"
    assert json.loads(ok(run("thaw", odd, "--json")))["path"] == "/mnt/data/odd\\xff\\n"
    assert node.thawed == [b"odd\xff\n"] * 2


def test_views(node: FakeNode, run: Run) -> None:
    node.views = [view("covered"), view("waiting", "it changes often", b"d/e")]
    lines = ok(run("views", "/mnt/data")).splitlines()
    assert lines[0].split() == ["path", "state", "since", "files", "size", "mounts", "by", "reason"]
    assert lines[1].split()[:2] == ["/mnt/data/d", "covered"]
    assert lines[2].endswith("it changes often")
    rows = json.loads(ok(run("views", "/mnt/data", "--json")))
    assert [row["path"] for row in rows] == ["/mnt/data/d", "/mnt/data/d/e"]
    node.views = []
    assert "no directory is covered" in ok(run("views", "/mnt/data"))


def test_other_commands_name_the_view(node: FakeNode, run: Run) -> None:
    assert "view:" in ok(run("stat", "/mnt/data/d/x"))
    assert "view:" not in ok(run("stat", "/mnt/data/a.bin"))
    assert "native since" in json.loads(ok(run("stat", "/mnt/data/d/x", "--json")))["view"]
    assert "/mnt/data/d: view: native since" in ok(run("du", "/mnt/data/d"))
    code, _, warned = run("ls", "-l", "/mnt/data/d")
    assert (code, warned.startswith("view: native since")) == (0, True)


def test_a_server_without_views(node: FakeNode, run: Run) -> None:
    node.covers = False
    assert "view" not in ok(run("stat", "/mnt/data/d/x"))
    told = refused(run("freeze", "/mnt/data/d"))
    assert told.endswith("upgrade it: cachefs mount --upgrade /mnt/data\n")
    assert node.frozen == []


def test_view_prints_what_is_cached(node: FakeNode, run: Run, tmp_path: Path) -> None:
    (tmp_path / "ssd" / "pub").mkdir(parents=True)
    node.status = {"cache": {"tiers": [{"path": str(tmp_path / "ssd")}]}}
    rows = [line.split("\t") for line in ok(run("view", "/mnt/data/d", "--print")).splitlines()]
    assert [row[0] for row in rows][:2] == ["/mnt/data/d/x", "/mnt/data/d/y"]
    assert {row[1] for row in rows} == {"-"}
    content = json.loads(ok(run("stat", "/mnt/data/d/x", "--json")))["content_id"]
    (tmp_path / "ssd" / "pub" / content).touch()
    (row,) = ok(run("view", "/mnt/data/d/x", "--print", "--json")).splitlines()
    assert json.loads(row)["cached_at"] == str(tmp_path / "ssd" / "pub" / content)
    assert "--print" in refused(run("view", "/mnt/data/d"))


def test_the_nearest_view_counts() -> None:
    views = [view("covered", path=b""), view("building", path=b"d/e")]
    for path, state in ((b"d", "covered"), (b"d/e/f", "building"), (b"d/ef", "covered")):
        found = view_at(views, path)
        assert found is not None
        assert found.state == state
    assert view_at(views[1:], b"d") is None


def test_views_of_all_mounts_without_one_that_does_not_answer(
    node: FakeNode, run: Run, home: StateHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.write_mount(MountRecord("/mnt/dead", UfsSpec("s3://dead"), 0, str(tmp_path / "none")))
    mounts = [
        Mount(f"0:{number}", "/", where, "fuse.cachefs", "s3://b", ())
        for number, where in enumerate(("/mnt/dead", "/mnt/data"), 50)
    ]
    monkeypatch.setattr(views, "read_mounts", lambda: Mounts(mounts))
    node.views = [view("covered")]
    code, out, err = run("views", "--json")
    assert (code, [one["path"] for one in json.loads(out)]) == (3, ["/mnt/data/d"])
    assert err.startswith("cachefs: warning: /mnt/dead: its server does not answer")
    assert len(err.splitlines()) == 1


def test_an_order_of_native_files_is_a_document_with_json(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = array.array("Q", [order.NATIVE, order.NATIVE])
    monkeypatch.setattr(order, "_inos_of", lambda path, lines: native)
    command = ("order", str(tmp_path), "--files-from", "/dev/null")
    for follow in ((), ("--follow",)):
        found = json.loads(ok(run(*command, "--json", *follow)))
        assert found == {"path": str(tmp_path), "name": "order", "files": 0}
        assert "none needs an order" in ok(run(*command, *follow))
