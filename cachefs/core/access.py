"""Access control: tokens, the rights of their holders, the rights that each call needs. Pure:
callers read the files.

A token file has one token per line, optionally followed by its limits; `#` starts a comment:

    TOKEN [name=NAME] [path=/PREFIX] [read-only]

A token without limits grants everything, including the right to be a worker. A process presents the
first token of its file, in HTTP as `Authorization: Bearer TOKEN`.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.errors import AccessDenied, BadConfig
from cachefs.core.globs import select
from cachefs.core.policies import normal

NOT_KNOWN: Final = "the token is not known"
HEADER: Final = "Authorization"
MIN_TOKEN_CHARS: Final = 16
MAX_TOKENS: Final = 10_000
_SCHEME: Final = "Bearer "
_TOKEN: Final = re.compile(r"[!-~]+")
_DIGEST_BYTES: Final = 32


class Caller(msgspec.Struct, frozen=True):
    """The rights of a caller. `prefix`: a path below the namespace root, without slashes at its
    ends. The caller sees only names at or below it; b"" means all names. `may_join`: the caller may
    be a worker, which reads and serves all data."""

    name: str = ""
    prefix: bytes = b""
    may_write: bool = True
    may_join: bool = True

    def sees(self, path: bytes) -> bool:
        """Returns whether a path (below the namespace root) is at or below the prefix."""
        path = path.strip(b"/")
        return not self.prefix or path == self.prefix or path.startswith(self.prefix + b"/")

    @property
    def is_limited(self) -> bool:
        return bool(self.prefix) or not (self.may_write and self.may_join)


EVERYTHING: Final = Caller()


class Token(msgspec.Struct, frozen=True):
    """A line of a token file. The secret is never logged or displayed."""

    secret: str
    caller: Caller

    def __repr__(self) -> str:
        return f"Token({self.caller.name!r})"


class Access:
    """The tokens that one process accepts. Without tokens every caller may do everything."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self._key = secrets.token_bytes(_DIGEST_BYTES)
        self._callers: dict[bytes, tuple[bytes, Caller]] = {}
        for token in tokens:
            self._callers[self._digest(token.secret)] = (token.secret.encode(), token.caller)

    def check(self, header: str | None) -> Caller:
        """Returns the caller that presents the value of `HEADER`. The lookup is by a keyed digest,
        so its duration reveals nothing about the tokens. Raises AccessDenied."""
        if not self._callers:
            return EVERYTHING
        secret = token_of(header)
        if not secret:
            raise AccessDenied("a token is needed", remedy="give a --token-file")
        kept, caller = self._callers.get(self._digest(secret), (b"", EVERYTHING))
        if not hmac.compare_digest(kept, secret.encode(errors="surrogateescape")):
            raise AccessDenied(NOT_KNOWN, remedy="give the cluster's --token-file")
        return caller

    @property
    def is_open(self) -> bool:
        """True if callers need no token."""
        return not self._callers

    def _digest(self, secret: str) -> bytes:
        data = secret.encode(errors="surrogateescape")
        return hashlib.blake2b(data, key=self._key, digest_size=_DIGEST_BYTES).digest()


def header_of(secret: str) -> str:
    """Returns the value of `HEADER` that presents a token."""
    return _SCHEME + secret


def token_of(header: str | None) -> str:
    """Returns the token that a header presents, or "" if it presents none."""
    if header is None or header[: len(_SCHEME)].lower() != _SCHEME.lower():
        return ""
    return header[len(_SCHEME) :].strip()


# ---- token files ---------------------------------------------------------------------------------


def parse_tokens(text: str, where: str) -> list[Token]:
    """Returns the tokens of a file, in order. Raises BadConfig that names the line, not the
    token."""
    tokens: dict[str, Token] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        token = _token(words, f"{where}, line {number}")
        if token.secret in tokens:
            raise BadConfig(f"{where}, line {number}: duplicate token")
        if len(tokens) >= MAX_TOKENS:
            raise BadConfig(f"{where}: more than {MAX_TOKENS} tokens")
        tokens[token.secret] = token
    if not tokens:
        raise BadConfig(f"{where}: the file has no token", remedy=f"make one: {MAKE_TOKEN}")
    return list(tokens.values())


MAKE_TOKEN: Final = "(umask 077; openssl rand -hex 32 > FILE)"  # noqa: S105  a command


