"""Writes docs/openapi.json, the page of the admin API, from its routes and types."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "openapi.json"


def main() -> int:
    """Writes the page. Run `python scripts/openapi.py` after a change of the API."""
    sys.path.insert(0, str(ROOT))
    from master.server.admin import openapi

    PAGE.write_bytes(openapi.text())
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
