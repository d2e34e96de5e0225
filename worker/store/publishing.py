"""The publication of files whose records are trusted. Blocking.

`TierDirectory.distrust` changes the header first and removes links after that. A thread that read
the record earlier may add a link later. So it checks the header again after adding the link: one of
the two removes the link.
"""

from __future__ import annotations

from worker.store.directory import TierDirectory


def publish_trusted(tier: TierDirectory, name: str, epoch: int) -> bool:
    """Publishes a complete file whose record is of that epoch. Returns False, with the file
    unpublished, if the epoch is distrusted. Raises OSError."""
    tier.publish(name)
    if tier.header.trusts(epoch):
        return True
    tier.unpublish(name)
    return False
