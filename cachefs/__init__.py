"""CacheFS: object stores as a local file system, with warm bytes from RAM and SSD.

`cachefs.open`, `cachefs.tree` and `cachefs.close` read without a mount. They, and the modules
`cachefs.fsspec` and `cachefs.arrow`, are imported at their first use.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_API = frozenset(("close", "open", "tree"))
_MODULES = frozenset(("arrow", "fsspec"))


def __getattr__(name: str) -> Any:
    if name in _API:
        return getattr(importlib.import_module("cachefs.library.api"), name)
    if name in _MODULES:
        return importlib.import_module(f"cachefs.{name}")
    raise AttributeError(f"module 'cachefs' has no attribute {name!r}")
