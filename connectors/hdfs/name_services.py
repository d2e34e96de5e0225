"""The NameNodes of a source: one host, or those of a name service in Hadoop's configuration files.

hdfs-native reads the same files itself. The connector needs the addresses to end connections to a
silent NameNode (`connectors.hdfs.connections`), and for messages.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple
from xml.etree import ElementTree

from cachefs.core.errors import BadConfig

FILES: Final = ("core-site.xml", "hdfs-site.xml")
DEFAULT_PORT: Final = 8020


class NameNodes(NamedTuple):
    """`url` is what the client library gets; `hosts` are the NameNodes behind it."""

    url: str
    hosts: tuple[tuple[str, int], ...]


def default_conf_dir() -> str:
    """Returns the configuration directory of the environment, as Hadoop's programs find it; "" if
    there is none."""
    home = os.environ.get("HADOOP_HOME", "")
    in_home = os.path.join(home, "etc", "hadoop") if home else ""
    return os.environ.get("HADOOP_CONF_DIR", in_home)


def read_configuration(conf_dir: str) -> dict[str, str]:
    """Returns the properties of the files of a directory; none for "". Raises BadConfig."""
    found: dict[str, str] = {}
    for name in FILES if conf_dir else ():
        path = os.path.join(conf_dir, name)
        try:
            root = ElementTree.parse(path).getroot()
        except FileNotFoundError:
            continue
        except (OSError, ElementTree.ParseError, LookupError, ValueError) as error:
            remedy = "it must be a configuration file of Hadoop"
            raise BadConfig(f"cannot be read: {error}", path=path, remedy=remedy) from error
        for item in root.iter("property"):
            found[(item.findtext("name") or "").strip()] = (item.findtext("value") or "").strip()
    return found


def find_name_nodes(authority: str, configuration: dict[str, str]) -> NameNodes:
    """Returns the NameNodes of the authority of a URL: `host:port`, a name service, or a host with
    the default port. Raises BadConfig for a name service without addresses."""
    host, separator, port = authority.rpartition(":")
    if separator:
        return NameNodes(f"hdfs://{authority}", ((host, int(port)),))
    members = configuration.get(f"dfs.ha.namenodes.{authority}", "")
    if not members:
        return NameNodes(f"hdfs://{authority}:{DEFAULT_PORT}", ((authority, DEFAULT_PORT),))
    addresses = [
        configuration.get(f"dfs.namenode.rpc-address.{authority}.{member.strip()}", "")
        for member in members.split(",")
    ]
    return NameNodes(f"hdfs://{authority}", tuple(_address(each, authority) for each in addresses))


def _address(text: str, service: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise BadConfig(
            f"the name service {service} has a NameNode without an address",
            remedy=f"set dfs.namenode.rpc-address.{service}.* in hdfs-site.xml",
        )
    return host, int(port)
