"""`make train` as a user runs it, with fewer images: the rates, the kill, the resumed run, and the
user who is not root."""

from __future__ import annotations

import re

import pytest

from tests.services.demos import LIMIT_S, output_of

IMAGES = 240
RATE = re.compile(r"^(\S.*?) {2,}([\d,]+) images/s +(\d+)% right", re.MULTILINE)


@pytest.mark.timeout(LIMIT_S + 10)
@pytest.mark.usefixtures("torch_python")
def test_the_tour() -> None:
    shown = output_of("demo.train", str(IMAGES))
    rates = {title: int(rate.replace(",", "")) for title, rate, _ in RATE.findall(shown)}
    alone, announced, warm, _rest = rates.values()
    assert announced > 1.5 * alone, "20 ms for each file, or not"
    assert warm > alone
    assert "got SIGKILL behind image" in shown
    assert re.search(r"resumed behind image \d+", shown)
    assert f"all {IMAGES} images in the order of the undisturbed run" in shown
    assert f"uid 65534: {IMAGES} rows" in shown
    assert "nothing is left behind" in shown
