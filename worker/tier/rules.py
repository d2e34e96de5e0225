"""The policies of a tier's cached contents, where they differ from the default. Pure. Fills deliver
them, and they are requested again when policies change. Only differences take memory."""

from __future__ import annotations

from cachefs.core.policies import Rule


class Rules:
    """The rules, by content key."""

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
        """Returns the number of workers that own each of its blocks."""
        return self._replicas.get(key, 1)
