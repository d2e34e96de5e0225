"""What lasts is logged when it begins, and then ever more rarely."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest

from tests.unit.worker.rig import MIB, Rig, only, run
from worker.runtime.clocks import Clocks
from worker.runtime.log_backoff import LONGEST_PAUSE_S, LogBackoff
from worker.tier.health import PROBE_PAUSE_S

DAY_S = 24 * 3600


def test_a_condition_that_lasts_for_a_day_is_logged_some_thirty_times() -> None:
    pace = LogBackoff()
    due = [now for now in range(DAY_S) if pace.is_due(float(now))]
    assert due[:4] == [0, 60, 180, 420]
    assert max(later - earlier for earlier, later in itertools.pairwise(due)) == (LONGEST_PAUSE_S)
    assert len(due) < 32
    pace.over()
    assert pace.is_due(DAY_S + 1.0), "another one is news"


def test_a_tier_that_stays_away_is_not_logged_with_every_probe(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its directory is gone, or its disk answers every probe with an error."""

    async def script() -> None:
        rig = Rig(tmp_path, 32 * MIB)
        async with rig.worker() as worker:
            one, watch = only(worker), only(worker)._watch
            now = [1000.0]
            one.context.clocks = Clocks(monotonic=lambda: now[0])
            gone = OSError(errno.ENOENT, "No such file or directory")
            for _ in range(1000):
                watch._probed(None, gone)
                now[0] += PROBE_PAUSE_S
            lines = caplog.text.count("answers a probe with")
            assert lines == 5, "at 0, 60, 180, 420 and 900 s"
            watch._probed(True, None)
            watch._probed(None, gone)
            assert caplog.text.count("answers a probe with") == lines + 1
            watch._probed(True, None)

    run(script())
