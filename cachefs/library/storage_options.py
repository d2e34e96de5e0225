"""The storage options of fsspec's file systems, as settings of CacheFS. Pure.

Programs pass options that are for fsspec itself or for any file system: how to buffer, how to speak
HTTP. They have no effect here. Options of other file systems that choose an origin or credentials
are refused with the setting to give in their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cachefs.core.errors import BadConfig

_OF_FSSPEC: Final = frozenset(
    (
        "asynchronous", "batch_size", "dircache_ttl", "listings_expiry_time", "loop",
        "max_paths", "skip_instance_cache", "use_listings_cache",
    )
)  # fmt: skip
_OF_BUFFERS: Final = frozenset(
    (
        "block_size", "cache_options", "cache_type", "default_block_size", "default_cache_type",
        "default_fill_cache", "fill_cache",
    )
)  # fmt: skip
_OF_HTTP: Final = frozenset(("headers", "requote_redirect_url", "timeout", "trust_env"))
_KEYS: Final = (
    "keys are those of the environment (AWS_ACCESS_KEY_ID) or of a profile: aws_profile=NAME"
)
_IN_PLACE: Final = {
    "anon": "write anonymous=True",
    "profile": "write aws_profile=NAME",
    "key": _KEYS,
    "secret": _KEYS,
    "token": _KEYS,
    "client_kwargs": "write endpoint_url=URL, region=NAME, ca_bundle=FILE",
}


def settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings among storage options. Raises BadConfig for an option of another file
    system."""
    ignored = _OF_FSSPEC | _OF_BUFFERS
    found = {name: value for name, value in options.items() if name not in ignored}
    if _OF_HTTP.issuperset(found.get("client_kwargs") or ()):
        found.pop("client_kwargs", None)
    for name in found:
        if name in _IN_PLACE:
            cause = f"{name!r} is an option of another file system"
            raise BadConfig(cause, remedy=_IN_PLACE[name])
    return found
