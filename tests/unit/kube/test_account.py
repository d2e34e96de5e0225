"""A pod's account is at the address that the kubelet gives in the environment."""

from __future__ import annotations

from typing import Any

import kopf
import pytest

from cachefs.core.errors import BadConfig
from cachefs.kube import account

NAMED = "https://kubernetes.default.svc"


@pytest.fixture
def in_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    def log_in(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=NAMED, token="secret")

    monkeypatch.setattr(account, "_IN_POD", log_in)


@pytest.mark.parametrize(
    ("host", "port", "server"),
    [
        ("10.96.0.1", "443", "https://10.96.0.1:443"),
        ("fd00::1", "6443", "https://[fd00::1]:6443"),
        ("", "", NAMED),
        ("10.96.0.1", "tcp://x", NAMED),
    ],
)
def test_the_environment_tells_the_address(
    host: str, port: str, server: str, in_pod: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    found = account.log_in()
    assert (found.server, found.token) == (server, "secret")


def test_outside_of_a_pod_a_kubeconfig_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "_IN_POD", lambda **_: None)
    monkeypatch.setattr(kopf, "login_with_kubeconfig", lambda **_: None)
    with pytest.raises(BadConfig, match="no account"):
        account.log_in()
