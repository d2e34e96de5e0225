"""The options of an `hdfs://` source, and their validation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import msgspec

from cachefs.core.errors import BadConfig

OPTIONS: Final[dict[str, str]] = {
    "conf_dir": "directory of core-site.xml and hdfs-site.xml, which define the name services;"
    " default: HADOOP_CONF_DIR",
    "user": "user towards HDFS without Kerberos, the same for all hdfs:// sources of a process;"
    " default: HADOOP_USER_NAME, else the user of the process",
}


class HdfsOptions(msgspec.Struct, frozen=True):
    """The parsed options; "" means not given."""

    conf_dir: str = ""
    user: str = ""


def parse_options(options: Mapping[str, str]) -> HdfsOptions:
    """Returns the values of the options, which `Scheme.check_options` knows. Raises BadConfig for a
    bad value."""
    return HdfsOptions(
        conf_dir=_conf_dir(options.get("conf_dir", "")), user=_user(options.get("user", ""))
    )


def _conf_dir(path: str) -> str:
    if path and not os.path.isdir(path):
        remedy = "name the directory of core-site.xml and hdfs-site.xml"
        raise BadConfig("conf_dir: no such directory", path=path, remedy=remedy)
    return path


def _user(name: str) -> str:
    if name and (not name.isprintable() or any(mark in name for mark in " /@:")):
        raise BadConfig(f"bad user {name!r}", remedy="give the short name, as `hdfs dfs -ls` shows")
    return name
