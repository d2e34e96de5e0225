"""How far loads are: their sum, its rate and time left, and the bar that shows them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from cachefs.cli import output
from cachefs.core import messages as m
from cachefs.core.units import format_duration, format_size


class Total(msgspec.Struct, frozen=True):
    """The sum of some loads. Bytes are those of the files; `bytes_fetched` came from the origin."""

    running: bool
    succeeded: bool
    listing_done: bool
    files_found: int
    files_done: int
    files_failed: int
    bytes_found: int
    bytes_done: int
    bytes_fetched: int
    elapsed_s: float
    messages: tuple[str, ...] = ()

    @classmethod
    def of(cls, states: Sequence[m.LoadProgress]) -> Total:
        def add(name: str) -> int:
            return sum(getattr(state, name) for state in states)

        return cls(
            running=any(state.state == "running" for state in states),
            succeeded=all(state.state == "succeeded" for state in states),
            listing_done=all(state.listing_done for state in states),
            files_found=add("files_found"),
            files_done=add("files_done"),
            files_failed=add("files_failed"),
            bytes_found=add("bytes_found"),
            bytes_done=add("bytes_done"),
            bytes_fetched=add("bytes_fetched"),
            elapsed_s=max(state.elapsed_s for state in states),
            messages=tuple(dict.fromkeys(s.message for s in states if s.message)),
        )

    @property
    def state(self) -> str:
        return "running" if self.running else "succeeded" if self.succeeded else "failed"

    @property
    def rate_bytes_per_s(self) -> float:
        """What came from the origin, on average."""
        return self.bytes_fetched / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Time left at that rate; None while the total, or the rate, is not known."""
        if not self.listing_done or not self.rate_bytes_per_s:
            return None
        return max(0, self.bytes_found - self.bytes_done) / self.rate_bytes_per_s

    def document(self) -> dict[str, Any]:
        """For programs."""
        facts: dict[str, Any] = {"state": self.state, "listing_done": self.listing_done}
        for name in ("files_found", "files_done", "files_failed"):
            facts[name] = getattr(self, name)
        for name in ("bytes_found", "bytes_done", "bytes_fetched"):
            facts[name] = getattr(self, name)
        facts["elapsed_s"] = self.elapsed_s
        facts["rate_bytes_per_s"] = round(self.rate_bytes_per_s)
        facts["left_s"] = None if self.left_s is None else round(self.left_s, 1)
        return facts | {"messages": list(self.messages)}


def line(total: Total) -> str:
    """`12 of 60 files, 1.2 GiB of 3.4 GiB, 310 MiB/s, 7s left, 2 failed`; `+`: more to come."""
    more = "" if total.listing_done else "+"
    parts = [
        f"{total.files_done} of {total.files_found}{more} files",
        f"{format_size(total.bytes_done)} of {format_size(total.bytes_found)}{more}",
        f"{format_size(total.rate_bytes_per_s)}/s",
    ]
    if total.left_s is not None and total.running:
        parts.append(f"{format_duration(total.left_s)} left")
    if total.files_failed:
        parts.append(f"{total.files_failed} failed")
    return ", ".join(parts)


def summary(total: Total) -> str:
    """The closing line."""
    verb = "OK, loaded" if total.succeeded else "FAILED: loaded"
    text = (
        f"{verb} {total.files_done} of {total.files_found} files"
        f" ({format_size(total.bytes_done)} of {format_size(total.bytes_found)};"
        f" {format_size(total.bytes_fetched)} from the origin)"
        f" in {format_duration(total.elapsed_s)}"
    )
    if total.files_failed:
        text += f", {total.files_failed} failed"
    return "; ".join([text, *total.messages])


class View:
    """Shows nothing; the base of what does."""

    def show(self, total: Total) -> None:
        """Called at every poll, the last time with a total that no longer runs."""

    def close(self) -> None:
        """Gives the terminal back; idempotent."""


def make_view(as_json: bool) -> View:
    """What shows the progress: JSON lines, a bar on a terminal, or nothing."""
    if as_json:
        return JsonView()
    return Bar() if sys.stderr.isatty() else View()


class JsonView(View):
    """A JSON line whenever another second has passed on the load's own clock."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def show(self, total: Total) -> None:
        if total.running and total.elapsed_s >= self._next_s:
            self._next_s = total.elapsed_s + 1.0
            output.print_json_line(total.document())


class Bar(View):
    """A bar on standard error, drawn by rich, which is imported only now."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._progress = Progress(
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None)
        self._progress.start()

    def show(self, total: Total) -> None:
        # Without a total yet the bar only pulses; an empty load is a full bar.
        known = max(1, total.bytes_found) if total.listing_done else None
        done = total.bytes_done if total.bytes_found else 1
        self._progress.update(self._task, total=known, completed=done, description=line(total))
        self._progress.refresh()

    def close(self) -> None:
        self._progress.stop()
