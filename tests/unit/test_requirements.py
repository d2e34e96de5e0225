"""The pinned requirements have every extra but torch, whose builds for GPUs take gigabytes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_requirements_are_those_of_every_extra_but_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (named,) = re.findall(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*named.split(), "torch"} == {*project["optional-dependencies"]}


def test_no_requirements_pin_what_is_of_gpus() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        pinned = re.findall(r"^([a-z0-9-]+)==", path.read_text(), re.MULTILINE)
        found = [name for name in pinned if name.startswith(("nvidia-", "cuda-", "triton"))]
        assert (path.name, found) == (path.name, [])
        assert path.name == "torch.txt" or "torch" not in pinned
