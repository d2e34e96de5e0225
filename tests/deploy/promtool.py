"""promtool and compose-spec, built once per user, and what tests have promtool evaluate."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
ALERTS: Final = ROOT / "deploy" / "prometheus" / "alerts.yaml"
BUILD_S: Final = 1200.0
RUN_S: Final = 60.0
SELECTOR: Final = re.compile(r"\b(cachefs_\w+|up)\b(\{[^}]*\})?")


@functools.cache
def tools() -> Path:
    """Returns the folder of the programs."""
    script = str(ROOT / "scripts" / "deploy-tools")
    done = subprocess.run([script], check=True, stdout=subprocess.PIPE, text=True, timeout=BUILD_S)
    return Path(done.stdout.strip())


def run_tool(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a program with both outputs in one text; the exit code is the caller's business."""
    command = [tools() / program, *arguments]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RUN_S
    )


def try_rules(
    directory: Path, groups: Sequence[Mapping[str, Any]], rules: Sequence[Path] = ()
) -> str:
    """Returns what promtool finds wrong in unit tests of rules and queries; "" if nothing."""
    path = directory / "promtool.json"
    document = {
        "rule_files": [str(rule) for rule in rules],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", **group} for group in groups],
    }
    path.write_text(json.dumps(document))
    done = run_tool("promtool", "test", "rules", path)
    return done.stdout if done.returncode else ""


def selectors(query: str) -> set[str]:
    """Returns the vector selectors of a query, without ranges: `name{label="value"}`."""
    return {name + (matchers or "") for name, matchers in SELECTOR.findall(query)}
