"""The OpenAPI page: what is kept in docs/ is what a master says, and its routes are told apart."""

from __future__ import annotations

import re

import pytest

from cachefs.core import admin as a
from cachefs.core.admin_syncs import Sync
from cachefs.core.jobs import JobSpec, JobStatus
from cachefs.core.syncs import SyncStatus
from master.server.admin import openapi
from master.server.admin.routes import ROUTES, Route, find
from scripts.openapi import PAGE


def test_the_page_in_docs_is_the_one_that_is_served() -> None:
    assert PAGE.read_bytes() == openapi.text(), "run scripts/openapi.py"


def test_every_reference_is_there() -> None:
    page = openapi.text().decode()
    known = set(openapi.page()["components"]["schemas"])
    assert set(re.findall(r'"#/components/schemas/(\w+)"', page)) <= known


@pytest.mark.parametrize("route", ROUTES, ids=lambda one: f"{one.method} {one.path or '/'}")
def test_each_route_is_found_by_its_path(route: Route) -> None:
    path = route.path.replace("{action}", "stop")
    segments = [re.sub(r"\{\w+\}", "7", part) for part in path.split("/")[1:]]
    assert route in [one for one, _ in find(segments)]


def test_what_names_more_of_the_path_comes_first() -> None:
    assert [one.path for one, _ in find(["jobs", "7", "paths"])] == ["/jobs/{job}/paths"]
    assert [one.path for one, _ in find(["jobs", "7", "stop"])] == ["/jobs/{job}/{action}"]
    assert find(["jobs", "7", "paths", "8"]) == []


def test_operations_have_names_of_their_own() -> None:
    names = [route.operation for route in ROUTES]
    assert len(names) == len(set(names))


def test_jobs_and_syncs_show_all_that_there_is() -> None:
    """A field that is added to what a master knows of a job is added to the API, too."""
    assert {*a.Job.__struct_fields__} - {"settings"} == {*JobStatus.__struct_fields__} - {"spec"}
    assert {*a.JobSettings.__struct_fields__} == {*JobSpec.__struct_fields__} - {"paths"}
    ours = {*Sync.__struct_fields__} - {"changes", "next"}
    assert ours == {*SyncStatus.__struct_fields__}
