"""The name of the distribution, its extras, and the command that installs them.

The import package is `cachefs`; another project owns that name on the package index.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Final

from cachefs.core.errors import Unsupported

DISTRIBUTION: Final = "cachefs-io"


def install_command(*extras: str, distribution: str = DISTRIBUTION) -> str:
    """Returns the shell command that installs a distribution with `extras`."""
    wanted = f"[{','.join(extras)}]" if extras else ""
    return f"pip install '{distribution}{wanted}'"


def check_extra(extra: str, modules: Sequence[str], user: str) -> None:
    """Raises Unsupported if this installation lacks modules of an extra, which `user` needs."""
    missing = [name for name in modules if not _is_installed(name)]
    if missing:
        raise Unsupported(
            f"{user} needs the extra {extra} ({', '.join(missing)})", remedy=install_command(extra)
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False