def _token(words: list[str], where: str) -> Token:
    secret, *limits = words
    if len(secret) < MIN_TOKEN_CHARS or not _TOKEN.fullmatch(secret):
        raise BadConfig(
            f"{where}: a token has at least {MIN_TOKEN_CHARS} ASCII characters and no spaces",
            remedy=f"make one: {MAKE_TOKEN}",
        )
    caller = EVERYTHING
    for limit in limits:
        name, _, value = limit.partition("=")
        if name == "name" and value:
            caller = msgspec.structs.replace(caller, name=value)
        elif name == "path" and value.startswith("/"):
            prefix = value.strip("/").encode("utf-8", "surrogateescape")
            caller = msgspec.structs.replace(caller, prefix=prefix)
        elif limit == "read-only":
            caller = msgspec.structs.replace(caller, may_write=False)
        else:
            raise BadConfig(
                f"{where}: unknown limit {limit!r}",
                remedy="write TOKEN [name=NAME] [path=/PREFIX] [read-only]",
            )
    may_join = caller.may_write and not caller.prefix
    return Token(secret, msgspec.structs.replace(caller, may_join=may_join))


# ---- what a call needs ---------------------------------------------------------------------------


class Need(enum.Flag):
    """The rights that a call requires of a limited caller."""

    NOTHING = 0
    JOIN = enum.auto()  # the caller may be a worker
    WRITE = enum.auto()
    ALL = enum.auto()  # the caller's token has no path
    PATH = enum.auto()  # the caller sees `call.path`
    BELOW = enum.auto()  # ... and it is below the token's path, not at it
    INOS = enum.auto()  # the caller sees every ino of the call: see `inos_of`
    LATER = enum.auto()  # the call names a number: its handler knows the paths and checks them


# A call that is not listed is refused for every limited caller.
NEEDS: Final[Mapping[type[m.Message], Need]] = {
    c.Register: Need.JOIN,
    c.Heartbeat: Need.JOIN,
    c.Leave: Need.JOIN,
    c.Have: Need.ALL,
    c.Verify: Need.ALL,
    c.Offer: Need.JOIN,
    c.Doubt: Need.JOIN,
    c.Drop: Need.JOIN,
    c.Work: Need.JOIN,
    c.Greeting: Need.NOTHING,
    m.Lookup: Need.INOS,
    m.GetAttr: Need.INOS,
    m.ListDir: Need.INOS,
    m.Resolve: Need.PATH,
    c.Batch: Need.INOS,
    c.Locate: Need.INOS,
    c.ListNext: Need.INOS,
    c.ReportChanged: Need.INOS,
    c.Walk: Need.INOS,
    c.GetEvents: Need.LATER,  # the handler omits names that the caller does not see
    c.GetUfs: Need.LATER,
    # A content id contains 64 random bits: only a caller that received it can name it.
    c.PermitEviction: Need.NOTHING,
    c.RulesOf: Need.NOTHING,
    m.GetPolicies: Need.PATH,
    m.SetPolicy: Need.WRITE | Need.PATH | Need.BELOW,
    m.Free: Need.WRITE | Need.PATH,
    m.SubmitJob: Need.WRITE | Need.PATH,
    m.AddJobPaths: Need.WRITE | Need.PATH | Need.LATER,
    m.GetJob: Need.LATER,
    m.ListJobs: Need.LATER,
    m.GetJobFailures: Need.LATER,
    m.ControlJob: Need.WRITE | Need.LATER,
    m.StartSync: Need.WRITE | Need.PATH,  # a dry run: see `_needs_of`
    m.GetSync: Need.LATER,  # the handler checks `stop`
    # A source is read with the credentials of the cluster's machines: a caller that adds one can
    # read everything that they can read, at any path.
    c.PushEvents: Need.PATH,  # and the secret of the source
    c.AddUfs: Need.WRITE | Need.ALL,
    c.SetUfs: Need.WRITE | Need.ALL,
    c.RemoveUfs: Need.WRITE | Need.ALL,
    c.Drain: Need.WRITE | Need.ALL,
    c.RemoveWorker: Need.WRITE | Need.ALL,
    c.ListUfs: Need.ALL,
    c.ListWorkers: Need.ALL,
    c.GetView: Need.ALL,  # addresses of all workers
    c.MasterStatus: Need.ALL,
    c.WorkerStatus: Need.ALL,
}


