"""The name of the distribution, and the command that installs an extra of it. Pure.

The import package is `cachefs`; another project owns that name on the package index.
"""

from __future__ import annotations

from typing import Final

DISTRIBUTION: Final = "cachefs-io"


def install_command(*extras: str, distribution: str = DISTRIBUTION) -> str:
    """Returns the shell command that installs a distribution with `extras`."""
    wanted = f"[{','.join(extras)}]" if extras else ""
    return f"pip install '{distribution}{wanted}'"
