"""The arguments of a library's file system: the options of a source, with its secrets.

They are computed again when they are older than `LOOK_S`, so that changed files are used. With the
option `credential`, each file of the credential is an argument of its name. An argument that names
a file, such as `key_filename`, gets the path.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from connectors.credential import LOOK_S, OPTION, Credential, fields_of, path_of
from connectors.library.options import resolved

Values = dict[str, str | int | bool]
_NAMES_A_FILE: Final = re.compile(r"(^|_)(file|filename|path)$")


class Arguments:
    """For several threads: the values are replaced in one assignment."""

    def __init__(
        self,
        options: Mapping[str, str],
        fields: Sequence[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`fields`: what is read of the credential; None: all that it has."""
        self._name = options.get(OPTION, "")
        self._options = {name: text for name, text in options.items() if name != OPTION}
        self._fields = fields
        self._clock = clock
        self._kept: tuple[float, Values] | None = None

    def values(self) -> Values:
        """Returns the arguments. Raises CredentialsMissing if a secret cannot be read."""
        kept, now = self._kept, self._clock()
        if kept is None or now - kept[0] >= LOOK_S:
            kept = self._kept = now, resolved(self._options) | self._secrets()
        return kept[1]

    def _secrets(self) -> Values:
        if not self._name:
            return {}
        fields = fields_of(self._name) if self._fields is None else self._fields
        texts = Credential(self._name, fields).values()
        return {
            field: _path(self._name, field) or text
            for field, text in zip(fields, texts, strict=True)
            if text
        }


def _path(name: str, field: str) -> str:
    """Returns the path of a credential's file if the argument names a file; else ""."""
    return path_of(name, field) if _NAMES_A_FILE.search(field) else ""
