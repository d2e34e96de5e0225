"""The policies of a namespace by path, in memory, with which the master decides. Pure.

A policy protects the content that is at its path now, not one that was replaced or removed there.
The caller that makes a path protected waits until earlier eviction permissions have expired.
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
    """Policies by path. `version` rises with every change that concerns cached contents."""

    def __init__(self, policies: dict[bytes, Policy] | None = None) -> None:
        self._policies = dict(policies or {})
        self._answers: dict[bytes, EffectivePolicy] = {}
        self._parents: frozenset[bytes] = frozenset()
        self.backgrounds: dict[bytes, float] = {}  # the own `sync_background` of each path
        self.version = 0
        self._changed()

    def __len__(self) -> int:
        return len(self._policies)

    def put(self, path: bytes, policy: Policy) -> None:
        """Sets the policy of a path; removes it when `policy` has no settings."""
        self.version += self.concerns_cached(path, policy)
        if policy.says_nothing:
            self._policies.pop(path, None)
        else:
            self._policies[path] = policy
        self._changed()

    def concerns_cached(self, path: bytes, policy: Policy) -> bool:
        """Returns whether `policy` changes the TTL, quota, replicas, local copy or eviction of
        cached contents. A pin exempts contents from TTLs, so it counts if any policy has one."""
        old = self.at(path)
        if any(getattr(old, name) != getattr(policy, name) for name in OF_CACHED):
            return True
        return old.own_pin != policy.own_pin and any(one.ttl_s is not None for one in self._all())

    def _all(self) -> Iterable[Policy]:
        return self._policies.values()

    def _changed(self) -> None:
        self._answers.clear()
        self._parents = frozenset(path.rpartition(b"/")[0] for path in self._policies if path)
        self.backgrounds = {
            path: policy.sync_background_s
            for path, policy in self._policies.items()
            if policy.sync_background_s is not None
        }

    def differs_in(self, directory: bytes) -> bool:
        """Returns whether a direct child of `directory` has a policy."""
        return directory in self._parents

    def at(self, path: bytes) -> Policy:
        """Returns the policy set at exactly this path; an empty one when none is set."""
        return self._policies.get(path, Policy())

    def below(self, path: bytes) -> Chain:
        """Returns the policies set at paths below this one, sorted by path."""
        head = path + b"/" if path else b""
        found = [
            item for item in self._policies.items() if item[0].startswith(head) and item[0] != path
        ]
        return sorted(found, key=lambda item: item[0])

    def pinned_below(self, path: bytes) -> list[bytes]:
        """Returns the paths whose own policy pins them: this one, and those below it, sorted."""
        pinned = [where for where, policy in self.below(path) if policy.own_pin]
        return [path, *pinned] if self.at(path).own_pin else pinned

    def nearest(self, path: bytes) -> bytes | None:
        """Returns the innermost path with a policy, at or above this one."""
        if not self._policies:
            return None
        return next((one for one in above(path) if one in self._policies), None)

    def effective(self, path: bytes) -> EffectivePolicy:
        """Returns the policy in force at a path; paths with the same nearest policy share it."""
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
        """True if any policy pins its path."""
        return any(policy.own_pin for policy in self._policies.values())


NOTHING_SAID = resolve([])
assert NOTHING_SAID.policy == DEFAULTS


class PermissionWindow:
    """The contents for which eviction was permitted recently, with the times. Monotonic seconds.
    Bounded: a permission that is dropped before it expires counts for every content."""

    def __init__(self, unknown_at_s: float = float("-inf")) -> None:
        """`unknown_at_s`: the last time at which an earlier master may have given permissions."""
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
        """Returns for how many seconds a worker may still use an earlier permission for a content
        that `concerns` accepts."""
        last_s = self._unknown_at_s
        for given_at_s, content in reversed(self._given):
            if given_at_s <= last_s or given_at_s + PERMISSION_WINDOW_S <= now_s:
                break
            if concerns(content):
                last_s = given_at_s
        return max(0.0, last_s + PERMISSION_WINDOW_S - now_s)
