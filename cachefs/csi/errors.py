"""The error that the driver adds to `cachefs.core.errors`."""

from __future__ import annotations

from cachefs.core.errors import CacheFSError


class VolumeLost(CacheFSError):
    """The mount of a published volume is dead. It was mounted again; the pod must be restarted."""

    code = "volume-lost"
