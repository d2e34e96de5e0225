"""Policies by path: the operator's settings for the files at and below a path of the namespace.
Pure.

A policy sets some fields and leaves the others unset. A path inherits from the paths above it: for
each field the nearest path that sets it wins. A profile sets the fields that its own path leaves
unset. Quotas are not inherited: each one limits everything at and below its own path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from cachefs.core.errors import BadConfig
from cachefs.core.units import FOREVER_S, format_duration, format_size, parse_duration, parse_size

MIN_TTL_S: Final = 1.0
MIN_SYNC_BACKGROUND_S: Final = 1.0
PERMISSION_S: Final = 8.0  # how long a worker may use a permission to evict
# How long `pin` waits: until then all earlier permissions have expired, and evictions that began
# at their last moment have ended.
PERMISSION_WINDOW_S: Final = 10.0
FREE: Final = "free"
ADMISSIONS: Final = ("fill", "always")
MOST_REPLICAS: Final = 8
AUTO, ALWAYS, NEVER, NATIVE = "auto", "always", "never", "native"
LOCAL_COPIES: Final = (AUTO, ALWAYS, NEVER)
VIEWS: Final = (AUTO, NATIVE, NEVER)
# What `view=auto` covers. Of larger files, an open costs little of what the read costs.
VIEW_LEAST_FILES: Final = 1000
VIEW_MOST_MEAN_BYTES: Final = 4 << 20
EVICTIONS: Final = ("sieve", "lru")
FROZEN: Final = "frozen"
FROZEN_BY: Final = "frozen_by"
MOST_NODES: Final = 1000  # whose freezes pin one path


class Policy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The policy set at one path; None: not set. `ttl_s`: since the last fill, FOREVER_S: never
    expires. `quota_bytes`: 0 is no quota. `sync_interval_s`: -1 never syncs again. `replicas`:
    workers that own each block. `local_copy`: of blocks that other workers own.
    `sync_background_s`: 0 is none. `view`: which complete directories the kernel alone shows.
    `frozen_by`: nodes whose freezes pin the path, beside the `pin` that operators set."""

    pin: bool | None = None
    ttl_s: float | None = None
    ttl_action: str | None = None
    quota_bytes: int | None = None
    admission: str | None = None
    sync_interval_s: float | None = None
    profile: str | None = None
    replicas: int | None = None
    local_copy: str | None = None
    eviction: str | None = None
    sync_background_s: float | None = None
    view: str | None = None
    frozen_by: tuple[str, ...] | None = None

    @property
    def own_pin(self) -> bool | None:
        """The pin of the path itself, whoever has set it."""
        return True if self.frozen_by else self.pin

    @property
    def is_of_directory(self) -> bool:
        return self.sync_interval_s is not None or self.sync_background_s is not None

    @property
    def says_nothing(self) -> bool:
        return self == _NOTHING


_NOTHING: Final = Policy()
_PINNED: Final = Policy(pin=True)
DEFAULTS: Final = Policy(
    pin=False,
    ttl_s=FOREVER_S,
    ttl_action=FREE,
    quota_bytes=0,
    replicas=1,
    local_copy=AUTO,
    sync_background_s=0.0,
    view=AUTO,
)
PROFILES: Final[Mapping[str, Policy]] = {
    "train-read": Policy(admission="fill", sync_interval_s=3600.0),
    "checkpoint-write": Policy(admission="always", sync_interval_s=5.0),
    "interactive": Policy(admission="always", sync_interval_s=10.0),
}
DEFAULT: Final = "default"


