"""pandas, pyarrow, fsspec and Hugging Face datasets read by the library, from a real bucket over
TLS, through a mount's server and without a mount. The snippets of the pages of `docs/trainers` run
here, too."""

from __future__ import annotations

import errno
import gzip
import io
import os
import pickle
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

import cachefs
import cachefs.arrow
import cachefs.fsspec
from tests.integration.conftest import Bucket, Node
from tests.integration.dataset import body
from tests.integration.test_library import end_servers
from tests.services.proxy import FaultProxy

ROWS = 20_000


def table(seed: int, rows: int = ROWS) -> pa.Table:
    first = np.arange(seed, seed + rows, dtype=np.int64)  # from a range of Python's it takes long
    return pa.table({f"c{n}": first + n for n in range(8)})


def parquet(seed: int, rows: int = ROWS) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table(seed, rows), sink, row_group_size=rows // 4, compression="none")
    return sink.getvalue()


def shard() -> bytes:
    """Two samples of a data set in tar files."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for name in ("a.txt", "b.txt"):
            member = tarfile.TarInfo(name)
            member.size = 6
            tar.addfile(member, io.BytesIO(b"a text"))
    return sink.getvalue()


@pytest.fixture
def files() -> dict[str, bytes]:
    return {
        "tables/a.parquet": parquet(1),
        "tables/b.parquet": parquet(2),
        "tables/wide.parquet": parquet(3, 200_000),  # larger than what an open waits for
        "notes.csv": b"name,value\none,1\ntwo,2\n",
        "lines.jsonl": b'{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n',
        "plain/x.bin": body(5, 300_000),
        "plain/y.bin": body(6, 10),
        "notes.csv.gz": gzip.compress(b"name,value\none,1\ntwo,2\n"),
        "shard-0.tar": shard(),
    }


@pytest.fixture
def mounted(node: Node, bucket: Bucket, proxy: FaultProxy, files: dict[str, bytes]) -> Path:
    bucket.fill(files)
    return node.mount(bucket.url, *bucket.options)


@pytest.fixture
def options(node: Node, mounted: Path) -> Iterator[dict[str, Any]]:
    """The storage options of a program that reads by the mount's server."""
    yield {"home": str(node.state)}
    cachefs.close()


def url_of(mounted: Path, name: str) -> str:
    return f"cachefs://{mounted}/{name}"


# ---- fsspec --------------------------------------------------------------------------------------


def test_fsspec_names(mounted: Path, options: dict[str, Any], files: dict[str, bytes]) -> None:
    system = fsspec.filesystem("cachefs", **options)
    assert isinstance(system, cachefs.fsspec.CacheFileSystem)
    top = str(mounted)
    assert system.find(top) == sorted(f"{top}/{name}" for name in files)
    assert system.find(f"{top}/plain", detail=True)[f"{top}/plain/y.bin"]["size"] == 10
    assert system.ls(f"{top}/plain", detail=False) == [f"{top}/plain/x.bin", f"{top}/plain/y.bin"]
    assert system.info(f"{top}/tables")["type"] == "directory"
    assert system.exists(f"{top}/notes.csv")
    assert not system.exists(f"{top}/nothing")
    assert system.find(f"{top}//plain") == [f"{top}//plain/x.bin", f"{top}//plain/y.bin"]
    assert system.find(f"{top}/nothing") == system.find(f"{top}/notes.csv/below a file") == []
    assert system.glob(f"{top}/*/*.bin") == [f"{top}/plain/x.bin", f"{top}/plain/y.bin"]
    walked = {where: sorted(names) for where, _, names in system.walk(top)}
    assert walked[f"{top}/plain"] == ["x.bin", "y.bin"]
    assert sorted(walked) == [top, f"{top}/plain", f"{top}/tables"]
    assert system.du(top) == sum(map(len, files.values()))


