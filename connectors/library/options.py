"""The URLs and options of `fsspec+PROTO://` and `arrow+PROTO://` sources, and their validation.

Options are the library's own. A value that is a secret is given by reference: `file:PATH` or
`env:NAME`, which the process that reads the source resolves. A name that looks like a secret's
takes nothing else. The option `credential` names a set of them (`connectors.credential`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from cachefs.core.errors import BadConfig, CredentialsMissing
from connectors.credential import OPTION, parse_name

FIXED: Final = "files_never_change"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_SECRET: Final = re.compile(
    r"pass(word|phrase|wd)?$|secret|token|credential|connection_string|(^|_)key$|access_key|pkey",
    re.I,
)
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
_REFERENCES: Final = ("file:", "env:")
# These keep bytes or listings, so that a change would not be seen, or have no listings.
_REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("blockcache", "cached", "filecache", "simplecache"), "it caches, and hides changes"
    ),
    **dict.fromkeys(("http", "https", "data"), "it has no directories"),
}


def normalise(scheme: str, rest: str) -> str:
    """Returns the URL without a trailing '/'. Raises BadConfig. Nothing is percent-decoded."""
    family, _, protocol = scheme.partition("+")
    url = f"{scheme}://{rest}"
    shown = f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"
    if not protocol:
        remedy = f"write it as {family}+PROTOCOL://HOST/PATH"
        raise BadConfig(f"{shown}: a source names the protocol", remedy=remedy)
    if protocol in _REFUSED:
        raise BadConfig(f"{shown}: not as a source: {_REFUSED[protocol]}")
    if "::" in url or "?" in rest or "\0" in url:
        raise BadConfig(f"{shown}: a source is one plain URL", remedy="give options by --option")
    try:
        parts = urlsplit(url)
        has_password = parts.password is not None
    except ValueError as error:
        raise BadConfig(f"not a URL: {shown}") from error
    if has_password:
        remedy = "give it by reference: --option password=file:PATH"
        raise BadConfig(f"{shown}: a source's URL holds no password", remedy=remedy)
    if not rest:
        raise BadConfig(f"{shown}: no host and no path", remedy=f"write {scheme}://HOST/PATH")
    return f"{scheme}://{rest.rstrip('/')}" if rest.strip("/") else url


def check_options(options: Mapping[str, str]) -> None:
    """Raises BadConfig for a name that no option has, or a secret that is no reference."""
    parse_name(options)
    for name, value in options.items():
        if not _NAME.fullmatch(name):
            raise BadConfig(f"bad name of an option: {name!r}")
        if (
            name not in (FIXED, OPTION)
            and _SECRET.search(name)
            and not value.startswith(_REFERENCES)
        ):
            remedy = f"give it by reference: --option {name}=file:PATH or {name}=env:NAME"
            raise BadConfig(f"the option {name} may be a secret", remedy=remedy)
    if options.get(FIXED, "false") not in ("true", "false"):
        raise BadConfig(f"bad value of {FIXED}", remedy="write true or false")


def resolved(options: Mapping[str, str]) -> dict[str, str | int | bool]:
    """Returns the library's options, references replaced by what they name. Raises
    CredentialsMissing."""
    check_options(options)
    return {name: _value(name, text) for name, text in options.items() if name != FIXED}


def _value(name: str, text: str) -> str | int | bool:
    if text.startswith(_REFERENCES):
        return _referenced(name, text)
    if text in ("true", "false"):
        return text == "true"
    return int(text) if _WHOLE.fullmatch(text) else text


def _referenced(name: str, text: str) -> str:
    kind, _, place = text.partition(":")
    if kind == "env":
        value = os.environ.get(place, "")
    else:
        try:
            with open(place, encoding="utf-8") as file:
                value = file.read().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            cause = f"the file of the option {name} cannot be read"
            raise CredentialsMissing(cause, path=place, remedy="check it") from error
    if not value:
        raise CredentialsMissing(f"the option {name} is empty: {text}", remedy="set it")
    return value
