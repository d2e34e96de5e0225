"""The users of the processes at both ends of a local TCP connection, from the kernel (`sock_diag`).

The kernel returns uid 0 for a socket that its process has closed, so only a reply with an inode
counts.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from typing import Any, Final, NamedTuple

from cachefs.core.errors import AccessDenied

_SOCK_DIAG: Final = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY: Final = 20  # SOCK_DIAG_BY_FAMILY
_REQUEST: Final = 1  # NLM_F_REQUEST
_HEADER: Final = struct.Struct("=IHHII")
_QUERY: Final = struct.Struct("=BBBBI")
_PORTS: Final = struct.Struct("!HH16s16s")
_ANY_COOKIE: Final = struct.pack("=I8s", 0, b"\xff" * 8)
_REPLY: Final = struct.Struct("=BBBB")
_REST: Final = struct.Struct("=5I")  # expires, rqueue, wqueue, uid, inode
_REST_AT: Final = _HEADER.size + _REPLY.size + 48
_ESTABLISHED: Final = 1  # states of a socket
_LISTENING: Final = 10
_ALL_STATES: Final = 0xFFFFFFFF
_REPLY_S: Final = 1.0
_NO_PORT: Final = 0


class Owner(NamedTuple):
    """A socket's state, and the user of its process. `inode` 0: no process has it."""

    state: int
    uid: int
    inode: int


def _is_trusted(uid: int) -> bool:
    """Returns whether a process of this user may see the secrets of this process."""
    return uid in (0, os.geteuid())


def check_caller(local: Any, peer: Any) -> None:
    """Raises AccessDenied unless the process at `peer`, connected to `local`, is of our user or
    root."""
    owner = _find(peer, local)
    if owner is None or owner.state != _ESTABLISHED or not owner.inode:
        raise AccessDenied("the kernel reports no owner of this connection", remedy=_REMEDY)
    if not _is_trusted(owner.uid):
        raise AccessDenied(
            f"a server without tokens answers only user {os.geteuid()} and root,"
            f" not user {owner.uid}",
            remedy=_REMEDY,
        )


_REMEDY: Final = "start the cluster with tokens, and give its --token-file"


class ForeignListener(PermissionError):
    """A process of another user listens at the address of this user's master or worker."""


class UnknownListener(ForeignListener):
    """The kernel does not report the owner of the listening process."""


def check_listener(peer: Any, local: Any = None) -> None:
    """Raises ForeignListener if a process of another user (except root) serves the address `peer`
    of this machine, and UnknownListener if the kernel does not report its owner. `local`: the local
    end of the connection. If it is None (not connected yet), an unknown listener passes. Addresses
    of other machines are not checked."""
    if not _is_of_this_machine(peer, local):
        return
    uid = _server_uid(peer, local)
    where = f"{peer[0]}:{peer[1]}"
    if uid is not None and not _is_trusted(uid):
        raise ForeignListener(
            errno.EACCES,
            f"a process of user {uid} listens at {where}: it does not get the token"
            " of this user's cluster; to use that user's cluster, give its --token-file",
        )
    if uid is None and local is not None:
        raise UnknownListener(
            errno.EACCES,
            f"the kernel reports no owner of the process at {where} (sock_diag is missing or not"
            " allowed): the process does not get the token of this user's cluster;"
            " start the cluster with a --token-file, and give that",
        )


def _is_of_this_machine(peer: Any, local: Any) -> bool:
    """Returns whether an address is on loopback, or equals the local end's address."""
    try:
        there = _address(peer[0])
        return there.is_loopback or (local is not None and there == _address(local[0]))
    except ValueError:
        return False


def _server_uid(peer: Any, local: Any) -> int | None:
    """Returns the user of the process that accepted the connection. Until it is accepted, that of
    the listener. None if the kernel knows neither."""
    if local is not None:
        accepted = _find(peer, local)
        if accepted is not None and accepted.state != _LISTENING and accepted.inode:
            return accepted.uid
    listener = _find(peer, (peer[0], _NO_PORT))
    return listener.uid if listener is not None and listener.state == _LISTENING else None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Returns the address; an IPv4 address mapped into IPv6 becomes IPv4. Raises ValueError."""
    found = ipaddress.ip_address(host.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _find(local: Any, remote: Any) -> Owner | None:
    """Returns the socket with these ends, or the listener at `local` if no connection has them.
    None if the kernel does not report one."""
    try:
        here, there = _address(local[0]), _address(remote[0])
        answer = _query(here, local[1], there, remote[1])
    except (OSError, ValueError):
        return None
    if len(answer) < _REST_AT + _REST.size or _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return None
    _, state, _, _ = _REPLY.unpack_from(answer, _HEADER.size)
    _, _, _, uid, inode = _REST.unpack_from(answer, _REST_AT)
    return Owner(state, uid, inode)


def _query(
    here: ipaddress.IPv4Address | ipaddress.IPv6Address,
    port: int,
    there: ipaddress.IPv4Address | ipaddress.IPv6Address,
    remote_port: int,
) -> bytes:
    """Returns the kernel's reply to one query. Raises OSError."""
    family = socket.AF_INET if here.version == 4 else socket.AF_INET6
    ends = _PORTS.pack(port, remote_port, here.packed, there.packed) + _ANY_COOKIE
    body = _QUERY.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES) + ends
    head = _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as netlink:
        netlink.settimeout(_REPLY_S)
        netlink.send(head + body)
        return netlink.recv(4096)
