"""The scheme `file://`: a directory of this machine."""

from __future__ import annotations

import os
from typing import Final

from cachefs.core.errors import BadConfig
from cachefs.core.model import UfsSpec
from connectors.base import Connector
from connectors.meter import Meter
from connectors.scheme import Scheme


class FileScheme(Scheme):
    """`file:///path`, without a host but `localhost`. Nothing is percent-decoded."""

    def normalise(self, scheme: str, rest: str) -> str:
        path = rest.removeprefix("localhost")
        if not path.startswith("/") or "\0" in path:
            url = f"{scheme}://{rest}"
            raise BadConfig(f"not an absolute path: {url!r}", remedy="write it as file:///path")
        return f"file:///{os.path.normpath(path).lstrip('/')}"

    def open(self, spec: UfsSpec, meter: Meter) -> Connector:
        from connectors.file.writer import FileWriter

        return FileWriter(spec.url.removeprefix("file://"))


SCHEME: Final = FileScheme()
