"""What Datasets may have, as the controller was started. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from cachefs.core.errors import BadConfig
from cachefs.kube.dataset_spec import S3, Spec

_S3: Final = "s3"
_STORES: Final = (_S3, "gs", "az", "hdfs")  # as the pattern of the definition has them
_LOCAL: Final = "file"
_CREDENTIAL_OPTIONS: Final = ("credential", "profile")
# Options that give no rights at the store, and name no files of the servers but certificates.
HARMLESS_OPTIONS: Final = ("anonymous", "billing_project", "ca_bundle", "endpoint_url")
_ENDPOINT: Final = "endpoint_url"  # of gs:// and az://, whose requests carry a token
_WEBHOOK: Final = "webhook:"


class Rules(msgspec.Struct, frozen=True):
    """The rules. `own_profiles`: only the profile, and the credential, with the name of the
    Dataset's namespace. `confine`: inline volumes show only data of their pod's namespace."""

    file_sources: bool = False
    own_profiles: bool = False
    confine: bool = False

    def check(self, spec: Spec, namespace: str) -> None:
        """Raises BadConfig for a spec that these rules do not allow."""
        scheme = spec.source.partition("://")[0]
        if scheme == _LOCAL and not self.file_sources:
            raise BadConfig(
                "the source is files of the servers",
                remedy="use an object store, or start the controller with --file-sources",
            )
        if scheme not in (*_STORES, _LOCAL):
            raise BadConfig(
                f"no source of a Dataset: {scheme}://", remedy=f"use one of {', '.join(_STORES)}"
            )
        if scheme != _S3 and spec.s3 != S3():  # they would reach the source unchecked
            raise BadConfig(f"a source {scheme}:// has no options of S3", remedy="use spec.options")
        for name in _CREDENTIAL_OPTIONS:
            if name in spec.options:
                raise BadConfig(f"the options have {name!r}", remedy="use spec.credentials")
        if self.own_profiles:
            _check_own(spec, namespace)


def _check_own(spec: Spec, namespace: str) -> None:
    """Raises BadConfig if the source has the rights of another namespace."""
    given = {
        "profile": spec.credentials.profile,
        "credential": spec.credentials.name,
        "credential of the feed": _secret_of(spec.push),
    }
    for what, name in given.items():
        if name not in ("", namespace):
            raise BadConfig(
                f"the {what} {name!r} is not that of the namespace {namespace}",
                remedy=f"use {namespace!r}",
            )
    refused = sorted(spec.options.keys() - {*HARMLESS_OPTIONS})
    if refused:
        raise BadConfig(
            f"a Dataset may not have the option {refused[0]!r} here",
            remedy=f"use spec.credentials.name; allowed: {', '.join(HARMLESS_OPTIONS)}",
        )
    is_own = bool(spec.credentials.name) or spec.options.get("anonymous") == "true"
    if _ENDPOINT in spec.options and not is_own:
        raise BadConfig(
            f"the option {_ENDPOINT!r} would send the servers' own token to any host",
            remedy=f'use spec.credentials.name: {namespace}, or anonymous: "true"',
        )


def _secret_of(push: str) -> str:
    """Returns the name of the credential whose secret a feed has; "" for none."""
    return push.removeprefix(_WEBHOOK) if push.startswith(_WEBHOOK) else ""
