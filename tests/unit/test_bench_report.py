"""The pure parts of the benches: what passes, what is printed, which pass is the median."""

from __future__ import annotations

from pathlib import Path

from bench.harness import Pass, first_paragraph, median, median_rate
from bench.report import Bar, Result, markdown, page, show
from bench.run import Kept


def one(wall_s: float, files: int = 10) -> Pass:
    return Pass(wall_s, bytes=files * 100_000, files=files, reader_cpu_s=0.0, server_cpu_s=0.5)


def test_a_bar_is_met_on_its_own_side_only() -> None:
    assert Bar("rate", 2.0, 2.0, at_least=True).passed
    assert not Bar("rate", 1.99, 2.0, at_least=True).passed
    assert Bar("time", 3.0, 3.0).passed
    assert not Bar("time", 3.01, 3.0).passed
    assert not Bar("rate", float("nan"), 2.0, at_least=True).passed


def test_a_result_with_an_error_or_a_missed_bar_is_not_met() -> None:
    met = Result("a", "?")
    met.bar("time", 1.0, 3.0, "s")
    missed = Result("b", "?")
    missed.bar("rate", 1.0, 3.0, "x", at_least=True)
    broken = Result("c", "?", error="no such thing")
    assert [r.passed for r in (met, missed, broken)] == [True, False, False]
    text = page([met, missed, broken], "a machine", "versions", quick=False)
    assert "2 bars, 2 not met" in text
    assert "| b | rate | 1 x | >= 3 x | **FAIL** |" in text
    assert "**Not finished:** no such thing" in text


def test_a_profile_stands_in_its_section_as_it_was_written() -> None:
    result = Result("a", "?", profile="| part | us |\n|---|--:|\n| loop | 9 |\n")
    assert "What the time goes to:\n\n| part | us |\n|---|--:|\n| loop | 9 |\n" in markdown(result)
    assert "What the time goes to" not in markdown(Result("a", "?"))


def test_figures_are_short() -> None:
    assert [show(v) for v in (0.12345, 12.345, 123456.7, 5, None, "x")] == [
        *("0.123", "12.3", "123,457", "5", "-", "x")
    ]


def test_medians_keep_the_figures_of_one_pass_together() -> None:
    assert median([one(3.0), one(1.0), one(2.0)]) == one(2.0)
    assert median_rate([one(2.0, 10), one(2.0, 30), one(2.0, 20)]) == one(2.0, 20)
    assert one(2.0).cpu_us_per_file == 50_000


def test_the_question_is_the_first_paragraph() -> None:
    assert first_paragraph("\na\nb\n\nc") == "a b"


def test_a_kept_result_is_read_as_it_was_measured(tmp_path: Path) -> None:
    result = Result("a", "?", began="2026-11-25 21:00, load average 0.1, revision 1")
    result.bar("time", 1.0, 3.0, "s")
    result.table("who", "name", "files/s").add("cachefs", 3)
    Kept(tmp_path / "kept").add(result)
    kept = Kept(tmp_path / "kept")
    assert kept.results == {"a": result}
    kept.add(Result("b", "?", error="none"))
    assert list(Kept(tmp_path / "kept").results) == ["a", "b"]
    assert "Took 0 s (2026-11-25 21:00, load average 0.1, revision 1)" in markdown(result)
