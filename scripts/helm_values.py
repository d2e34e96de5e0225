"""Writes docs/helm-values.md from the schema and the defaults of the chart's values:
`.venv/bin/python scripts/helm_values.py`. A test compares them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "deploy" / "helm" / "cachefs"
PAGE: Final = ROOT / "docs" / "helm-values.md"
HEAD: Final = """# Values of the chart

Made from `values.schema.json` and `values.yaml` of `deploy/helm/cachefs` by
`.venv/bin/python scripts/helm_values.py`; a test compares them. Helm refuses a value that is not in
this table, or has another form.

| value | default | meaning |
|---|---|---|
"""

Schema = dict[str, Any]


class Row(NamedTuple):
    """A value, its default (None: the values file has none) and its meaning."""

    name: str
    default: Any
    meaning: str


def rows(schema: Schema, values: Any, name: str = "") -> Iterator[Row]:
    """Yields the values at and below a name; of an object without a default its parts' alone."""
    inner = {} if name.endswith("resources") else _parts(schema)
    is_object = bool(inner) and schema["type"] == "object"
    if name:
        yield Row(name, None if is_object else values, _meaning(schema))
    below = f"{name}." if is_object else f"{name}[]."
    for key, one in inner.items():
        value = values.get(key) if isinstance(values, dict) else None
        yield from rows(one, value, f"{below}{key}" if name else key)


def _parts(schema: Schema) -> Schema:
    """Returns the named values of an object, or of each object of a list."""
    parts: Schema = schema.get("items", schema).get("properties", {})
    return parts


def _meaning(schema: Schema) -> str:
    choices = ", ".join(f"`{one}`" for one in schema.get("enum", ()))
    return f"{schema['description']} One of {choices}." if choices else str(schema["description"])


def page() -> str:
    """Returns the text of the page."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    return HEAD + "".join(
        f"| `{row.name}` | {_shown(row.default)} | {row.meaning} |\n"
        for row in rows(schema, values)
    )


def _shown(default: Any) -> str:
    return "" if default is None else f"`{json.dumps(default)}`"


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
