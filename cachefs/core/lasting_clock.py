"""The clock of what ends at another machine, too: permissions, leases, the validity of names."""

from __future__ import annotations

import time


def lasting_s() -> float:
    """Returns seconds that also pass while this machine is suspended: the monotonic clock stands
    still then, and what other machines count as ended would go on here."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
