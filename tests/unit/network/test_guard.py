"""What a guard asks of a call."""

from __future__ import annotations

import contextlib

import pytest
from aiohttp.test_utils import make_mocked_request

from cachefs.core.access import EVERYTHING, Access, Token
from cachefs.network.guard import Guard, RefusedRequest

SHOWN = "a-token-of-a-worker"


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({"Authorization": f"Bearer {SHOWN}"}, True),
        ({"Authorization": f"Bearer {SHOWN}", "Content-Type": "text/plain"}, False),
        ({"Authorization": "Bearer another-token-of-theirs"}, False),
        ({}, False),
        ({"Content-Type": "application/msgpack"}, True),
    ],
)
def test_a_call_without_a_type_needs_a_token(headers: dict[str, str], passes: bool) -> None:
    """Workers of earlier versions report doubts so."""
    guard = Guard(Access([Token(SHOWN, EVERYTHING)]).check, on_loopback=False, most=8)
    request = make_mocked_request("POST", "/v1/call", headers)
    with contextlib.nullcontext() if passes else pytest.raises(RefusedRequest):
        guard.check_call(request)
