"""What a volume requests: its attributes, its path in the cluster, and the shared mount for it.
Pure.

Volumes that show the same path in the same way share one mount of the node. Its name is a hash of
that path and those options, so that a driver that starts again finds the mount.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from cachefs.core.addresses import SCHEME, ClusterPath, is_cluster, parse_cluster
from cachefs.core.errors import BadConfig
from cachefs.fuse import mount_flags

PODS_PREFIX: Final = "csi.storage.k8s.io/"  # of what the kubelet adds
_NAMESPACE: Final = PODS_PREFIX + "pod.namespace"
_INLINE: Final = PODS_PREFIX + "ephemeral"
_POD: Final = PODS_PREFIX + "pod.name"
_NAME_DIGITS: Final = 16
_MAX_ID: Final = (1 << 32) - 2  # (1 << 32) - 1 means "no user" to the kernel
_MAX_MODE: Final = 0o777
_ALWAYS: Final = frozenset(("ro", "nosuid", "nodev"))  # hold for every mount
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DECIMAL: Final = re.compile(r"[0-9]{1,10}")
_OCTAL: Final = re.compile(r"0?[0-7]{1,4}")
_ATTRIBUTES: Final = ("path", "namespaced", "uid", "gid", "fileMode", "dirMode")


class Volume(msgspec.Struct, frozen=True):
    """A path of the cluster and how its files look: all that distinguishes shared mounts."""

    url: str  # cachefs://HOST:PORT/path
    uid: int = -1
    gid: int = -1
    file_mode: int = 0o644
    dir_mode: int = 0o755
    mount_options: tuple[str, ...] = ()  # see `cachefs.fuse.mount_flags`

    @property
    def mount_name(self) -> str:
        """The name of the shared mount: 16 hex digits."""
        text = msgspec.json.encode(msgspec.to_builtins(self), order="deterministic")
        return hashlib.sha256(text).hexdigest()[:_NAME_DIGITS]


def pod_of(context: Mapping[str, str]) -> str:
    """Returns NAMESPACE/NAME of the pod, as far as the kubelet names it."""
    return f"{context.get(_NAMESPACE, '?')}/{context.get(_POD, '?')}"


def namespace_of(context: Mapping[str, str]) -> str:
    """Returns the namespace of the pod; "" if the kubelet does not name it."""
    return context.get(_NAMESPACE, "")


def parse_volume(
    volume_id: str,
    context: Mapping[str, str],
    flags: Iterable[str],
    master: str,
    *,
    confine: bool = False,
) -> Volume:
    """Returns the volume of a request. `master`: HOST:PORT of the cluster of this node. `confine`:
    inline volumes, whose attributes the pod's author writes, are always below its namespace.
    Raises BadConfig, which names the attribute."""
    own = {k: v for k, v in context.items() if not k.startswith(PODS_PREFIX)}
    unknown = sorted(own.keys() - set(_ATTRIBUTES))
    if unknown:
        raise BadConfig(
            f"unknown volume attribute {unknown[0]!r}", remedy=f"known: {', '.join(_ATTRIBUTES)}"
        )
    has_handle = is_cluster(volume_id)
    is_inline = not has_handle and context.get(_INLINE) != "false"
    is_below = _switch(own, "namespaced") or (confine and is_inline)
    below = _namespace(context) if is_below else ""
    path = _path_of_handle(volume_id, own, master) if has_handle else _path(own)
    return Volume(
        url=ClusterPath(master, "/".join(part for part in (below, path) if part)).url,
        uid=_number(own, "uid", -1),
        gid=_number(own, "gid", -1),
        file_mode=_mode(own, "fileMode", 0o644),
        dir_mode=_mode(own, "dirMode", 0o755),
        mount_options=_options(flags),
    )


def _path_of_handle(handle: str, own: Mapping[str, str], master: str) -> str:
    if "path" in own:
        raise BadConfig(f"the volumeHandle {handle!r} has a path, and so has the attribute 'path'")
    where = parse_cluster(handle)
    if where.address != master:
        raise BadConfig(
            f"the volume is of the cluster {where.address}, and this node's worker is of {master}",
            remedy=f"write {SCHEME}{master}/…, as --master of `cachefs csi` has it",
        )
    return _checked(where.path)


def _path(own: Mapping[str, str]) -> str:
    if not own.get("path"):
        raise BadConfig("the volume attribute 'path' is missing", remedy="path: /imagenet")
    return _checked(own["path"])


def _checked(path: str) -> str:
    """Returns a path without empty parts. Raises BadConfig for one that leaves its parent, or that
    a mount table cannot show."""
    parts = [part for part in path.split("/") if part]
    if {".", ".."} & set(parts) or not path.isprintable():
        raise BadConfig(f"path: {path!r} has '.' or '..', or characters that cannot be printed")
    return "/".join(parts)


def _namespace(context: Mapping[str, str]) -> str:
    found = context.get(_NAMESPACE, "")
    if not _LABEL.fullmatch(found):
        raise BadConfig(
            f"the kubelet names no namespace of the pod: {found!r}",
            remedy="set podInfoOnMount: true in the CSIDriver",
        )
    return found


def _switch(own: Mapping[str, str], name: str) -> bool:
    text = own.get(name, "false")
    if text not in ("true", "false"):
        raise BadConfig(f'{name}: {text!r} is neither "true" nor "false"')
    return text == "true"


def _number(own: Mapping[str, str], name: str, default: int) -> int:
    text = own.get(name)
    if text is None:
        return default
    if not _DECIMAL.fullmatch(text) or int(text) > _MAX_ID:
        raise BadConfig(f"{name}: {text!r} is not a number of 0 to {_MAX_ID}")
    return int(text)


def _mode(own: Mapping[str, str], name: str, default: int) -> int:
    text = own.get(name)
    if text is None:
        return default
    if not _OCTAL.fullmatch(text) or int(text, 8) > _MAX_MODE:
        raise BadConfig(f"{name}: {text!r} is not a mode", remedy='write it as "0644"')
    return int(text, 8)


def _options(flags: Iterable[str]) -> tuple[str, ...]:
    """Returns the mount flags that the kernel applies. Raises BadConfig for any other one."""
    wanted = [flag for flag in flags if flag not in _ALWAYS]
    for flag in wanted:
        if flag not in mount_flags.NAMES and not flag.startswith(mount_flags.CONTEXTS):
            raise BadConfig(f"mount option {flag!r} is not supported", remedy="leave it out")
    options = mount_flags.collect(wanted)
    mount_flags.check(options, is_root=True)
    return options
