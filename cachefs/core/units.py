"""Sizes and durations in text form: `20GiB`, `512 MB`, `60s`, `1h30m`. Pure."""

from __future__ import annotations

import re

from cachefs.core.errors import BadConfig

_SIZE_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _SIZE_UNITS[f"{_letter}IB"] = 1024**_power
    _SIZE_UNITS[f"{_letter}I"] = 1024**_power  # as Kubernetes writes it
    _SIZE_UNITS[_letter] = 1024**_power
    _SIZE_UNITS[f"{_letter}B"] = 1000**_power
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")

_DURATION_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION_ALL = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
FOREVER_S = -1.0


def parse_size(text: str) -> int:
    """Returns the bytes of `20GiB`, `20Gi`, `20G` (1024-based), `20GB` (1000-based), or a number.
    Raises BadConfig with the accepted forms."""
    match = _SIZE.fullmatch(text)
    factor = _SIZE_UNITS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise BadConfig(f"bad size {text!r}", remedy="write it as 512MiB, 20GiB or 1TB")
    return int(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor


def parse_duration(text: str) -> float:
    """Returns the seconds of `60s`, `1h30m`, `250ms`, a bare number of seconds, or -1 (never).
    Raises BadConfig with the accepted forms."""
    text = text.strip()
    if text == "-1":
        return FOREVER_S
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if not _DURATION_ALL.fullmatch(text):
        raise BadConfig(f"bad duration {text!r}", remedy="write it as 60s, 1h30m, 7d, 0 or -1")
    return sum(float(n) * _DURATION_UNITS_S[unit] for n, unit in _DURATION.findall(text))


def format_size(size_bytes: float) -> str:
    """Returns text like `1.5 GiB`: three significant digits, 1024-based."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"


def format_duration(seconds: float) -> str:
    """Returns text like `1h02m`, `3m05s`, `7.2s` or `never`."""
    if seconds < 0:
        return "never"
    if seconds < 60:
        return f"{seconds:.3g}s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest_s:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"
