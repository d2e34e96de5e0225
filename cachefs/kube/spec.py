"""What a controller is started with: one document on standard input of `python -m cachefs.kube`."""

from __future__ import annotations

import msgspec

from cachefs.core.specs import Security
from cachefs.kube.rules import Rules


class OperatorSpec(msgspec.Struct, frozen=True):
    """A controller. `address`: HOST:PORT of the master as nodes know it, for volumes."""

    master: str  # URL
    address: str
    name: str  # of this replica
    namespace: str = ""  # of its Lease; "": that of its service account, else `default`
    security: Security = Security()
    rules: Rules = Rules()
    metrics: str = ""  # as of `MetricsPage`; "": none
    log_level: str = "info"
    log_json: bool = False
    says_json: bool = False
