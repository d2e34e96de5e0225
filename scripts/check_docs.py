"""Checks the docs: links between files resolve, and every paragraph of SEMANTICS.md and every
sentence of consistency.md has a test.

A paragraph has an id, `[S-statfs]`, a sentence too, `[C-times]`; a test names it in its docstring
or in a comment. Failures are an id without a test, an id of a paragraph that is used twice, and an
id of a test that no page has.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ID = re.compile(r"\[(S-[a-z-]+)\]")
SENTENCE = re.compile(r"\[(C-[a-z-]+)\]")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+\s+(.*)$", re.MULTILINE)


def anchor(heading: str) -> str:
    """Returns a heading as a link's fragment: lower case, no punctuation, blanks to hyphens."""
    kept = re.sub(r"[^\w\s-]", "", heading.replace("`", "").lower())
    return re.sub(r"\s", "-", kept.strip())


def semantics_problems(semantics: str, tests: dict[str, str]) -> list[str]:
    """Returns the mismatches between SEMANTICS.md and the tests (file name -> text)."""
    written = Counter(re.findall(r"^\*\*\[(S-[a-z-]+)\]", semantics, re.MULTILINE))
    named = {ident: name for name, text in tests.items() for ident in ID.findall(text)}
    problems = [f"SEMANTICS.md: {ident} is there twice" for ident, n in written.items() if n > 1]
    problems += [
        f"SEMANTICS.md: no test names [{ident}]" for ident in sorted(written.keys() - named.keys())
    ]
    problems += [
        f"{named[ident]}: names [{ident}], which SEMANTICS.md does not have"
        for ident in sorted(named.keys() - written.keys())
    ]
    return problems


def consistency_problems(page: str, tests: dict[str, str]) -> list[str]:
    """Returns the mismatches between consistency.md and the tests (file name -> text)."""
    written = {*SENTENCE.findall(page)}
    named = {ident: name for name, text in tests.items() for ident in SENTENCE.findall(text)}
    problems = [f"consistency.md: no test names [{one}]" for one in sorted(written - named.keys())]
    problems += [
        f"{named[ident]}: names [{ident}], which consistency.md does not have"
        for ident in sorted(named.keys() - written)
    ]
    return problems


def link_problems(path: Path, text: str) -> list[str]:
    """Returns the relative links of one file to files or headings that do not exist."""
    problems = []
    for target in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        other = (path.parent / name).resolve() if name else path
        if not other.exists():
            problems.append(f"{path.relative_to(ROOT)}: no such file: {target}")
        elif fragment and other.suffix == ".md":
            headings = HEADING.findall(FENCE.sub("", other.read_text()))
            if fragment not in {anchor(heading) for heading in headings}:
                problems.append(f"{path.relative_to(ROOT)}: no such heading: {target}")
    return problems


def main() -> int:
    """Prints each problem on a line; exit status 1 if any exists."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")]
    files = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("connectors/conformance/*.py")]
    tests = {str(path.relative_to(ROOT)): path.read_text() for path in files}
    problems = semantics_problems((ROOT / "docs" / "SEMANTICS.md").read_text(), tests)
    problems += consistency_problems((ROOT / "docs" / "consistency.md").read_text(), tests)
    for page in pages:
        problems += link_problems(page, page.read_text())
    print("\n".join(problems) or f"{len(pages)} pages, every paragraph and sentence tested")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
