"""The commands of a cluster against a scripted master and scripted workers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import msgspec
import pytest

from cachefs.cli import clusters, output, settings
from cachefs.cli.cluster_files import BLOCK_PAGES, blocks_of
from cachefs.cli.commands import fsck, master, worker
from cachefs.cli.session import Target
from cachefs.core import cluster as c
from cachefs.core import errors
from cachefs.core import messages as m
from cachefs.core.addresses import address_of
from cachefs.core.config import Config
from cachefs.core.model import ContentId, Inode, Kind, NamespaceId, UfsSpec
from cachefs.core.mountinfo import Mounts
from cachefs.core.placement import Member, View
from cachefs.core.policies import Policy, Rule
from cachefs.core.specs import Security
from cachefs.launcher.process_watch import ProcessId
from cachefs.launcher.state import MountRecord, StateHome, private_dir, write_document
from tests.unit.cli.fake_master import FakeMaster
from tests.unit.cli.test_commands import Run, ok, refused

MIB = 1 << 20
GIB = 1 << 30
NAMESPACE = NamespaceId(b"n" * 16)
DIRECTORY = Inode(7, Kind.DIRECTORY)
SMALL = Inode(8, Kind.FILE, 2 * MIB + 1, nonce=1)
BIG = Inode(9, Kind.FILE, 300 * MIB, nonce=2)
ALICE, BOB = "a" * 32, "b" * 32


def row(id: str, url: str, state: str = "serving", **more: object) -> c.WorkerRow:
    fields = {"weight": 4.0, "capacity_bytes": 4 * GIB, "used_bytes": GIB, "seen_s": 0.5, **more}
    fields |= {"host": f"host-{id[0]}", "epoch": 3, "settled": 3}
    return c.WorkerRow(id, url, state=state, **fields)  # type: ignore[arg-type]


class Cluster:
    """Two workers: Alice has all of SMALL and Bob its first page."""

    def __init__(self) -> None:
        self.bits = {ALICE: {SMALL.ino: 0b111}, BOB: {SMALL.ino: 0b001}}
        self.workers = {id: FakeMaster(self._scripts(id)) for id in (ALICE, BOB)}
        self.before: tuple[Member, ...] = ()
        self.more: dict[str, object] = {}  # fields of each row
        self.states = {ALICE: "serving", BOB: "serving"}
        self.members = (ALICE, BOB)
        self.pages = {ALICE: 0, BOB: 0}  # how many of SMALL each can read
        self.wrong: set[int] = set()  # pages that have other bytes
        self.disks_silent: set[str] = set()  # workers of whose disks one gives no answer
        self.unlisted = 0  # directories below /imagenet whose names the master never listed
        self.policy = Policy()
        self.pinned: set[int] = set()
        self.master = FakeMaster(
            {
                c.Greeting: lambda _: c.Greeted(NAMESPACE),
                m.Resolve: self._resolve,
                m.ListDir: self._list,
                c.Walk: self._walk,
                c.ListWorkers: lambda _: self._table(),
                c.ListUfs: lambda _: c.UfsTable([self.ufs]),
                c.AddUfs: lambda body: c.UfsAdded(DIRECTORY, "no answer yet"),
                c.SetUfs: self._change,
                c.RemoveUfs: lambda _: m.Done(),
                c.Drain: lambda _: m.Done(),
                c.RemoveWorker: self._in_use,
                c.MasterStatus: lambda _: c.MasterStatusReply({"names": 12}),
                m.GetPolicies: lambda _: m.PoliciesAt(self.policy, {"pin": "/imagenet"}, Policy()),
                c.RulesOf: self._rules,
                c.Locate: self._locate,
            }
        )
        self.ufs = c.UfsRow(b"/imagenet", UfsSpec("s3://bucket/imagenet"), 60.0)

    def _change(self, body: m.Message) -> m.Message:
        assert isinstance(body, c.SetUfs)
        source = UfsSpec(self.ufs.source.url, body.options)
        self.ufs = c.UfsRow(self.ufs.path, source, body.sync_interval_s or 60.0)
        return c.UfsChanged(self.ufs)

    def _rules(self, body: m.Message) -> m.Message:
        assert isinstance(body, c.RulesOf)
        inos = [ContentId.parse(key.hex()).ino for key in body.contents]
        return c.Rules([Rule(), Rule(pinned=True)], [int(ino in self.pinned) for ino in inos])

    def _locate(self, body: m.Message) -> m.Message:
        assert isinstance(body, c.Locate)
        return c.Located([c.Place() for _ in body.inos])

    def _table(self) -> c.WorkerTable:
        members = tuple(Member(id, self.workers[id].url, 4.0) for id in self.members)
        states = self.states.items()
        rows = [row(id, self.workers[id].url, state, **self.more) for id, state in states]
        return c.WorkerTable(View(3, members, self.before), rows)

    def _resolve(self, body: m.Message) -> m.Message:
        assert isinstance(body, m.Resolve)
        found = {b"imagenet": DIRECTORY, b"imagenet/small": SMALL, b"imagenet/big": BIG}
        return m.Found(found.get(body.path), 1.0)

    def _list(self, body: m.Message) -> m.Message:
        assert isinstance(body, m.ListDir)
        assert body.ino == DIRECTORY.ino
        rows = [(b"big", BIG), (b"small", SMALL)]
        encode = msgspec.msgpack.encode
        return m.Listing([m.Dentry(name, msgspec.Raw(encode(one))) for name, one in rows], b"", 1.0)

    def _walk(self, body: m.Message) -> m.Message:
        assert isinstance(body, c.Walk)
        assert body.known, "nobody's origin is listed for this"
        files = [(b"imagenet/small", SMALL)] if not body.cursor else [(b"imagenet/big", BIG)]
        if self.unlisted:
            files = []
        return c.Walked(files, b"" if body.cursor else b"more", self.unlisted)

    def _in_use(self, body: m.Message) -> m.Message:
        raise errors.InUse("the worker serves", remedy="drain it first")

    def _scripts(self, id: str) -> dict[type[m.Message], Callable[[m.Message], m.Message]]:
        def have(body: m.Message) -> m.Message:
            assert isinstance(body, c.Have)
            inos = [ContentId.parse(key.hex()).ino for key in body.contents]
            bits = [self.bits[id].get(ino, 0) for ino in inos]
            data = [n.to_bytes(40, "little") if n else b"" for n in bits]
            return c.Had(data, incomplete=id in self.disks_silent)

        def verify(body: m.Message) -> m.Message:
            assert isinstance(body, c.Verify)
            pages = [page for page in range(body.first, body.end) if page < self.pages[id]]
            if not pages:
                raise errors.NotFound("not here")
            return c.Verified(len(pages), [page for page in pages if page in self.wrong])

        def drop(body: m.Message) -> m.Message:
            assert isinstance(body, c.Drop)
            had = [self.bits[id].pop(ContentId.parse(key.hex()).ino, 0) for key in body.contents]
            return c.Dropped(sum(map(bool, had)), sum(n.bit_count() * MIB for n in had), 0)

        return {c.Have: have, c.Verify: verify, c.Drop: drop}


@pytest.fixture
def cluster(home: StateHome, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster()
    with made.master.listening(), made.workers[ALICE].listening(), made.workers[BOB].listening():
        monkeypatch.setenv("CACHEFS_MASTER", made.master.url)
        yield made


# ---- ufs, workers, status ----


def test_sources(cluster: Cluster, run: Run) -> None:
    code, out, err = run(
        "ufs", "add", "s3://bucket/imagenet/", "/imagenet/", "--sync-interval", "5m",
        "--endpoint-url", "http://s3:9000",
    )  # fmt: skip
    assert (code, out) == (0, "OK, s3://bucket/imagenet is at /imagenet\n")
    assert err == "cachefs: warning: no answer yet\n"
    source = UfsSpec("s3://bucket/imagenet", {"endpoint_url": "http://s3:9000"})
    assert cluster.master.asked == [c.AddUfs(b"/imagenet", source, 300.0)]
    assert ok(run("ufs", "ls")).splitlines()[1].split() == [
        "/imagenet", "s3://bucket/imagenet", "1m00s", "ok",
    ]  # fmt: skip
    assert json.loads(ok(run("ufs", "ls", "--json")))[0]["source"] == "s3://bucket/imagenet"
    assert ok(run("ufs", "rm", "/imagenet")) == "OK, nothing is at /imagenet any more\n"
    ok(run("ufs", "rm", "/imagenet", "--force"))
    assert cluster.master.asked[-2:] == [
        c.RemoveUfs(b"/imagenet"), c.RemoveUfs(b"/imagenet", force=True),
    ]  # fmt: skip


def test_a_source_is_changed_by_flags_alone(
    cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEFS_AWS_PROFILE", "of-the-environment")
    monkeypatch.setenv("CACHEFS_SYNC_INTERVAL", "7m")
    assert "nothing to change" in refused(run("ufs", "set", "/imagenet"))
    done = ok(run("ufs", "set", "/imagenet", "--region", "eu", "--unset", "profile"))
    assert done == "OK, s3://bucket/imagenet at /imagenet is changed\n"
    assert cluster.master.asked == [c.SetUfs(b"/imagenet", {"region": "eu"}, ("profile",), None)]
    shown = json.loads(ok(run("ufs", "set", "/imagenet", "--sync-interval", "5m", "--json")))
    assert (shown["sync_interval_s"], shown["options"]) == (300.0, {})
    ok(run("ufs", "set", "/imagenet", "--option", "region=us"))
    assert ok(run("ufs", "ls", "-l")).splitlines()[1].split() == [
        "/imagenet", "s3://bucket/imagenet", "1m00s", "region=us", "-", "-", "-", "ok",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "cause"),
    [
        (("s3://bucket", "imagenet"), "start it with '/'"),
        (("s3://bucket", "/a/../b"), "not a path of the namespace"),
        (("gopher://x", "/a"), "unknown scheme"),
        (("/local/path", "/a"), "not a source"),
        (("cachefs://m/a", "/a"), "a cluster cannot be a source"),
    ],
)
def test_sources_that_cannot_be(
    cluster: Cluster, run: Run, args: tuple[str, str], cause: str
) -> None:
    assert cause in refused(run("ufs", "add", *args))
    assert cluster.master.asked == []


def test_workers(cluster: Cluster, run: Run) -> None:
    lines = ok(run("workers")).splitlines()
    assert lines[1].split()[:6] == [
        "aaaaaaaa",
        cluster.workers[ALICE].url[7:],
        "host-a",
        "serving",
        "-",
        "4",
    ]
    assert lines[-1] == "epoch 3: 2 workers owning data"
    cluster.before = (Member(ALICE, "u", 1.0),)
    assert "data is moving" in ok(run("workers"))
    assert json.loads(ok(run("workers", "--json")))["moving"] is True


def test_workers_ls(cluster: Cluster, run: Run) -> None:
    """As `cachefs workers`; a tier that fails is named."""
    tiers = [{"kind": "mem", "state": "normal"}, {"kind": "ssd", "state": "offline"}]
    cluster.more = {"facts": {"tiers": tiers}, "version": "1.2.3"}
    assert ok(run("workers", "ls")) == ok(run("workers"))
    head, first, *_ = ok(run("workers", "ls")).splitlines()
    assert head.split()[3:6] == ["STATE", "TIERS", "WEIGHT"]
    assert first[head.index("TIERS") :].startswith("mem, ssd offline  ")
    assert first[head.index("VERSION") :] == "1.2.3"
    (alice, _) = json.loads(ok(run("workers", "ls", "--json")))["workers"]
    assert (alice["version"], alice["facts"]["tiers"]) == ("1.2.3", tiers)
    assert "write --json after the command's name" in refused(run("workers", "--json", "ls"), 2)


@pytest.mark.parametrize("name", [ALICE, "aaaa", "host-a"])
def test_draining(cluster: Cluster, run: Run, name: str) -> None:
    assert "aaaaaaaa" in ok(run("workers", "drain", name))
    assert c.Drain(ALICE) in cluster.master.asked
    ok(run("workers", "drain", "--undo", name))
    assert c.Drain(ALICE, undo=True) in cluster.master.asked


def test_draining_waits_until_all_is_handed_over(cluster: Cluster, run: Run) -> None:
    cluster.states[BOB] = "drained"
    assert "is drained" in ok(run("workers", "drain", "--wait", "bbbb"))
    cluster.states[BOB] = "lost"
    assert "was lost before it was drained" in refused(run("workers", "drain", "--wait", "bbbb"))


def test_workers_that_are_not_told_apart(cluster: Cluster, run: Run) -> None:
    assert "no worker matches 'zz'" in refused(run("workers", "drain", "zz"))
    cluster.states["a" * 31 + "c"] = "lost"
    cluster.workers["a" * 31 + "c"] = cluster.workers[BOB]
    assert "2 workers match 'aa'" in refused(run("workers", "drain", "aa"))
    assert "drain it first" in refused(run("workers", "remove", BOB))


def test_status_of_a_cluster(cluster: Cluster, run: Run) -> None:
    tree = json.loads(ok(run("status", "cachefs://" + cluster.master.url[7:], "--json")))
    assert tree["names"] == 12
    assert [one["id"] for one in tree["workers"]] == [ALICE, BOB]


def test_a_master_that_is_not_there(home: StateHome, run: Run) -> None:
    line = refused(run("workers", "--master", "127.0.0.1:1"))
    assert "http://127.0.0.1:1: the master does not answer" in line
    assert "is it running there?" in line


def test_status_asks_on_one_connection(cluster: Cluster, run: Run) -> None:
    cluster.states[BOB] = "lost"
    where = f"cachefs://{cluster.master.url[7:]}"
    tree = json.loads(ok(run("status", where, "--json")))
    assert cluster.master.connections == 1
    assert [one["code"] for one in tree["problems"]] == ["WORKER_LOST"]
    assert "1 problem" in ok(run("status", where))
    assert cluster.master.connections == 2


def test_status_names_a_master_that_is_away(home: StateHome, run: Run) -> None:
    text = ok(run("status", "--master", "127.0.0.1:1"))
    assert "error: MASTER_AWAY: http://127.0.0.1:1: the master does not answer" in text


def test_doctor_looks_at_the_cluster_of_the_settings(
    cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a machine where nothing is mounted."""
    monkeypatch.setattr("cachefs.cli.commands.doctor.read_mounts", lambda: Mounts([]))

    def found() -> dict[str, str]:
        return {row["name"]: row["state"] for row in json.loads(run("doctor", "--json")[1])}

    assert found()[f"cluster {cluster.master.url}"] == "ok"
    cluster.states[BOB] = "lost"
    assert found()["WORKER_LOST"] == "note"
    monkeypatch.setenv("CACHEFS_MASTER", "127.0.0.1:1")
    assert found()["MASTER_AWAY"] == "problem"


