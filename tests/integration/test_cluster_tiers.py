"""A node with two tiers, by the real command line: complete files of both are read by the kernel
alone, and what happens to one of them costs nobody an error.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.integration.conftest import Bucket
from tests.integration.dataset import body, digest, digests, expected, images
from tests.services.cluster import Cluster, Machine
from tests.services.processes import wait_until

MIB = 1 << 20


def status(machine: Machine, mount: Path) -> dict[str, Any]:
    found: dict[str, Any] = machine.json("status", mount)
    return found


def tiers(machine: Machine, mount: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = status(machine, mount)["cache"]["tiers"]
    return rows


def test_files_of_every_tier_are_read_by_the_kernel_and_a_lost_tier_is_a_smaller_cache(
    cluster: Cluster, bucket: Bucket
) -> None:
    files = {**images(40), "big.bin": body(1, 60 * MIB), "mid.bin": body(2, 20 * MIB)}
    bucket.fill(files)
    cluster.master.start()
    slow = cluster.root / "node0" / "slow"
    node = cluster.add_worker("--tier", f"ssd:{slow}:400MiB:scrub=0", size="64MiB")
    cluster.add_ufs(bucket.url, "/data", *bucket.options)
    mount = cluster.mount(0, "/data")

    assert digests(mount) == expected(files)
    wait_until(lambda: sum(row["files"] for row in tiers(node, mount)) == 42, "all is cached")
    assert [row["files"] for row in tiers(node, mount)] == [41, 1]
    fetched = status(node, mount)["cache"]["origin_bytes"]
    assert fetched == sum(map(len, files.values()))

    before = passthrough_opens(node, mount)
    assert digests(mount) == expected(files)
    if before:  # by the kernel, whichever tier they are in
        wait_until(lambda: passthrough_opens(node, mount) >= before + 42, "42 files went through")
    assert status(node, mount)["cache"]["origin_bytes"] == fetched

    with (mount / "mid.bin").open("rb") as kept:
        shutil.rmtree(node.root / "tier")
        assert digest(kept.read()) == digest(files["mid.bin"]), "an open file reads on"
        assert digests(mount) == expected(files), "what was there is fetched again"
    pub = node.root / "tier" / "pub"
    wait_until(pub.is_dir, "the tier is there again", 60)
    wait_until(lambda: tiers(node, mount)[0]["state"] == "normal", "it is used again", 60)
    node.run("free", mount)
    assert digests(mount) == expected(files)
    wait_until(lambda: any(pub.iterdir()), "files are cached in the new directory")


def passthrough_opens(machine: Machine, mount: Path) -> int:
    """0 where the kernel has no passthrough."""
    counters = status(machine, mount)["mounts"][0]["counters"]
    return int(counters.get("passthrough_opens", 0))
