"""What a master tells for alerts is what `cachefs health` judges."""

from __future__ import annotations

import time
from typing import Any

from cachefs.core.cluster import WorkerRow
from cachefs.core.health import CODES
from master.server import alarms

NOW = time.time()


def row(id: str, **facts: Any) -> WorkerRow:
    return WorkerRow(
        id=id, url="http://w:1", host="w", state="serving", weight=1.0, capacity_bytes=0,
        used_bytes=0, seen_s=1.0, epoch=1, settled=1, facts=facts, version="1",
    )  # fmt: skip


def document(*rows: WorkerRow, **more: Any) -> dict[str, Any]:
    workers = [alarms.worker_facts(one) for one in rows]
    return {"version": "1", "certificate": {}, "workers": workers, "quotas": [], **more}


def test_every_code_has_a_count() -> None:
    assert alarms.problem_counts(document(), NOW) == dict.fromkeys(CODES, 0)


def test_problems_are_counted_by_code() -> None:
    soon = {"path": "/c", "expires_at_s": NOW + 3600}
    full = {"path": "/a", "quota_bytes": 100, "used_bytes": 100}
    origin = {"url": "s3://b", "origin_down": True, "down_code": "credentials-missing"}
    found = alarms.problem_counts(
        document(row("a", certificate=soon), row("b", certificate=soon), quotas=[full],
                 sources=[origin]),
        NOW,
    )  # fmt: skip
    counted = {code: count for code, count in found.items() if count}
    assert counted == {"CERTIFICATE_EXPIRES": 2, "QUOTA_FULL": 1, "CREDENTIALS_EXPIRED": 1}


def test_the_expiry_of_each_certificate_is_told() -> None:
    certificate = {"path": "/c", "expires_at_s": 5.0}
    found = document(row("0123456789", certificate=certificate), row("b"))
    found["certificate"] = {"path": "/c", "expires_at_s": 7.0}
    assert alarms.certificate_expiries(found) == [("master", 7.0), ("worker 01234567", 5.0)]


def test_the_use_of_a_quota_is_that_of_all_workers() -> None:
    rows = [row("a", quota_used_bytes={"/a": 5}), row("b", quota_used_bytes={"/a": 6, "/b": 1})]
    assert alarms.quota_used_bytes(rows) == {"/a": 11, "/b": 1}
    assert alarms.quota_used_bytes([]) == {}
