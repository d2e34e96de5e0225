"""The settings of a source: what `mount`, `ufs add` and `ufs set` say of its store."""

from __future__ import annotations

from typing import Final

from cachefs.core.setting import Setting, Type

SOURCE_COMMANDS: Final = ("mount", "ufs add", "ufs set")

SOURCE_SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        "endpoint_url",
        Type.URL,
        "",
        "URL of the object store's server, for stores other than the cloud's own.",
        "the cloud's own",
        commands=SOURCE_COMMANDS,
    ),
    Setting(
        "credential",
        Type.TEXT,
        "",
        "Name of the source's credential: files in /etc/cachefs/credentials.d/NAME.",
        "the default chain of the store",
        commands=SOURCE_COMMANDS,
    ),
    Setting(
        "aws_profile",
        Type.TEXT,
        "",
        "Profile of the AWS configuration files.",
        "the AWS default chain",
        commands=SOURCE_COMMANDS,
    ),
    Setting(
        "region",
        Type.TEXT,
        "",
        "Region of the bucket.",
        "detected from the bucket",
        commands=SOURCE_COMMANDS,
    ),
    Setting(
        "requester_pays",
        Type.SWITCH,
        False,
        "Accept the charges of requester-pays buckets.",
        commands=SOURCE_COMMANDS,
    ),
    Setting(
        "anonymous",
        Type.SWITCH,
        False,
        "Send no credentials (public buckets).",
        commands=SOURCE_COMMANDS,
    ),
    Setting(
        "ca_bundle",
        Type.PATH,
        "",
        "PEM file of certificate authorities to trust.",
        "the system's",
        commands=SOURCE_COMMANDS,
    ),
    Setting(
        "addressing_style",
        Type.CHOICE,
        "auto",
        "Bucket in the path or in the host name; auto: path with an endpoint URL.",
        choices=("auto", "path", "virtual"),
        commands=SOURCE_COMMANDS,
    ),
    Setting(
        "source_options",
        Type.LIST,
        "",
        "Options of the source's own scheme, each as NAME=VALUE.",
        "none",
        commands=SOURCE_COMMANDS,
        option="option",
    ),
)