def permit(caller: Caller, call: m.Message) -> None:
    """Raises AccessDenied for a call that this caller may not make. Inos: see `inos_of`."""
    if not caller.is_limited:
        return
    needs = _needs_of(call)
    if needs is None:
        raise _denied(caller, f"does not allow {type(call).__name__}")
    if Need.JOIN in needs and not caller.may_join:
        raise _denied(caller, "is not a worker's")
    if Need.WRITE in needs and not caller.may_write:
        raise _denied(caller, "is for reading only")
    if caller.prefix:
        _permit_paths(caller, call, needs)


def _needs_of(call: m.Message) -> Need | None:
    """Returns the entry of `NEEDS` for a call, or None if it has none. A dry run writes nothing."""
    needs = NEEDS.get(type(call))
    if needs is not None and isinstance(call, m.StartSync) and call.dry_run:
        return needs & ~Need.WRITE
    return needs


def _permit_paths(caller: Caller, call: m.Message, needs: Need) -> None:
    """Raises AccessDenied for a path that the caller does not see, BadConfig for an impossible
    one."""
    if Need.ALL in needs:
        raise _denied(caller, f"is limited to {_shown(caller.prefix)}")
    if Need.PATH in needs and not all(caller.sees(path) for path in _paths(call)):
        raise _denied(caller, f"is limited to {_shown(caller.prefix)}")
    # A policy at the prefix itself limits the token's holder, so only other callers may set it.
    if Need.BELOW in needs and caller.prefix in map(normal, _paths(call)):
        raise _denied(caller, f"is limited to what is below {_shown(caller.prefix)}")


def _paths(call: m.Message) -> list[bytes]:
    """Returns the paths at or below which everything lies that a call selects."""
    match call:
        case m.Resolve() | m.GetPolicies() | m.SetPolicy() | m.Free() | m.StartSync():
            return [call.path]
        case c.PushEvents():
            return [call.path]
        case m.SubmitJob():
            return [select(path).base for path in call.spec.paths]
        case m.AddJobPaths():
            return [select(path).base for path in call.paths]
        case _:
            raise AssertionError(f"{type(call).__name__} has no path")


def permit_metrics(caller: Caller) -> None:
    """Raises AccessDenied for a caller with a prefix, because metrics name all sources."""
    if caller.prefix:
        raise _denied(caller, f"is limited to {_shown(caller.prefix)}")


def inos_of(call: m.Message) -> list[int]:
    """Returns the inos of a call. For a caller with a prefix, each must be at or below it."""
    match call:
        case m.Lookup():
            return [call.parent]
        case m.GetAttr() | m.ListDir() | c.Walk() | c.ReportChanged() | c.ListNext():
            return [call.ino]
        case c.Locate():
            return list(call.inos)
        case c.Batch():
            return [ino for one in call.calls for ino in inos_of(one)]
        case _:
            return []


def _denied(caller: Caller, why: str) -> AccessDenied:
    whose = f"the token {caller.name!r}" if caller.name else "the token"
    return AccessDenied(f"{whose} {why}", remedy="use another --token-file")


def _shown(prefix: bytes) -> str:
    return "/" + prefix.decode("utf-8", "backslashreplace")


# ---- where to listen -----------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """Returns whether an address is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_listen(host: str, *, has_tokens: bool) -> None:
    """Raises BadConfig for an address that other machines can reach while no token is required."""
    if not has_tokens and not is_loopback(host):
        raise BadConfig(
            f"listening on {host or 'every address'} lets other machines in without a token",
            remedy=f"give a --token-file; make one: {MAKE_TOKEN}",
        )


def parse_address(text: str, default_port: int) -> tuple[str, int]:
    """Parses `HOST`, `HOST:PORT`, `:PORT` or `[V6]:PORT` into host ("" = every address) and port
    (0: any free one). Raises BadConfig."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]/\s]*)(?::([0-9]{1,5}))?", text)
    if match is None or not text or (match[2] and int(match[2]) > 65535):
        raise BadConfig(f"not an address: {text!r}", remedy="write it as HOST:PORT")
    return match[1].strip("[]"), default_port if match[2] is None else int(match[2])


def join_address(host: str, port: int) -> str:
    """Returns the text of a host and port: the inverse of `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