# ---- location, fsck ----


def test_location(cluster: Cluster, run: Run) -> None:
    rows = json.loads(ok(run("location", "/imagenet", "--json")))
    assert [(one["path"], one["block"], one["size_bytes"]) for one in rows] == [
        ("/imagenet/small", 0, 2 * MIB + 1),
        ("/imagenet/big", 0, 256 * MIB),
        ("/imagenet/big", 1, 44 * MIB),
    ]
    cached = {one["worker"]: one["pages"] for one in rows[0]["cached"]}
    assert cached == {ALICE: 3, BOB: 1}
    assert {one["owner"] for one in rows} <= {ALICE, BOB}
    assert rows[1]["cached"] == []
    text = ok(run("location", f"cachefs://{cluster.master.url[7:]}/imagenet/small"))
    assert "100%" in text
    assert "33%" in text
    assert "/imagenet/nope: no such file" in refused(run("location", "/imagenet/nope"))


def test_a_worker_that_does_not_answer_is_left_out(cluster: Cluster, run: Run) -> None:
    cluster.workers[BOB].raw = (500, b"?")
    code, out, err = run("location", "/imagenet/small", "--json")
    assert code == 3
    assert "warning: worker bbbbbbbb" in err
    assert [one["worker"] for one in json.loads(out)[0]["cached"]] == [ALICE]


