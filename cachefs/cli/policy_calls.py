"""Resolves a path to the server of its policies: a mount's server, or a master."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol, TypeVar

from cachefs.cli import clusters, output
from cachefs.cli.paths import InCluster, find
from cachefs.cli.session import Session, Target, attached, path_in_mount
from cachefs.core import messages as m
from cachefs.core.config import Config
from cachefs.core.errors import Unsupported
from cachefs.core.model import NamespaceId
from cachefs.core.policies import Policy, formatted, path_and_profile

_T = TypeVar("_T", bound=m.Message)


class PolicyApi(Protocol):
    """A session of a mount's server, or a client of a master."""

    def call(self, body: m.Message, answer: type[_T]) -> _T: ...


class PolicyTarget:
    """A path below the namespace root, and the server of its policies. `session` is of the mount
    that has the path; None for a URL of a cluster."""

    def __init__(
        self, server: PolicyApi, namespace: NamespaceId, path: bytes, target: Target | None = None
    ) -> None:
        self.server = server
        self.namespace = namespace
        self.path = path.strip(b"/")
        self.target = target
        self.session = server if isinstance(server, Session) else None

    def set(self, policy: Policy, unset: list[str] | None = None) -> Policy:
        """Changes the policy; returns the result. Raises NotFound, BadConfig, AccessDenied, and
        Unsupported if a server does not know a key: it drops that, and sets the others."""
        body = m.SetPolicy(self.namespace, self.path, policy, unset or [])
        found = self.server.call(body, m.PolicySet).policy
        if dropped := formatted(policy).keys() - formatted(found).keys():
            raise Unsupported(
                f"not set: {', '.join(sorted(dropped))}; the server or its master is of an earlier"
                " version",
                path=self.shown(),
                remedy="upgrade both, then repeat the command",
            )
        return found

    def get(self) -> m.PoliciesAt:
        return self.server.call(m.GetPolicies(self.namespace, self.path), m.PoliciesAt)

    def shown(self, path: bytes | None = None) -> str:
        """Returns a path of the namespace as the user sees it, through the mount if possible."""
        path = self.path if path is None else path.strip(b"/")
        if self.target is None:
            return "/" + output.text_of(path)
        return path_in_mount(self.target.record, path)

    def shown_where(self, where: str) -> str:
        """Returns a value of `EffectivePolicy.where` with its path, if it has one, as shown."""
        if not where.startswith("/"):
            return where
        path, profile = path_and_profile(where)
        return self.shown(path.encode()) + profile


@contextlib.contextmanager
def open_policies(path: str, chosen: Config) -> Iterator[PolicyTarget]:
    """Opens the server of a path's policies. Raises as `paths.find` and connecting."""
    place = find(path, chosen)
    if isinstance(place, InCluster):
        with clusters.admin_at(place.url, chosen) as master:
            yield PolicyTarget(master, master.namespace, place.path)
        return
    with attached(place.record) as session:
        yield PolicyTarget(session, session.namespace, place.in_namespace, place)


def policy_text(policy: Policy) -> str:
    """Returns `pin=yes ttl=7d`, or `no policies` for an empty policy."""
    return " ".join(f"{key}={text}" for key, text in formatted(policy).items()) or "no policies"