def test_fsspec_bytes(mounted: Path, options: dict[str, Any], files: dict[str, bytes]) -> None:
    system = fsspec.filesystem("cachefs", **options)
    x, y, wide = (f"{mounted}/{n}" for n in ("plain/x.bin", "plain/y.bin", "tables/wide.parquet"))
    assert system.cat(y) == files["plain/y.bin"]
    assert system.cat([x, y]) == {x: files["plain/x.bin"], y: files["plain/y.bin"]}
    assert system.cat(f"{mounted}/plain", recursive=True) == system.cat([x, y])
    assert system.cat_file(x, 5, 15) == files["plain/x.bin"][5:15]
    assert system.cat_file(x, -7) == files["plain/x.bin"][-7:]
    wanted = [x, wide, f"{mounted}/no"]
    got = system.cat_ranges(wanted, [1, 2_000_000, 0], [4, 2_000_009, 1])
    assert got[:2] == [files["plain/x.bin"][1:4], files["tables/wide.parquet"][2_000_000:2_000_009]]
    assert isinstance(got[2], FileNotFoundError)
    starts, ends = np.array([1, 2_000_000, 0]), np.array([4, 2_000_009, 1])
    assert system.cat_ranges(wanted, starts, ends)[:2] == got[:2]
    with pytest.raises(FileNotFoundError):
        system.cat_ranges(wanted, 0, 5, on_error="raise")
    assert list(system.cat([y, f"{mounted}/no"], on_error="omit")) == [y]
    with fsspec.open(url_of(mounted, "notes.csv"), "r", **options) as lines:
        assert lines.readlines() == ["name,value\n", "one,1\n", "two,2\n"]
    with pytest.raises(FileNotFoundError):
        system.open(f"{mounted}/no")
    with pytest.raises(OSError, match="read-only"):
        system.open(f"{mounted}/new", "wb")
    with pytest.raises(OSError, match="read-only"):
        system.rm(y)


def test_fsspec_copies_a_folder(
    mounted: Path, options: dict[str, Any], files: dict[str, bytes], tmp_path: Path
) -> None:
    system = fsspec.filesystem("cachefs", **options)
    system.get(f"{mounted}/plain", str(tmp_path / "copy"), recursive=True)
    assert (tmp_path / "copy" / "x.bin").read_bytes() == files["plain/x.bin"]


def test_lines_of_a_file(mounted: Path, options: dict[str, Any], files: dict[str, bytes]) -> None:
    """By iteration, and with the limits that files of Python have."""
    name, lines = f"{mounted}/notes.csv", files["notes.csv"].splitlines(keepends=True)
    system = fsspec.filesystem("cachefs", **options)
    with system.open(name) as file:
        assert [*file] == lines
        assert file.readline() == b""
        file.seek(3)
        native = io.BytesIO(files["notes.csv"])
        native.seek(3)
        for size in (0, 1, None, 2, 100, -1, 5):
            assert file.readline(size) == native.readline(size)
            assert file.tell() == native.tell()
    with system.open(f"{mounted}/tables/wide.parquet") as file:
        whole = files["tables/wide.parquet"]
        assert b"".join(file) == whole
    with pytest.raises(io.UnsupportedOperation, match="read-only"), system.open(name) as file:
        file.write(b"x")


def test_a_pickled_file_is_the_same_version(
    node: Node, mounted: Path, options: dict[str, Any], files: dict[str, bytes], bucket: Bucket
) -> None:
    """[S-library-bytes] Otherwise the process that gets it gets ESTALE."""
    name, data = f"{mounted}/plain/x.bin", files["plain/x.bin"]
    with fsspec.filesystem("cachefs", **options).open(name) as file:
        file.seek(7)
        sent = pickle.dumps(file)
        with pickle.loads(sent) as copy:
            assert copy.read(100) == data[7:107]
            assert (copy.name, file.tell()) == (file.name, 7)
    bucket.put("plain/x.bin", data[::-1])
    node.ok("sync", mounted / "plain")
    with pytest.raises(OSError, match="replaced") as caught:
        pickle.loads(sent)
    assert caught.value.errno == errno.ESTALE


