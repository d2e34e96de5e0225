"""The CSI driver, with the kernel's mounts, a holder's process and a fake kubelet."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from cachefs.core.errors import BadConfig, CacheFSError, NotADirectory, NotFound, Unreachable
from cachefs.core.messages import failure_of
from cachefs.core.specs import ClientSpec
from cachefs.csi import shared_mounts, volumes
from cachefs.csi.driver import Driver
from cachefs.csi.generated import csi_pb2 as csi
from cachefs.csi.publishing import ANSWER_S, MAX_WAITING
from cachefs.fuse import failure_notes, mount_flags
from cachefs.fuse.deposits import Deposit, HolderClient, new_key
from cachefs.fuse.kernel.mount import mount as kernel_mount
from cachefs.fuse.kernel.table import TakeoverTable
from tests.kube.csi_node import MASTER, CsiNode
from tests.kube.fake_kubelet import refused

IMAGENET = {"path": "/imagenet"}
FIRST_PUBLISH_S = 10.0  # while others want the two CPUs; the bench has the bars
END_S = 10.0  # a publish waits for 60 s
SHORT_S = 0.5


@pytest.fixture
def node() -> Iterator[CsiNode]:
    # pytest's directories are too deep for the names of sockets.
    with tempfile.TemporaryDirectory(prefix="csi") as directory:
        found = CsiNode(Path(directory))
        try:
            yield found
        finally:
            found.end()


def name_below(namespace: str, path: str) -> str:
    """Returns the name of the mount of a volume with a path below a namespace."""
    return volumes.Volume(f"cachefs://{MASTER}/{namespace}{path}").mount_name


def flags_of(place: Path) -> set[str]:
    """Returns the flags of the mount at a place, as mountinfo shows them."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    (options,) = [fields[5] for fields in lines if fields[4] == str(place)]
    return set(options.split(","))


def test_the_kubelet_registers_the_driver(node: CsiNode) -> None:
    node.start_driver()
    info = node.kubelet.register()
    assert (info.type, info.name) == ("CSIPlugin", "csi.cachefs.io")
    assert list(info.supported_versions) == ["1.0.0"]
    reply = node.kubelet.node("NodeGetInfo", csi.NodeGetInfoRequest(), csi.NodeGetInfoResponse)
    assert reply.node_id == "node1"


def test_a_volume_is_bound_read_only_and_removed(node: CsiNode) -> None:
    node.start_driver()
    began_s = time.monotonic()
    target = node.kubelet.publish("pod-a", IMAGENET, flags=["noexec", "ro"])
    assert time.monotonic() - began_s < FIRST_PUBLISH_S
    assert flags_of(target) >= {"ro", "nosuid", "nodev", "noexec"}
    assert os.listdir(target) == []
    assert node.kubelet.publish("pod-a", IMAGENET, flags=["noexec", "ro"]) == target
    assert len(node.mounts()) == 2
    for _ in range(2):
        node.kubelet.unpublish("pod-a")
        assert not target.exists()
    assert len(node.mounts()) == 1


def test_mount_options_reach_the_kernel(node: CsiNode) -> None:
    """The flags of the shared mount and of its binds are those of the volume."""
    node.start_driver()
    plain = node.kubelet.publish("pod-a", IMAGENET)
    (first,) = node.shared()
    target = node.kubelet.publish("pod-b", IMAGENET, flags=["noexec", "noatime", "nodiratime"])
    (second,) = {*node.shared()} - {first}
    for place in (Path(second), target):
        assert flags_of(place) >= {"noexec", "noatime", "nodiratime", "nosuid", "nodev", "ro"}
    for place in (Path(first), plain):
        assert not flags_of(place) & {"noexec", "noatime", "nodiratime"}


