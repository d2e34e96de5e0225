"""Schemes of installed distributions: found by name or family, and one line when one is broken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from cachefs.core.errors import BadConfig, CacheFSError, Unsupported
from cachefs.core.model import UfsSpec
from connectors.compose import open_connector
from connectors.meter import Meter
from connectors.registry import GROUP, check_options, known_options, normalise
from tests.services import plugins

CLIENTS = (
    "boto3", "botocore", "fsspec", "google", "hdfs_native", "lxml", "obstore", "pyarrow", "pycurl",
)  # fmt: skip
HEAD = "from connectors.scheme import Scheme\nclass {name}(Scheme):\n"
NORMALISE = "    def normalise(self, scheme, rest): return f'{scheme}://{rest}'\n"
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    def install(name: str, schemes: dict[str, str], modules: dict[str, str]) -> None:
        plugins.install(tmp_path / "site", name, schemes, modules)
        for module in modules:
            monkeypatch.delitem(sys.modules, module, raising=False)

    return install


def one_line(act: Callable[[], object], kind: type[CacheFSError] = Unsupported) -> str:
    with pytest.raises(kind) as caught:
        act()
    line = caught.value.one_line()
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("url", "option"),
    [
        ("s3://bucket", "profile"),
        ("s3://bucket", "region"),
        ("s3://bucket", "ca_bundle"),
        ("gs://bucket", "endpoint_url"),
        ("fsspec+memory://a", "depth"),
    ],
)
def test_no_option_has_a_nul(url: str, option: str) -> None:
    """An option may come from the admin API or a Dataset, whose texts may have one."""
    line = one_line(lambda: check_options(UfsSpec(url, {option: "a\0b"})), BadConfig)
    assert line == f"a NUL in the option {option!r}; remove it"


def test_every_scheme_of_ours_is_loaded_without_a_client_library() -> None:
    """By an isolated interpreter, as the servers are started."""
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({CLIENTS!r}))\n"  # an import of these fails
        "from connectors import registry\n"
        f"names = registry.entry_points(group={GROUP!r}).names\n"
        "options = [registry.known_options(f'{name}://x') for name in names]\n"
        "print(*names)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], check=True, text=True, stdout=subprocess.PIPE
    )
    found = set(done.stdout.split())
    assert found >= {"file", "s3"}
    assert found == {point.name for point in entry_points(group=GROUP)}


def test_a_scheme_of_another_distribution(install: Install) -> None:
    text = HEAD.format(name="Zip") + "    options = {'depth': 'how deep'}\n" + NORMALISE
    install("zip-store", {"zip": "zip_scheme:SCHEME"}, {"zip_scheme": text + "SCHEME = Zip()\n"})
    assert normalise("ZIP://a/b") == "zip://a/b"
    assert known_options("zip://a") == {"depth": "how deep"}
    check_options(UfsSpec("zip://a", {"depth": "3"}))
    spec = UfsSpec("zip://a", {"dept": "3"})
    assert "did you mean depth?" in one_line(lambda: check_options(spec), BadConfig)
    assert ", file://, " in one_line(lambda: normalise("zipp+x://a"), BadConfig)
    assert "unknown scheme zip+x://" in one_line(lambda: normalise("zip+x://a"), BadConfig)


def test_a_family_has_every_scheme_that_starts_with_its_name(install: Install) -> None:
    family = HEAD.format(name="F") + "    is_family = True\n" + NORMALISE + "SCHEME = F()\n"
    exact = HEAD.format(name="E") + "    def normalise(self, scheme, rest): return 'exact://'\n"
    install("fam", {"fam": "fam_scheme:SCHEME"}, {"fam_scheme": family})
    assert normalise("fam+sftp://host/p") == "fam+sftp://host/p"
    assert normalise("fam://p") == "fam://p"
    install(
        "exact", {"fam+sftp": "exact_scheme:SCHEME"}, {"exact_scheme": exact + "SCHEME = E()\n"}
    )
    assert normalise("fam+sftp://host/p") == "exact://"
    assert normalise("fam+ftp://host/p") == "fam+ftp://host/p"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import no_such_library", "(ModuleNotFoundError: No module named 'no_such_library')"),
        ("SCHEME = (", "(SyntaxError: "),
        ("raise RuntimeError('two\\nlines')", "(RuntimeError: two)"),
        ("OTHER = 1", "(AttributeError: "),
        ("SCHEME = object()", "(TypeError: odd_scheme:SCHEME is no Scheme)"),
    ],
)
def test_a_plugin_that_cannot_be_loaded(install: Install, text: str, says: str) -> None:
    install("odd-store", {"odd": "odd_scheme:SCHEME"}, {"odd_scheme": text})
    line = one_line(lambda: normalise("odd://x"))
    assert says in line
    assert line.startswith("the plug-in of odd:// cannot be loaded")
    assert line.endswith("update or uninstall the distribution odd-store")
    assert normalise("/data") == "file:///data"


def test_a_plugin_that_fails(install: Install) -> None:
    text = HEAD.format(name="Bad") + NORMALISE + "    def open(self, spec, meter): 1 / 0\n"
    install("bad", {"bad": "bad_scheme:SCHEME"}, {"bad_scheme": text + "SCHEME = Bad()\n"})
    spec = UfsSpec("bad://x")
    line = one_line(lambda: open_connector(spec, deadline_s=1, meter=Meter()))
    assert "the plug-in of bad:// failed (ZeroDivisionError: " in line


def test_an_extra_of_another_distribution(install: Install) -> None:
    text = HEAD.format(name="Ftp") + "    extra, libraries = 'ftp', ('no_such_ftp',)\n" + NORMALISE
    text += "    def open(self, spec, meter): import no_such_ftp.client\nSCHEME = Ftp()\n"
    install("ftp-store", {"ftp": "ftp_scheme:SCHEME"}, {"ftp_scheme": text})
    line = one_line(lambda: open_connector(UfsSpec("ftp://x"), deadline_s=1, meter=Meter()))
    assert line == "ftp:// sources need the extra ftp; pip install 'ftp-store[ftp]'"


def test_one_scheme_of_two_distributions(install: Install) -> None:
    text = HEAD.format(name="Two") + NORMALISE + "SCHEME = Two()\n"
    for name in ("two-a", "two-b"):
        points = {"two": "two_scheme:SCHEME", "s3": "two_scheme:SCHEME"}
        install(name, points, {"two_scheme": text})
    line = one_line(lambda: normalise("two://x"))
    assert line == "two:// is a scheme of two-a and two-b; uninstall all but one"
    assert normalise("s3://bucket/") == "s3://bucket"  # ours is used
