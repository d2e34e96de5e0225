"""The admin API's handlers for policies and quotas."""

from __future__ import annotations

from cachefs.core import admin as a
from cachefs.core import messages as m
from cachefs.core.policies import FIELDS, Policy, shown
from master.server.admin.at import At, page_of
from master.server.alarms import quota_used_bytes


async def show_policy(at: At) -> a.PolicyAt:
    return await _at(at, a.bytes_of(at.query.path))


async def change_policy(at: At) -> a.PolicyAt:
    """Sets policies. At the reply, they are durable and in force on every worker."""
    path = a.bytes_of(at.query.path)
    body: a.PolicyChange = at.body
    await at.ask(m.SetPolicy(at.namespace, path, body.set, [*body.unset]), m.PolicySet)
    return await _at(at, path)


async def unset_policies(at: At) -> a.PolicyAt:
    """Removes the policies of the path."""
    path = a.bytes_of(at.query.path)
    await at.ask(m.SetPolicy(at.namespace, path, Policy(), [*FIELDS]), m.PolicySet)
    return await _at(at, path)


async def _at(at: At, path: bytes) -> a.PolicyAt:
    return a.PolicyAt.of(path, await at.ask(m.GetPolicies(at.namespace, path), m.PoliciesAt))


async def list_quotas(at: At) -> a.Quotas:
    rows = await quota_uses(at, a.bytes_of(at.query.path))
    return a.Quotas(*page_of(rows, lambda row: row.path, at.query))


async def quota_uses(at: At, path: bytes) -> list[a.QuotaUse]:
    """Returns the quotas that hold for a path or lie below it, with their used bytes, by path."""
    found = await at.ask(m.GetPolicies(at.namespace, path), m.PoliciesAt)
    below = [(one.path, one.policy.quota_bytes or 0) for one in found.below]
    used = quota_used_bytes(at.backend.workers.rows())
    rows = {
        a.text_of(where): a.QuotaUse(a.text_of(where), most, used.get(shown(where), 0))
        for where, most in (*found.quotas, *below)
        if most
    }
    return [rows[path] for path in sorted(rows)]
