"""From a URL and its options to a connector, or to one line that says what is wrong."""

from __future__ import annotations

import builtins
import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachefs.core.errors import BadConfig, Unsupported
from cachefs.core.model import UfsSpec
from connectors.compose import open_connector
from connectors.meter import Meter
from connectors.registry import check_options, normalise


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("S3://bucket/prefix/", "s3://bucket/prefix"),
        ("s3://bucket/a b/%20?x#y", "s3://bucket/a b/%20?x#y"),
        ("s3://my.bucket_1/Ünï", "s3://my.bucket_1/Ünï"),
        ("file:///data/set/", "file:///data/set"),
        ("file:///data//x/../set", "file:///data/set"),
        ("file://localhost/data", "file:///data"),
        ("/data/set", "file:///data/set"),
        ("//data", "file:///data"),
        ("/", "file:///"),
    ],
)
def test_normal_forms(url: str, normal: str) -> None:
    assert normalise(url) == normal
    assert normalise(normal) == normal


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "not a source"),
        ("data/set", "not a source"),
        ("s3:bucket", "not a source"),
        ("s3a://bucket/x", "did you mean s3://"),
        ("gopher://x", ", file://, "),
        ("s3://", "bad bucket name"),
        ("s3:///x", "bad bucket name"),
        ("s3://ab", "bad bucket name"),
        ("s3://has space/x", "bad bucket name"),
        ("s3://arn:aws:s3:eu:1:accesspoint/x", "bad bucket name"),
        ("s3://bucket//x", "bad prefix"),
        ("s3://bucket/a/../b", "bad prefix"),
        ("file://host/data", "not an absolute path"),
        ("file://data", "not an absolute path"),
    ],
)
def test_what_is_no_source(url: str, says: str) -> None:
    with pytest.raises(BadConfig) as caught:
        normalise(url)
    assert says in caught.value.one_line()


@settings(deadline=None)  # the first call reads the metadata of every distribution
@given(st.text(max_size=30) | st.text(max_size=30).map("s3://bucket/{}".format))
def test_any_text_is_a_source_or_one_error(url: str) -> None:
    with contextlib.suppress(BadConfig):
        normal = normalise(url)
        assert normalise(normal) == normal


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"endpoint": "http://x"}, "did you mean endpoint_url"),
        ({"endpoint_url": "minio:9000"}, "bad endpoint URL"),
        ({"endpoint_url": "http://me:secret@minio:9000"}, "an endpoint URL holds no user and pass"),
        ({"requester_pays": "maybe"}, "write true or false"),
        ({"addressing_style": "dns"}, "auto, path, virtual"),
        ({"ca_bundle": "/nowhere/ca.pem"}, "no such file"),
    ],
)
def test_bad_options(options: dict[str, str], says: str) -> None:
    with pytest.raises(BadConfig) as caught:
        check_options(UfsSpec("s3://bucket", options))
    assert says in caught.value.one_line()


def test_a_file_source_has_no_options() -> None:
    with pytest.raises(BadConfig, match="file:// sources have no options"):
        check_options(UfsSpec("file:///data", {"region": "x"}))


def test_an_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.partition(".")[0] in ("obstore", "botocore"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args)

    for name in list(sys.modules):
        if name.startswith("connectors.s3."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(Unsupported, match="s3:// sources need the extra s3") as caught:
        open_connector(UfsSpec("s3://bucket"), deadline_s=1, meter=Meter())
    assert caught.value.remedy == "pip install 'cachefs-io[s3]'"


def test_files_need_no_library_of_s3(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    code = (
        "import sys; from connectors.compose import open_connector\n"
        "from cachefs.core.model import UfsSpec; from connectors.meter import Meter\n"
        f"open_connector(UfsSpec('file://{tmp_path}'), deadline_s=1, meter=Meter()).check()\n"
        "assert not {'boto3', 'botocore', 'lxml', 'obstore', 'urllib3'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
