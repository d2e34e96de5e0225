"""The policies of a namespace as the master decides with them: by path, in memory. Pure.

A content is protected by the path at which it is now: one that was replaced or is gone there is
not. Whoever makes a path protected waits out the permissions that were given before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from cachefs.core.model import ContentId
from cachefs.core.policies import (
    DEFAULTS,
    NO_RULE,
    PERMISSION_WINDOW_S,
    EffectivePolicy,
    Policy,
    Rule,
    above,
    resolve,
)

Chain = list[tuple[bytes, Policy]]
OF_CACHED: Final = ("ttl_s", "quota_bytes", "replicas", "local_copy", "eviction")
MOST_ANSWERS: Final = 10_000
MOST_GIVEN: Final = 10_000


class PolicyTable:
    """Policies by path. `version` grows with every change that concerns what is cached already."""

    def __init__(self, policies: dict[bytes, Policy] | None = None) -> None:
        self._policies = dict(policies or {})
        self._answers: dict[bytes, EffectivePolicy] = {}
        self._parents: frozenset[bytes] = frozenset()
        self.version = 0
        self._changed()

    def __len__(self) -> int:
        return len(self._policies)

    def put(self, path: bytes, policy: Policy) -> None:
        """One that says nothing goes."""
        self.version += self.concerns_cached(path, policy)
        if policy.says_nothing:
            self._policies.pop(path, None)
        else:
            self._policies[path] = policy
        self._changed()

    def concerns_cached(self, path: bytes, policy: Policy) -> bool:
        """Would this give what is cached other times to live, quotas, owners, or another way out? A
        pin takes what it pins out of all times to live."""
        old = self.at(path)
        if any(getattr(old, name) != getattr(policy, name) for name in OF_CACHED):
            return True
        return old.pin != policy.pin and any(one.ttl_s is not None for one in self._all())

    def _all(self) -> Iterable[Policy]:
        return self._policies.values()

    def _changed(self) -> None:
        self._answers.clear()
        self._parents = frozenset(path.rpartition(b"/")[0] for path in self._policies if path)

    def differs_in(self, directory: bytes) -> bool:
        """Does a name in this directory have a policy of its own?"""
        return directory in self._parents

    def at(self, path: bytes) -> Policy:
        """What is said at this very path."""
        return self._policies.get(path, Policy())

    def below(self, path: bytes) -> Chain:
        """What is said at paths below this one, in their order."""
        head = path + b"/" if path else b""
        found = [
            item for item in self._policies.items() if item[0].startswith(head) and item[0] != path
        ]
        return sorted(found, key=lambda item: item[0])

    def nearest(self, path: bytes) -> bytes | None:
        """The innermost path with a policy, at or above this one."""
        if not self._policies:
            return None
        return next((one for one in above(path) if one in self._policies), None)

    def effective(self, path: bytes) -> EffectivePolicy:
        """What holds at a path; the same for all that have the same nearest policy."""
        nearest = self.nearest(path)
        if nearest is None:
            return NOTHING_SAID
        found = self._answers.get(nearest)
        if found is None:
            if len(self._answers) >= MOST_ANSWERS:
                self._answers.clear()
            found = self._answers[nearest] = resolve(self._chain(nearest))
        return found

    def _chain(self, path: bytes) -> Chain:
        chain = [(one, self._policies[one]) for one in above(path) if one in self._policies]
        return chain[::-1]

    def rule(self, path: bytes) -> Rule:
        return self.effective(path).rule if self._policies else NO_RULE

    def quotas(self) -> Iterator[tuple[bytes, int]]:
        """Yields each path with a quota, and its bytes."""
        for path, policy in self._policies.items():
            if policy.quota_bytes:
                yield path, policy.quota_bytes

    def is_pinned(self, path: bytes) -> bool:
        return bool(self._policies) and bool(self.effective(path).policy.pin)

    @property
    def pins(self) -> bool:
        """Is anything pinned at all?"""
        return any(policy.pin for policy in self._policies.values())


NOTHING_SAID = resolve([])
assert NOTHING_SAID.policy == DEFAULTS


class PermissionWindow:
    """Which contents were allowed to be evicted of late, and when. Times are a monotonic clock's,
    in seconds. Bounded: what is forgotten too early counts for everything."""

    def __init__(self, unknown_at_s: float = float("-inf")) -> None:
        """`unknown_at_s`: until when a master before this one may have given permissions."""
        self._unknown_at_s = unknown_at_s
        self._given: deque[tuple[float, ContentId]] = deque()

    def give(self, contents: Iterable[ContentId], now_s: float) -> None:
        for content in contents:
            self._given.append((now_s, content))
        while self._given and self._given[0][0] + PERMISSION_WINDOW_S <= now_s:
            self._given.popleft()
        while len(self._given) > MOST_GIVEN:
            self._unknown_at_s = max(self._unknown_at_s, self._given.popleft()[0])

    def left_s(self, now_s: float, concerns: Callable[[ContentId], bool]) -> float:
        """For how long a permission may still be used that was given so far, for a content that
        this concerns."""
        last_s = self._unknown_at_s
        for given_at_s, content in reversed(self._given):
            if given_at_s <= last_s or given_at_s + PERMISSION_WINDOW_S <= now_s:
                break
            if concerns(content):
                last_s = given_at_s
        return max(0.0, last_s + PERMISSION_WINDOW_S - now_s)
