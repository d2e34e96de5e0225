"""A Dataset's object is decoded, checked and turned into what the master takes."""

from __future__ import annotations

from typing import Any

import pytest

from cachefs.core.model import UfsSpec
from cachefs.core.policies import Policy
from cachefs.kube.dataset import parse
from cachefs.kube.dataset_spec import S3, Credentials, Spec
from cachefs.kube.rules import HARMLESS_OPTIONS, Rules
from cachefs.kube.status import Phase
from connectors.azure.scheme import SCHEME as AZURE
from connectors.gcs.scheme import SCHEME as GCS
from connectors.hdfs.scheme import SCHEME as HDFS
from connectors.registry import check_options
from connectors.s3.scheme import SCHEME as S3_SOURCE
from tests.unit.kube.things import parsed, thing


def test_a_spec_becomes_source_policies_and_load() -> None:
    found = parsed(
        {
            "source": "s3://b/p",
            "credentials": {"profile": "ml"},
            "s3": {"endpointURL": "http://s:1", "anonymous": True, "orderedListings": False},
            "syncInterval": "never",
            "policies": {
                "pin": True,
                "replicas": 2,
                "ttl": "7d",
                "quota": "1GiB",
                "syncBackground": "1h",
            },
            "load": {"bandwidth": "2GiB/s", "hold": "1h", "verify": True, "priority": "high"},
        }
    )
    assert found.problem == ""
    assert found.spec.source_options == {
        "profile": "ml",
        "endpoint_url": "http://s:1",
        "anonymous": "true",
        "ordered_listings": "false",
    }
    assert found.policy == Policy(
        pin=True,
        replicas=2,
        ttl_s=7 * 86400.0,
        quota_bytes=1 << 30,
        sync_interval_s=-1.0,
        sync_background_s=3600.0,
    )
    assert (found.job.paths, found.job.bandwidth_bytes_s) == ((b"/ml/one",), 2 << 30)
    assert (found.job.hold_s, found.job.verify, found.job.priority) == (3600.0, True, "high")


def test_without_options_there_are_the_masters_defaults() -> None:
    found = parsed()
    assert (found.policy, found.spec.source_options) == (Policy(), {})
    assert (found.job.bandwidth_bytes_s, found.job.hold_s) == (0, None)


def test_fields_of_a_newer_definition_are_ignored() -> None:
    found = parsed({"source": "s3://b", "future": {"a": 1}, "load": {"future": 2}})
    assert not found.problem
    newer = parsed(status={"phase": "Loaded", "future": 1, "conditions": []})
    assert newer.status.phase is Phase.LOADED


def test_a_status_that_cannot_be_read_is_none() -> None:
    assert parsed(status={"phase": "Future"}).status.phase is Phase.PENDING


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"policies": {"ttl": "soon"}}, "bad duration"),
        ({"policies": {"replicas": 99}}, "replicas"),
        ({"load": {"bandwidth": "fast"}}, "bad size"),
        ({"load": {"priority": "highest"}}, "priority"),
        ({"source": 7}, "source"),
    ],
)
def test_a_spec_that_cannot_be_used_has_a_problem(spec: dict[str, Any], text: str) -> None:
    assert text in parsed(spec).problem


def test_files_of_the_servers_must_be_allowed() -> None:
    raw = thing({"source": "file:///etc"})
    assert "--file-sources" in parse(raw, Rules()).problem
    assert not parse(raw, Rules(file_sources=True)).problem


def test_profiles_may_be_those_of_the_namespace_only() -> None:
    raw = thing({"credentials": {"profile": "team-b"}})
    assert not parse(raw, Rules()).problem
    assert "'ml'" in parse(raw, Rules(own_profiles=True)).problem
    own = thing({"credentials": {"profile": "ml"}})
    assert not parse(own, Rules(own_profiles=True)).problem


STORES = [
    ("gs://b/p", {"billing_project": "p1"}, {"name": "team"}),
    ("az://account/container", {"endpoint_url": "https://a"}, {"name": "team"}),
    ("hdfs://namenode:8020/data", {"user": "ml"}, None),
]


