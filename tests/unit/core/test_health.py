"""What is wrong, by the facts of a status document: each code once, and what is no problem."""

from __future__ import annotations

from typing import Any

import pytest

from cachefs.core.health import (
    CERTIFICATE_LEFT_S,
    CODES,
    FAILED_FOR_S,
    STORE_FREE_BYTES,
    UNSETTLED_AFTER_S,
    HealthProblem,
    facts_of,
    health,
    verdict,
)

NOW = 1_700_000_000.0
DOWN = {
    "url": "s3://b/p", "origin_down": True, "down_since_s": NOW - 90, "down_code": "unreachable",
    "down_cause": "the endpoint cannot be reached", "down_remedy": "check the endpoint URL",
}  # fmt: skip
EXPIRED = {**DOWN, "down_code": "credentials-missing", "down_cause": "the credentials have expired"}
LOST = {"id": "ab" * 16, "host": "node1", "state": "lost", "weight": 4.0, "seen_s": 12.0}
SERVING = {**LOST, "state": "serving", "version": "2"}
FULL = {
    "path": "/ssd", "state": "degraded", "cause": "No space left on device", "is_full": True,
    "limit_bytes": 10, "used_bytes": 5,
}  # fmt: skip
ONE_OF_EACH: dict[str, dict[str, Any]] = {
    "MOUNT_DEAD": {"mountpoint": "/mnt", "mount_is_dead": True},
    "MOUNT_GONE": {"mountpoint": "/mnt", "mount_is_gone": True},
    "ORIGIN_DOWN": {"sources": [DOWN]},
    "CREDENTIALS_EXPIRED": {"sources": [EXPIRED]},
    "ORIGIN_REFUSES": {
        "sources": [
            {**DOWN, "origin_down": False, "origin_refuses": True, "down_code": "not-found"}
        ]
    },
    "MASTER_AWAY": {"sources": [{"master": "http://m:19998", "master_down": True}]},
    "STORE_DISK": {"store": {"path": "/var/c", "free_bytes": STORE_FREE_BYTES - 1}},
    "TIER_DEGRADED": {"cache": {"tiers": [{**FULL, "is_full": False}]}},
    "TIER_FULL": {"cache": {"tiers": [FULL]}},
    "WORKER_LOST": {"workers": [LOST]},
    "WORKER_TWIN": {"workers": [{**SERVING, "version": "", "twin_url": "http://10.0.0.9:1"}]},
    "DAMAGED": {"cache": {"bad_pages": 2}},
    "QUOTA_FULL": {"quotas": [{"path": "/d", "quota_bytes": 4, "used_bytes": 4}]},
    "CERTIFICATE_EXPIRES": {"certificate": {"path": "/c.pem", "expires_at_s": NOW + 86_400.0}},
    "CERTIFICATE_UNUSABLE": {"certificate": {"path": "/c.pem", "cause": "no PEM"}},
    "JOB_FAILED": {"failed_jobs": [{"job": 3, "message": "1 of 2", "ended_at_s": NOW - 5}]},
    "JOB_WAITS": {"waiting_jobs": [{"job": 4, "message": "waits: no worker"}]},
    "MEMORY": {"cache": {"memory": {"limit_bytes": 5, "used_bytes": 6}}},
    "NOT_SETTLED": {"unsettled_since_s": NOW - UNSETTLED_AFTER_S - 1},
    "VERSION_SKEW": {"version": "1", "workers": [SERVING]},
}


def test_an_origin_that_one_node_does_not_reach_is_named_with_the_node() -> None:
    here = found({"cache": {"origins": [DOWN]}, "sources": [{"master": "http://m:1"}]})
    assert [(one.code, one.subject) for one in here] == [("ORIGIN_DOWN", "s3://b/p from this node")]
    worker = {**SERVING, "version": "", "origins": [EXPIRED]}
    (there,) = found({"workers": [worker]})
    assert there.code == "CREDENTIALS_EXPIRED"
    assert there.subject == "s3://b/p from worker abababab (node1)"
    both = found(
        {"cache": {"origins": [DOWN]}, "sources": [{"source": "s3://b/p", "sources": [DOWN]}]}
    )
    assert [one.subject for one in both] == ["s3://b/p"], "once, where it is down for the master"


def found(tree: dict[str, Any]) -> list[HealthProblem]:
    return health(facts_of(tree), NOW)


def test_every_code_has_a_case() -> None:
    assert set(ONE_OF_EACH) == set(CODES)


@pytest.mark.parametrize("code", CODES)
def test_each_fault_is_named_with_a_cause_and_a_remedy(code: str) -> None:
    (one,) = found(ONE_OF_EACH[code])
    assert (one.code, one.severity) == (code, CODES[code].value)
    assert one.subject
    assert one.cause
    assert one.remedy
    assert "\n" not in one.one_line(NOW)


