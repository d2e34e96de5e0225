"""The spec of a Dataset, with the names and the forms of its object. Pure.

Fields that this version does not know are ignored: the definition in the API server may be newer.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Credentials(msgspec.Struct, frozen=True, rename="camel"):
    """Who the servers are at the store. `name`: a credential by name; `profile`: of an `s3://`
    source."""

    profile: str = ""
    name: str = ""


class S3(msgspec.Struct, frozen=True):
    """The options of an `s3://` source; names as in the object."""

    endpoint_url: str = msgspec.field(name="endpointURL", default="")
    region: str = ""
    addressing_style: str = msgspec.field(name="addressingStyle", default="")
    ca_bundle: str = msgspec.field(name="caBundle", default="")
    requester_pays: bool = msgspec.field(name="requesterPays", default=False)
    anonymous: bool = False
    ordered_listings: bool = msgspec.field(name="orderedListings", default=True)


class Policies(msgspec.Struct, frozen=True, rename="camel"):
    """The policies; as `cachefs policy set` takes them. None: not set."""

    pin: bool | None = None
    replicas: int | None = None
    ttl: str | None = None
    quota: str | None = None
    admission: str | None = None
    eviction: str | None = None
    local_copy: str | None = None
    sync_background: str | None = None
    profile: str | None = None


class Load(msgspec.Struct, frozen=True, rename="camel"):
    """The load. A greater `revision` starts another one."""

    enabled: bool = True
    bandwidth: str = ""
    hold: str = ""
    verify: bool = False
    priority: Literal["low", "normal", "high"] = "normal"
    revision: int = 0


class Volume(msgspec.Struct, frozen=True, rename="camel"):
    create: bool = False


class Spec(msgspec.Struct, frozen=True, rename="camel"):
    """`options`: of a source that is not `s3://`. `push`: how its store reports changes."""

    source: str
    credentials: Credentials = Credentials()
    s3: S3 = S3()
    options: dict[str, str] = {}
    push: str = ""
    sync_interval: str | None = None
    policies: Policies = Policies()
    load: Load = Load()
    volume: Volume = Volume()

    @property
    def source_options(self) -> dict[str, str]:
        """The options of the source, as connectors name them."""
        s3 = self.s3
        given = {
            "profile": self.credentials.profile,
            "credential": self.credentials.name,
            "endpoint_url": s3.endpoint_url,
            "region": s3.region,
            "addressing_style": s3.addressing_style,
            "ca_bundle": s3.ca_bundle,
            "requester_pays": "true" if s3.requester_pays else "",
            "anonymous": "true" if s3.anonymous else "",
            "ordered_listings": "" if s3.ordered_listings else "false",
        }
        return self.options | {name: value for name, value in given.items() if value}
