"""The rule for keys, over every key that hypothesis thinks of."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from connectors import keys

ODD = st.sampled_from([b"", b".", b"..", b"a", b"..a", b"\0", b"x\0y", b"f" * 255, b"f" * 256])
KEYS = st.lists(ODD | st.binary(max_size=4), max_size=6).map(b"/".join)


@given(KEYS)
@example(b"/")
@example(b"a//b")
@example(b"a/")
def test_a_path_is_shown_if_each_of_its_names_is(key: bytes) -> None:
    shown = all(keys.visible(name) for name in key.split(b"/"))
    assert keys.visible_path(key) == (shown or not key)


@given(st.dictionaries(st.binary(max_size=3), st.none()), st.sets(st.binary(max_size=3)))
def test_directories_win(files: dict[bytes, None], directories: set[bytes]) -> None:
    before = len(files)
    assert keys.directories_win(files, directories) == before - len(files)
    assert not files.keys() & directories
