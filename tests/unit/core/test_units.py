"""Sizes and durations as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.errors import BadConfig
from cachefs.core.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("20GiB", 20 << 30),
        ("20Gi", 20 << 30),
        ("20G", 20 << 30),
        ("20GB", 20 * 10**9),
        ("1.5 MiB", 3 << 19),
        ("1tb", 10**12),
        ("7 B", 7),
    ],
)
def test_size(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "20 XB", "1e3", "20GiB each"])
def test_bad_size_says_how_to_write_it(text: str) -> None:
    with pytest.raises(BadConfig) as caught:
        parse_size(text)
    assert "20GiB" in caught.value.one_line()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60s", 60),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("0", 0),
        ("-1", -1),
        ("2.5", 2.5),
        ("7d", 604800),
    ],
)
def test_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "-2", "1 hour", "s", "10x", "1h 30m"])
def test_bad_duration(text: str) -> None:
    with pytest.raises(BadConfig):
        parse_duration(text)


@given(st.integers(0, 1 << 50))
def test_a_formatted_size_is_near_its_value(size_bytes: int) -> None:
    back = parse_size(format_size(size_bytes).replace(" ", ""))
    assert abs(back - size_bytes) <= max(0.006 * size_bytes, 0.5)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "never"), (0.25, "0.25s"), (59, "59s"), (185, "3m05s"), (3720, "1h02m")],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
