"""The users of processes at the ends of TCP connections within this machine, as the kernel knows
them (`sock_diag`).

A socket that its process has closed has no owner any more: the kernel answers uid 0 for it, so only
an answer with an inode counts.
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
_QUESTION: Final = struct.Struct("=BBBBI")
_PORTS: Final = struct.Struct("!HH16s16s")
_ANY_COOKIE: Final = struct.pack("=I8s", 0, b"\xff" * 8)
_ANSWER: Final = struct.Struct("=BBBB")
_REST: Final = struct.Struct("=5I")  # expires, rqueue, wqueue, uid, inode
_REST_AT: Final = _HEADER.size + _ANSWER.size + 48
_ESTABLISHED: Final = 1  # states of a socket
_LISTENING: Final = 10
_ALL_STATES: Final = 0xFFFFFFFF
_ANSWER_S: Final = 1.0
_NO_PORT: Final = 0


class Owner(NamedTuple):
    """A socket's state, and the user of the process that has it; `inode` 0: no process has it."""

    state: int
    uid: int
    inode: int


def may_serve_me(uid: int) -> bool:
    """Tells whether a process of this user learns nothing new from this process."""
    return uid in (0, os.geteuid())


def check_caller(local: Any, peer: Any) -> None:
    """Raises AccessDenied unless the process that connected from `peer` to our `local` address is
    of our user, or root's."""
    owner = _find(peer, local)
    if owner is None or owner.state != _ESTABLISHED or not owner.inode:
        raise AccessDenied("the kernel does not say whose connection this is", remedy=_REMEDY)
    if not may_serve_me(owner.uid):
        raise AccessDenied(
            f"a server without tokens answers user {os.geteuid()} and root only,"
            f" not user {owner.uid}",
            remedy=_REMEDY,
        )


_REMEDY: Final = "start the cluster with tokens, and give its --token-file"


class ForeignListener(PermissionError):
    """A process of another user listens where this user's master or worker is expected."""


class UnknownListener(ForeignListener):
    """The kernel does not tell whose process listens there."""


def check_listener(peer: Any, local: Any = None) -> None:
    """Raises ForeignListener where a process of another user (root excepted) serves the address
    `peer` of this machine, and UnknownListener where the kernel does not tell. `local` is the own
    end of the connection; None: there is no connection yet, and an address without a known listener
    passes. Addresses of other machines are not judged."""
    if not _is_of_this_machine(peer, local):
        return
    uid = _server_uid(peer, local)
    where = f"{peer[0]}:{peer[1]}"
    if uid is not None and not may_serve_me(uid):
        raise ForeignListener(
            errno.EACCES,
            f"a process of user {uid} listens at {where}: it does not get the token"
            " of this user's cluster; give --token-file where that user's cluster is meant",
        )
    if uid is None and local is not None:
        raise UnknownListener(
            errno.EACCES,
            f"the kernel does not tell whose process listens at {where} (sock_diag is missing or"
            " not allowed): the process does not get the token of this user's cluster;"
            " start the cluster with a --token-file, and give that",
        )


def _is_of_this_machine(peer: Any, local: Any) -> bool:
    """Tells whether an address is one of loopback, or the address of the connection's own end."""
    try:
        there = _address(peer[0])
        return there.is_loopback or (local is not None and there == _address(local[0]))
    except ValueError:
        return False


def _server_uid(peer: Any, local: Any) -> int | None:
    """Returns the user of the process that has accepted the connection, or, as long as none has,
    that listens; None where the kernel knows neither."""
    if local is not None:
        accepted = _find(peer, local)
        if accepted is not None and accepted.state != _LISTENING and accepted.inode:
            return accepted.uid
    listener = _find(peer, (peer[0], _NO_PORT))
    return listener.uid if listener is not None and listener.state == _LISTENING else None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Raises ValueError. An IPv4 address within IPv6 is one of IPv4."""
    found = ipaddress.ip_address(host.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _find(local: Any, remote: Any) -> Owner | None:
    """The socket with these ends; the listener at `local` where no connection has them. None where
    the kernel knows none, or does not tell."""
    try:
        here, there = _address(local[0]), _address(remote[0])
        answer = _ask(here, local[1], there, remote[1])
    except (OSError, ValueError):
        return None
    if len(answer) < _REST_AT + _REST.size or _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return None
    _, state, _, _ = _ANSWER.unpack_from(answer, _HEADER.size)
    _, _, _, uid, inode = _REST.unpack_from(answer, _REST_AT)
    return Owner(state, uid, inode)


def _ask(
    here: ipaddress.IPv4Address | ipaddress.IPv6Address,
    port: int,
    there: ipaddress.IPv4Address | ipaddress.IPv6Address,
    remote_port: int,
) -> bytes:
    """The kernel's answer to one question. Raises OSError."""
    family = socket.AF_INET if here.version == 4 else socket.AF_INET6
    ends = _PORTS.pack(port, remote_port, here.packed, there.packed) + _ANY_COOKIE
    body = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES) + ends
    head = _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as netlink:
        netlink.settimeout(_ANSWER_S)
        netlink.send(head + body)
        return netlink.recv(4096)