def test_the_last_line_says_that_the_result_is_partial(cluster: Cluster, run: Run) -> None:
    for fake in cluster.workers.values():
        fake.raw = (500, b"?")
    code, _, err = run("location", "/imagenet/small")
    assert code == 3
    *warnings, last = err.splitlines()
    assert len(warnings) == 2
    assert "lacks what these 2 workers have" in last


def test_fsck_that_read_nothing_does_not_say_that_nothing_is_damaged(
    cluster: Cluster, run: Run
) -> None:
    for fake in cluster.workers.values():
        fake.raw = (500, b"?")
    code, out, err = run("fsck", "/imagenet")
    assert (code, "nothing is damaged" in out) == (3, False)
    assert "0 pages cached in 0 copies, 0 of 0 copies read; nothing was checked" in out
    assert "lacks what these 2 workers have" in err.splitlines()[-1]


def test_fsck_with_one_silent_worker_says_that_only_what_was_read_is_right(
    cluster: Cluster, run: Run
) -> None:
    cluster.members = (ALICE,)
    cluster.pages[ALICE] = 3
    cluster.workers[BOB].raw = (500, b"?")
    code, out, _ = run("fsck", "/imagenet")
    assert code == 3
    assert "3 of 3 copies read; what was read is undamaged" in out


