"""The chart, rendered by helm, which is built once per user."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "deploy" / "helm" / "cachefs"
RELEASE: Final = "cachefs"
NAMESPACE: Final = "cachefs-system"
BUILD_S: Final = 1200.0
RUN_S: Final = 60.0
EVERYTHING: Final = ("--values", Path(__file__).with_name("chart_values.yaml"))  # all its parts
POD_MONITOR: Final = "monitoring.coreos.com/v1/PodMonitor"

Object = dict[str, Any]


@functools.cache
def helm() -> Path:
    """Returns the program."""
    script = str(ROOT / "scripts" / "helm")
    done = subprocess.run([script], check=True, stdout=subprocess.PIPE, text=True, timeout=BUILD_S)
    return Path(done.stdout.strip())


def run_helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs helm; the exit code is the caller's business."""
    return subprocess.run([helm(), *arguments], capture_output=True, text=True, timeout=RUN_S)


def template(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_helm("template", RELEASE, CHART, "--namespace", NAMESPACE, *arguments)


def render(*arguments: str | Path) -> list[Object]:
    """Returns the objects that an installation makes, those of its hooks too."""
    done = template(*arguments)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def pod_spec(thing: Object) -> Object | None:
    """Returns the spec of the pods of an object, if it has any."""
    spec: Object = thing.get("spec") or {}
    if thing["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    template: Object = spec.get("template") or {}
    return template.get("spec")


def containers(things: Sequence[Object]) -> Iterator[tuple[str, Object, Object]]:
    """Yields each container with the name of its object and the spec of its pod."""
    for thing in things:
        spec = pod_spec(thing)
        for kind in ("initContainers", "containers"):
            for container in (spec or {}).get(kind, ()):
                assert spec is not None
                yield thing["metadata"]["name"], spec, container


def find(things: Sequence[Object], kind: str, name: str) -> Object:
    """Returns the one object of a kind whose name ends so."""
    (found,) = [
        thing
        for thing in things
        if thing["kind"] == kind and thing["metadata"]["name"].endswith(name)
    ]
    return found
