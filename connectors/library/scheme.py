"""The schemes `fsspec+PROTO://` and `arrow+PROTO://`: any file system of fsspec and of pyarrow."""

from __future__ import annotations

from typing import Final

from cachefs.core.model import UfsSpec
from connectors.base import Capabilities, Connector
from connectors.library.options import FIXED, check_options, normalise
from connectors.meter import Meter
from connectors.scheme import Scheme

# The protocols of fsspec whose facts hold an etag or a generation.
_WITH_VERSIONS: Final = frozenset({"abfs", "az", "gcs", "gs", "s3", "s3a"})


class LibraryScheme(Scheme):
    """A family. The options are the library's own, so that their names are not known here."""

    is_family = True

    def normalise(self, scheme: str, rest: str) -> str:
        return normalise(scheme, rest)

    def check_options(self, spec: UfsSpec) -> None:
        check_options(spec.options)


class FsspecScheme(LibraryScheme):
    """`fsspec+PROTO://host/path`, as fsspec reads `PROTO://host/path`."""

    extra = "fsspec"
    libraries = ("fsspec",)

    def open(self, spec: UfsSpec, meter: Meter) -> Connector:
        from connectors.library.connector import LibraryConnector
        from connectors.library.fsspec_tree import FsspecTree
        from connectors.library.tree import VersionRule

        inner = spec.url.removeprefix("fsspec+")
        capabilities = Capabilities(
            ordered_listings=False,
            etags=inner.partition("://")[0] in _WITH_VERSIONS,
            directories=True,
            posix=False,
            mtime_precision_ns=10**3,
        )
        rule = VersionRule(is_fixed=spec.options.get(FIXED) == "true")
        return LibraryConnector(FsspecTree(inner, spec.options), rule, capabilities)


class ArrowScheme(LibraryScheme):
    """`arrow+PROTO://host/path`, as pyarrow reads `PROTO://host/path`. Options are its query."""

    extra = "arrow"
    libraries = ("pyarrow",)

    def open(self, spec: UfsSpec, meter: Meter) -> Connector:
        from connectors.library.arrow_tree import ArrowTree
        from connectors.library.connector import LibraryConnector
        from connectors.library.tree import VersionRule

        capabilities = Capabilities(
            ordered_listings=False,
            etags=False,
            directories=True,
            posix=False,
            mtime_precision_ns=1,
        )
        rule = VersionRule(is_fixed=spec.options.get(FIXED) == "true")
        tree = ArrowTree(spec.url.removeprefix("arrow+"), spec.options)
        return LibraryConnector(tree, rule, capabilities)


FSSPEC: Final = FsspecScheme()
ARROW: Final = ArrowScheme()
