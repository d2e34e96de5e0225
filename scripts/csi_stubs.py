"""Generates the messages of CSI and of the kubelet's plugin registration: `cachefs/csi/generated/`.

Takes the two protocol files and their licences from Go modules of pinned versions (needs `go`), and
runs a pinned compiler, which uv installs for this run only.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = "cachefs/csi/generated"
COMPILER: Final = "grpcio-tools==1.85.1"
SECONDS: Final = 600.0


class Protocol(NamedTuple):
    """A protocol file of a Go module, and the name of its stub."""

    module: str
    path: str
    name: str


PROTOCOLS: Final = (
    Protocol("github.com/container-storage-interface/spec@v1.13.0", "csi.proto", "csi"),
    Protocol("k8s.io/kubelet@v0.36.3", "pkg/apis/pluginregistration/v1/api.proto", "registration"),
)


def run(*command: str, cwd: Path) -> str:
    """Returns what a command prints. Raises CalledProcessError, TimeoutExpired."""
    done = subprocess.run(
        command, cwd=cwd, check=True, timeout=SECONDS, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def module_directory(module: str, work: Path) -> Path:
    """Returns the directory of a Go module in the module cache; downloads it if needed."""
    return Path(json.loads(run("go", "mod", "download", "-json", module, cwd=work))["Dir"])


def main() -> int:
    """Writes the stubs and the licences."""
    target = ROOT / PACKAGE
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / PACKAGE).mkdir(parents=True)
        for protocol in PROTOCOLS:
            directory = module_directory(protocol.module, work)
            shutil.copyfile(directory / protocol.path, work / PACKAGE / f"{protocol.name}.proto")
            shutil.copyfile(directory / "LICENSE", target / f"LICENSE.{protocol.name}")
        files = [f"{PACKAGE}/{protocol.name}.proto" for protocol in PROTOCOLS]
        uv = str(Path(sys.executable).parent / "uv")
        compiler = (uv, "run", "--no-project", "--with", COMPILER, "python", "-m")
        options = ("grpc_tools.protoc", "-I.", f"--python_out={ROOT}", f"--pyi_out={ROOT}")
        run(*compiler, *options, *files, cwd=work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