def test_options_of_other_file_systems(mounted: Path, options: dict[str, Any]) -> None:
    """Those of buffers and of HTTP have no effect, those of origins are refused."""
    http = {"requote_redirect_url": False, "trust_env": True}
    system = fsspec.filesystem("cachefs", block_size=0, client_kwargs=http, **options)
    assert system.exists(f"{mounted}/notes.csv")
    for name, value, remedy in (
        ("anon", True, "anonymous=True"),
        ("key", "k", "aws_profile="),
        ("client_kwargs", {"endpoint_url": "http://127.0.0.1:1"}, "endpoint_url="),
    ):
        with pytest.raises(OSError, match=remedy) as caught:
            fsspec.filesystem("cachefs+s3", **{name: value})
        assert caught.value.errno == errno.EINVAL
    with pytest.raises(OSError, match=r"name a bucket: cachefs\+s3://BUCKET/path"):
        fsspec.filesystem("cachefs+s3").ls("")


# ---- pandas, pyarrow, datasets -------------------------------------------------------------------


def test_pandas(mounted: Path, options: dict[str, Any]) -> None:
    frame = pd.read_csv(url_of(mounted, "notes.csv"), storage_options=options)
    assert frame.to_dict("list") == {"name": ["one", "two"], "value": [1, 2]}
    for _ in range(2):  # cold, and from a memory map
        for name, seed in (("a", 1), ("wide", 3)):
            path = url_of(mounted, f"tables/{name}.parquet")
            read = pd.read_parquet(path, storage_options=options)
            assert read["c7"].iloc[-1] == seed + 7 + len(read) - 1


def test_arrow(mounted: Path, options: dict[str, Any], files: dict[str, bytes]) -> None:
    system = cachefs.arrow.filesystem(str(mounted), **options)
    assert isinstance(system, fs.FileSystem)
    for _ in range(2):
        assert pq.read_table("tables/a.parquet", filesystem=system) == table(1)
        assert pq.read_table("tables/wide.parquet", filesystem=system) == table(3, 200_000)
    both = ds.dataset(["tables/a.parquet", "tables/b.parquet"], filesystem=system)
    assert both.count_rows() == 2 * ROWS
    assert ds.dataset("tables", filesystem=system).count_rows() == 2 * ROWS + 200_000
    infos = system.get_file_info(fs.FileSelector("", recursive=True))
    assert {one.path for one in infos if one.type is fs.FileType.Directory} == {"plain", "tables"}
    assert system.get_file_info("no").type is fs.FileType.NotFound
    with pytest.raises(FileNotFoundError):
        system.open_input_file("no")
    with pytest.raises(OSError, match="read-only"):
        system.open_output_stream("new")
    with system.open_input_file("plain/x.bin") as file:
        data = file.read_buffer(300_000)
        assert data.to_pybytes() == files["plain/x.bin"]
        maps = Path("/proc/self/maps").read_text().splitlines()
        assert any("/cache/" in line for line in maps), "the cache's file is mapped"


