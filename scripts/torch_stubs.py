"""Builds the CUDA libraries that torch's own ones name, without their code: `torch_stubs.py LIB`.

The dynamic linker resolves each name when torch is imported. So each stub has its library's name,
and the versions and the names that are needed. Its functions report that there is no GPU, which
torch's automatic differentiation requests even on CPUs.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# Libraries whose names have no version, by how their names begin.
NO_DEVICE = 100  # cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE
UNVERSIONED = {
    "libcuda.so": "cu[A-Z]",
    "libcufile.so": "cuFile",
    "libcusparseLt.so": "cusparseLt",
    "libnccl.so": "p?nccl",
}


def readelf(*arguments: str | Path) -> str:
    command = ["readelf", "-W", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def of_the_system() -> set[str]:
    """Returns the names of the libraries that the dynamic linker finds by itself."""
    done = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
    return set(re.findall(r"^\s(\S+) ", done.stdout, re.M))


class Needs:
    """What the libraries in a folder need: other libraries, their versions, the names in them."""

    def __init__(self, folder: Path) -> None:
        self.libraries: set[str] = set()
        self.versions = defaultdict[str, set[str]](set)
        self.versioned = defaultdict[str, set[str]](set)
        self.unversioned: set[str] = set()
        present = {path.name for path in folder.glob("*.so*")}
        for path in sorted(folder.glob("*.so*")):
            self._add(path)
        self.libraries -= present | of_the_system()

    def _add(self, path: Path) -> None:
        self.libraries |= set(re.findall(r"NEEDED.*\[(.*)\]", readelf("-d", path)))
        library = ""
        for line in readelf("-V", path).splitlines():
            if match := re.search(r"File: (\S+)", line):
                library = match[1]
            elif match := re.search(r"Name: (\S+)", line):
                self.versions[library].add(match[1])
        symbols = readelf("--dyn-syms", path)
        for name, version in re.findall(r"UND (\w+)@(\S+)", symbols):
            self.versioned[version].add(name)
        self.unversioned |= set(re.findall(r"UND (\w+)$", symbols, re.M))

    def names(self, library: str) -> list[str]:
        """Returns the names that a library must have, of all versions."""
        start = UNVERSIONED.get(library[: library.find(".so") + 3], "$")
        plain = {name for name in self.unversioned if re.match(start, name)}
        return sorted(plain.union(*(self.versioned[v] for v in self.versions[library])))

    def script(self, library: str) -> str:
        """Returns the linker's version script."""
        nodes = []
        for version in sorted(self.versions[library]):
            names = " ".join(f"{name};" for name in sorted(self.versioned[version]))
            nodes.append(f"{version} {{ {f'global: {names}' if names else ''} }};\n")
        return "".join(nodes)


def build(folder: Path, library: str, needs: Needs) -> None:
    """Builds one library."""
    with tempfile.TemporaryDirectory() as work:
        code, versions = Path(work, "stub.c"), Path(work, "stub.map")
        functions = (
            f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in needs.names(library)
        )
        code.write_text("".join(functions) or "int none;\n")
        versions.write_text(needs.script(library))
        script = [f"-Wl,--version-script={versions}"] if versions.read_text() else []
        command = ["cc", "-w", "-shared", "-fPIC", "-fno-builtin", f"-Wl,-soname,{library}"]
        subprocess.run([*command, *script, "-o", folder / library, code], check=True)


def main(folder: Path) -> None:
    needs = Needs(folder)
    for library in sorted(needs.libraries):
        build(folder, library, needs)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
