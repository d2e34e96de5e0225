"""The scheme `az://`: a container of Azure Blob Storage, or a prefix of it."""

from __future__ import annotations

from typing import Final

from cachefs.core.model import UfsSpec
from connectors.azure.options import OPTIONS, parse_options, parse_place
from connectors.base import Connector
from connectors.meter import Meter
from connectors.scheme import Scheme


class AzureScheme(Scheme):
    """`az://account/container/prefix`. Nothing is percent-decoded."""

    options = OPTIONS
    extra = "azure"
    libraries = ("azure", "certifi", "pycurl")

    def normalise(self, scheme: str, rest: str) -> str:
        account, container, prefix = parse_place(rest)
        url = f"az://{account}/{container}"
        return f"{url}/{prefix}" if prefix else url

    def check_options(self, spec: UfsSpec) -> None:
        super().check_options(spec)
        parse_options(spec.options)

    def open(self, spec: UfsSpec, meter: Meter) -> Connector:
        from connectors.azure.connector import open_container

        place = parse_place(spec.url.removeprefix("az://"))
        return open_container(place, parse_options(spec.options), meter.made)


SCHEME: Final = AzureScheme()
