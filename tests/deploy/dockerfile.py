"""The part of the language of Dockerfiles that ours uses, as data. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_COMMENT: Final = re.compile(r"^\s*#.*\n?", re.MULTILINE)
_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class Copy:
    """Sources of the context, or of the stage `stage`, into a directory or to a path."""

    stage: str
    sources: tuple[str, ...]
    target: str


@dataclass(frozen=True)
class Run:
    """A command line of a shell."""

    text: str


@dataclass
class Stage:
    """A stage: its base, its steps with the working directory of each, and how it is run."""

    name: str
    base: str
    steps: list[tuple[Copy | Run, str]] = field(default_factory=list)
    directory: str = "/"
    environment: dict[str, str] = field(default_factory=dict)
    user: str = ""
    entry_point: list[str] = field(default_factory=list)


def parse(text: str, arguments: Mapping[str, str]) -> list[Stage]:
    """Returns the stages. Raises ValueError for an instruction that is not known here."""
    known: dict[str, str] = {}
    stages: list[Stage] = []
    for line in re.sub(r"\\\n\s*", "", _COMMENT.sub("", text)).splitlines():
        if not line.strip():
            continue
        name, _, rest = line.strip().partition(" ")
        if name == "ARG":
            key, _, default = rest.partition("=")
            known[key] = arguments.get(key, default)
        elif name == "FROM":
            base, _, stage = _VARIABLE.sub(lambda found: known[found[1]], rest).partition(" AS ")
            stages.append(Stage(stage or str(len(stages)), base))
        else:
            _add(stages[-1], name, rest)
    return stages


def _add(stage: Stage, name: str, rest: str) -> None:
    match name:
        case "WORKDIR":
            stage.directory = rest
        case "COPY":
            stage.steps.append((_copy(rest), stage.directory))
        case "RUN":
            stage.steps.append((Run(rest), stage.directory))
        case "ENV":
            stage.environment |= dict(word.split("=", 1) for word in shlex.split(rest))
        case "USER":
            stage.user = rest
        case "ENTRYPOINT":
            stage.entry_point = json.loads(rest)
        case _:
            raise ValueError(f"unknown instruction: {name} {rest}")


def _copy(rest: str) -> Copy:
    words = shlex.split(rest)
    stage = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else ""
    return Copy(stage, tuple(words[:-1]), words[-1])
