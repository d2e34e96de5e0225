"""Files of live processes, which come and go while they are listed."""

from __future__ import annotations

import os
from pathlib import Path


def files_below(directory: Path) -> list[Path]:
    """Returns all below a directory that is no directory. `Path.rglob` raises FileNotFoundError
    where a directory is removed meanwhile."""
    return [Path(where, name) for where, _, names in os.walk(directory) for name in names]
