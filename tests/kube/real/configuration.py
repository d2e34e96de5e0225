"""The command lines and configuration files of the parts of a node, as pure functions of where the
cluster is. Every address is of its own network; every client has a token of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.kube.real import image
from tests.kube.real.namespaces import NODE_ADDRESS
from tests.kube.real.programs import CNI, RUNC

NODE: Final = "node1"
CLIENTS: Final = {  # user, groups
    "admin": ("admin", "system:masters"),
    "kubelet": (f"system:node:{NODE}", "system:nodes"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
}
_UNUSED_PLUGINS: Final = (
    "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
)  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Where a cluster has its files, its sockets and its ports."""

    directory: Path
    control_group: str
    etcd_port: int
    etcd_peer_port: int
    api_port: int
    kubelet_port: int

    @property
    def kubelet(self) -> Path:
        """The kubelet's directory, which CSI drivers see at the same path."""
        return self.directory / "kubelet"

    @property
    def pod_logs(self) -> Path:
        return self.directory / "pod-logs"

    @property
    def containerd_socket(self) -> Path:
        return self.directory / "containerd.sock"

    @property
    def authority(self) -> Path:
        return self.directory / "authority.pem"

    def certificate(self, name: str) -> Path:
        return self.directory / f"{name}.pem"

    def kubeconfig(self, client: str) -> Path:
        return self.directory / f"{client}.kubeconfig"

    @property
    def tokens(self) -> Path:
        return self.directory / "tokens.csv"

    @property
    def api_url(self) -> str:
        return f"https://127.0.0.1:{self.api_port}"


def tokens_csv(tokens: dict[str, str]) -> str:
    """Returns the API server's table of the clients' tokens."""
    return "".join(
        f'{tokens[client]},{user},{client},"{groups}"\n'
        for client, (user, groups) in CLIENTS.items()
    )


def kubeconfig(layout: Layout, token: str) -> str:
    cluster = {"server": layout.api_url, "certificate-authority": str(layout.authority)}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "here", "context": {"cluster": "cluster", "user": "user"}}],
            "current-context": "here",
        }
    )


def etcd(layout: Layout) -> list[str]:
    clients = f"http://127.0.0.1:{layout.etcd_port}"
    peers = f"http://127.0.0.1:{layout.etcd_peer_port}"
    return [
        "etcd", "--data-dir", str(layout.directory / "etcd"), "--unsafe-no-fsync",
        "--listen-client-urls", clients, "--advertise-client-urls", clients,
        "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
        "--initial-cluster", f"default={peers}",
    ]  # fmt: skip


def api_server(layout: Layout) -> list[str]:
    own, accounts = str(layout.certificate("api-server")), str(layout.certificate("accounts"))
    return [
        "kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{layout.etcd_port}",
        "--bind-address", "0.0.0.0", "--secure-port", str(layout.api_port),
        "--advertise-address", NODE_ADDRESS, "--endpoint-reconciler-type", "none",
        "--tls-cert-file", own, "--tls-private-key-file", own,
        "--kubelet-client-certificate", own, "--kubelet-client-key", own,
        "--kubelet-certificate-authority", str(layout.authority),
        "--kubelet-preferred-address-types", "InternalIP",
        "--token-auth-file", str(layout.tokens), "--anonymous-auth=false",
        "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction",
        "--service-account-issuer", layout.api_url, "--service-account-key-file", accounts,
        "--service-account-signing-key-file", accounts,
        "--service-cluster-ip-range", "10.96.0.0/16", "--allow-privileged=true",
    ]  # fmt: skip


def controller_manager(layout: Layout) -> list[str]:
    return [
        "kube-controller-manager", "--kubeconfig", str(layout.kubeconfig("controllers")),
        "--service-account-private-key-file", str(layout.certificate("accounts")),
        "--root-ca-file", str(layout.authority),  # for accounts of pods
        "--use-service-account-credentials", "--leader-elect=false", "--secure-port=0",
    ]  # fmt: skip


def scheduler(layout: Layout) -> list[str]:
    return [
        "kube-scheduler", "--kubeconfig", str(layout.kubeconfig("scheduler")),
        "--leader-elect=false", "--secure-port=0",
    ]  # fmt: skip


def node_object(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a Node that no kubelet has, and the patch of its status. Pods that tolerate every
    taint are scheduled to it."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    room = {"cpu": "64", "memory": "64Gi", "pods": "1000"}
    ready = {"type": "Ready", "status": "True", "reason": "Ready", "message": ""}
    return node, {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}}


def containerd(layout: Layout) -> list[str]:
    return ["containerd", "--config", str(layout.directory / "containerd.toml")]


def kubelet(layout: Layout) -> list[str]:
    return [
        "kubelet", "--config", str(layout.directory / "kubelet.yaml"),
        "--kubeconfig", str(layout.kubeconfig("kubelet")), "--root-dir", str(layout.kubelet),
        "--cert-dir", str(layout.directory / "kubelet-certificates"),
        "--hostname-override", NODE, "--node-ip", NODE_ADDRESS,
    ]  # fmt: skip


def kubelet_config(layout: Layout) -> str:
    """Returns the kubelet's configuration: no swap, image or eviction policy of the machine's."""
    own = str(layout.certificate("kubelet"))
    config: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "port": layout.kubelet_port,
        "readOnlyPort": 0,
        "healthzPort": 0,
        "tlsCertFile": own,
        "tlsPrivateKeyFile": own,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(layout.authority)},
        },
        "authorization": {"mode": "AlwaysAllow"},  # for certificates of the cluster's authority
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.control_group}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "podLogsDir": str(layout.pod_logs),
        "resolvConf": "",
        "localStorageCapacityIsolation": False,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi"},
        "enforceNodeAllocatable": [],
        "volumePluginDir": str(layout.directory / "volume-plugins"),
        "syncFrequency": "10s",
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},  # tests kill containers often
        "featureGates": {"KubeletCrashLoopBackOffMax": True},
        "maxPods": 150,  # 110 of a test beside ours
        "nodeStatusUpdateFrequency": "4s",
        "registerWithTaints": [],
    }
    return json.dumps(config)


def containerd_config(layout: Layout, snapshotter: str) -> str:
    """Returns containerd's configuration. The snapshotter `native` copies an image for each
    container, and works on every file system; `overlayfs` copies nothing."""
    return f"""\
version = 2
root = "{layout.directory}/containerd"
state = "{layout.directory}/containerd-state"
disabled_plugins = {json.dumps(_UNUSED_PLUGINS)}
[grpc]
  address = "{layout.containerd_socket}"
[ttrpc]
  address = "{layout.containerd_socket}.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image.NAME}:{image.TAGS[0]}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_tcp_service = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{RUNC}"
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI}"
    conf_dir = "{layout.directory}/cni"
"""


def cni_config(layout: Layout) -> str:
    """Returns the network of pods: each has a link of its own to the node, and its route there."""
    addresses = {
        "type": "host-local",
        "dataDir": str(layout.directory / "pod-addresses"),
        "ranges": [[{"subnet": "10.244.0.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugin = {"type": "ptp", "ipMasq": False, "ipam": addresses}
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [plugin]})
