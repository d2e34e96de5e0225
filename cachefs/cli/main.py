"""Entry point of `cachefs`."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns the exit code."""
    from cachefs.cli import app, error_output

    args = list(sys.argv[1:] if argv is None else argv)
    debug, as_json = "--debug" in args, "--json" in args
    return error_output.run("cachefs", lambda: app.run(args), debug=debug, as_json=as_json)


if __name__ == "__main__":
    sys.exit(main())