def test_fsck_of_a_worker_whose_disk_is_silent_is_incomplete(cluster: Cluster, run: Run) -> None:
    """What the worker's other disks have is checked; what this one has is not known."""
    cluster.members = (ALICE,)
    cluster.pages = {ALICE: 3, BOB: 3}
    cluster.disks_silent = {ALICE}
    code, out, err = run("fsck", "/imagenet/small")
    assert code == 3
    assert "what was read is undamaged" in out
    assert "a disk of its cache does not answer" in err
    cluster.bits[ALICE] = cluster.bits[BOB] = {}
    code, out, _ = run("fsck", "/imagenet/small")
    assert (code, "nothing was checked" in out) == (3, True)


def test_fsck_of_what_is_right(cluster: Cluster, run: Run) -> None:
    cluster.members = (ALICE,)
    cluster.pages = {ALICE: 3, BOB: 3}
    text = ok(run("fsck", "/imagenet"))
    assert text.startswith("2 files of 302 MiB: 3 pages cached in 4 copies, 4 of 4 copies read")
    assert "nothing is damaged" in text


def test_fsck_passes_over_a_file_of_an_absurd_size(
    cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has 34 G blocks, and no worker caches it."""
    monkeypatch.setitem(globals(), "BIG", Inode(9, Kind.FILE, (1 << 63) - 1, nonce=2))
    cluster.members = (ALICE,)
    cluster.pages = {ALICE: 3, BOB: 3}
    assert "nothing is damaged" in ok(run("fsck", "/imagenet"))


def test_fsck_finds_damage(cluster: Cluster, run: Run) -> None:
    cluster.members = (ALICE,)
    cluster.pages[ALICE] = 3
    cluster.wrong = {1}
    code, out, err = run("fsck", "/imagenet", "--json")
    assert (code, err) == (1, "")
    found = {(one["state"], one["worker"], one["first"]) for one in json.loads(out)["findings"]}
    assert found == {(fsck.WRONG, ALICE, 1), (fsck.MISSING, BOB, 0)}


def test_fsck_finds_what_is_not_at_its_owner(cluster: Cluster, run: Run) -> None:
    cluster.members = (BOB,)
    code, out, _ = run("fsck", "/imagenet/small", "--no-verify")
    assert code == 0, "a read brings it there; nothing is damaged"
    assert out.startswith("misplaced  /imagenet/small  pages 0 to 2  at aaaaaaaa")
    cluster.before = (Member(ALICE, "u", 1.0),)
    assert "misplaced" not in ok(run("fsck", "/imagenet/small", "--no-verify")), "it is moving"
    cluster.before = ()
    cluster.workers[BOB].raw = (500, b"?")
    code, out, _ = run("fsck", "/imagenet/small", "--no-verify")
    assert (code, "misplaced" in out) == (3, False), "what its owner has is not known"


def test_du_counts_what_any_worker_has(cluster: Cluster, run: Run) -> None:
    (found,) = json.loads(ok(run("du", f"cachefs://{cluster.master.url[7:]}/imagenet", "--json")))
    assert (found["files"], found["size_bytes"]) == (2, SMALL.size + BIG.size)
    assert found["cached_bytes"] == SMALL.size


def test_free_is_on_every_worker(cluster: Cluster, run: Run) -> None:
    url = f"cachefs://{cluster.master.url[7:]}/imagenet"
    assert ok(run("free", url)) == "freed 4 MiB of 2 files\n"
    assert json.loads(ok(run("free", url, "--json")))["files"] == 0


def test_free_leaves_what_is_pinned(cluster: Cluster, run: Run) -> None:
    url = f"cachefs://{cluster.master.url[7:]}/imagenet"
    cluster.pinned = {SMALL.ino, BIG.ino}
    assert ok(run("free", url)) == "freed 0 B of 0 files\n"
    cluster.policy = Policy(pin=True)
    assert "pinned by /imagenet; unpin it first" in refused(run("free", url))


def test_runs_of_a_bitmap() -> None:
    assert list(fsck.runs(0)) == []
    assert list(fsck.runs(0b1011)) == [(0, 2), (3, 4)]
    whole = (1 << (BLOCK_PAGES + 3)) - 1
    assert list(fsck.runs(whole << 1)) == [(1, BLOCK_PAGES), (BLOCK_PAGES, BLOCK_PAGES + 4)]


def test_blocks_of_a_file() -> None:
    assert [(b.first, b.end) for b in blocks_of(Inode(1, Kind.FILE))] == [(0, 0)]
    assert [(b.first, b.end) for b in blocks_of(BIG)] == [(0, 256), (256, 300)]
    assert blocks_of(BIG)[1].count(0b11 << 255) == 1


# ---- plans ----


def chosen(**flags: object) -> Config:
    return settings.load_settings(flags, None, {})


def test_the_plan_of_a_master(home: StateHome) -> None:
    spec = master.plan(chosen(), home, background=True)
    assert spec.listen == "127.0.0.1:19998"
    assert spec.store_dir == str(home.path / "master" / "namespace")
    tls = {"tls_cert": "/c", "tls_ca": "/ca"}
    spec = master.plan(chosen(store="lmdb:/srv/x", **tls), home, background=False)
    assert (spec.store_dir, spec.security) == ("/srv/x", Security(tls_cert="/c", tls_ca="/ca"))
    with pytest.raises(errors.BadConfig, match="is not a store"):
        master.plan(chosen(store="redis://x"), home, background=True)


def test_a_master_with_tls_is_told_which_authority_signs_its_workers(home: StateHome) -> None:
    """It is asked for at start, not found out when `free` reaches no worker."""
    with pytest.raises(errors.BadConfig, match="no authority is set") as caught:
        master.plan(chosen(tls_cert="/c"), home, background=True)
    assert "--tls-ca" in caught.value.remedy
    master.plan(chosen(tls_cert="/c", tls=True), home, background=True)


def test_the_plan_of_a_worker(home: StateHome) -> None:
    tiers = ("mem:/dev/shm/c:1GiB", "ssd:/var/c:10GiB:scrub=1MiB")
    spec = worker.plan(
        chosen(master="m:1", tier=tiers, worker_listen="0.0.0.0:7", advertise="node7"),
        home,
        background=True,
    )
    assert (spec.master, spec.tiers, spec.weight) == ("http://m:1", tiers, -1.0)
    assert (spec.listen, spec.advertise) == ("0.0.0.0:7", "http://node7:7")
    assert spec.stays
    again = worker.plan(chosen(tier=tiers[:1], weight="2.5", tls_ca="/ca"), home, background=True)
    assert (again.name, again.weight) == (spec.name, 2.5), "the node is known by its first tier"
    for bad in ({"weight": "heavy"}, {"tier": ("floppy:/a:1GiB",)}):
        with pytest.raises(errors.BadConfig):
            worker.plan(chosen(**bad), home, background=True)


def test_a_worker_that_owns_data_is_reached_from_other_machines(home: StateHome) -> None:
    tier = ("ssd:/var/c:10GiB",)
    for bad in ({}, {"advertise": "localhost:7"}):
        with pytest.raises(errors.BadConfig, match="from no other machine"):
            worker.plan(chosen(master="node1", tier=tier, **bad), home, background=True)
    for good in ({"weight": "0"}, {"advertise": "node7"}, {"worker_listen": "0.0.0.0:7"}):
        assert worker.plan(chosen(master="node1", tier=tier, **good), home, background=True)
    assert worker.plan(chosen(master="localhost", tier=tier), home, background=True)


def test_a_workers_default_tier(home: StateHome) -> None:
    spec = worker.plan(chosen(), home, background=True)
    assert str(home.path) in spec.tiers[0]


def test_a_mounts_source_in_a_cluster(home: StateHome) -> None:
    assert clusters.source_spec("cachefs://m/a/", chosen()) == UfsSpec("cachefs://m:19998/a")
    with pytest.raises(errors.BadConfig, match="no source options"):
        clusters.source_spec("cachefs://m/a", chosen(endpoint_url="http://x"))
    node = clusters.mounts_node("cachefs://m:19998/a", home, chosen(tls_ca="/ca"), True)
    assert (node.master, node.weight, node.stays) == ("https://m:19998", 0.0, False)


def test_paths_of_a_mount_are_below_the_directory_that_is_mounted() -> None:
    record = MountRecord("/mnt", UfsSpec("cachefs://m:1/imagenet/train"), 1, "s")
    assert Target(record, b"a/b").in_namespace == b"imagenet/train/a/b"
    assert Target(record, b"").in_namespace == b"imagenet/train"
    alone = msgspec.structs.replace(record, source=UfsSpec("s3://bucket/x"))
    assert Target(alone, b"a/b").in_namespace == b"a/b"


def test_du_of_what_was_never_listed_says_so(cluster: Cluster, run: Run) -> None:
    cluster.unlisted = 2
    url = f"cachefs://{cluster.master.url[7:]}/imagenet"
    code, out, err = run("du", url)
    assert (code, "100%" in out) == (0, False)
    assert "2 directories were never listed" in err
    assert f"cachefs sync -R {url}" in err
    assert json.loads(run("du", url, "--json")[1])[0]["unlisted_directories"] == 2


@pytest.mark.parametrize("command", ["du", "free"])
def test_a_command_that_no_worker_answered_exits_3(
    cluster: Cluster, run: Run, command: str
) -> None:
    for fake in cluster.workers.values():
        fake.raw = (500, b"?")
    code, _, err = run(command, f"cachefs://{cluster.master.url[7:]}/imagenet")
    assert code == 3
    assert "lacks what these 2 workers have" in err.splitlines()[-1]


# ---- one way to name a path and to connect ----


@pytest.mark.parametrize("path", ["/imagenet", "cachefs://{address}/imagenet"])
def test_ls_and_stat_of_a_cluster_need_no_mount(cluster: Cluster, run: Run, path: str) -> None:
    path = path.format(address=address_of(cluster.master.url))
    assert ok(run("ls", path)).splitlines() == ["big", "small"]
    rows = [line.split() for line in ok(run("ls", "-l", path)).splitlines()]
    assert [(words[-2], words[-1]) for words in rows] == [
        ("0%", "/imagenet/big"),
        ("100%", "/imagenet/small"),
    ]
    facts = json.loads(ok(run("stat", f"{path}/small", "--json")))
    assert facts["cached_bytes"] == facts["size_bytes"] == SMALL.size
    assert facts["source"] == f"cachefs://{address_of(cluster.master.url)}/imagenet/small"
    assert "no such file or directory" in refused(run("stat", f"{path}/none"))


def test_ls_says_which_worker_did_not_answer(cluster: Cluster, run: Run) -> None:
    cluster.workers[ALICE].scripts.clear()
    code, out, err = run("ls", "-l", "/imagenet")
    assert code == 3
    assert "38%" not in out
    assert f"worker {ALICE[:8]}" in err
    assert run("ls", "/imagenet")[0] == 0, "no worker is asked"


@pytest.mark.parametrize(
    "words", [("fsck", "/imagenet", "--no-verify"), ("location", "/imagenet"), ("du", "/imagenet"),
              ("free", "/imagenet"), ("ls", "-l", "/imagenet"), ("stat", "/imagenet/small")],
)  # fmt: skip
def test_a_lost_worker_is_one_that_does_not_answer(
    cluster: Cluster, run: Run, words: tuple[str, ...]
) -> None:
    """It owned data, and nobody says what it has of it."""
    cluster.states[ALICE] = "lost"
    code, _, err = run(*words)
    assert code == 3
    assert f"worker {ALICE[:8]}: it is lost" in err
    assert err.splitlines()[-1] == "cachefs: the result lacks what this worker has"


def test_workers_that_fail_alike_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    alike = [f"{n:032x}: no answer within 10 s" for n in range(1 << 124, (1 << 124) + 7)]
    assert output.warn_no_answer([*alike, f"{BOB}: this token is not known"]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [
        f"cachefs: warning: 7 workers ({', '.join(['10000000'] * 5)}, …): no answer within 10 s",
        "cachefs: warning: worker bbbbbbbb: this token is not known",
    ]
    assert len(lines) == 3


def test_ls_with_a_token_that_may_not_ask_workers(cluster: Cluster, run: Run) -> None:
    def denied(body: m.Message) -> m.Message:
        raise errors.AccessDenied("this token is limited to /imagenet")

    cluster.master.scripts[c.ListWorkers] = denied
    code, out, err = run("ls", "-l", "/imagenet")
    assert (code, out.split()[-2]) == (0, "-")
    assert "how much of each file is cached is not known: this token is limited" in err


@pytest.mark.parametrize(
    "words",
    [
        ("du", "{path}"),
        ("free", "{path}"),
        ("unpin", "{path}"),
        ("ttl", "{path}"),
        ("quota", "{path}"),
        ("policy", "show", "{path}"),
        ("ls", "{path}"),
        ("stat", "{path}"),
        ("location", "{path}"),
        ("fsck", "{path}", "--no-verify"),
    ],
)
def test_each_way_to_name_a_path_of_a_cluster(
    cluster: Cluster, run: Run, words: tuple[str, ...]
) -> None:
    cluster.master.scripts[m.SetPolicy] = lambda _: m.PolicySet(Policy())
    cluster.master.scripts[m.GetPolicies] = lambda _: m.PoliciesAt(
        Policy(ttl_s=60.0), {"pin": "default", "ttl_s": "default"}, Policy()
    )
    bare = [word.format(path="/imagenet") for word in words]
    url = [
        word.format(path=f"cachefs://{address_of(cluster.master.url)}/imagenet") for word in words
    ]
    assert run(*bare)[0] == 0
    first, cluster.master.asked = cluster.master.asked, []
    ok(run(*url))
    assert cluster.master.asked == first or words[0] == "free"


def test_a_path_outside_of_mounts_without_a_cluster(run: Run) -> None:
    for words in (("ls", "/p"), ("free", "/p"), ("ttl", "/p"), ("du", "/p")):
        assert "/p: not under a CacheFS mount" in refused(run(*words))


def test_flags_of_a_group_stand_before_or_after_its_command(
    cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CACHEFS_MASTER")
    flag = ("--master", cluster.master.url)
    for group, *words in (("ufs", "ls"), ("workers", "drain", ALICE), ("policy", "show", "/p")):
        before = run(group, *flag, *words)
        assert before == run(group, *words, *flag)
        assert before[0] == 0, before[2]
    assert "not an address" in refused(run("jobs", "--master", ":", "show", "1"))
    wrong, right = ("--master", "http://127.0.0.1:1"), flag
    assert run("ufs", *wrong, "ls", *right)[0] == 0, "the flag next to the command counts"


def test_a_cluster_whose_master_died_is_the_configured_one(
    home: StateHome, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bare path is then one of a master that does not answer, not one outside of mounts."""
    directory = private_dir(home.path / "local")
    processes = [{"name": "master", "url": "http://127.0.0.1:1", "pid": 101}]
    processes += [{"name": "worker-1", "url": "http://127.0.0.1:2", "pid": 102}]
    record = {"directory": str(directory), "home": str(home.path), "processes": processes}
    write_document(directory, "cluster.json", record)
    write_document(home.path, "local.json", {"directory": str(directory)})
    monkeypatch.setattr(ProcessId, "lives", lambda process: process.pid == 102)
    assert "127.0.0.1:1: the master does not answer" in refused(run("ls", "/p"))
    monkeypatch.setattr(ProcessId, "lives", lambda process: False)
    assert "not under a CacheFS mount" in refused(run("ls", "/p"))
