"""A Dataset is read once for each generation, and from time to time."""

from __future__ import annotations

from cachefs.kube.readings import AGAIN_S, Readings
from tests.unit.kube.things import parsed


def test_each_generation_is_read_once() -> None:
    readings = Readings()
    first = parsed(generation=1)
    assert readings.is_due(first, 0.0)
    readings.add(first, 0.0)
    assert not readings.is_due(parsed(generation=1, resourceVersion="99"), AGAIN_S / 2)
    assert readings.is_due(parsed(generation=2), 1.0)
    assert readings.is_due(parsed(generation=1, uid="another"), 1.0)


def test_it_is_read_again_after_a_while_and_when_it_was_forgotten() -> None:
    readings = Readings()
    readings.add(parsed(), 0.0)
    assert readings.is_due(parsed(), AGAIN_S)
    readings.drop(parsed().key)
    assert readings.is_due(parsed(), 0.0)
