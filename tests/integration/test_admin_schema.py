"""The admin API against its own OpenAPI page: whatever it is asked, it answers as the page says,
and never with an error of its own. Requests are drawn by schemathesis, with a fixed seed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from cachefs.core import cluster as c
from cachefs.core.admin import API
from master.server.admin import openapi
from master.server.app import MAX_LINE_BYTES
from tests.services.http_master import Cluster, cluster, worker

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import requests
    import schemathesis
    from schemathesis.checks import CHECKS
    from schemathesis.generation import GenerationMode

SEED = 20241121
EXAMPLES = 6  # of each operation, each way
LIMIT_S = 9.0  # then what is left is passed over
PATHS = ("/data", "/data/a/7", "/", "/data/odd%25%FF", "/nothing")
CHECKED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)


class Workers:
    """Workers that have the first page of everything."""

    async def ask(self, url: str, call: c.Have | c.Drop) -> c.Answer:
        if isinstance(call, c.Have):
            return c.Had([b"\x01" for _ in call.contents])
        return c.Dropped(len(call.contents), 1, 0)


class Running:
    """A master in a thread of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stop: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._up = threading.Event()
        self.port = 0
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        async with cluster(self._directory, peers=Workers()) as made:
            await fill(made)
            self.port = made.port
            self._up.set()
            await self._stop.wait()

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        self.thread.start()
        try:
            assert self._up.wait(20), "the master did not start"
            yield f"http://127.0.0.1:{self.port}{API}"
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            self.thread.join(20)


async def fill(made: Cluster) -> None:
    keys = {b"a/%d" % n: b"x" * n for n in range(20)}
    await made.add(b"/data", {**keys, b"odd%\xff": b"y"})
    await made.ask(worker("aaaa"), c.Registered)
    await made.ask(c.Walk(made.namespace, 1), c.Walked)


def page() -> Any:
    found = schemathesis.openapi.from_dict(openapi.page())
    found.config.generation.update(modes=list(GenerationMode))
    return found


OPERATIONS = [result.ok() for result in page().get_all_operations() if result.ok() is not None]


def meant(case: Any, path: str) -> None:
    """Asks about what is there, where anything would do."""
    for given_ in (case.query, case.body):
        if isinstance(given_, dict) and "path" in given_:
            given_["path"] = path
        if isinstance(given_, dict):
            given_.pop("namespace", None)
            given_.pop("next", None)
    if "worker" in (case.path_parameters or {}):
        case.path_parameters["worker"] = "aaaa"
    if isinstance(case.body, dict) and isinstance(case.body.get("set"), dict):
        case.body["set"].pop("pin", None)  # it waits until no worker may evict


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Running(tmp_path_factory.mktemp("master")).serving() as found:
        yield found


@pytest.fixture(scope="module")
def until() -> float:
    return time.monotonic() + LIMIT_S


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.definition.raw["operationId"])
def test_every_answer_is_as_the_page_says(
    url: str, until: float, operation: Any, mode: GenerationMode
) -> None:
    checks = [CHECKS.get_one(name) for name in CHECKED]
    session = requests.Session()
    count = 0

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode), st.sampled_from(PATHS))
    def check(case: Any, path: str) -> None:
        nonlocal count
        if time.monotonic() < until:
            if mode is GenerationMode.POSITIVE:
                meant(case, path if operation.path != "/sources" else "/nothing")
            response = case.call(base_url=url, session=session, timeout=20)
            if len(response.request.url or "") < MAX_LINE_BYTES // 2:  # longer ones are HTTP's own
                case.validate_response(response, checks=checks)
            count += 1

    try:
        check()
    finally:
        session.close()
    assert count or time.monotonic() > until
