"""Paths and globs as operators type them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core import globs
from cachefs.core.globs import select


@pytest.mark.parametrize(
    ("glob", "base", "yes", "no"),
    [
        (b"/train/", b"train", [b"train/a", b"train"], []),
        (b"train/*.jpg", b"train", [b"train/a.jpg"], [b"train/x/a.jpg", b"train/ajpg"]),
        (b"train/n0*", b"train", [b"train/n01/a/b.jpg", b"train/n0"], [b"train/m0/a"]),
        (b"**/val", b"", [b"val", b"a/b/val", b"a/val/x"], [b"a/xval", b"value"]),
        (b"a/[!0-3]?", b"a", [b"a/42"], [b"a/12", b"a/4", b"a//x"]),
        (b"a/[bc].d", b"a", [b"a/b.d"], [b"a/d.d", b"a/bxd"]),
        (b"a[^b]c", b"", [b"axc"], [b"abc", b"a/c"]),
        (b"a[!-0]c", b"", [b"axc"], [b"a/c", b"a0c", b"a-c"]),
        (b"a[+-9]c", b"", [b"a0c"], [b"a/c"]),
        (b"[z-a]x", b"", [], [b"zx", b"ax", b"-x"]),
        (b"[!z-a]x", b"", [b"zx"], [b"/x"]),
        (b"[a&&b--c]", b"", [b"a", b"&", b"c"], [b"d", b"b"]),
        (b"[]a]x", b"", [b"]x", b"ax"], [b"bx"]),
    ],
)
def test_selection(glob: bytes, base: bytes, yes: list[bytes], no: list[bytes]) -> None:
    selection = select(glob)
    assert selection.base == base
    assert [path for path in yes if not selection.matches(path)] == []
    assert [path for path in no if selection.matches(path)] == []


GLOBS = st.lists(st.sampled_from([b"*", b"**", b"**/", b"?", b"[ab]", b"[!a]", b"a", b"b", b"/"]))
PATHS = st.lists(st.sampled_from([b"a", b"b", b"/", b"\xff"]), max_size=12).map(b"".join)


@given(GLOBS.map(b"".join), PATHS)
def test_the_automaton_and_the_regular_expression_select_the_same(glob: bytes, path: bytes) -> None:
    selection = select(glob)
    if selection.pattern is not None:
        found = globs._automaton(selection.glob).matches(path)
        assert found == (selection.pattern.fullmatch(path) is not None)


@pytest.mark.parametrize("star", [b"*", b"**", b"**/", b"*?", b"x**/"])
@pytest.mark.timeout(20)
def test_no_name_takes_a_glob_long(star: bytes) -> None:
    """A regular expression takes hours for some of these, and stops the process for as long."""
    selection = select(b"d/" + (star + b"a") * 30 + star + b"b")
    for name in (b"a" * 250, b"xa" * 125, b"a/" * 2000):
        assert not selection.matches(b"d/" + name)
    two = select(b"**a**b")
    assert not two.matches(b"a" * 4000)
    assert two.matches(b"a" * 4000 + b"b")


@given(st.binary(max_size=30))
def test_any_bytes_are_a_selection(text: bytes) -> None:
    select(text).matches(b"a/b")


@given(st.lists(st.binary(min_size=1, max_size=8).filter(lambda b: b"/" not in b), max_size=4))
def test_a_path_without_magic_selects_itself(parts: list[bytes]) -> None:
    path = b"/".join(parts)
    if any(c in path for c in (b"*", b"?", b"[")):
        return
    assert select(path).base == path
    assert select(path).matches(path + b"/below")
