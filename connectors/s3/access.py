"""The access to one bucket: endpoint, region, addressing, certificates, proxies, credentials.

They are resolved once, at the first request, by botocore's rules (profile, environment, shared
files, web identity, containers, instances). The options of the source take precedence. Keys of a
named credential are read from this machine again and again.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.utils import get_environ_proxies

from cachefs.core.errors import BadConfig, CredentialsMissing, Unsupported, lacks_descriptors
from connectors.credential import Credential
from connectors.deadline import NEVER_S
from connectors.kept_token import KeptToken
from connectors.s3.errors import from_botocore
from connectors.s3.options import S3Options

FIELDS: Final = ("access_key_id", "secret_access_key", "session_token")  # of a named credential
DEFAULT_REGION: Final = "us-east-1"
# botocore does not translate what its parsers, files and programs (`credential_process`) raise.
_OF_CHAIN: Final = (
    BotoCoreError, ClientError, OSError, ValueError, LookupError, TypeError, AttributeError,
    RuntimeError,
)  # fmt: skip
NO_CREDENTIALS: Final = "set AWS_PROFILE or --aws-profile NAME, or --anonymous for a public bucket"


class Keys(NamedTuple):
    """Credentials at one moment. `repr` hides them from logs."""

    access_key: str
    secret_key: str
    token: str | None

    def __repr__(self) -> str:
        return "Keys(...)"


class Endpoint(NamedTuple):
    """The address of the bucket, and the settings of its connections."""

    url: str  # of the bucket, without a trailing '/'
    service_url: str  # of the service, as for path-style addressing
    region: str
    virtual: bool
    aws: bool
    verify: str | bool  # a PEM file, or the system's certificates
    proxies: dict[str, str]


class S3Credentials:
    """The credentials chain of one source. Thread-safe. botocore renews the credentials if it can,
    and has no time limit for the threads that wait for that: `KeptToken` has. After `forget` the
    chain is searched again (a rotated file, a new login)."""

    def __init__(self, options: S3Options, clock: Callable[[], float] = time.time) -> None:
        self._profile = options.profile or None
        self._named = _named(options)
        self.anonymous = options.anonymous
        self._chain: Any = None
        self._kept: KeptToken[Keys] = KeptToken("the credentials", clock)

    def current(self) -> Keys | None:
        """Returns the credentials; None: requests are unsigned. Raises CredentialsMissing."""
        if self.anonymous:
            return None
        keys = (
            _of_credential(self._named) if self._named else self._kept.current("", self._of_chain)
        )
        if not keys.access_key or not keys.secret_key:
            raise CredentialsMissing("the credentials are empty", remedy=NO_CREDENTIALS)
        if not _fits_header(f"{keys.access_key}{keys.token or ''}"):
            cause = "the credentials have characters that no header can carry"
            raise CredentialsMissing(cause, remedy="write them again, without line ends")
        return keys

    def _of_chain(self) -> tuple[Keys, float]:
        """Returns the keys of the chain, which may renew them now, and when they end."""
        try:
            chain = self._chain = self._chain or open_session(self._profile).get_credentials()
            if chain is None:
                raise CredentialsMissing("no AWS credentials were found", remedy=NO_CREDENTIALS)
            frozen = chain.get_frozen_credentials()
        except _OF_CHAIN as error:
            if lacks_descriptors(error):
                raise
            raise from_botocore(error) from error
        end = getattr(chain, "_expiry_time", None)
        keys = Keys(frozen.access_key, frozen.secret_key, frozen.token)
        return keys, end.timestamp() if end else NEVER_S

    def forget(self) -> None:
        """Discards the credentials, after the origin refused them."""
        if self._named is not None:
            self._named.forget()
        self._chain = None
        self._kept.forget()


def _named(options: S3Options) -> Credential | None:
    """Returns the named credential of the source, if it has one."""
    name = options.credential
    return Credential(name, FIELDS) if name else None


def _of_credential(named: Credential) -> Keys:
    access_key, secret_key, token = named.values()
    return Keys(access_key, secret_key, token or None)


def open_session(profile: str | None) -> Any:
    """Returns a botocore session. Raises botocore's errors if the profile cannot be used."""
    return botocore.session.Session(
        event_hooks=copy.copy(_builtin_handlers()), include_builtin_handlers=False, profile=profile
    )


@functools.cache
def _builtin_handlers() -> Any:
    """Returns botocore's event handlers. A session that registers them takes 16 ms of CPU time, one
    with a copy takes 2 ms."""
    return botocore.session.Session().get_component("event_emitter")


def resolve_endpoint(bucket: str, options: S3Options) -> Endpoint:
    """Returns the endpoint by options, environment and profile, without a request. Raises
    CredentialsMissing for a bad profile, Unsupported for a directory bucket, BadConfig for an
    endpoint or a region that is not printable ASCII."""
    if bucket.endswith("--x-s3"):
        raise Unsupported("directory buckets (S3 Express) cannot be used", path=f"s3://{bucket}")
    try:
        session = open_session(options.profile or None)
        region = options.region or session.get_config_variable("region") or DEFAULT_REGION
        service_url = options.endpoint_url or _configured_url(session, region)
        verify = options.ca_bundle or session.get_config_variable("ca_bundle") or True
    except BotoCoreError as error:
        raise from_botocore(error) from error
    if not _fits_header(service_url) or not _fits_header(region):
        cause = f"bad endpoint URL {service_url!r} or region {region!r}"
        raise BadConfig(cause, remedy="write both in printable ASCII, a host as xn--")
    return _address(bucket, service_url.rstrip("/"), region, options.addressing_style, verify)


def _fits_header(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _configured_url(session: Any, region: str) -> str:
    config = Config(signature_version=UNSIGNED, region_name=region)
    try:
        url: str = session.create_client("s3", config=config).meta.endpoint_url
    except ValueError as error:  # botocore's for a URL of the environment or of the profile
        remedy = "write AWS_ENDPOINT_URL, or endpoint_url of the profile, as https://host[:port]"
        raise BadConfig(f"bad endpoint URL ({error})", remedy=remedy) from error
    return url


def _address(
    bucket: str, service_url: str, region: str, style: str, verify: str | bool
) -> Endpoint:
    parts = urlsplit(service_url)
    host = parts.hostname or ""
    aws = host.endswith((".amazonaws.com", ".amazonaws.com.cn"))
    fits_host = "_" not in bucket and bucket == bucket.lower()
    plain = fits_host and not ("." in bucket and parts.scheme == "https")
    virtual = style == "virtual" or (style == "auto" and aws and plain)
    url = f"{parts.scheme}://{bucket}.{parts.netloc}{parts.path}"
    if not virtual:
        url = f"{service_url}/{bucket}"
    return Endpoint(url, service_url, region, virtual, aws, verify, get_environ_proxies(url))


def in_region(endpoint: Endpoint, bucket: str, region: str, options: S3Options) -> Endpoint:
    """Returns the endpoint in another region; AWS has the region in the host name."""
    if region == endpoint.region:
        return endpoint
    if not endpoint.aws or options.endpoint_url:
        return endpoint._replace(region=region)
    service_url = _configured_url(open_session(options.profile or None), region).rstrip("/")
    return _address(bucket, service_url, region, options.addressing_style, endpoint.verify)
