"""`cachefs pin`: load what is at or below a path, and never evict it."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from cachefs.cli import load, output, settings
from cachefs.cli.policy_calls import Asked, asked, literal
from cachefs.cli.progress import Total, make_view
from cachefs.cli.session import Session
from cachefs.core import messages as m
from cachefs.core.policies import Policy
from cachefs.core.units import format_size


@click.command("pin")
@click.argument("path")
@click.option("--wait", is_flag=True, help="Wait until all of it is cached; exit code 1 if not.")
@click.option("--no-load", is_flag=True, help="Load nothing: what is read stays.")
@settings.setting_flags("location")
@output.json_flag
@output.debug_flag
def command(
    path: str,
    wait: bool,
    no_load: bool,
    as_json: bool,
    debug: bool,
    config_file: str | None,
    **flags: Any,
) -> int:
    """Load what is at or below PATH, and never evict it.

    Returns when no worker can evict it any more: at once, or within 10 s where some of it was just
    about to be evicted. The rest is loaded in the background."""
    with asked(path, flags, config_file) as at:
        at.set(Policy(pin=True))
        if no_load or at.session is None:
            return _pinned(at, [], as_json)
        loads = load.start_loads(at.session, [literal(at.path)])
        if not wait:
            return _pinned(at, loads, as_json)
        view = make_view(as_json)
        try:
            total = load.follow(at.session, loads, view, time.sleep)
        finally:
            view.close()
        code = load.report(at.session, loads, total, as_json)
        if not total.succeeded:
            print(f"cachefs: {cannot_fit(at, at.session, total)}", file=sys.stderr)
        return code


def _pinned(at: Asked, loads: list[int], as_json: bool) -> int:
    if as_json:
        output.print_json({"path": at.shown(), "pin": True, "loads": loads})
    elif loads:
        numbers = ", ".join(str(one) for one in loads)
        click.echo(f"OK, {at.shown()} is pinned; load {numbers} brings in what is missing")
    else:
        click.echo(f"OK, {at.shown()} is pinned: what is cached of it stays")
    return 0


def cannot_fit(at: Asked, session: Session, total: Total) -> str:
    """With figures: what there is, what is cached of it, what the cache can hold."""
    cache = session.call(m.Status(), m.StatusReply).status["cache"]
    more = "" if total.listing_done else "at least "
    return (
        f"{at.shown()} is pinned, and not all of it is cached: "
        f"{format_size(total.bytes_done)} of {more}{format_size(total.bytes_found)}; "
        f"the cache holds {format_size(cache['limit_bytes'])}"
    )