def test_a_volume_does_not_show_the_mount_of_another_path(
    node: CsiNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a mount is a short hash, and the author of a pod may choose any path below the
    pod's namespace: with enough of them one has the name of another namespace's mount."""
    monkeypatch.setattr(volumes, "_NAME_DIGITS", 1)
    node.start_driver(confine=True)
    node.kubelet.publish("pod-a", IMAGENET, namespace="team")
    (place,) = node.shared()
    paths = (f"/{number}" for number in range(1000))
    same = next(path for path in paths if name_below("other", path) == Path(place).name)
    with refused() as found:
        node.kubelet.publish("pod-b", {"path": same}, namespace="other")
    ((code, text),) = found
    assert (code, "another volume" in text) == (grpc.StatusCode.INTERNAL, True)
    assert not os.path.ismount(node.kubelet.target("pod-b"))
    assert len(node.mounts()) == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFound("no such directory", remedy="add a source"), grpc.StatusCode.NOT_FOUND),
        (NotADirectory("not a directory"), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_a_path_without_a_directory_is_refused_with_the_words_of_its_client(
    node: CsiNode, error: CacheFSError, code: grpc.StatusCode
) -> None:
    node.end_server()
    node.start_driver()
    began_s = time.monotonic()
    with ThreadPoolExecutor(1) as pool, refused() as found:
        publish = pool.submit(node.kubelet.publish, "pod-a", IMAGENET)
        node.wait_until(lambda: bool(node.keys()))
        (place,) = node.shared()
        failure_notes.write(place, failure_of(error))
        publish.result()
    assert found == [(code, error.one_line())]
    assert time.monotonic() - began_s < ANSWER_S / 2
    assert (node.mounts(), node.keys(), failure_notes.read(place)) == ([], {}, None)
    node.start_server()
    node.kubelet.publish("pod-a", IMAGENET)


def test_a_volume_that_does_not_answer_is_refused_with_the_words_of_its_client(
    node: CsiNode,
) -> None:
    """Another failure than a missing directory may pass: the driver waits, and then tells it."""
    node.end_server()
    node.start_driver(answer_s=SHORT_S)
    with refused() as found:
        node.kubelet.publish("pod-a", IMAGENET)
    assert "do the worker and the fuse container run" in found[0][1]
    (place,) = node.shared()
    failure_notes.write(place, failure_of(Unreachable("the worker is away")))
    with refused() as found:
        node.kubelet.publish("pod-a", IMAGENET)
    assert found[0][0] is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "cannot be shown yet: the worker is away" in found[0][1]


def test_volumes_that_do_not_answer_leave_room_for_other_namespaces(node: CsiNode) -> None:
    """The pods of one namespace name as many volumes without an answer as publishes may wait."""
    node.start_driver(answer_s=ANSWER_S / 10)
    node.kubelet.publish("pod-a", IMAGENET)
    assert node.server is not None
    node.server.adopts = False

    def hang(number: int) -> grpc.StatusCode:
        with refused() as found:
            node.kubelet.publish(f"hanging-{number}", {"path": f"/hangs/{number}"})
        return found[0][0]

    with ThreadPoolExecutor(MAX_WAITING) as pool:
        waiting = [pool.submit(hang, number) for number in range(MAX_WAITING)]
        node.wait_until(lambda: len(node.shared()) == 1 + MAX_WAITING // 2)
        node.kubelet.publish("pod-b", IMAGENET, namespace="other")
    codes = sorted(one.result().name for one in waiting)
    half = MAX_WAITING // 2
    assert codes == ["DEADLINE_EXCEEDED"] * half + ["UNAVAILABLE"] * half


def test_the_context_of_a_volume_reaches_the_kernel(
    node: CsiNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This kernel knows no contexts, and refuses them as it refuses any unknown option."""
    assert not Path("/sys/fs/selinux/status").exists(), "this test is for kernels without SELinux"
    monkeypatch.setattr(mount_flags, "_SELINUX", tmp_path)
    context = 'context="system_u:object_r:container_file_t:s0:c1,c2"'
    asked: list[tuple[str, ...]] = []

    def mount(spec: ClientSpec) -> int:
        asked.append(spec.mount_options)
        return kernel_mount(spec)

    monkeypatch.setattr(shared_mounts, "mount", mount)
    node.start_driver()
    with refused() as found:
        node.kubelet.publish("pod-a", IMAGENET, flags=["noexec", context])
    assert os.strerror(errno.EINVAL) in found[0][1]
    assert asked == [("noexec", context)]
    assert node.mounts() == []
    assert node.keys() == {}
    node.kubelet.publish("pod-a", IMAGENET, flags=["noexec"])


def test_the_deposit_has_what_a_supervisor_needs(node: CsiNode) -> None:
    node.start_driver()
    attributes = {**IMAGENET, "uid": "7", "gid": "8", "fileMode": "0440", "dirMode": "0550"}
    node.kubelet.publish("pod-a", {**attributes, "namespaced": "true"})
    (key,) = node.keys()
    with HolderClient(node.holder_socket) as holder:
        found = holder.get(key)
    assert found is not None
    deposit, *fds = found
    for fd in fds:
        os.close(fd)
    client = deposit.client
    assert client.source.url == f"cachefs://{MASTER}/team/imagenet"
    assert (client.uid, client.gid) == (7, 8)
    assert (client.file_mode, client.dir_mode) == (0o440, 0o550)
    assert client.deposit is not None
    assert client.deposit.key == key
    assert client.deposit.device == deposit.device
    assert client.mountpoint == node.shared()[0]


def test_pods_of_one_path_share_one_mount(node: CsiNode) -> None:
    node.start_driver()
    with ThreadPoolExecutor(6) as pods:
        list(pods.map(lambda name: node.kubelet.publish(name, IMAGENET), map(str, range(12))))
    node.kubelet.publish("other", {"path": "/other"})
    static = f"cachefs://{MASTER}/imagenet"
    node.kubelet.publish("static", {}, volume_id=static)
    assert len(node.shared()) == 2
    assert len(node.keys()) == 2
    assert len(node.mounts()) == 2 + 14


def test_a_publish_waits_for_the_server_and_others_do_not_wait_for_it(node: CsiNode) -> None:
    node.start_driver(answer_s=5.0)
    node.kubelet.publish("pod-a", IMAGENET)
    node.end_server()
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(node.kubelet.publish, "pod-b", {"path": "/b"})
        node.wait_until(lambda: len(node.keys()) == 2)
        with refused() as found:  # one operation on a target at a time
            node.kubelet.unpublish("pod-b")
        assert found[0][0] is grpc.StatusCode.ABORTED
        node.kubelet.unpublish("pod-a")
        assert not waiting.done()
        with pytest.raises(grpc.RpcError) as err:
            waiting.result()
    assert err.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    node.start_server()
    node.kubelet.publish("pod-b", {"path": "/b"})


def test_a_published_volume_waits_for_its_server(node: CsiNode) -> None:
    """The holder keeps the mount: a republish while no process serves it changes nothing."""
    node.start_driver()
    node.kubelet.publish("pod-a", IMAGENET)
    before = node.mounts()
    node.end_server()
    node.kubelet.publish("pod-a", IMAGENET)
    assert node.mounts() == before


def test_a_lost_volume_is_made_anew_and_its_pod_named(node: CsiNode) -> None:
    node.start_driver()
    target = node.kubelet.publish("pod-a", IMAGENET)
    node.kubelet.publish("pod-b", IMAGENET)
    node.end_server()
    node.end_holder()
    node.start_holder()
    node.start_server()
    for pod in ("pod-a", "pod-b"):
        with refused() as found:
            node.kubelet.publish(pod, IMAGENET)
        code, text = found[0]
        assert code is grpc.StatusCode.ABORTED
        assert f"restart the pod team/{pod}" in text
    for pod in ("pod-a", "pod-b"):
        node.kubelet.publish(pod, IMAGENET)
    assert os.listdir(target) == []
    assert len(node.shared()) == len(node.keys()) == 1
    for pod in ("pod-a", "pod-b"):
        assert node.metric(f'cachefs_csi_lost_volumes_total{{pod="team/{pod}"}}') == 1


def test_a_dead_mount_does_not_refuse_a_new_pod(node: CsiNode) -> None:
    node.start_driver()
    node.kubelet.publish("pod-a", IMAGENET)
    node.kubelet.unpublish("pod-a")
    node.end_server()
    node.end_holder()
    node.start_holder()
    node.start_server()
    assert os.listdir(node.kubelet.publish("pod-b", IMAGENET)) == []
    assert len(node.shared()) == len(node.keys()) == 1


def test_without_a_holder_nothing_is_mounted(node: CsiNode) -> None:
    node.start_driver()
    node.end_holder()
    with refused() as found:
        node.kubelet.publish("pod-a", IMAGENET)
    assert found[0][0] is grpc.StatusCode.UNAVAILABLE
    assert "holder" in found[0][1]
    assert node.mounts() == []
    assert os.listdir(node.mounts_dir) == []


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ({}, "path"),
        ({"path": "/a/../../b"}, ".."),
        ({"path": "/a", "bucket": "b"}, "bucket"),
        ({"path": "/a", "uid": "me"}, "uid"),
    ],
)
def test_a_bad_attribute_is_named(node: CsiNode, attributes: dict[str, str], named: str) -> None:
    node.start_driver()
    with refused() as found:
        node.kubelet.publish("pod-a", attributes)
    assert found[0][0] is grpc.StatusCode.INVALID_ARGUMENT
    assert named in found[0][1]
    assert node.mounts() == []


