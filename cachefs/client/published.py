"""The `pub/` directories of a node's tiers, as its server handed them to this client."""

from __future__ import annotations

from typing import Final

from cachefs.client.sockets import close_fd

MOST_TIERS: Final = 16  # a peer that names more is not believed


class PublishedDir:
    """One directory: a descriptor, and the tier whose it is. Another one of the same tier is
    another object, whatever number its descriptor has."""

    __slots__ = ("fd", "tier")

    def __init__(self, tier: int, fd: int) -> None:
        self.tier = tier
        self.fd = fd


class PublishedDirs:
    """Owns the descriptors. `dirs`: those there are, of the fastest tier first."""

    def __init__(self) -> None:
        self.dirs: tuple[PublishedDir, ...] = ()

    def replace(self, tier: int, fd: int | None) -> None:
        """The directory of that tier is `fd`, which is ours from now on; None: there is none."""
        if not 0 <= tier < MOST_TIERS:
            return close_fd(fd)
        kept = [known for known in self.dirs if known.tier != tier]
        gone = [known for known in self.dirs if known.tier == tier]
        new = [PublishedDir(tier, fd)] if fd is not None else []
        self.dirs = tuple(sorted([*kept, *new], key=lambda known: known.tier))
        for known in gone:
            close_fd(known.fd)

    def of(self, tier: int) -> PublishedDir | None:
        """The directory of that tier, if there is one."""
        return next((known for known in self.dirs if known.tier == tier), None)

    def close(self) -> None:
        """Closes all; more may come."""
        for known in self.dirs:
            close_fd(known.fd)
        self.dirs = ()
