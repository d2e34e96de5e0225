"""The schemes that are installed: the entry points of the group `cachefs.connectors`.

An entry point has the name of its scheme and names an instance of `connectors.scheme.Scheme`. A
family `f` also has the schemes `f+anything`, unless an entry point has that whole name. If two
distributions have one scheme, this distribution's is used; two others are an error. A plug-in that
fails raises Unsupported, with one line that names its distribution.

Imports no adapter, so that the command line can check a source without the adapter's libraries.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Final, NamedTuple

from cachefs.core.errors import BadConfig, CacheFSError, Unsupported
from cachefs.core.install import DISTRIBUTION, install_command
from cachefs.core.model import UfsSpec
from connectors.base import Connector
from connectors.event_queue import EventQueue
from connectors.meter import Meter
from connectors.scheme import Scheme

GROUP: Final = "cachefs.connectors"


class _Plugin(NamedTuple):
    scheme: Scheme
    distribution: str


def normalise(url: str) -> str:
    """Returns the normal form of a source. A bare absolute path is a file URL. Raises BadConfig,
    and Unsupported for a plug-in that fails."""
    name, rest = _split(url)
    plugin = _find(name, url)
    with _failures(plugin, name):
        return plugin.scheme.normalise(name, rest)


def known_options(url: str) -> Mapping[str, str]:
    """Returns the options of a source's scheme, with a help line each. Raises as `normalise`."""
    return _find(_split(url)[0], url).scheme.options


def check_options(spec: UfsSpec) -> None:
    """Raises BadConfig for an option that the source's scheme does not have, or a bad value."""
    name, _ = _split(spec.url)
    plugin = _find(name, spec.url)
    for option, value in spec.options.items():
        if "\0" in value:  # no path, header or environment takes it
            raise BadConfig(f"a NUL in the option {option!r}", remedy="remove it")
    with _failures(plugin, name):
        plugin.scheme.check_options(spec)


def open_adapter(spec: UfsSpec, meter: Meter) -> Connector:
    """Returns the adapter of a source, without decorators. Raises BadConfig, and Unsupported for a
    missing extra or a plug-in that fails."""
    spec = UfsSpec(normalise(spec.url), spec.options)
    check_options(spec)
    name, _ = _split(spec.url)
    plugin = _find(name, spec.url)
    with _failures(plugin, name):
        return plugin.scheme.open(spec, meter)


def open_queue(spec: UfsSpec, url: str) -> EventQueue:
    """Returns the queue of a source's events. Raises as `open_adapter`."""
    name, _ = _split(spec.url)
    plugin = _find(name, spec.url)
    with _failures(plugin, name):
        return plugin.scheme.open_queue(spec, url)


def _split(url: str) -> tuple[str, str]:
    """Returns the scheme, in lower case, and the rest of a URL."""
    if url.startswith("/"):
        return "file", url
    name, separator, rest = url.partition("://")
    if not separator:
        raise BadConfig(f"not a source: {url!r}", remedy=f"write it with one of {_shown()}")
    return name.lower(), rest


def _installed() -> EntryPoints:
    """Returns the entry points of all schemes. Reading those of a hundred distributions takes 5 ms,
    so they are kept until a directory of `sys.path` changes."""
    places = []
    for directory in sys.path:
        with contextlib.suppress(OSError):
            places.append((directory, os.stat(directory or ".").st_mtime_ns))
    return _read_installed(tuple(places))


@functools.lru_cache(maxsize=2)
def _read_installed(_places: tuple[tuple[str, int], ...]) -> EntryPoints:
    return entry_points(group=GROUP)


def _find(name: str, url: str) -> _Plugin:
    """Returns the plug-in of a scheme: of the whole name, else of the family."""
    installed = _installed()
    family = name.partition("+")[0]
    for wanted in dict.fromkeys((name, family)):
        if found := list(installed.select(name=wanted)):
            plugin = _load(_choose(wanted, found))
            if wanted == name or plugin.scheme.is_family:
                return plugin
    raise BadConfig(f"unknown scheme {name}:// in {url!r}", remedy=_meant(name, installed.names))


def _meant(name: str, known: Collection[str]) -> str:
    """Returns the remedy for an unknown scheme."""
    if name in ("http", "https"):
        return "write a bucket as s3://BUCKET/PREFIX, and the URL of its server as --endpoint-url"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"{f'did you mean {_written(near[0])}? ' if near else ''}known: {_shown()}"


def _choose(name: str, found: Collection[EntryPoint]) -> EntryPoint:
    own = [point for point in found if _distribution(point) == DISTRIBUTION]
    chosen = own or list(found)
    if len(chosen) > 1:
        owners = " and ".join(sorted(_distribution(point) for point in chosen))
        raise Unsupported(f"{name}:// is a scheme of {owners}", remedy="uninstall all but one")
    return chosen[0]


def _load(point: EntryPoint) -> _Plugin:
    distribution = _distribution(point)
    try:
        scheme = point.load()
    except Exception as error:
        raise _broken(point.name, distribution, "cannot be loaded", error) from error
    if not isinstance(scheme, Scheme):
        wrong = TypeError(f"{point.value} is no Scheme")
        raise _broken(point.name, distribution, "cannot be loaded", wrong)
    return _Plugin(scheme, distribution)


@contextlib.contextmanager
def _failures(plugin: _Plugin, name: str) -> Iterator[None]:
    """Translates what a plug-in raises: a missing library, or an error that is not a typed one."""
    try:
        yield
    except CacheFSError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError):
            missing = (error.name or "").partition(".")[0]
            if missing in plugin.scheme.libraries:
                raise _missing(plugin, name) from error
        raise _broken(name, plugin.distribution, "failed", error) from error


def _missing(plugin: _Plugin, name: str) -> Unsupported:
    extra = plugin.scheme.extra
    remedy = install_command(extra, distribution=plugin.distribution)
    return Unsupported(f"{name}:// sources need the extra {extra}", remedy=remedy)


def _broken(name: str, distribution: str, effect: str, error: Exception) -> Unsupported:
    lines = str(error).splitlines() or [""]
    cause = f"the plug-in of {name}:// {effect} ({type(error).__name__}: {lines[0][:200]})"
    return Unsupported(cause, remedy=f"update or uninstall the distribution {distribution}")


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "?"


def _shown() -> str:
    """Returns the known schemes, a family with the protocol that a source of it names."""
    return ", ".join(_written(name) for name in sorted(_installed().names))


def _written(name: str) -> str:
    with contextlib.suppress(BadConfig, Unsupported):  # a plug-in that fails is listed, too
        if _load(_choose(name, list(_installed().select(name=name)))).scheme.is_family:
            return f"{name}+PROTOCOL://"
    return f"{name}://"