def test_an_unpublish_removes_no_files(node: CsiNode) -> None:
    """Only `rmdir`: what lies in a target without a mount stays."""
    node.start_driver()
    target = node.kubelet.target("pod-a")
    target.mkdir(parents=True)
    (target / "data").write_text("precious")
    with refused() as found:
        node.kubelet.unpublish("pod-a")
    assert found[0][0] is grpc.StatusCode.INTERNAL
    assert (target / "data").read_text() == "precious"


def test_an_unpublish_does_not_wait_for_a_server_that_hangs(node: CsiNode) -> None:
    node.start_driver()
    target = node.kubelet.publish("pod-a", IMAGENET)
    node.end_server()
    began_s = time.monotonic()
    node.kubelet.unpublish("pod-a")
    assert time.monotonic() - began_s < FIRST_PUBLISH_S
    assert not target.exists()


def test_leftovers_are_removed(node: CsiNode) -> None:
    node.start_driver(linger_s=0.4)
    node.kubelet.publish("pod-a", IMAGENET)
    node.kubelet.publish("pod-b", {"path": "/b"})
    node.kubelet.unpublish("pod-a")
    orphan = new_key("/nowhere")
    with HolderClient(node.holder_socket) as holder:
        held = holder.get(next(iter(node.keys())))
        assert held is not None
        deposit, fuse_fd, table_fd = held
        made = TakeoverTable.make()
        holder.put(orphan, Deposit(deposit.client, deposit.negotiated, "0:0"), made, made)
        for fd in (fuse_fd, table_fd, made):
            os.close(fd)
    node.wait_until(lambda: len(node.keys()) == len(node.shared()) == 1)
    assert orphan not in set(node.keys())
    assert len(os.listdir(node.mounts_dir)) == 1
    node.wait_until(lambda: node.metric("cachefs_csi_orphans_removed_total") == 2)
    node.kubelet.publish("pod-b", {"path": "/b"})
    assert node.metric("cachefs_csi_published_volumes") == 1
    assert node.metric("cachefs_csi_publishes_total") == 3
    assert node.get("/healthz") == (200, "ok\n")


