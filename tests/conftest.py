"""What all suites share: servers that are started once, for the first test that asks for them, and
the turns that tests take when they run side by side."""

from __future__ import annotations

import contextlib
import gc
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.services.authority import Authority
from tests.services.examples import examples
from tests.services.moto_s3 import moto_s3
from tests.services.s3_server import S3Server
from tests.services.versitygw import versitygw
from tests.turns import ByGroup, Turns

MODELS = Path(__file__).with_name("model")
TURNS = pytest.StashKey[Turns]()
SHARED = pytest.StashKey[Path]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    return ByGroup(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A process of a run side by side is about to start."""
    if SHARED not in node.config.stash:
        node.config.stash[SHARED] = Path(tempfile.mkdtemp(prefix="cachefs-tests-"))
    node.workerinput["turns"] = str(node.config.stash[SHARED])


def pytest_configure(config: pytest.Config) -> None:
    """Property tests that name no count look at Hypothesis's default count, or its share."""
    usual = hypothesis.settings.default
    hypothesis.settings.register_profile("share", usual, max_examples=examples(usual.max_examples))
    hypothesis.settings.load_profile("share")
    if (given := getattr(config, "workerinput", None)) is not None:
        config.stash[TURNS] = Turns(Path(given["turns"]))


def pytest_unconfigure(config: pytest.Config) -> None:
    if TURNS in config.stash:
        config.stash[TURNS].close()
    if SHARED in config.stash:
        shutil.rmtree(config.stash[SHARED])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps modules and tests, which live until the end, out of every garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    turns = item.config.stash.get(TURNS, None)
    alone = item.get_closest_marker("alone") is not None
    with turns.turn(alone) if turns else contextlib.nullcontext():
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of models that run once for each seed, the first run is measured for coverage: with that one
    takes up to five times as long, and the others run the same lines."""
    seen: set[str] = set()
    for item in items:
        if item.path.parent == MODELS:
            test = item.nodeid.partition("[")[0]
            if test in seen:
                item.add_marker(pytest.mark.no_cover)
            seen.add(test)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with versitygw(tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs the certificates of servers that speak TLS; clients trust `authority.bundle`."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server that keeps every key and checks no signature."""
    with moto_s3(tmp_path_factory.mktemp("moto")) as server:
        yield server
