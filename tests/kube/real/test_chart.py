"""The chart on the real node, with the image, by the command lines of docs/kubernetes.md: from an
empty cluster to a gated job, an upgrade under a reader without an error, an uninstall that is
refused while a pod has a volume, and one that leaves nothing. [S-pods]"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.mountinfo import FSTYPE
from tests.deploy.chart import EVERYTHING, template
from tests.kube.real import reader
from tests.kube.real.cluster import Cluster
from tests.kube.real.release import LABEL, RUN, SPACE, TAGS, Release
from tests.kube.real.trainers import Trainers, longest
from tests.services.processes import families, wait_until

pytestmark = pytest.mark.timeout(900)

INSTALL, GATED_JOB, UNINSTALL = range(3)  # blocks of docs/kubernetes.md
TEAM = "team-a"
LIMIT_S = 400.0  # of the reader; the test ends it before
GONE_S = 60.0
SMALLER_MIB = 36  # of the tier in memory after the upgrade: more than the file that is open
SYS_ADMIN = 1 << 21  # capability.h
SECCOMP_FILTER = "2"


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    """A release that is installed as the page says. What its tests leave is removed."""
    directory = cluster.layout.directory
    assert not (cluster.kubelet_directory / "plugins" / "csi.cachefs.io").exists()
    source = directory / "chart-source"
    reader.write(source)
    made = Release(cluster, directory / "chart", source)
    made.prepare()
    began_s = time.monotonic()
    try:
        made.follow_page(INSTALL)
        made.wait_for_nodes()
        print(f"installed in {time.monotonic() - began_s:.1f} s")
        yield made
    finally:
        made.run("uninstall", "cachefs", "--no-hooks", "--ignore-not-found", "--wait")
        cluster.kubectl("delete", "namespace", SPACE, TEAM, "--timeout=60s", limit_s=90.0)
        cluster.kubectl("delete", "persistentvolume", "chart-store")


@pytest.mark.parametrize("values", [(), EVERYTHING], ids=["defaults", "everything"])
def test_the_api_server_accepts_every_object(
    values: tuple[str | Path, ...], cluster: Cluster
) -> None:
    """A strict dry run. The server knows no PodMonitors."""
    rendered = template("--namespace", "default", "--include-crds", *values)
    assert rendered.returncode == 0, rendered.stderr
    said = cluster.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-", input=rendered.stdout
    )
    assert all(line.endswith("(server dry run)") for line in said.splitlines())


def test_a_release_from_its_start_to_its_end(
    release: Release, cluster: Cluster, space: str
) -> None:
    try:
        _live(release, cluster, space)
    except BaseException:
        print(cluster.kubectl("get", "dataset", "-A", "-o", "yaml"), cluster.report(SPACE))
        raise
    _check_uninstalled(release, cluster)


def _live(release: Release, cluster: Cluster, space: str) -> None:
    """A gated job, and then a reader through an upgrade and an uninstall that is refused."""
    files = reader.SMALL_FILES + 1
    assert release.follow_page(GATED_JOB).endswith(f"\n{files}\n")
    readers = Trainers(cluster, space, ["chart-reader"])
    readers.start(f"/{TEAM}/imagenet", LIMIT_S)
    _check_rights(release)
    assert release.images() == {TAGS[0]}
    span = readers.under("upgrade", lambda: _upgrade(release, cluster))
    print(f"{span.text}: {span.ended_s - span.began_s:.1f} s")
    _check_refused(release, f"{space}/chart-reader")
    texts = release.texts()
    assert [one for one in release.secrets() if one in texts] == []
    (seen,) = readers.finish().values()
    print(seen.files, "files", seen.parts, "parts;", longest(seen, span))
    assert (seen.errors, seen.wrong) == (0, 0), seen.first_errors
    readers.delete()


def _upgrade(release: Release, cluster: Cluster) -> None:
    """Upgrades every part, with less room in memory; a job loads the path again. A pin would keep
    the files where they are."""
    patch = '{"spec": {"policies": {"pin": false}}}'
    cluster.kubectl("patch", "dataset", "imagenet", "-n", TEAM, "--type=merge", "-p", patch)
    assert release.in_memory_bytes() > SMALLER_MIB << 20
    values = {
        "worker.tiers": release.tiers(SMALLER_MIB),
        "preload": [
            {"name": "all", "paths": [f"/{TEAM}/imagenet"]},
            {"name": "nightly", "paths": [f"/{TEAM}/imagenet"], "schedule": "0 3 * * *"},
            {"name": "none", "paths": [f"/{TEAM}/none"], "retries": 0},
        ],
    }
    release.upgrade(TAGS[1], values)
    wait_until(lambda: release.images() == {TAGS[1]}, "the former pods are gone", GONE_S)
    at_most = SMALLER_MIB << 20
    wait_until(lambda: release.in_memory_bytes() <= at_most, "the tier is smaller", GONE_S)
    _check_preloads(cluster)


def _check_preloads(cluster: Cluster) -> None:
    """A job succeeds only if every byte is in the cache; that of a schedule is started by hand."""
    cluster.kubectl(
        "create", "job", "now", "--from=cronjob/cachefs-preload-nightly", "-n", SPACE
    )  # fmt: skip
    part = f"{LABEL},app.kubernetes.io/component=preload"
    for which, condition in (
        (["job", "-l", f"{part}-all"], "Complete"),
        (["job/now"], "Complete"),
        (["job", "-l", f"{part}-none"], "Failed"),
    ):
        cluster.kubectl(
            "wait", *which, f"--for=condition={condition}", "-n", SPACE, "--timeout=60s",
            limit_s=90.0,
        )  # fmt: skip


def _check_rights(release: Release) -> None:
    """What the kernel knows of each process; the driver is privileged."""
    seen = set()
    for name, pid in release.containers():
        seen.add(name)
        if name == "csi":
            continue
        allowed = SYS_ADMIN if name == "fuse" else 0
        for one in families([pid]):
            status = _status(one)
            held = {key: int(status[key], 16) for key in ("CapEff", "CapPrm", "CapBnd", "CapAmb")}
            assert not any(value & ~allowed for value in held.values()), (name, held)
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", SECCOMP_FILTER), name
    assert seen == {"master", "worker", "holder", "csi", "fuse", "controller"}


def _status(pid: int) -> dict[str, Any]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _check_refused(release: Release, pod: str) -> None:
    before = release.objects()
    done = release.uninstall()
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert f"pods use volumes of csi.cachefs.io: {pod}" in said, said
    assert release.objects() == before


def _check_uninstalled(release: Release, cluster: Cluster) -> None:
    began_s = time.monotonic()
    release.follow_page(UNINSTALL)
    print(f"uninstalled in {time.monotonic() - began_s:.1f} s")
    wait_until(lambda: not release.objects(), "every object is gone", GONE_S)
    wait_until(lambda: not release.is_registered(), "the driver is gone", GONE_S)
    assert [*release.containers()] == []
    mounts = Path("/proc/self/mounts")
    wait_until(lambda: f" {FSTYPE} " not in mounts.read_text(), "nothing is mounted", GONE_S)
    # A holder is killed: nobody listens at the name that stays.
    assert [one.name for one in RUN.rglob("*") if one.is_socket()] in ([], ["holder.sock"])
    left = cluster.get("persistentvolumeclaims", "-n", SPACE)["items"]
    assert [one["metadata"]["name"] for one in left] == ["store-cachefs-master-0"]
