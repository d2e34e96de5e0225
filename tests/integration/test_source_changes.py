"""A source that an operator changes: options and sync interval are others, inodes stay."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cachefs.core.access import EVERYTHING
from cachefs.core.cluster import RemoveUfs, SetUfs, UfsRow
from cachefs.core.errors import AccessDenied, BadConfig, DeadlineExceeded, InUse, NotFound
from cachefs.core.model import UfsSpec
from cachefs.core.policies import Policy
from master.push.webhook_secrets import WebhookSecrets
from master.server.sources import SourceCalls
from tests.integration.test_master import Clock, raises, run, until
from tests.integration.test_mount_table import Origin, cluster, inode_of

X = UfsSpec("s3://x", {"profile": "data", "endpoint_url": "http://s3:9000"})


def never(source: UfsSpec) -> Origin:
    raise AssertionError("no connector is needed")


def test_options_change_and_inodes_stay(tmp_path: Path) -> None:
    async def work() -> None:
        clock, former, next = Clock(), Origin({b"f": b"1"}), Origin({b"f": b"1"})
        opened = []

        def open_connector(source: UfsSpec) -> Origin:
            opened.append(source)
            return next

        changed = UfsSpec("s3://x", {"endpoint_url": "http://s3:9000", "region": "eu"})
        async with cluster(tmp_path, clock) as master:
            await master.add_ufs(b"/data", X, former, 60.0)
            before, position = await inode_of(master, b"/data/f"), master.position
            call = SetUfs(b"/data", {"region": "eu"}, ("profile",), 300.0)
            row = await master.mounts.change(call, open_connector)
            assert row == UfsRow(b"/data", changed, 300.0)
            assert opened == [changed]
            assert master.position > position, "workers hear of it"
            await until(lambda: former.closed)
            former.fail("stat", None, AccessDenied("the former connector"), times=100)
            former.fail("list_dir", None, AccessDenied("the former connector"), times=100)
            clock.now += 400
            assert await inode_of(master, b"/data/f") == before
            assert (await master.resolve(b"/data/f")).valid_for_s == 300.0
            assert master.ufs(X.key) == changed
        async with cluster(tmp_path, clock) as master:
            assert master.mounts.rows()[0].source == changed
            assert master.mounts.rows()[0].sync_interval_s == 300.0

    run(work())


def test_the_interval_alone_needs_no_new_connection(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, Clock()) as master:
            await master.add_ufs(b"/data", X, Origin({b"f": b"1"}), 60.0)
            await inode_of(master, b"/data/f")
            await master.mounts.change(SetUfs(b"/data", {}, (), -1.0), never)
            assert master.mounts.rows() == [UfsRow(b"/data", X, -1.0)]
            assert (await master.resolve(b"/data/f")).valid_for_s > 1000

    run(work())


def test_what_the_origin_refuses_changes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        refused = Origin({b"f": b"1"})
        refused.fail("check", None, AccessDenied("wrong keys"))
        async with cluster(tmp_path, Clock()) as master:
            await master.add_ufs(b"/data", X, Origin({b"f": b"1"}), 60.0)
            position = master.position
            call = SetUfs(b"/data", {"profile": "other"})
            await raises(AccessDenied, master.mounts.change(call, lambda _: refused))
            assert refused.closed
            assert master.mounts.rows() == [UfsRow(b"/data", X, 60.0)]
            assert master.position == position
            assert (await inode_of(master, b"/data/f")).size == 1

    run(work())


@pytest.mark.parametrize(
    ("call", "error", "cause"),
    [
        (SetUfs(b"/data", {"endpoint_url": "http://other:1"}), BadConfig, "names another store"),
        (SetUfs(b"/data", {}, ("endpoint_url",)), BadConfig, "names another store"),
        (SetUfs(b"/data", {}, ("region",)), BadConfig, "no option 'region'"),
        (SetUfs(b"/nowhere", {}, (), 1.0), NotFound, "no source is there"),
    ],
)
def test_what_cannot_be_changed_says_why(
    call: SetUfs, error: type[Exception], cause: str, tmp_path: Path
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, Clock()) as master:
            await master.add_ufs(b"/data", X, Origin({b"f": b"1"}), 60.0)
            with pytest.raises(error, match=cause):
                await master.mounts.change(call, never)
            assert master.mounts.rows() == [UfsRow(b"/data", X, 60.0)]

    run(work())


def test_a_source_with_pins_is_removed_by_force_only(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, Clock()) as master:
            await master.add_ufs(b"/data", X, Origin({b"f": b"1", b"d/g": b"2"}), 60.0)
            calls = SourceCalls(master, never)
            for where in (b"/data/f", b"/data", b"/data/d/g"):
                await master.set_policy(where, Policy(pin=True), [])
                with pytest.raises(InUse, match=f"a pin protects {where.decode()}"):
                    await calls.answer(RemoveUfs(b"/data"), EVERYTHING)
                await master.set_policy(where, Policy(), ["pin"])
            await master.add_ufs(b"/dat", UfsSpec("s3://other"), Origin({b"f": b"1"}), 60.0)
            await master.set_policy(b"/dat", Policy(pin=True), [])
            await master.set_policy(b"/data/f", Policy(pin=True), [])
            await calls.answer(RemoveUfs(b"/data", force=True), EVERYTHING)
            assert [row.path for row in master.mounts.rows()] == [b"/dat"]

    run(work())


@pytest.mark.parametrize("path", [b"/in/data/", b"//in//data", b"in/data"])
def test_however_its_path_is_written_a_source_with_pins_stays(path: bytes, tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, Clock()) as master:
            await master.add_ufs(b"/in/data", X, Origin({b"f": b"1"}), 60.0)
            await master.set_policy(b"/in/data/f", Policy(pin=True), [])
            with pytest.raises(InUse, match="a pin protects /in/data/f"):
                await SourceCalls(master, never).answer(RemoveUfs(path), EVERYTHING)
            assert [row.path for row in master.mounts.rows()] == [b"/in/data"]

    run(work())


def test_a_secret_whose_file_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(WebhookSecrets, "check", lambda *a: goes_on.wait(30.0))
    monkeypatch.setattr("master.server.sources.COMPARE_S", 0.05)

    async def work() -> None:
        async with cluster(tmp_path, Clock()) as master:
            try:
                with pytest.raises(DeadlineExceeded, match="no secret was read"):
                    await SourceCalls(master, never).admit_store(b"/data", "secret")
            finally:
                goes_on.set()

    run(work())
