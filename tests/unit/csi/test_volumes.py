"""What volumes request: their path stays below its parent, and a bad attribute is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.errors import BadConfig
from cachefs.csi.volumes import Volume, parse_volume, pod_of
from cachefs.fuse import mount_flags

MASTER = "master:19998"
BELOW = f"cachefs://{MASTER}"
POD = {"csi.storage.k8s.io/pod.namespace": "team", "csi.storage.k8s.io/pod.name": "trainer"}
PARTS = st.sampled_from(
    ["..", ".", "", "a", "b c", "...", "..a", "~", "%2e%2e", "team", "\\..", "ä"]
)
PATHS = st.lists(PARTS, min_size=1, max_size=6).map("/".join) | st.text(max_size=20)


def parse(context: dict[str, str], volume_id: str = "csi-1", flags: tuple[str, ...] = ()) -> Volume:
    return parse_volume(volume_id, context, flags, MASTER)


@given(PATHS)
def test_no_path_leaves_the_namespace(path: str) -> None:
    try:
        url = parse({**POD, "path": path, "namespaced": "true"}).url
    except BadConfig:
        return
    assert url == f"{BELOW}/team" or url.startswith(f"{BELOW}/team/")
    assert not {"", ".", ".."} & set(url.removeprefix("cachefs://").split("/"))


@given(PATHS)
def test_no_handle_leaves_the_namespace(path: str) -> None:
    try:
        url = parse({**POD, "namespaced": "true"}, f"{BELOW}/{path}").url
    except BadConfig:
        return
    assert url == f"{BELOW}/team" or url.startswith(f"{BELOW}/team/")
    assert not {"", ".", ".."} & set(url.removeprefix("cachefs://").split("/"))


@given(st.text())
def test_a_namespace_is_one_component(namespace: str) -> None:
    context = {**POD, "csi.storage.k8s.io/pod.namespace": namespace}
    try:
        url = parse({**context, "path": "/a", "namespaced": "true"}).url
    except BadConfig:
        return
    assert url == f"{BELOW}/{namespace}/a"
    assert "/" not in namespace
    assert "." not in namespace


def test_confinement_concerns_inline_volumes_only() -> None:
    inline = {**POD, "path": "/a", "csi.storage.k8s.io/ephemeral": "true"}
    static = {**inline, "csi.storage.k8s.io/ephemeral": "false"}
    unknown = {**POD, "path": "/a"}
    urls = [
        parse_volume(volume_id, context, (), MASTER, confine=True).url
        for volume_id, context in [
            ("csi-1", inline),
            ("csi-1", unknown),
            ("csi-1", static),
            (f"{BELOW}/a", POD),
        ]
    ]
    assert urls == [f"{BELOW}/team/a", f"{BELOW}/team/a", f"{BELOW}/a", f"{BELOW}/a"]


def test_attributes_are_read() -> None:
    context = {"path": "//a//b/", "uid": "1000", "gid": "0", "fileMode": "440", "dirMode": "0550"}
    found = parse({**POD, **context}, flags=("ro", "noatime", "nodev"))
    assert found == Volume(f"{BELOW}/a/b", 1000, 0, 0o440, 0o550, ("noatime",))
    assert parse({"path": "/"}) == Volume(BELOW)
    assert pod_of(POD) == "team/trainer"
    assert pod_of({}) == "?/?"


@pytest.mark.parametrize(
    ("context", "named"),
    [
        ({}, "path"),
        ({"path": ""}, "path"),
        ({"path": "/a/../b"}, "'..'"),
        ({"path": "/a\nb"}, "path"),
        ({"path": "/a\0b"}, "path"),
        ({"path": "/a", "bucket": "b"}, "bucket"),
        ({"path": "/a", "uid": "-1"}, "uid"),
        ({"path": "/a", "gid": "4294967295"}, "gid"),
        ({"path": "/a", "uid": "٣"}, "uid"),
        ({"path": "/a", "fileMode": "0888"}, "fileMode"),
        ({"path": "/a", "dirMode": "1777"}, "dirMode"),
        ({"path": "/a", "namespaced": "yes"}, "namespaced"),
        ({"path": "/a", "namespaced": "true"}, "podInfoOnMount"),
    ],
)
def test_a_bad_attribute_is_named(context: dict[str, str], named: str) -> None:
    with pytest.raises(BadConfig) as err:
        parse(context)
    assert named in err.value.one_line()


@pytest.mark.parametrize(
    ("volume_id", "context"),
    [
        ("cachefs://other:19998/a", {}),
        (f"{BELOW}/a/../b", {}),
        (f"{BELOW}/a", {"path": "/b"}),
        ("cachefs://", {}),
    ],
)
def test_a_bad_handle_is_refused(volume_id: str, context: dict[str, str]) -> None:
    with pytest.raises(BadConfig):
        parse(context, volume_id)


@pytest.mark.parametrize("flag", ["rw", "suid", "dev", "bind", "fd=3", "allow_other"])
def test_other_mount_flags_are_refused(flag: str) -> None:
    with pytest.raises(BadConfig, match=flag):
        parse({"path": "/a"}, flags=(flag,))


def test_a_context_belongs_to_the_shared_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All binds of a mount have the labels of its file system."""
    monkeypatch.setattr(mount_flags, "_SELINUX", tmp_path)
    options = [f'context="u:r:t:s0:{categories}"' for categories in ("c1,c2", "c3,c4")]
    volumes = [parse({"path": "/a"}, flags=flags) for flags in ((), *((o, "ro") for o in options))]
    assert [volume.mount_options for volume in volumes] == [(), *((o,) for o in options)]
    assert len({volume.mount_name for volume in volumes}) == 3
    assert volumes[1] == parse({"path": "/a"}, "csi-2", flags=("nodev", options[0]))


def test_mounts_are_shared_by_what_they_show() -> None:
    first = parse({**POD, "path": "/a"})
    same = parse({"path": "a/", "namespaced": "false"}, f"csi-{2}")
    handle = parse({}, f"{BELOW}/a")
    assert first.mount_name == same.mount_name == handle.mount_name
    assert len(first.mount_name) == 16
    others = [
        parse({"path": "/a", "uid": "0"}),
        parse({"path": "/a", "gid": "0"}),
        parse({"path": "/a", "dirMode": "0700"}),
        parse({"path": "/b"}),
        parse({"path": "/a"}, flags=("noexec",)),
    ]
    assert len({volume.mount_name for volume in [first, *others]}) == 6


def test_the_name_of_a_shared_mount_stays() -> None:
    """A driver of the next version finds the mounts of this one."""
    assert parse({"path": "/imagenet"}).mount_name == "f5c6409fd939ae3a"
