"""Histories with frozen directories: a seed is a history, and what is wrong is seen."""

from __future__ import annotations

import pytest

from tests.simulator import view
from tests.simulator.cache import Cache
from tests.simulator.failures import first_failure
from tests.simulator.mounts import Client
from tests.simulator.view_history import run
from tests.simulator.views import NodeViews
from tests.simulator.worker import WorkerHost
from worker.views.cover_table import CoverTable


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_seed_is_one_history_of_views(seed: int) -> None:
    first, second = run(seed).world, run(seed).world
    assert first.counts == second.counts
    assert first.schedule.steps == second.schedule.steps


def test_a_change_that_uncovers_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeViews, "_heed", lambda self, changed, then: then())
    assert "but since event" in first_failure(run, range(20))


def test_a_cover_that_is_not_awaited_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CoverTable, "is_clear", True)
    assert "but since event" in first_failure(run, range(40))


def test_a_forgotten_mount_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client died, and its cover is still there."""
    monkeypatch.setattr(WorkerHost, "is_nowhere", lambda self, tree: True)
    monkeypatch.setattr(WorkerHost, "is_shown", lambda self, tree: False)
    assert "but since event" in first_failure(run, range(2, 400, 4))


def test_a_late_cover_from_before_a_restart_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that was stopped lays what an earlier worker had sent."""
    monkeypatch.setattr(view.SimView, "is_inherited", False)
    assert "but since event" in first_failure(run, range(2, 4000, 4))


def test_a_content_that_is_not_held_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cache, "hold", lambda self, keys: [])
    assert "is not held" in first_failure(run, range(20))


def test_an_eviction_from_a_view_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cache, "hold", lambda self, keys: [])
    monkeypatch.setattr(Cache, "in_view", lambda self, key: False)
    monkeypatch.setattr(NodeViews, "check", lambda self: None)
    assert "was dropped" in first_failure(run, range(40))


def test_a_tree_that_is_built_before_a_former_one_is_gone_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(NodeViews, "is_being_removed", lambda self, path: False)
    assert "is not held" in first_failure(run, range(400))


def test_a_cover_that_is_never_laid_again_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "_look", lambda self: None)
    assert "never settled" in first_failure(run, range(40))