def test_all_of_them_together_are_ordered_errors_first() -> None:
    tree: dict[str, Any] = {"cache": {}, "sources": [], "workers": []}
    for one in ONE_OF_EACH.values():
        for name, value in one.items():
            match value:
                case dict() if isinstance(tree.get(name), dict):
                    tree[name] = {**tree[name], **value}
                case list() if isinstance(tree.get(name), list):
                    tree[name] = [*tree[name], *value]
                case _:
                    tree[name] = value
    problems = found(tree)
    severities = [one.severity for one in problems]
    assert severities == sorted(severities), "error comes before warning"
    assert {one.code for one in problems} == set(CODES) - {"TIER_DEGRADED"}


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"workers": {"serving": 3, "lost": 0}},  # counts, in a master's own document
        {"workers": [{**LOST, "weight": 0.0}], "version": "1"},  # a mount's own worker
        {"workers": [{**SERVING, "version": "1"}], "version": "1"},
        {"sources": [{"url": "s3://b", "origin_down": False}]},
        {"cache": {"tiers": [{"path": "/ssd", "state": "normal"}], "bad_pages": 0}},
        {"cache": {"memory": {"limit_bytes": 5, "used_bytes": 5}}},
        {"failed_jobs": [{"job": 3, "message": "x", "ended_at_s": NOW - FAILED_FOR_S}]},
        {"unsettled_since_s": NOW - 5},
        {"store": {"path": "/var/c", "free_bytes": -1}},
        {"store": {"path": "/var/c", "free_bytes": STORE_FREE_BYTES}},
        {"certificate": {}},
        {"certificate": {"path": "/c.pem", "expires_at_s": NOW + CERTIFICATE_LEFT_S}},
        {"unknown": ["fields", "are ignored"]},
    ],
)
def test_what_is_no_problem(tree: dict[str, Any]) -> None:
    assert found(tree) == []


def test_an_embedded_servers_document_has_its_masters_facts_below_its_sources() -> None:
    inner = {
        "sources": [DOWN],
        "failed_jobs": ONE_OF_EACH["JOB_FAILED"]["failed_jobs"],
        "store": ONE_OF_EACH["STORE_DISK"]["store"],
    }
    codes = [one.code for one in found({"sources": [{"source": "s3://b/p", **inner}]})]
    assert codes == ["ORIGIN_DOWN", "STORE_DISK", "JOB_FAILED"]


def test_a_line_says_for_how_long_where_that_is_known() -> None:
    (one,) = found({"sources": [DOWN]})
    assert one.one_line(NOW) == (
        "ORIGIN_DOWN for 1m30s: s3://b/p: the endpoint cannot be reached; check the endpoint URL"
    )
    (other,) = found({"cache": {"bad_pages": 1}})
    assert other.one_line(NOW).startswith("DAMAGED: the cache: 1 damaged page found")


def test_a_workers_tiers_name_the_worker() -> None:
    (one,) = found({"workers": [{**SERVING, "version": "", "tiers": [FULL]}]})
    assert (one.code, one.subject) == ("TIER_FULL", "worker abababab (node1) /ssd")


def test_the_verdict_is_the_exit_code() -> None:
    assert verdict([]) == 0
    assert verdict(found(ONE_OF_EACH["WORKER_LOST"])) == 1
    assert verdict([*found(ONE_OF_EACH["WORKER_LOST"]), *found(ONE_OF_EACH["ORIGIN_DOWN"])]) == 2


def test_a_document_of_another_shape_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="not a status document"):
        facts_of({"cache": {"tiers": "all"}})


def test_a_certificate_that_has_expired_is_an_error() -> None:
    certificate = {"path": "/c.pem", "expires_at_s": NOW - 60}
    (one,) = found({"workers": [{**SERVING, "version": "", "certificate": certificate}]})
    assert (one.code, one.severity, one.since_s) == ("CERTIFICATE_EXPIRES", "error", NOW - 60)
    assert one.subject.startswith("worker abababab")
    assert "/c.pem" in one.remedy


def test_the_commands_for_a_job_name_the_source_of_an_embedded_server() -> None:
    jobs = ONE_OF_EACH["JOB_FAILED"] | ONE_OF_EACH["JOB_WAITS"]
    failed, waits = found({"sources": [{"source": "s3://b/a b", **jobs}]})
    named = "'s3://b/a b'"
    assert failed.remedy == (
        f"see why: cachefs jobs show 3 {named}; then cachefs jobs retry 3 {named}"
    )
    assert waits.remedy.endswith(f"cachefs jobs stop 4 {named}")
    assert found(jobs)[0].remedy.endswith("cachefs jobs retry 3"), "a master's gets --master"
