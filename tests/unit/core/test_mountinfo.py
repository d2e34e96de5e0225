"""The kernel's mounts, read from mountinfo."""

from __future__ import annotations

from cachefs.core.mountinfo import Mounts, parse_mountinfo, read_mounts

INFO = rb"""22 27 0:20 / /proc rw,nosuid - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
90 27 0:50 / /mnt/data ro,nosuid,nodev - fuse.cachefs s3://bucket/a\040b ro,user_id=1000,allow_other
91 27 0:50 /sub /pod/vol ro - fuse.cachefs s3://bucket ro,user_id=1000
92 27 0:51 / /mnt/with\040space\134 ro - fuse.cachefs s3://c ro,user_id=0
93 90 0:52 / /mnt/data/deep rw - tmpfs tmpfs rw
94 27 0:53 / /mnt/over ro - fuse.cachefs s3://d ro
95 27 0:54 / /mnt/over rw - tmpfs tmpfs rw
nonsense
"""
MOUNTS = Mounts(parse_mountinfo(INFO))


def test_parse_mountinfo() -> None:
    assert len([*parse_mountinfo(INFO)]) == 8
    mount = MOUNTS.at("/mnt/data")
    assert mount is not None
    assert mount.is_cachefs
    assert (mount.source, mount.owner_uid, mount.device) == ("s3://bucket/a b", 1000, "0:50")
    assert MOUNTS.at("/mnt/with space\\") is not None
    top = MOUNTS.at("/mnt/over")
    assert top is not None
    assert top.fstype == "tmpfs"


def test_bind_mounts_lead_to_their_original() -> None:
    bind = MOUNTS.at("/pod/vol")
    assert bind is not None
    assert MOUNTS.original(bind).mountpoint == "/mnt/data"
    assert [m.mountpoint for m in MOUNTS.ours()] == ["/mnt/data", "/mnt/with space\\"]
    assert len(MOUNTS.of_device("0:50")) == 2
    assert [m.mountpoint for m in MOUNTS.below("/mnt/data")] == ["/mnt/data/deep"]


def test_the_mount_that_contains_a_path() -> None:
    def containing(path: str) -> str:
        mount = MOUNTS.containing(path)
        assert mount is not None
        return mount.mountpoint

    assert containing("/mnt/data") == containing("/mnt/data/a/b") == "/mnt/data"
    assert containing("/mnt/data/deep/a") == "/mnt/data/deep"
    assert containing("/mnt/data2") == containing("/") == "/"
    assert Mounts([]).containing("/a") is None


def test_lines_that_are_cut_off_are_left_out() -> None:
    assert [*parse_mountinfo(b"1 2 3\n\n22 1 8:1 / / rw\n")] == []


def test_the_mounts_of_this_process() -> None:
    mounts = read_mounts()
    assert mounts.at("/") is not None
    assert mounts.layers("/") >= 1
    assert mounts.layers("/not/there") == 0


TREE = b"/cache/views/00000000000000"
COVERED = (
    INFO
    + rb"""96 90 8:1 TREE07 /mnt/data/train ro,nosuid - ext4 /dev/sda rw
97 96 8:1 TREE08/sub /mnt/data/train ro - ext4 /dev/sda rw
98 92 8:1 TREE09 /mnt/with\040space\134 ro - ext4 /dev/sda rw
99 90 8:1 /cache/views/12 /mnt/data/odd ro - ext4 /dev/sda rw
100 90 8:1 TREE0a /mnt/data/writable rw - ext4 /dev/sda rw
101 27 8:1 TREE07 /data ro - ext4 /dev/sda rw
""".replace(b"TREE", TREE)
)


def test_covers_are_kept_apart() -> None:
    mounts = Mounts(parse_mountinfo(COVERED))
    assert [(m.mountpoint, m.root[-6:]) for m in mounts.covers] == [
        ("/mnt/data/train", "000007"),
        ("/mnt/data/train", "08/sub"),
        ("/mnt/with space\\", "000009"),
    ]
    data = mounts.at("/mnt/data")
    assert data is not None
    assert [m.mount_id for m in mounts.covers_of(data)] == ["96", "97"]
    covered = mounts.at("/mnt/with space\\")
    assert covered is not None
    assert covered.is_cachefs
    assert [m.mount_id for m in mounts.covers_of(covered)] == ["98"]
    assert mounts.at("/mnt/data/train") is None


def test_what_is_no_cover() -> None:
    mounts = Mounts(parse_mountinfo(COVERED))
    for path in ("/mnt/data/odd", "/mnt/data/writable", "/data", "/mnt/data/deep"):
        assert mounts.at(path) is not None, path