def test_hugging_face_datasets(
    mounted: Path, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    import datasets

    read = datasets.load_dataset(
        "parquet",
        data_files=[url_of(mounted, "tables/a.parquet"), url_of(mounted, "tables/b.parquet")],
        split="train",
        storage_options=options,
        cache_dir=str(tmp_path / "hf"),
    )
    assert len(read) == 2 * ROWS

    def streamed(kind: str, name: str) -> list[dict[str, Any]]:
        rows = datasets.load_dataset(
            kind,
            data_files=url_of(mounted, name),
            split="train",
            streaming=True,
            storage_options=options,
        )
        return [*rows]

    assert [row["text"] for row in streamed("json", "lines.jsonl")] == ["a", "b"]
    assert [row["name"] for row in streamed("csv", "notes.csv.gz")] == ["one", "two"]
    shards = streamed("webdataset", "shard-*.tar")
    assert [row["txt"] for row in shards] == ["a text", "a text"]


# ---- without a mount -----------------------------------------------------------------------------


def test_a_bucket_without_a_mount(
    node: Node,
    bucket: Bucket,
    proxy: FaultProxy,
    files: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket.fill(files)
    for name, value in node.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CACHEFS_ENDPOINT_URL", bucket.endpoint_url)
    monkeypatch.setenv("CACHEFS_CA_BUNDLE", str(bucket.ca_bundle))
    url = f"cachefs+{bucket.url}"
    try:
        frame = pd.read_parquet(f"{url}/tables/a.parquet")
        assert len(frame) == ROWS
        system = fsspec.filesystem("cachefs+s3")
        assert system.find(f"{bucket.name}/plain") == [
            f"{bucket.name}/plain/x.bin",
            f"{bucket.name}/plain/y.bin",
        ]
        assert system.cat(f"/{bucket.name}/plain/y.bin") == files["plain/y.bin"]
        assert system.ls(f"/{bucket.name}/plain", detail=False)[1] == f"{bucket.name}/plain/y.bin"
        arrow = cachefs.arrow.filesystem(f"{url}/tables")
        assert pq.read_table("a.parquet", filesystem=arrow) == table(1)
        assert len(fsspec.open(f"{url}/plain/y.bin").open().read()) == 10
    finally:
        cachefs.close()
        end_servers(node.state)
    assert os.environ["HOME"] == str(node.home)


PAGES = Path(__file__).parents[2] / "docs" / "trainers"

CHECKS = {
    "pandas": f"\nassert len(frame) == {ROWS} and list(frame) == ['c0', 'c7'] and len(notes) == 2",
    "huggingface": f"\nassert texts == ['a', 'b'] and len(data) == {ROWS}",
    "ray": f"\nassert rows == {ROWS}",
}


@pytest.mark.parametrize("page", ["pandas", "huggingface", "ray"])
def test_the_snippets_of_the_pages(
    page: str,
    node: Node,
    bucket: Bucket,
    proxy: FaultProxy,
    files: dict[str, bytes],
    tmp_path: Path,
) -> None:
    """Run in a program of their own, with the name of the test's bucket."""
    bucket.fill(files)
    snippets = re.findall(
        r"<!-- snippet -->\n```python\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.S
    )
    assert len(snippets) >= 2
    program = "\n".join(snippets).replace("://bucket/", f"://{bucket.name}/")
    environment = {
        **node.environment,
        "CACHEFS_ENDPOINT_URL": bucket.endpoint_url,
        "CACHEFS_CA_BUNDLE": str(bucket.ca_bundle),
        "HF_HOME": str(tmp_path / "hf"),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", program + CHECKS[page]],
            env=environment, capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    finally:
        end_servers(node.state)


def test_the_snippet_of_the_readme(node: Node, bucket: Bucket, proxy: FaultProxy) -> None:
    """The lines that read from Python, in a program of their own."""
    bucket.fill({"train/a.jpg": b"a jpg", "train/b.jpg": b"b"})
    text = (PAGES.parents[1] / "README.md").read_text()
    (snippet,) = re.findall(r"<!-- snippet: read -->\n```python\n(.*?)```", text, re.S)
    program = snippet.replace("s3://bucket/", f"{bucket.url}/")
    environment = {
        **node.environment,
        "CACHEFS_ENDPOINT_URL": bucket.endpoint_url,
        "CACHEFS_CA_BUNDLE": str(bucket.ca_bundle),
    }
    check = "\nassert (data, images) == (b'a jpg', [b'a jpg', b'b'])"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", program + check],
            env=environment, capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    finally:
        end_servers(node.state)
