"""`make stores` as a user runs it: every change is seen on both nodes, and nothing is left."""

from __future__ import annotations

import re

from tests.services.demos import output_of

SEEN = re.compile(r"^(\S.*?) {2,}(\d+\.\d\d) s +(\d+\.\d\d) s$", re.MULTILINE)


def test_each_node_sees_each_change() -> None:
    shown = output_of("demo.stores")
    seen = {title: (float(one), float(other)) for title, one, other in SEEN.findall(shown)}
    pushed, polled, waited = seen.values()
    assert max(pushed) < 1.0, "by webhook"
    assert max(polled) < 3.0, "polled each second"
    assert max(waited) < 10.0, "the sync interval is 4 s"
    assert min(waited) > max(pushed), "an interval alone is slower"
    for file in ("train/labels.csv", "warehouse/day=1/part-0", "by-interval/labels.csv"):
        assert f"$D/mnt/{file}" in shown
    assert "nothing is left behind" in shown
