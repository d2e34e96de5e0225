"""The image: every entry point starts in it with a root that cannot be written, the servers as an
ordinary user without capabilities. No container engine runs here: the root is a mount."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.build import DOCKERFILE, last_stage
from tests.deploy.dockerfile import Copy, Run, parse
from tests.deploy.foreground import Services
from tests.deploy.image import ROOT, Image, built, inside, write_archive
from tests.services.s3_server import free_port

pytestmark = pytest.mark.timeout(900)  # the first run builds the base and the image

USER: Final = 65532
SIZE_BYTES: Final = 320_000_000
RUN_S: Final = 60.0
PYTHON: Final = "/opt/cachefs/bin/python"
CLIENTS: Final = """
import botocore.session
session = botocore.session.get_session()
for name in session.get_available_services():
    session.create_client(name, region_name="us-east-1")
    print(name)
"""


@pytest.fixture(scope="module")
def image() -> Image:
    return built()


@pytest.fixture
def services() -> Iterator[Services]:
    made = Services()
    yield made
    made.close()


class Machine:
    """Runs commands in the image, with a directory of the test at /tmp/state."""

    def __init__(self, image: Image, root: Path) -> None:
        self._image = image
        self._root = root
        self.state = root / "state"
        self.state.mkdir()
        os.chown(self.state, USER, USER)
        self._count = 0

    def words(self, *command: str, user: int = USER) -> list[str]:
        self._count += 1
        root = self._root / f"root{self._count}"
        root.mkdir()
        return inside(self._image, root, *command, user=user, binds=(self.state,))

    def run(self, *command: str, user: int = USER) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(*command, user=user), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=RUN_S,
        )  # fmt: skip


@pytest.fixture
def machine(image: Image, tmp_path: Path) -> Machine:
    return Machine(image, tmp_path)


def test_the_image_is_small_and_adds_only_our_programs(image: Image) -> None:
    print(f"{image.size_bytes / 1e6:.0f} MB")
    assert image.size_bytes <= SIZE_BYTES
    added = {str(path.relative_to(image.added)) for path in image.added.glob("*/*")}
    assert added == {"etc/group", "etc/passwd", "opt/cachefs"}
    programs = {path.name for path in (image.added / "opt/cachefs/bin").iterdir()}
    assert "cachefs" in programs
    assert not {name for name in programs if name.startswith(("pip", "activate", "cython"))}


def test_the_services_of_amazon_that_are_called_are_described(machine: Machine) -> None:
    """The image has no others: their descriptions are a tenth of it."""
    done = machine.run(PYTHON, "-I", "-c", CLIENTS)
    assert done.returncode == 0, done.stdout
    assert done.stdout.split() == ["s3", "signin", "sqs", "sso", "sso-oidc", "sts"]


def test_the_entry_point_is_the_command(machine: Machine) -> None:
    stage = last_stage()
    assert stage.entry_point == ["/opt/cachefs/bin/cachefs"]
    assert stage.user == f"{USER}:{USER}"
    done = machine.run(*stage.entry_point, "--version")
    assert (done.returncode, done.stdout.startswith("cachefs ")) == (0, True), done.stdout


def test_nothing_can_be_written(machine: Machine) -> None:
    for user in (USER, 0):
        for place in ("/opt/cachefs/a", "/etc/a", "/a"):
            done = machine.run("touch", place, user=user)
            assert done.returncode == 1
            assert "denied" in done.stdout or "Read-only file system" in done.stdout


def test_the_user_has_a_group_of_its_own(machine: Machine) -> None:
    """Directories of the group are trusted then: see docs/security.md."""
    assert (
        machine.run("id").stdout == "uid=65532(cachefs) gid=65532(cachefs) groups=65532(cachefs)\n"
    )


@pytest.mark.parametrize(
    ("command", "user", "says"),
    [
        (("cachefs", "csi"), 0, "--endpoint is missing"),
        (("cachefs", "csi", "--help"), 0, "Run the CSI driver"),
        (("cachefs", "csi"), USER, "run it as root"),
        (("cachefs", "fuse-agent"), 0, "--holder is missing"),
        (("cachefs", "fuse-agent", "--help"), 0, "Serve every mount"),
        (("cachefs", "operator"), USER, "no account for Kubernetes"),
        (("cachefs", "load", "--help"), USER, "Load everything"),
        ((PYTHON, "-I", "-m", "cachefs.kube.volume_users"), USER, "no account for Kubernetes"),
        ((PYTHON, "-I", "-c", "import pip"), USER, "No module named 'pip'"),
    ],
    ids=lambda one: one if isinstance(one, str) else None,
)
def test_a_command_has_what_it_needs(
    command: tuple[str, ...], user: int, says: str, machine: Machine
) -> None:
    assert says in machine.run(*command, user=user).stdout


def test_the_holder_starts(machine: Machine) -> None:
    words = machine.words(PYTHON, "-I", "-m", "cachefs.holder", "/tmp/holder", user=0)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()


def test_a_master_and_a_worker_start(machine: Machine, services: Services) -> None:
    address = f"127.0.0.1:{free_port()}"
    home = "/tmp/state"
    master = machine.words(
        "cachefs", "master", "--no-token", f"--listen={address}",
        f"--home={home}/home", f"--store=lmdb:{home}/store",
    )  # fmt: skip
    assert "the master is ready" in services.start("master", master, {"PATH": os.environ["PATH"]})
    worker = machine.words(
        "cachefs", "worker", "--no-token", f"--master={address}",
        f"--home={home}/home", f"--tier=ssd:{home}/tier:64MiB",
    )  # fmt: skip
    assert "is a member" in services.start("worker", worker, {"PATH": os.environ["PATH"]})
    assert "1 worker" in machine.run("cachefs", "workers", f"--master={address}").stdout
    assert services.stop("worker") == 0
    assert services.stop("master") == 0


def test_an_archive_has_the_layers_and_the_names(image: Image, tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    write_archive(image, path, "1", "2")
    with tarfile.open(path) as archive:
        manifest = archive.extractfile("manifest.json")
        assert manifest is not None
        (listed,) = json.load(manifest)
        assert listed["RepoTags"] == ["localhost/cachefs:1", "localhost/cachefs:2"]
        assert len(listed["Layers"]) == 2
        assert {listed["Config"], *listed["Layers"]} <= set(archive.getnames())


# ---- the Dockerfile ------------------------------------------------------------------------------


def test_the_base_is_an_argument() -> None:
    text = DOCKERFILE.read_text()
    assert {stage.base for stage in parse(text, {})} == {"python:3.12-slim"}
    assert {stage.base for stage in parse(text, {"BASE": "mine"})} == {"mine"}


def test_a_dockerfile_is_read_as_it_is_written() -> None:
    text = (
        "FROM a AS b\nWORKDIR /w\n# no\nCOPY x y z/\nRUN one && \\\n    two\n"
        "FROM a\nCOPY --from=b /w /v\n"
    )
    first, second = parse(text, {})
    assert first.steps == [
        (Copy("", ("x", "y"), "z/"), "/w"),
        (Run("one && two"), "/w"),
    ]
    assert second.steps == [(Copy("b", ("/w",), "/v"), "/")]
    with pytest.raises(ValueError, match="VOLUME"):
        parse("FROM a\nVOLUME /a\n", {})


def test_without_an_image_builder_make_says_what_to_do(tmp_path: Path) -> None:
    for name in ("make", "sh", "sed"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    done = subprocess.run(
        ["make", "image"], cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True,
        timeout=RUN_S,
    )  # fmt: skip
    assert done.returncode != 0
    first, *_ = done.stderr.splitlines()
    assert first == "make image needs buildah: apt-get install buildah"