@pytest.mark.parametrize(("source", "options", "credentials"), STORES)
def test_every_store_of_the_image_may_be_a_source(
    source: str, options: dict[str, str], credentials: dict[str, str] | None
) -> None:
    """The connector accepts the options that the controller makes."""
    given = {"source": source, "options": options}
    found = parsed(given if credentials is None else given | {"credentials": credentials})
    assert found.problem == ""
    named = {} if credentials is None else {"credential": credentials["name"]}
    assert found.spec.source_options == options | named
    check_options(UfsSpec(source, found.spec.source_options))


@pytest.mark.parametrize(
    "source", ["fsspec+file:///etc", "arrow+file:///etc", "FILE:///etc", "/etc", "fsspec+sftp://h/"]
)
def test_files_of_the_servers_have_no_other_name(source: str) -> None:
    """An API server with an older definition may accept them."""
    for rules in (Rules(), Rules(file_sources=True)):
        assert "no source of a Dataset" in parse(thing({"source": source}), rules).problem


@pytest.mark.parametrize("source", ["gs://b", "az://account/container", "hdfs://n/data"])
def test_only_a_source_s3_has_options_of_s3(source: str) -> None:
    """An endpoint of another store would get the servers' token, and no other rule sees it."""
    found = parsed({"source": source, "s3": {"endpointURL": "https://evil"}})
    assert "no options of S3" in found.problem


def test_credentials_are_no_options() -> None:
    for name in ("credential", "profile"):
        found = parsed({"source": "gs://b", "options": {name: "other"}})
        assert "use spec.credentials" in found.problem


OTHERS = [
    {"source": "gs://b", "credentials": {"name": "team-b"}},
    {"source": "gs://b", "options": {"credentials_file": "/etc/cachefs/team-b.json"}},
    {"source": "az://acc/container", "options": {"sas_token_file": "/etc/cachefs/team-b"}},
    {"source": "hdfs://n/data", "options": {"user": "team-b"}},
    {"source": "s3://b", "push": "webhook:team-b"},
    {"source": "gs://b", "options": {"endpoint_url": "https://evil"}},  # which would get the token
    {"source": "az://a/b", "options": {"endpoint_url": "https://evil", "anonymous": "false"}},
]


@pytest.mark.parametrize("spec", OTHERS)
def test_rights_of_other_namespaces_are_refused(spec: dict[str, Any]) -> None:
    assert not parse(thing(spec), Rules()).problem
    assert parse(thing(spec), Rules(own_profiles=True)).problem


def test_what_gives_no_rights_is_allowed_to_each_namespace() -> None:
    rules = Rules(own_profiles=True)
    options = dict.fromkeys(HARMLESS_OPTIONS, "x") | {"anonymous": "true"}
    assert not parse(thing({"source": "gs://b", "options": options}), rules).problem
    own = {"source": "s3://b", "credentials": {"name": "ml"}, "push": "webhook:ml"}
    assert not parse(thing(own), rules).problem


def test_options_that_name_files_or_users_give_rights() -> None:
    known = {name for scheme in (GCS, AZURE, HDFS) for name in scheme.options}
    assert {*HARMLESS_OPTIONS} <= known
    assert known - {*HARMLESS_OPTIONS} == {
        "credential", "credentials_file", "sas_token_file", "account_key_file", "client_id",
        "conf_dir", "user",
    }  # fmt: skip


def test_a_dataset_can_set_each_option_of_s3() -> None:
    s3 = S3("https://s:1", "eu", "path", "/ca.pem", True, True, False)
    spec = Spec("s3://b", Credentials("profile", "name"), s3)
    assert spec.source_options.keys() == S3_SOURCE.options.keys()


def test_the_uid_is_the_key_of_the_first_load() -> None:
    first = parsed()
    assert first.job_key(1) == "u1"
    assert (
        len({first.job_key(1), first.job_key(2), parsed({"load": {"revision": 1}}).job_key(1)}) == 3
    )


def test_settings_of_a_running_load_have_another_digest_than_its_revision() -> None:
    slow, again = parsed({"load": {"bandwidth": "1MiB"}}), parsed({"load": {"revision": 4}})
    assert slow.job_settings != parsed().job_settings == again.job_settings
