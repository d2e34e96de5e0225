"""The `pub/` directories of a node's tiers, as descriptors that the server sent to this client."""

from __future__ import annotations

from typing import Final

from cachefs.core.owned_fd import OwnedFd

MOST_TIERS: Final = 16  # larger numbers are ignored as invalid


class PublishedDir:
    """A directory: a descriptor, its owner if it has one, and its tier. A replacement for the same
    tier is a new object, even if it gets the same descriptor number."""

    __slots__ = ("fd", "owner", "tier")

    def __init__(self, tier: int, fd: int, owner: OwnedFd | None = None) -> None:
        self.tier = tier
        self.fd = fd
        self.owner = owner

    def close(self) -> None:
        if self.owner is not None:
            self.owner.close()


class PublishedDirs:
    """The owner of the descriptors. `dirs`: the current directories, the fastest tier's first."""

    def __init__(self) -> None:
        self.dirs: tuple[PublishedDir, ...] = ()

    def replace(self, tier: int, owner: OwnedFd | None) -> None:
        """Replaces the directory of a tier by the one of a descriptor; None removes it."""
        if not 0 <= tier < MOST_TIERS:
            return
        kept = [known for known in self.dirs if known.tier != tier]
        replaced = [known for known in self.dirs if known.tier == tier]
        new = [PublishedDir(tier, owner.fileno(), owner)] if owner is not None else []
        self.dirs = tuple(sorted([*kept, *new], key=lambda known: known.tier))
        for known in replaced:
            known.close()

    def of(self, tier: int) -> PublishedDir | None:
        """Returns the directory of a tier, or None."""
        return next((known for known in self.dirs if known.tier == tier), None)

    def close(self) -> None:
        """Closes all directories. The object may be used again."""
        dirs, self.dirs = self.dirs, ()
        for known in dirs:
            known.close()
