"""The page about consistency is made from what the adapters declare."""

from __future__ import annotations

from scripts.consistency import PAGE, page


def test_the_page_is_the_declared_one() -> None:
    assert PAGE.read_text() == page(), "run scripts/consistency.py"
