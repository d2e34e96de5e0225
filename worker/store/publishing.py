"""Publishing a file again: not once its record is distrusted. Blocking.

A withdrawal (`TierDirectory.distrust`) changes the header first and looks for links after that. A
thread that read the record before may make a link after that look, so it reads the header again
once the link is made: one of the two removes the link.
"""

from __future__ import annotations

from worker.store.directory import TierDirectory


def publish_trusted(tier: TierDirectory, name: str, epoch: int) -> bool:
    """Publishes a complete file whose record is of that epoch; False, and it is not published, when
    the epoch is distrusted. Raises OSError."""
    tier.publish(name)
    if tier.header.trusts(epoch):
        return True
    tier.unpublish(name)
    return False


def publish_again(tier: TierDirectory, name: str) -> bool:
    """As `publish_trusted`, of the epoch in the index. False also where it has no record."""
    record = tier.index.get(bytes.fromhex(name))
    return record is not None and publish_trusted(tier, name, record.epoch)
