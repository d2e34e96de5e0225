"""The flags of `cachefs csi`, and an installation without its extra."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from cachefs.cli import settings
from cachefs.cli.commands import csi
from cachefs.core.config import Config
from cachefs.core.errors import BadConfig, Unsupported
from cachefs.core.install import check_extra

FLAGS = {
    "endpoint": "unix:///csi/csi.sock",
    "master": "http://node1:7000",
    "holder": "/run/holder.sock",
}


def chosen(**flags: object) -> Config:
    return settings.load_settings({**FLAGS, **flags}, None, {})


def test_the_defaults_are_those_of_a_node() -> None:
    spec = csi.plan(chosen())
    assert spec.master == "node1:7000"
    assert spec.socket == "/csi/csi.sock"
    assert spec.socket_of_kubelet == "/var/lib/kubelet/plugins/csi.cachefs.io/csi.sock"
    assert spec.registration_dir == "/var/lib/kubelet/plugins_registry"
    assert spec.linger_s == 60.0
    assert spec.node.mounts_dir == "/var/lib/kubelet/plugins/csi.cachefs.io/mounts"


def test_an_endpoint_below_the_kubelet_is_reported_as_it_is() -> None:
    spec = csi.plan(chosen(kubelet_dir="/k", endpoint="unix:/k/plugins/x/c.sock"))
    assert spec.socket_of_kubelet == "/k/plugins/x/c.sock"


@pytest.mark.parametrize("name", FLAGS)
def test_a_missing_flag_is_named(name: str) -> None:
    with pytest.raises(BadConfig, match=f"--{name.replace('_', '-')} is missing"):
        csi.plan(chosen(**{name: None}))


@pytest.mark.parametrize("endpoint", ["/csi/csi.sock", "tcp://127.0.0.1:1", "unix:csi.sock"])
def test_an_endpoint_is_a_socket(endpoint: str) -> None:
    with pytest.raises(BadConfig, match="--endpoint"):
        _ = csi.plan(chosen(endpoint=endpoint)).socket


def test_without_the_extra_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "grpc" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(Unsupported) as err:
        check_extra("csi", csi.MODULES, "the CSI driver")
    assert err.value.one_line() == (
        "the CSI driver needs the extra csi (grpc); pip install 'cachefs-io[csi]'"
    )
