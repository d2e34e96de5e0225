"""The scheme `sqlite:///file.db`: the rows of the table `files` as files."""

from __future__ import annotations

from cachefs.core.errors import BadConfig
from cachefs.core.model import UfsSpec
from connectors.base import Connector
from connectors.meter import Meter
from connectors.scheme import Scheme


class SqliteScheme(Scheme):
    def normalise(self, scheme: str, rest: str) -> str:
        if not rest.startswith("/"):
            raise BadConfig(f"not an absolute path: {rest!r}", remedy="write sqlite:///path")
        return f"sqlite://{rest.rstrip('/')}"

    def open(self, spec: UfsSpec, meter: Meter) -> Connector:
        from tests.toy.adapter import SqliteConnector

        return SqliteConnector(spec.url.removeprefix("sqlite://"))


SCHEME = SqliteScheme()
