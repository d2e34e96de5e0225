"""The results of a bench: bars with pass or fail, tables, notes; as text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Bar:
    """A claim and its measured value; `limit` is a lower bound with `at_least`, else an upper
    one."""

    claim: str
    value: float
    limit: float
    unit: str = ""
    at_least: bool = False

    @property
    def passed(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def cells(self) -> list[str]:
        sign = ">=" if self.at_least else "<="
        limit = f"{sign} {show(self.limit)} {self.unit}".rstrip()
        measured = f"{show(self.value)} {self.unit}".rstrip()
        return [self.claim, measured, limit, "pass" if self.passed else "**FAIL**"]


@dataclass
class Table:
    """Rows to compare; the first column names the row."""

    title: str
    columns: list[str]
    rows: list[list[str | float | int | None]] = field(default_factory=list)

    def add(self, *cells: str | float | int | None) -> None:
        self.rows.append(list(cells))


@dataclass
class Result:
    """One bench. `error` is set if it could not finish. `began`: the time, the load and the
    revision at its start. `profile`: the breakdown of the time, Markdown written by hand from a
    profiler's output and included unchanged."""

    name: str
    question: str
    bars: list[Bar] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    took_s: float = 0.0
    began: str = ""
    profile: str = ""

    @property
    def passed(self) -> bool:
        return self.error is None and all(bar.passed for bar in self.bars)

    def table(self, title: str, *columns: str) -> Table:
        """Adds a table to this result, and returns it."""
        self.tables.append(Table(title, list(columns)))
        return self.tables[-1]

    def bar(
        self, claim: str, value: float, limit: float, unit: str = "", *, at_least: bool = False
    ) -> None:
        self.bars.append(Bar(claim, value, limit, unit, at_least))


def show(value: str | float | int | None) -> str:
    """Returns three significant figures with thousands separated; a dash for None."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _markdown(columns: list[str], rows: Iterable[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|---|{'--:|' * (len(columns) - 1)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def markdown(result: Result) -> str:
    """Returns the section of one bench."""
    lines = [f"## {result.name}", "", result.question, ""]
    if result.error:
        lines += [f"**Not finished:** {result.error}", ""]
    if result.bars:
        columns = ["bar", "measured", "limit", ""]
        lines += [*_markdown(columns, (bar.cells() for bar in result.bars)), ""]
    for table in result.tables:
        shown = [[show(cell) for cell in row] for row in table.rows]
        lines += [f"{table.title}:", "", *_markdown(table.columns, shown), ""]
    lines += [f"- {note}" for note in result.notes]
    if result.profile:
        lines += ["", "What the time goes to:", "", result.profile.strip()]
    began = f" ({result.began})" if result.began else ""
    lines += ["", f"Took {result.took_s:.0f} s{began}: `python -m bench.{result.name}`.", ""]
    return "\n".join(lines)


def page(results: list[Result], machine: str, versions: str, quick: bool) -> str:
    """Returns the whole of RESULTS.md."""
    bars = [bar for result in results for bar in result.bars]
    failed = sum(not bar.passed for bar in bars) + sum(r.error is not None for r in results)
    head = [
        "# Results of the benches",
        "",
        f"Machine: {machine}.",
        f"Versions: {versions}.",
        "Written by `python -m bench.run" + (" --quick" if quick else "") + "`"
        f": {len(bars)} bars, {failed} not met. Each section names the load of the machine at its",
        "start; read the figures as ratios within one section.",
        "",
    ]
    rows = [[result.name, *bar.cells()] for result in results for bar in result.bars]
    columns = ["bench", "bar", "measured", "limit", ""]
    return "\n".join([*head, *_markdown(columns, rows), "", *map(markdown, results)])
