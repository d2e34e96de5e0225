"""What policies say of the contents that one tier has cached, as far as that is not the default.
Pure. Known from the fills, and asked anew whenever policies changed; memory is taken only for what
differs.
"""

from __future__ import annotations

from cachefs.core.policies import Rule


class Rules:
    """By content key."""

    def __init__(self) -> None:
        self._replicas: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._replicas)

    def put(self, key: bytes, rule: Rule) -> bool:
        """True when it has other owners than was known here."""
        if self.replicas(key) == rule.owners:
            return False
        if rule.owners == 1:
            del self._replicas[key]
        else:
            self._replicas[key] = rule.owners
        return True

    def drop(self, key: bytes) -> None:
        """It is cached no more."""
        self._replicas.pop(key, None)

    def replicas(self, key: bytes) -> int:
        """How many workers own each of its blocks."""
        return self._replicas.get(key, 1)