class Rule(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The policies of a content for workers. `admission` and `eviction` "": as the worker is
    configured. `quotas`: (path, bytes) of those that it counts against. New fields go last."""

    pinned: bool = False
    ttl_s: float = FOREVER_S
    admission: str = ""
    quotas: tuple[tuple[bytes, int], ...] = ()
    replicas: int = 1
    local_copy: str = AUTO
    eviction: str = ""

    @property
    def owners(self) -> int:
        """The number of owners of a block, limited because a peer may send any number."""
        return min(max(1, self.replicas), MOST_REPLICAS)


NO_RULE: Final = Rule()


class EffectivePolicy(msgspec.Struct, frozen=True):
    """The effective policy at a path. A field is None if neither a path nor a default sets it: the
    source's interval or the worker's admission applies. `where`: field -> path that sets it."""

    policy: Policy
    where: dict[str, str]
    quotas: tuple[tuple[bytes, int], ...] = ()

    @property
    def rule(self) -> Rule:
        """The rule for workers."""
        policy = self.policy
        ttl_s = FOREVER_S if policy.ttl_s is None else policy.ttl_s
        return Rule(
            bool(policy.pin),
            ttl_s,
            policy.admission or "",
            self.quotas,
            policy.replicas or 1,
            policy.local_copy or AUTO,
            policy.eviction or "",
        )


def resolve(chain: Sequence[tuple[bytes, Policy]]) -> EffectivePolicy:
    """Returns the effective policy below a chain of (path, policy), the outermost first."""
    values: dict[str, Any] = {}
    where: dict[str, str] = {}
    for policy, whose in _layers(chain):
        for name in FIELDS:
            value = getattr(policy, name)
            if value is not None:
                values[name], where[name] = value, whose
    quotas = tuple((path, policy.quota_bytes) for path, policy in chain if policy.quota_bytes)
    return EffectivePolicy(Policy(**values), where, quotas)


def _layers(chain: Iterable[tuple[bytes, Policy]]) -> Iterable[tuple[Policy, str]]:
    """Yields each policy and the path that sets it, the weakest first."""
    yield DEFAULTS, DEFAULT
    for path, policy in chain:
        if policy.profile is not None:
            yield PROFILES.get(policy.profile, _NOTHING), f"{shown(path)} ({policy.profile})"
        yield policy, shown(path)
        if policy.frozen_by and not policy.pin:
            yield _PINNED, f"{shown(path)} ({FROZEN})"


def path_and_profile(where: str) -> tuple[str, str]:
    """Splits a value of `EffectivePolicy.where`: the path, and ` (PROFILE)` if the profile of the
    path sets the field, ` (frozen)` if a freeze does, else "". A path may have parentheses of its
    own."""
    path, mark, profile = where.rpartition(" (")
    if mark and profile.endswith(")") and profile[:-1] in (*PROFILES, FROZEN):
        return path, mark + profile
    return where, ""


def merged(old: Policy, change: Policy, unset: Iterable[str] = ()) -> Policy:
    """Returns the policy of a path after a change of some fields and the removal of others."""
    values = {name: getattr(change, name) for name in FIELDS}
    said = {name: value for name, value in values.items() if value is not None}
    return msgspec.structs.replace(old, **{**dict.fromkeys(unset), **said})


def with_freeze(old: Policy, node: str, *, pinned: bool) -> Policy:
    """Returns the policy of a path with, or without, the pin of a node's freeze. Raises
    BadConfig."""
    nodes = {*(old.frozen_by or ())} - {node}
    if pinned:
        nodes.add(node)
    if len(nodes) > MOST_NODES:
        remedy = "unpin it (cachefs unpin), which removes the pins of all freezes"
        raise BadConfig(f"{MOST_NODES} nodes have frozen it, the limit", remedy=remedy)
    return msgspec.structs.replace(old, frozen_by=tuple(sorted(nodes)) or None)


def shown(path: bytes) -> str:
    """Returns a path of the namespace for people."""
    return "/" + path.strip(b"/").decode("utf-8", "backslashreplace")


def normal(path: bytes) -> bytes:
    """Returns a path of the namespace in canonical form (no empty parts). Raises BadConfig."""
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise BadConfig("a path of the namespace has no '..'", path=shown(path))
    return b"/".join(parts)


def above(path: bytes) -> Iterable[bytes]:
    """Yields the path itself and all above it, the innermost first; b"" is the root."""
    while path:
        yield path
        path = path.rpartition(b"/")[0]
    yield b""


# ---- as people write them ------------------------------------------------------------------------

_YES: Final = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}


def _pin(text: str) -> bool:
    if text not in _YES:
        raise BadConfig(f"bad pin {text!r}", remedy="write yes or no")
    return _YES[text]


def _ttl(text: str) -> float:
    ttl_s = FOREVER_S if text == "never" else parse_duration(text)
    if ttl_s != FOREVER_S and ttl_s < MIN_TTL_S:
        raise BadConfig(f"bad ttl {text!r}: at least 1s", remedy="write it as 12h, 7d or never")
    return ttl_s


def _ttl_action(text: str) -> str:
    if text != FREE:
        raise BadConfig(f"bad ttl_action {text!r}", remedy="write free")
    return text


def _quota(text: str) -> int:
    return 0 if text == "none" else parse_size(text)


def _one_of(name: str, allowed: Iterable[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise BadConfig(f"bad {name} {text!r}", remedy=f"write {' or '.join(allowed)}")
        return text

    return parse


def _replicas(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_REPLICAS:
        raise BadConfig(f"bad replicas {text!r}", remedy=f"write a number, 1 to {MOST_REPLICAS}")
    return int(text)


def _interval(text: str) -> float:
    return FOREVER_S if text == "never" else parse_duration(text)


def _background(text: str) -> float:
    seconds = 0.0 if text == "none" else parse_duration(text)
    if text != "none" and seconds < MIN_SYNC_BACKGROUND_S:
        remedy = "write it as 1h or none"
        raise BadConfig(f"bad sync_background {text!r}: at least 1s", remedy=remedy)
    return seconds


def _duration(seconds: float) -> str:
    if seconds >= 86400 and seconds % 86400 == 0:
        return f"{seconds / 86400:g}d"
    return format_duration(seconds)


_KEYS: Final[Mapping[str, tuple[str, Callable[[str], Any], Callable[[Any], str]]]] = {
    "pin": ("pin", _pin, lambda value: "yes" if value else "no"),
    "ttl": ("ttl_s", _ttl, _duration),
    "ttl_action": ("ttl_action", _ttl_action, str),
    "quota": ("quota_bytes", _quota, lambda value: format_size(value) if value else "none"),
    "replicas": ("replicas", _replicas, str),
    "local_copy": ("local_copy", _one_of("local_copy", LOCAL_COPIES), str),
    "admission": ("admission", _one_of("admission", ADMISSIONS), str),
    "eviction": ("eviction", _one_of("eviction", EVICTIONS), str),
    "sync_interval": ("sync_interval_s", _interval, _duration),
    "sync_background": (
        "sync_background_s",
        _background,
        lambda value: _duration(value) if value else "none",
    ),
    "view": ("view", _one_of("view", VIEWS), str),
    "profile": ("profile", _one_of("profile", tuple(PROFILES)), str),
}
KEYS: Final = tuple(_KEYS)
FIELDS: Final = tuple(field for field, _, _ in _KEYS.values())


def parse(words: Iterable[str]) -> Policy:
    """Returns the policy of `key=value` words. Raises BadConfig."""
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise BadConfig(f"not key=value: {word!r}", remedy=f"keys are {', '.join(KEYS)}")
        field = field_of(key)
        values[field] = _KEYS[key][1](text.strip())
    return Policy(**values)


def field_of(key: str) -> str:
    """Returns the field of a key. Raises BadConfig."""
    if key not in _KEYS:
        raise BadConfig(f"no such policy: {key!r}", remedy=f"keys are {', '.join(KEYS)}")
    return _KEYS[key][0]


def check(policy: Policy) -> None:
    """Raises BadConfig for an invalid policy, because it was received from a peer."""
    wrong = {
        "ttl": not _is_span(policy.ttl_s, MIN_TTL_S),
        "ttl_action": policy.ttl_action not in (None, FREE),
        "quota": policy.quota_bytes is not None and policy.quota_bytes < 0,
        "replicas": not 1 <= (1 if policy.replicas is None else policy.replicas) <= MOST_REPLICAS,
        "local_copy": policy.local_copy not in (None, *LOCAL_COPIES),
        "admission": policy.admission not in (None, *ADMISSIONS),
        "eviction": policy.eviction not in (None, *EVICTIONS),
        "sync_interval": not _is_span(policy.sync_interval_s, 0.0),
        "sync_background": not _is_background(policy.sync_background_s),
        "view": policy.view not in (None, *VIEWS),
        "profile": policy.profile not in (None, *PROFILES),
    }
    for key, is_wrong in wrong.items():
        if is_wrong:
            raise BadConfig(f"bad {key}: {getattr(policy, _KEYS[key][0])!r}")
    if policy.frozen_by is not None:
        raise BadConfig("only a freeze sets its pin", remedy="cachefs freeze PATH")


def _is_background(seconds: float | None) -> bool:
    return not seconds or MIN_SYNC_BACKGROUND_S <= seconds < float("inf")


def _is_span(seconds: float | None, least_s: float) -> bool:
    return seconds is None or seconds == FOREVER_S or least_s <= seconds < float("inf")


def formatted(policy: Policy) -> dict[str, str]:
    """Returns the set fields as text, by key."""
    found = {}
    for key, (field, _, text_of) in _KEYS.items():
        value = policy.own_pin if field == "pin" else getattr(policy, field)
        if value is not None:
            found[key] = text_of(value)
    return found
