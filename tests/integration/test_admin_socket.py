"""The admin API of a mount without a cluster: the same as a master's, on a socket of the mounter's
own."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from cachefs.client.admin import AdminClient
from cachefs.core import admin as a
from cachefs.core.errors import NotFound, Unsupported
from cachefs.core.model import UfsSpec
from cachefs.core.policies import Policy
from tests.integration.conftest import Node
from tests.services.processes import wait_until


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    (made / "train").mkdir(parents=True)
    for n in range(3):
        (made / "train" / f"{n}").write_bytes(b"x" * 1000)
    (made / "100%").write_bytes(b"y" * 50)
    return made


def test_a_mounts_server_answers_the_admin_api(node: Node, source: Path, tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    mounted = node.mount(f"file://{source}", "--admin-socket", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for n in range(2):
        assert (mounted / "train" / f"{n}").read_bytes() == b"x" * 1000
    assert (mounted / "100%").read_bytes() == b"y" * 50
    with AdminClient.of_socket(str(path)) as admin:
        assert admin.about().namespaces == [admin.about().namespace]
        (row,) = admin.sources()
        assert (row.path, row.source.url) == (b"/", f"file://{source}")
        assert admin.status()["mounts"][0]["mountpoint"] == str(mounted)
        usage = admin.get("/usage", a.Usage, {"path": a.text_of(b"train")})
        assert usage.cached_bytes == 2000
        single = admin.get("/usage", a.Usage, {"path": a.text_of(b"100%")})
        assert (single.files, single.size_bytes, single.cached_bytes) == (1, 50, 50)
        assert admin.set_policy(b"train", Policy(quota_bytes=5000)).quota_bytes == 5000
        assert admin.quotas(b"train") == [(b"train", 5000, pytest.approx(2000, abs=8000))]
        freed = admin.send("POST", "/free", a.FreedBytes, a.FreeRequest("/train"))
        assert freed.files == 2
        (owner,) = admin.workers().rows
        page = admin.get("/locations", a.Locations, {"path": "/100%25"})
        assert [one.worker for one in page.items[0].blocks[0].cached] == [owner.id]
        with pytest.raises(Unsupported):
            admin.add_source(b"x", UfsSpec(f"file://{source}"), 60.0)
        with pytest.raises(NotFound):
            admin.set_policy(b"nothing", Policy(ttl_s=5.0))
        started = admin.start_sync(b"train", recursive=True, dry_run=True)
        wait_until(lambda: admin.sync(started.sync.sync).sync.state == "done", "the sync has ended")
    node.umount(mounted)
    wait_until(lambda: not path.exists(), "the socket is gone")


def test_where_no_socket_can_be(node: Node, source: Path, tmp_path: Path) -> None:
    node.allowed_log += ["--admin-socket:"]
    file = tmp_path / "file"
    file.write_text("kept")
    line = node.fails("mount", f"file://{source}", node.mountpoint(), "--admin-socket", str(file))
    assert "a file is there" in line
    assert file.read_text() == "kept"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "taken"))
        other.listen()
        line = node.fails(
            "mount",
            f"file://{source}",
            node.mountpoint(),
            "--admin-socket",
            str(tmp_path / "taken"),
        )
    assert "another process answers there" in line
