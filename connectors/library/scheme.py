"""The schemes `fsspec+PROTO://` and `arrow+PROTO://`: any file system of fsspec and of pyarrow."""

from __future__ import annotations

from typing import Final

from cachefs.core.errors import BadConfig
from cachefs.core.model import UfsSpec
from connectors.base import Connector
from connectors.credential import OPTION
from connectors.library.options import check_options, normalise
from connectors.meter import Meter
from connectors.scheme import Scheme


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
        from connectors.library.connector import open_fsspec

        return open_fsspec(spec.url, spec.options)


class ArrowScheme(LibraryScheme):
    """`arrow+PROTO://host/path`, as pyarrow reads `PROTO://host/path`. Options are its query."""

    extra = "arrow"
    libraries = ("pyarrow",)

    def check_options(self, spec: UfsSpec) -> None:
        super().check_options(spec)
        if "endpoint_override" in spec.options:
            remedy = "write --endpoint-url URL, which is a part of the source's identity"
            raise BadConfig("endpoint_override is no option", remedy=remedy)
        if OPTION in spec.options and not spec.url.startswith("arrow+s3://"):
            cause = f"pyarrow takes no credentials of {spec.url.partition('://')[0]}:// by name"
            raise BadConfig(cause, remedy="set what its library reads from the environment")

    def open(self, spec: UfsSpec, meter: Meter) -> Connector:
        from connectors.library.connector import open_arrow

        return open_arrow(spec.url, spec.options)


FSSPEC: Final = FsspecScheme()
ARROW: Final = ArrowScheme()
