"""The tokens of one user's masters on this machine: one file (0600) per port, in the state home.

    <home>/tokens/PORT

A master or its worker creates a missing file. Commands, mounts and workers of the same user use it
only for a master with a loopback address: the token is never sent to another machine's master.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

from cachefs.core.access import is_loopback, parse_address
from cachefs.core.addresses import address_of
from cachefs.core.cluster import DEFAULT_PORT
from cachefs.core.errors import CacheFSError
from cachefs.core.specs import Security
from cachefs.launcher.state import StateHome

TOKENS_NAME: Final = "tokens"
_TOKEN_BYTES: Final = 32
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_DIR: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def path_of(home: StateHome, port: int) -> Path:
    """Returns the path of the token of the master at a port of this machine."""
    return home.path / TOKENS_NAME / str(port)


def find(home: StateHome, url: str) -> Security | None:
    """Returns the security for the master at a URL, with the token of this machine; None for a
    master of another machine, or if there is no token."""
    port = _own_port(url)
    if port is None or not os.path.lexists(path_of(home, port)):
        return None
    return Security(str(path_of(home, port)), own_token=True)


def find_or_make(home: StateHome, url: str) -> Security | None:
    """Returns the same as `find`, after creating a missing token. Raises as `make`."""
    port = _own_port(url)
    return Security(make(home, port), own_token=True) if port is not None else None


def make(home: StateHome, port: int) -> str:
    """Returns the path of a port's token file; creates it if missing. Raises as `draw`."""
    path = path_of(home, port)
    if os.path.lexists(path):
        return str(path)
    new = draw(home)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(new, path, follow_symlinks=False)
    except OSError as err:
        cause = f"the token cannot be saved: {err.strerror}"
        remedy = "make room, or give --home on a file system with hard links"
        raise CacheFSError(cause, path=str(path), remedy=remedy) from err
    finally:
        os.unlink(new)
    return str(path)


def draw(home: StateHome) -> str:
    """Creates a file with a new token, not yet assigned to a port (see `keep`), and returns its
    path. Raises as `private_dir`; CacheFSError if it cannot be written."""
    directory = home.directory(TOKENS_NAME)
    name = f"new-{secrets.token_hex(8)}"
    dir_fd = os.open(directory, _OPEN_DIR)
    try:
        with open(os.open(name, _NEW_FILE, 0o600, dir_fd=dir_fd), "w", encoding="ascii") as file:
            file.write(f"{secrets.token_hex(_TOKEN_BYTES)}\n")
    except OSError as err:
        cause = f"the token cannot be written: {err.strerror}"
        raise CacheFSError(cause, path=str(directory), remedy="make room, or give --home") from err
    finally:
        os.close(dir_fd)
    return str(directory / name)


def keep(home: StateHome, drawn: str, port: int) -> None:
    """Assigns a drawn token to a port, over a stale one of another master."""
    os.replace(drawn, path_of(home, port))


def remove(home: StateHome, port: int) -> None:
    """Removes the token of a port, whose master requires none. Idempotent."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(path_of(home, port))


def _own_port(url: str) -> int | None:
    host, port = parse_address(address_of(url), DEFAULT_PORT)
    return port if is_loopback(host) else None
