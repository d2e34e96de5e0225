"""`make train` as a user runs it, with fewer images: the rates, the kill, the resumed run, and the
user who is not root."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.torch.conftest import ROOT

IMAGES = 240
LIMIT_S = 170.0
RATE = re.compile(r"^(\S.*?) {2,}([\d,]+) images/s +(\d+)% right", re.MULTILINE)


@pytest.mark.timeout(LIMIT_S + 10)
@pytest.mark.usefixtures("torch_python")
def test_the_tour() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo.train", str(IMAGES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    rates = {title: int(rate.replace(",", "")) for title, rate, _ in RATE.findall(done.stdout)}
    alone, announced, warm, _rest = rates.values()
    assert announced > 1.5 * alone, "20 ms for each file, or not"
    assert warm > alone
    assert "got SIGKILL behind image" in done.stdout
    assert re.search(r"resumed behind image \d+", done.stdout)
    assert f"all {IMAGES} images in the order of the undisturbed run" in done.stdout
    assert f"uid 65534: {IMAGES} rows" in done.stdout
    assert "nothing is left behind" in done.stdout
