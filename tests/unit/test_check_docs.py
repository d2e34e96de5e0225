"""The docs checker finds what it is there for."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import check_docs


def marked(text: str) -> str:
    """Ids in braces here, so that this file does not name paragraphs that nobody wrote."""
    return text.replace("{", "[").replace("}", "]")


def test_every_paragraph_needs_a_test() -> None:
    page = marked("**{S-one}** Text that mentions {S-two}.\n\n**{S-two}** More.\n")
    tests = {"tests/a.py": marked('"""{S-one} holds."""')}
    missing = marked("SEMANTICS.md: no test names {S-two}")
    assert check_docs.semantics_problems(page, tests) == [missing]
    tests["tests/b.py"] = marked("# {S-two}")
    assert check_docs.semantics_problems(page, tests) == []


def test_unknown_and_double_ids_are_found() -> None:
    page = marked("**{S-one}** Text.\n\n**{S-one}** Again.\n")
    tests = {"t.py": marked("{S-one} {S-gone}")}
    (double, unknown) = check_docs.semantics_problems(page, tests)
    assert "S-one" in double
    assert "t.py" in unknown
    assert "S-gone" in unknown


def test_every_sentence_needs_a_test() -> None:
    page = marked(
        "| versions | Text. | `{C-one}` |\n| versions | Text. | `{C-one}` |\n| `{C-two}` |"
    )
    tests = {"tests/a.py": marked("{C-one}"), "tests/b.py": marked("{C-gone}")}
    missing, unknown = check_docs.consistency_problems(page, tests)
    assert missing == marked("consistency.md: no test names {C-two}")
    assert "tests/b.py" in unknown
    tests["tests/b.py"] = marked("{C-two}")
    assert check_docs.consistency_problems(page, tests) == []


@pytest.mark.parametrize(
    ("link", "good"),
    [
        ("other.md", True),
        ("other.md#a-heading-of-its-own", True),
        ("#here", True),
        ("https://example.org/x", True),
        ("gone.md", False),
        ("other.md#gone", False),
        ("#gone", False),
    ],
)
def test_links(tmp_path: Path, link: str, good: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_docs, "ROOT", tmp_path)
    (tmp_path / "other.md").write_text("## A heading, of its `own`\n")
    page = tmp_path / "page.md"
    text = f"# Here\n[text]({link})\n```\n[not a link](nowhere.md)\n```\n"
    page.write_text(text)
    assert (check_docs.link_problems(page, text) == []) is good
