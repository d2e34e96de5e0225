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
def test_a_key_is_placed_once(key: bytes) -> None:
    path, is_directory, hidden = keys.place(key)
    assert keys.visible_path(path)
    assert not (hidden and not is_directory)
    if not is_directory:
        assert path == key
    elif not hidden:
        assert key in (path + b"/", path)  # a marker; b"" is the listed directory itself
    else:
        assert not keys.visible_path(key)
        assert not path or key.startswith(path + b"/")


@given(KEYS)
def test_what_is_shown_is_what_can_be_named(key: bytes) -> None:
    assert (not keys.place(key).is_directory) == (bool(key) and keys.visible_path(key))


@given(KEYS)
def test_a_hidden_key_keeps_its_deepest_directory(key: bytes) -> None:
    path, _, hidden = keys.place(key)
    if hidden:
        bad = key[len(path) + bool(path) :].split(b"/")[0]
        assert not keys.visible(bad)


@given(st.dictionaries(st.binary(max_size=3), st.none()), st.sets(st.binary(max_size=3)))
def test_directories_win(files: dict[bytes, None], directories: set[bytes]) -> None:
    before = len(files)
    assert keys.directories_win(files, directories) == before - len(files)
    assert not files.keys() & directories


def test_parents_nearest_first() -> None:
    assert keys.parents(b"a/b/c") == [b"a/b", b"a"]
    assert keys.parents(b"a") == []
