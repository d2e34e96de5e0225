"""How many file systems are stacked below a mount with passthrough, as the mount declares at INIT.

The kernel allows two in all (FILESYSTEM_MAX_STACK_DEPTH, include/linux/fs.h): cache files on an
overlayfs, or an overlayfs with the mount as its lower directory, but not both. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cachefs.core.mountinfo import Mount, Mounts
from cachefs.core.specs import ClientSpec
from cachefs.core.tiers import parse_tiers

ON_PLAIN: Final = 1  # cache files on a disk or in memory: overlayfs may use the mount
ON_STACKED: Final = 2  # cache files on a file system that is itself stacked
_STACKED: Final = frozenset({"overlay", "ecryptfs"})


def cache_directories(spec: ClientSpec) -> list[str]:
    """Returns the cache directories of the mount's server; none if the mount does not know them."""
    if spec.server is not None:
        return [spec.server.cache_dir]
    return [tier.path for tier in parse_tiers(spec.node.tiers)] if spec.node is not None else []


def stack_depth(directories: Sequence[str], mounts: Mounts) -> int:
    """Returns the depth to declare. Directories that are unknown count as stacked: passthrough is
    needed more often than an overlayfs."""
    if directories and not any(_is_stacked(mounts.containing(path)) for path in directories):
        return ON_PLAIN
    return ON_STACKED


def _is_stacked(mount: Mount | None) -> bool:
    return mount is None or mount.fstype in _STACKED or mount.fstype.startswith("fuse")
