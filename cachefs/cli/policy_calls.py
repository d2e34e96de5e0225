"""Resolves a path to the server of its policies: a mount's server, or a master."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

from cachefs.cli import clusters, output, settings
from cachefs.cli.paths import InCluster, find
from cachefs.cli.session import Session, Target, attached, seen_through
from cachefs.core import messages as m
from cachefs.core.model import NamespaceId
from cachefs.core.policies import Policy, formatted

_T = TypeVar("_T", bound=m.Message)


class Asker(Protocol):
    """A session of a mount's server, or a client of a master."""

    def call(self, body: m.Message, answer: type[_T]) -> _T: ...


class Asked:
    """A path below the namespace root, and the server of its policies. `session` is of the mount
    that has the path; None for a URL of a cluster."""

    def __init__(
        self, asker: Asker, namespace: NamespaceId, path: bytes, target: Target | None = None
    ) -> None:
        self.asker = asker
        self.namespace = namespace
        self.path = path.strip(b"/")
        self.target = target
        self.session = asker if isinstance(asker, Session) else None

    def set(self, policy: Policy, unset: list[str] | None = None) -> Policy:
        """Changes the policy; returns the result. Raises NotFound, BadConfig, AccessDenied."""
        body = m.SetPolicy(self.namespace, self.path, policy, unset or [])
        return self.asker.call(body, m.PolicySet).policy

    def get(self) -> m.PoliciesAt:
        return self.asker.call(m.GetPolicies(self.namespace, self.path), m.PoliciesAt)

    def shown(self, path: bytes | None = None) -> str:
        """Returns a path of the namespace as the user sees it, through the mount if possible."""
        path = self.path if path is None else path.strip(b"/")
        if self.target is None:
            return "/" + output.text_of(path)
        return seen_through(self.target.record, path)


@contextlib.contextmanager
def asked(path: str, flags: dict[str, Any], config_file: str | None) -> Iterator[Asked]:
    """Opens the server of a path's policies. Raises as `paths.find` and connecting."""
    chosen = settings.load_settings(flags, config_file)
    place = find(path, chosen, settings.state_home(chosen))
    if isinstance(place, InCluster):
        with clusters.admin_at(place.url, chosen) as master:
            yield Asked(master, master.namespace, place.path)
        return
    with attached(place.record) as session:
        yield Asked(session, session.namespace, place.in_namespace, place)


def said(policy: Policy) -> str:
    """Returns `pin=yes ttl=7d`, or `nothing` for an empty policy."""
    return " ".join(f"{key}={text}" for key, text in formatted(policy).items()) or "nothing"
