"""An origin whose TLS handshake fails, at a mount and under one that runs, and a proxy that wants
credentials: each is told in one line, with its cause and its remedy."""

from __future__ import annotations

import errno
import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Bucket, Node
from tests.integration.dataset import body, digests, expected, images
from tests.services.authority import Authority
from tests.services.processes import wait_until
from tests.services.proxy import FaultProxy, status
from tests.services.versitygw import versitygw

MIB = 1 << 20
DEADLINE = ("--origin-deadline", "3s", "--sync-interval", "1s")
PATIENT = ("--origin-deadline", "6s")  # a busy machine tries once within it, too
NAMED_S = 30.0
COLD = tuple(f"cold{number}" for number in range(4))


def problem(node: Node, mounted: Path) -> dict[str, Any]:
    """The one problem that `cachefs health` names; {} where there is none."""
    found = json.loads(node.run("health", mounted, "--json").stdout)
    assert len(found) <= 1, found
    return dict(found[0]) if found else {}


def reads(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def test_a_real_server_over_tls(node: Node, authority: Authority, tmp_path: Path) -> None:
    """Without a proxy in between: listings, small files, the ranges of a large one."""
    pem, bundle = authority.certificate, authority.bundle
    with versitygw(tmp_path / "gateway", certificate=pem, ca_bundle=bundle) as server:
        bucket = Bucket(server, "over-tls")
        bucket.ca_bundle = bundle
        files = {**images(20), "big": body(1, 24 * MIB), "empty": b""}
        bucket.fill(files)
        mounted = node.mount(bucket.url, *bucket.options)
        assert digests(mounted) == expected(files)
        node.umount(mounted)


def test_a_mount_names_what_is_wrong_with_a_certificate(
    node: Node, bucket: Bucket, proxy: FaultProxy, authority: Authority, tmp_path: Path
) -> None:
    """And mounts as soon as the server shows a right one."""
    bucket.put("a", b"data")
    mountpoint = node.mountpoint()
    node.allowed_log.append("s3://|Certificate did not match")
    command = ("mount", bucket.url, mountpoint, *bucket.options, *DEADLINE)

    proxy.present(Authority(tmp_path, "unknown").certificate)
    said = node.fails(*command)
    assert "not trusted" in said
    assert "--ca-bundle" in said
    proxy.present(authority.issue("mount-late", expired=True))
    assert "has expired" in node.fails(*command)
    proxy.present(authority.issue("mount-other", hosts=("other.test",)))
    assert "for another host" in node.fails(*command)
    proxy.present(authority.certificate, ssl.TLSVersion.TLSv1_1)
    said = node.fails(*command)
    assert "TLS is too old" in said
    assert "TLS 1.2" in said
    assert proxy.counters().requests.total() == 0, "nothing is said to a server that is not known"

    proxy.present(authority.certificate)
    assert (node.mount(bucket.url, *bucket.options, *DEADLINE) / "a").read_bytes() == b"data"


def test_a_certificate_changes_under_a_mount(
    node: Node, bucket: Bucket, proxy: FaultProxy, authority: Authority
) -> None:
    """To another right one: nobody notices. To a wrong one: the origin is away, what is cached is
    read, and `health` and `doctor` say why, until the server has a right one again."""
    bucket.fill({name: body(n, 300_000) for n, name in enumerate(("warm", *COLD))})
    mounted = node.mount(bucket.url, *bucket.options, *DEADLINE)
    assert (mounted / "warm").read_bytes() == body(0, 300_000)

    proxy.present(authority.issue("renewed"))
    proxy.cut_connections()
    assert (mounted / "cold0").read_bytes() == body(1, 300_000)
    assert problem(node, mounted) == {}

    proxy.present(authority.issue("late", expired=True))
    proxy.cut_connections()
    node.allowed_log.append(r"WARNING|ERROR")
    assert read_error(mounted / "cold1") == errno.EIO
    assert (mounted / "warm").read_bytes() == body(0, 300_000)

    def is_named() -> bool:
        # Until the next probe the cause may be that of a request which ended at its deadline.
        found = problem(node, mounted)
        return found != {} and "certificate has expired" in found["cause"]

    wait_until(is_named, "health names it", NAMED_S)
    assert problem(node, mounted)["code"] == "ORIGIN_DOWN"
    (line,) = [line for line in node.run("doctor").stdout.splitlines() if "ORIGIN_DOWN" in line]
    assert "certificate has expired" in line
    assert "renew" in line

    def is_told() -> bool:
        return any("has expired" in line for line in node.logs().splitlines() if "cold1" in line)

    wait_until(is_told, "the log has such a line")

    proxy.present(authority.issue("renewed-late"))
    wait_until(lambda: reads(mounted / "cold2", body(3, 300_000)), "it reads again", NAMED_S)
    wait_until(lambda: problem(node, mounted) == {}, "health is quiet again", NAMED_S)


def read_error(path: Path) -> int | None:
    with pytest.raises(OSError) as caught:
        path.read_bytes()
    return caught.value.errno


def test_a_proxy_that_wants_credentials_is_named(node: Node, bucket: Bucket) -> None:
    """Before the server of a bucket, and before a server that is reached over TLS."""
    mountpoint = node.mountpoint()
    node.allowed_log.append("the proxy")
    with FaultProxy(bucket.endpoint_url) as proxy:
        proxy.script(status(407, code="ProxyAuthenticationRequired"), times=None)
        by = dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY"), proxy.endpoint_url)
        for url in ("http://storage.test", "https://storage.test"):
            said = node.fails(
                "mount", bucket.url, mountpoint, "--endpoint-url", url, *PATIENT, env=by
            )
            assert "proxy" in said
            assert "PROXY" in said
            assert proxy.counters().statuses["407"] > 0
            proxy.reset()
