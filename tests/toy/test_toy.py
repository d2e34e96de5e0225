"""A plug-in of somebody else: found by the entry point of its distribution, and in the suite."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cachefs.core.errors import BadConfig, NotFound
from cachefs.core.model import UfsSpec
from connectors.compose import open_connector
from connectors.conformance.origin import MakeOrigin, Origin
from connectors.conformance.reading import *  # noqa: F403
from connectors.meter import Meter
from connectors.registry import check_options, normalise
from tests.services import plugins

LINES = 150
TABLE = (
    "CREATE TABLE files (path BLOB UNIQUE, data BLOB, mtime_s INTEGER,"
    " version INTEGER PRIMARY KEY AUTOINCREMENT)"
)


class SqliteOrigin(Origin):
    def __init__(self, file: Path) -> None:
        self._file = file
        self._run(TABLE)
        self.connector = open_connector(UfsSpec(f"sqlite://{file}"), deadline_s=10, meter=Meter())

    def _run(self, statement: str, *rows: tuple[bytes | int, ...]) -> None:
        with closing(sqlite3.connect(self._file)) as db:
            db.executemany(statement, rows) if rows else db.execute(statement)
            db.commit()

    def put(self, path: bytes, data: bytes) -> None:
        self.put_all({path: data})

    def put_all(self, files: dict[bytes, bytes]) -> None:
        now_s = int(time.time())
        rows = [(path, data, now_s) for path, data in files.items()]
        self._run("REPLACE INTO files (path, data, mtime_s) VALUES (?, ?, ?)", *rows)

    def delete(self, path: bytes) -> None:
        self._run("DELETE FROM files WHERE path = ?", (path,))


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    site = tmp_path_factory.mktemp("site")
    plugins.install(site, "toy-store", {"sqlite": "tests.toy.scheme:SCHEME"}, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        yield


@pytest.fixture(scope="module")
def make_origin(installed: None, tmp_path_factory: pytest.TempPathFactory) -> MakeOrigin:
    return lambda: SqliteOrigin(tmp_path_factory.mktemp("origin") / "set.db")


def test_its_urls_and_options() -> None:
    assert normalise("SQLITE:///data/set.db/") == "sqlite:///data/set.db"
    with pytest.raises(BadConfig, match="not an absolute path"):
        normalise("sqlite://set.db")
    with pytest.raises(BadConfig, match="sqlite:// sources have no options, got 'table'"):
        check_options(UfsSpec("sqlite:///x", {"table": "x"}))


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    spec = UfsSpec(f"sqlite://{tmp_path}/none.db")
    with pytest.raises(NotFound, match="unable to open"):
        open_connector(spec, deadline_s=1, meter=Meter()).check()


def test_it_is_short() -> None:
    folder = Path(__file__).parent
    texts = [(folder / name).read_text() for name in ("scheme.py", "adapter.py")]
    assert sum(len(text.splitlines()) for text in texts) <= LINES