def test_a_new_driver_takes_the_sockets_over(node: CsiNode) -> None:
    first = node.start_driver()
    target = node.kubelet.publish("pod-a", IMAGENET)
    node.start_driver()
    first.stop()
    node.kubelet.register()
    assert node.kubelet.publish("pod-a", IMAGENET) == target
    node.kubelet.publish("pod-b", IMAGENET)
    assert len(node.shared()) == len(node.keys()) == 1
    assert node.get("/healthz")[0] == 200


def test_the_older_driver_serves_again_when_an_upgrade_fails(node: CsiNode) -> None:
    older = node.start_driver()
    newer = node.start_driver()
    older.keep()
    newer.stop()
    assert not (node.kubelet.directory / "plugins_registry" / "csi.cachefs.io-reg.sock").exists()
    older.keep()
    node.kubelet.register()
    node.kubelet.publish("pod-a", IMAGENET)


def test_the_driver_stops_while_a_publish_waits(node: CsiNode) -> None:
    driver = node.start_driver()
    node.end_server()
    ended = threading.Event()

    def publish() -> None:
        with refused():
            node.kubelet.publish("pod-a", IMAGENET)
        ended.set()

    threading.Thread(target=publish, daemon=True).start()
    node.wait_until(lambda: len(node.keys()) == 1)
    began_s = time.monotonic()
    driver.stop()
    assert time.monotonic() - began_s < END_S
    assert ended.wait(END_S)
    assert len(node.shared()) == 1  # the mount stays


def test_a_driver_that_cannot_listen_serves_nothing(node: CsiNode) -> None:
    node.start_driver()
    second = Driver(node.spec(registration_dir="/proc/none"))
    with pytest.raises(BadConfig, match="cannot listen on /proc/none"):
        second.start()
    assert node.holder is not None
    node.start_driver()  # its sockets take over from those that the failed start left


def test_publishes_leave_no_descriptor(node: CsiNode) -> None:
    node.start_driver(linger_s=0.2)

    def round_of_pods(turn: int) -> None:
        with ThreadPoolExecutor(4) as pods:
            names = [f"{turn}-{number}" for number in range(8)]
            list(pods.map(lambda name: node.kubelet.publish(name, {"path": f"/{turn}"}), names))
            list(pods.map(node.kubelet.unpublish, names))
        node.wait_until(lambda: not node.mounts() and not node.keys())

    def descriptors() -> int:
        return sum(map(_is_ours, os.listdir("/proc/self/fd")))

    before = descriptors()
    for turn in range(4):
        round_of_pods(turn)
    node.end_server()
    node.wait_until(lambda: descriptors() == before)


def _is_ours(name: str) -> bool:
    try:
        target = os.readlink(f"/proc/self/fd/{name}")
    except FileNotFoundError:  # a thread of the driver has closed it
        return False
    return target == "/dev/fuse" or "cachefs-takeover" in target or "[pidfd]" in target
