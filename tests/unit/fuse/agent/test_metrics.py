"""What an agent counts, and that docs/metrics.md describes it."""

from __future__ import annotations

from prometheus_client import generate_latest

from cachefs.fuse.agent.facts import AgentFacts
from cachefs.fuse.agent.metrics import registry_of
from cachefs.fuse.deposits import Event
from tests.services.metrics_page import documented, exported


def test_the_metrics_are_documented() -> None:
    facts = AgentFacts()
    facts.started("lost")
    text = generate_latest(registry_of(facts)).decode()
    assert exported(text, "cachefs_agent_") == documented("cachefs_agent_")
    assert 'cachefs_agent_takeovers_total{cause="lost"} 1.0' in text


def test_a_pause_lasts_until_this_agent_claims_the_mount() -> None:
    facts = AgentFacts()
    facts.note(Event("PUT", "a"), "new", 1.0)
    facts.note(Event("FREE", "a"), "new", 10.0)
    facts.note(Event("CLAIM", "a", "new"), "new", 12.5)
    facts.note(Event("FREE", "b"), "new", 20.0)
    facts.note(Event("CLAIM", "b", "old"), "new", 29.0)
    facts.note(Event("CLAIM", "c", "new"), "new", 40.0)
    assert facts.longest_pause_s == 2.5
    assert facts.deposits == 1
