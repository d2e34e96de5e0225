"""The end of this process's TCP connections to given addresses.

A call of a client library that has no time-out, and whose server is silent, ends only when its
connection does.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable
from typing import Final

Address = tuple[str, int]
_TABLES: Final = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_OF_IPV4: Final = bytes(10) + b"\xff\xff"  # the prefix of an IPv4 address in a socket of IPv6


def resolve(hosts: Iterable[Address]) -> frozenset[Address]:
    """Returns the IP addresses of hosts. A host that cannot be resolved has none."""
    found: set[Address] = set()
    for host, port in hosts:
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            continue
        found |= {(str(answer[4][0]), port) for answer in answers}
    return frozenset(found)


def end_connections(addresses: Iterable[Address]) -> int:
    """Shuts down every connection of this process to one of the addresses, also one that is not
    established yet or already half closed; returns their number. The owner of a connection then
    reads its end, and closes it."""
    inodes = _inodes({form for address in addresses for form in _table_forms(*address)})
    names = os.listdir("/proc/self/fd") if inodes else []
    return sum(_end_connection(int(name), inodes) for name in names)


def _table_forms(ip: str, port: int) -> list[str]:
    """Returns an address as the kernel's tables show it: each word of 4 bytes as a number."""
    if ":" in ip:
        packed = [socket.inet_pton(socket.AF_INET6, ip.partition("%")[0])]
    else:
        packed = [socket.inet_aton(ip), _OF_IPV4 + socket.inet_aton(ip)]
    return [f"{_words(each)}:{port:04X}" for each in packed]


def _words(packed: bytes) -> str:
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


def _inodes(peers: set[str]) -> set[int]:
    """Returns the inodes of the sockets of this network namespace with one of these peers."""
    found = set()
    for table in _TABLES:
        try:
            with open(table) as lines:
                rows = [line.split() for line in lines]
        except OSError:  # a kernel without IPv6
            continue
        found |= {int(row[9]) for row in rows if row[2] in peers}
    return found


def _end_connection(descriptor: int, inodes: set[int]) -> bool:
    """Ends the connection of a descriptor if it is one of the sockets. Uses a duplicate, since
    another thread may close the descriptor, and the next file may get its number."""
    try:
        if os.fstat(descriptor).st_ino not in inodes:
            return False
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if os.fstat(connection.fileno()).st_ino not in inodes:
                return False
            connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # closed since, or not a socket
        return False
    return True
