"""A scheme without its extra is one line that names the extra, before anything is sent."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("url", "library", "extra"),
    [
        ("s3://bucket", "pycurl", "s3"),
        ("gs://bucket", "google", "gcs"),
        ("gs://bucket", "requests", "gcs"),
        ("gs://bucket", "pycurl", "gcs"),
        ("az://account/container", "azure", "azure"),
        ("az://account/container", "certifi", "azure"),
        ("hdfs://host:8020/a", "hdfs_native", "hdfs"),
        ("fsspec+sftp://host/a", "fsspec", "fsspec"),
        ("arrow+file:///a", "pyarrow", "arrow"),
    ],
)
def test_a_missing_extra(url: str, library: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{library!r}] = None\n"  # an import of it fails
        "from cachefs.core.errors import Unsupported\n"
        "from cachefs.core.model import UfsSpec\n"
        "from connectors.compose import open_connector\n"
        "from connectors.meter import Meter\n"
        f"try: open_connector(UfsSpec({url!r}), deadline_s=1, meter=Meter())\n"
        "except Unsupported as error: print(error.one_line())"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], check=True, text=True, stdout=subprocess.PIPE
    )
    scheme = url.partition(":")[0]
    expected = f"{scheme}:// sources need the extra {extra}; pip install 'cachefs-io[{extra}]'\n"
    assert done.stdout == expected
