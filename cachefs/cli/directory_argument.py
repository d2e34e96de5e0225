"""The argument of a command that is an existing directory, on a mount or elsewhere."""

from __future__ import annotations

import os
from typing import Any

import click

from cachefs.core.errors import CacheFSError


class Directory(click.Path):
    """An existing directory. One that cannot be read now is not called missing."""

    def __init__(self) -> None:
        super().__init__(exists=True, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the path. Raises BadParameter for no directory, CacheFSError for other faults."""
        try:
            os.stat(value)
        except (FileNotFoundError, NotADirectoryError):
            pass  # click names it
        except OSError as err:
            remedy = "of a mount: `cachefs health` shows the reason"
            raise CacheFSError(
                f"cannot be read: {err.strerror}", path=os.fspath(value), remedy=remedy
            ) from err
        return super().convert(value, param, ctx)
