"""The suite of connectors that write, on every store that can."""

from __future__ import annotations

import pytest

from connectors.conformance.origin import MakeOrigin
from connectors.conformance.writing import *  # noqa: F403
from tests.conformance.origins import OriginFactory

# Not moto: it forgets an upload whose `finish` it refused, and then answers 500.
KINDS = ("file", "s3-versitygw", "s3-versitygw-tls", "memory", "memory-decorated")


@pytest.fixture(scope="module", params=KINDS)
def make_origin(request: pytest.FixtureRequest, new_origin: OriginFactory) -> MakeOrigin:
    return lambda: new_origin(str(request.param))
