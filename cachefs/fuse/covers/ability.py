"""Whether a mount can have covers."""

from __future__ import annotations

import os

from cachefs.core.specs import ClientSpec
from cachefs.fuse import mount_flags
from cachefs.fuse.kernel.mount import has_sys_admin, in_user_namespace


def can_cover(spec: ClientSpec) -> bool:
    """Returns whether this client may lay covers: the kernel allows it, and a cover is as visible
    as the mount: to all users, with the same labels. The mounts of pods have none, as their mount
    points are in other mount namespaces."""
    labelled = any(option.startswith(mount_flags.CONTEXTS) for option in spec.mount_options)
    return (
        spec.transport == "kernel"
        and spec.control_fd >= 0
        and spec.deposit is None
        and spec.allow_other
        and not labelled
        and os.geteuid() == 0
        and has_sys_admin()
        and not in_user_namespace()
    )
