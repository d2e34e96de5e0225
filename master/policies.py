"""The policies of one namespace: stored by path, changed by operators, queried by workers.

A policy is one record, regardless of how much lies below its path. Decisions about a content use
its path at that moment. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from cachefs.core.errors import BadConfig, CacheFSError
from cachefs.core.messages import PoliciesAt, PolicySaid
from cachefs.core.model import ContentId, NamespaceId
from cachefs.core.policies import (
    FIELDS,
    FROZEN_BY,
    NO_RULE,
    PERMISSION_S,
    Policy,
    Rule,
    check,
    merged,
    normal,
    shown,
    with_freeze,
)
from cachefs.core.services import Permission
from master.state.policies import PermissionWindow, PolicyTable
from master.state.records import name_of
from master.store.base import Store
from master.store.snapshot import MAX_POLICIES, Names
from master.store.transaction import transact
from master.tree import Tree

MOST_SHOWN: Final = 500  # policies below a path, in one reply


class Policies:
    """See the module. `on_change` is called in the loop, after each committed change and before
    `change` returns."""

    def __init__(
        self,
        store: Store,
        tree: Tree,
        namespace: NamespaceId,
        monotonic: Callable[[], float],
        *,
        others_gave: bool,
    ) -> None:
        """`others_gave`: permissions that an earlier process granted may still be valid."""
        self._store = store
        self._tree = tree
        self._namespace = namespace
        self._monotonic = monotonic
        with store.snapshot() as reader:
            self.table = PolicyTable(Names(reader).policies())
        tree.interval_of = lambda path: self.table.effective(path).policy.sync_interval_s
        tree.forget_paths()
        self._window = PermissionWindow(monotonic() if others_gave else float("-inf"))
        self._one_at_a_time = asyncio.Lock()
        self.on_change: Callable[[], None] = lambda: None
        self.pause: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def change(
        self, path: bytes, change: Policy, unset: Sequence[str], node: str = ""
    ) -> Policy:
        """Sets and unsets fields of the policy at a path and returns the result. `node`: sets or
        unsets the pin of its freeze. On return the change is durable and no worker can evict what
        it protects. Raises BadConfig. After a cancellation the change may have been made."""
        path = normal(path)
        check(change)
        if unknown := set(unset) - {*FIELDS, FROZEN_BY}:
            raise BadConfig(f"no such policy: {', '.join(sorted(unknown))}", path=shown(path))
        async with self._one_at_a_time:
            old = self.table.at(path)
            if node:
                policy = with_freeze(old, node, pinned=bool(change.pin))
            else:
                policy = merged(old, change, unset)
            if old.says_nothing and len(self.table) >= MAX_POLICIES:
                raise BadConfig(f"there are {MAX_POLICIES} paths with policies, the limit")
            changes = {
                "other_names": _interval(old) != _interval(policy),
                "other_times": self.table.concerns_cached(path, policy),
            }
            await asyncio.wrap_future(
                transact(self._store, lambda txn: txn.put_policy(path, policy, **changes))
            )
            self.table.put(path, policy)
            self._tree.forget_paths()
            self.on_change()
        if self.table.is_pinned(path) and (change.pin or "pin" in unset):
            await self.pause(self._evictable_s(path))
        return policy

    def _evictable_s(self, path: bytes) -> float:
        """Returns for how long, in s, a worker may still evict contents at or below a path."""
        head = path + b"/" if path else b""
        with self._store.snapshot() as reader:
            names = Names(reader)

            def concerns(content: ContentId) -> bool:
                where = self._path(names, content)
                return where is not None and (where == path or where.startswith(head))

            return self._window.left_s(self._monotonic(), concerns)

    def at(self, path: bytes) -> PoliciesAt:
        """Returns the effective policy of a path and the policies below it. Raises BadConfig."""
        path = normal(path)
        effective = self.table.effective(path)
        # Without the names of the nodes, which may be many.
        below = [
            PolicySaid(one, msgspec.structs.replace(policy, pin=policy.own_pin, frozen_by=None))
            for one, policy in self.table.below(path)
        ]
        return PoliciesAt(
            effective.policy,
            effective.where,
            self.table.at(path),
            below[:MOST_SHOWN],
            len(below),
            [*effective.quotas],
        )

    def quotas(self, used_bytes: Mapping[str, int]) -> list[dict[str, Any]]:
        """Returns the quotas listed in `used_bytes`, in the form that `cachefs.core.health` takes.

        `used_bytes`: the usage of each quota, by displayed path.
        """
        return [
            {"path": where, "quota_bytes": most, "used_bytes": used_bytes[where]}
            for path, most in self.table.quotas()
            if (where := shown(path)) in used_bytes
        ]

    def permit(self, contents: Sequence[ContentId]) -> Permission:
        """Returns the permission to evict those contents that no policy pins now."""
        allowed = [*contents]
        if self.table.pins:
            with self._store.snapshot() as reader:
                names = Names(reader)
                allowed = [one for one in contents if not self._is_pinned(names, one)]
        self._window.give(allowed, self._monotonic())
        return Permission(frozenset(one.name for one in allowed), PERMISSION_S)

    def rules(self, contents: Sequence[ContentId]) -> list[Rule]:
        """Returns the rules of contents, in order; NO_RULE for a content without a path."""
        if not len(self.table):
            return [NO_RULE] * len(contents)
        with self._store.snapshot() as reader:
            names = Names(reader)
            paths = [self._path(names, one) for one in contents]
        return [NO_RULE if path is None else self.table.rule(path) for path in paths]

    def _is_pinned(self, names: Names, content: ContentId) -> bool:
        path = self._path(names, content)
        return path is not None and self.table.is_pinned(path)

    def _path(self, names: Names, content: ContentId) -> bytes | None:
        """Returns the current path of a content in the namespace, or None."""
        at = names.place(content.ino)
        stored = None if at is None else names.dentry(*at)
        if at is None or stored is None or content.namespace != self._namespace:
            return None
        if ContentId.of(self._namespace, stored.inode) != content:
            return None
        try:
            place = self._tree.directory(names, at[0])
        except CacheFSError:
            return None
        return place.mount.in_namespace(place.of(name_of(at[1])))


def _interval(policy: Policy) -> tuple[float | None, str | None]:
    """Returns the fields that determine how long names stay fresh."""
    return policy.sync_interval_s, policy.profile
