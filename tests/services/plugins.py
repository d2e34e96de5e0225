"""Distributions that exist only for a test: a module and the metadata of an installed package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(
    directory: Path, name: str, schemes: Mapping[str, str], modules: Mapping[str, str]
) -> None:
    """Installs a distribution into a directory of `sys.path`. `schemes` has an object reference of
    each scheme, `modules` the text of each module."""
    directory.mkdir(exist_ok=True)
    for module, text in modules.items():
        (directory / f"{module}.py").write_text(text)
    metadata = directory / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = "".join(f"{scheme} = {value}\n" for scheme, value in schemes.items())
    (metadata / "entry_points.txt").write_text(f"[cachefs.connectors]\n{points}")
