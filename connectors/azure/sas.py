"""A SAS token that is signed with a key of the account, for the container of a source. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from cachefs.core.errors import CredentialsMissing

API_VERSION: Final = "2021-12-02"
MAY: Final = "rl"  # read and list
CLOCKS_S: Final = 900.0  # by which this machine's clock may be ahead
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_UNUSED_AFTER_VERSION: Final = 7  # snapshot, encryption scope, and five headers of replies


def sign_container(account: str, container: str, key: str, now_s: float, for_s: float) -> str:
    """Returns a SAS token, valid from now on for `for_s`. Raises CredentialsMissing for a key that
    is not in base64."""
    try:
        secret = base64.b64decode(key, validate=True)
    except binascii.Error as error:
        cause = "the account's key is not in base64"
        raise CredentialsMissing(cause, remedy="write it again, as Azure shows it") from error
    start = datetime.fromtimestamp(now_s - CLOCKS_S, UTC).strftime(_TIME)
    end = datetime.fromtimestamp(now_s + for_s, UTC).strftime(_TIME)
    resource = f"/blob/{account}/{container}"
    # Permissions, times, resource, then empty: stored policy, addresses, protocol.
    lines = [MAY, start, end, resource, "", "", "", API_VERSION, "c"]
    text = "\n".join([*lines, *[""] * _UNUSED_AFTER_VERSION])
    digest = hmac.new(secret, text.encode(), hashlib.sha256).digest()
    query = {"sv": API_VERSION, "sr": "c", "sp": MAY, "st": start, "se": end}
    return urlencode({**query, "sig": base64.b64encode(digest).decode()})
