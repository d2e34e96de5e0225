"""The `pub/` directories of a node's tiers, as descriptors that the server sent to this client."""

from __future__ import annotations

from typing import Final

from cachefs.client.sockets import close_fd

MOST_TIERS: Final = 16  # larger numbers are ignored as invalid


class PublishedDir:
    """A directory: a descriptor and its tier. A replacement for the same tier is a new object,
    even if it gets the same descriptor number."""

    __slots__ = ("fd", "tier")

    def __init__(self, tier: int, fd: int) -> None:
        self.tier = tier
        self.fd = fd


class PublishedDirs:
    """The owner of the descriptors. `dirs`: the current directories, the fastest tier's first."""

    def __init__(self) -> None:
        self.dirs: tuple[PublishedDir, ...] = ()

    def replace(self, tier: int, fd: int | None) -> None:
        """Replaces the directory of a tier by `fd`, which this object then owns; None removes
        it."""
        if not 0 <= tier < MOST_TIERS:
            return close_fd(fd)
        kept = [known for known in self.dirs if known.tier != tier]
        replaced = [known for known in self.dirs if known.tier == tier]
        new = [PublishedDir(tier, fd)] if fd is not None else []
        self.dirs = tuple(sorted([*kept, *new], key=lambda known: known.tier))
        for known in replaced:
            close_fd(known.fd)

    def of(self, tier: int) -> PublishedDir | None:
        """Returns the directory of a tier, or None."""
        return next((known for known in self.dirs if known.tier == tier), None)

    def close(self) -> None:
        """Closes all directories. The object may be used again."""
        for known in self.dirs:
            close_fd(known.fd)
        self.dirs = ()
