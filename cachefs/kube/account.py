"""How the controller proves itself to the API server: its service account, or a kubeconfig.

kopf reads both. In a pod the environment has the API server's address, which needs no name service
of the cluster. A service account's token is a file that Kubernetes renews: `headers` reads it
again after `RENEW_S`, and `forget` at once.
"""

from __future__ import annotations

import dataclasses
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import kopf

from cachefs.core.access import join_address
from cachefs.core.errors import BadConfig

RENEW_S: Final = 60.0
_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_IN_POD: Final = kopf.login_with_service_account
_HOST: Final = "KUBERNETES_SERVICE_HOST"  # the kubelet sets these in every container
_PORT: Final = "KUBERNETES_SERVICE_PORT"


class Account:
    """The account. Belongs to one event loop; the files are small and local."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises BadConfig without an account."""
        self._clock = clock
        self._info = log_in()
        self._read_at = clock()

    @property
    def server(self) -> str:
        return self._info.server.rstrip("/")

    @property
    def namespace(self) -> str:
        return namespace_of(self._info)

    def tls(self) -> ssl.SSLContext:
        return self._info.as_ssl_context()

    def headers(self) -> dict[str, str]:
        """Returns the headers of a request. Raises BadConfig if the account was removed."""
        if self._clock() - self._read_at > RENEW_S:
            self.forget()
        return dict(self._info.as_http_headers())

    def forget(self) -> None:
        """Reads the account again: the API server has refused it, or it is old."""
        self._info, self._read_at = log_in(), self._clock()


def log_in() -> kopf.ConnectionInfo:
    """Returns the account of this process. Raises BadConfig."""
    settings = kopf.OperatorSettings()
    for method in (_IN_POD, kopf.login_with_kubeconfig):
        try:
            found = method(settings=settings)
        except (OSError, KeyError, kopf.LoginError) as err:
            raise BadConfig(f"the account for Kubernetes cannot be read: {err!r}") from err
        if found is not None:
            return _at_address(found) if method is _IN_POD else found
    raise BadConfig(
        "no account for Kubernetes",
        remedy="run it in a pod with a service account, or set KUBECONFIG",
    )


def _at_address(info: kopf.ConnectionInfo) -> kopf.ConnectionInfo:
    """Returns the account at the address in the environment, as Kubernetes' own clients do."""
    host, port = os.environ.get(_HOST, ""), os.environ.get(_PORT, "")
    if not host or not port.isdecimal():
        return info
    return dataclasses.replace(info, server=f"https://{join_address(host, int(port))}")


def namespace_of(info: kopf.ConnectionInfo) -> str:
    """Returns the namespace of an account; of a kubeconfig without one `default`."""
    if info.default_namespace:
        return info.default_namespace
    return _NAMESPACE.read_text().strip() if _NAMESPACE.exists() else "default"
