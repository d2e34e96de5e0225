"""Writes deploy/grafana/cachefs.json, the dashboard, from the panels of `dashboard_panels`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from dashboard_panels import ROWS, Panel

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "deploy" / "grafana" / "cachefs.json"
COLUMNS: Final = 24
ROW_HEIGHT: Final = 1
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
EXPORTERS: Final = 'up{job=~"(.+/)?cachefs.*"}'


def dashboard() -> dict[str, Any]:
    """Returns the dashboard in Grafana's model (schema 39, Grafana 10.4 and later)."""
    return {
        "annotations": {"list": []},
        "description": "Reads, caches, origins, members, load jobs and mounts of CacheFS.",
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "id": None,
        "links": [],
        "panels": _panels(),
        "refresh": "30s",
        "schemaVersion": 39,
        "tags": ["cachefs"],
        "templating": {"list": _variables()},
        "time": {"from": "now-3h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "title": "CacheFS",
        "uid": "cachefs",
        "version": 1,
    }


def _variables() -> list[dict[str, Any]]:
    source = {
        "current": {},
        "hide": 0,
        "includeAll": False,
        "label": "Data source",
        "multi": False,
        "name": "datasource",
        "options": [],
        "query": "prometheus",
        "refresh": 1,
        "type": "datasource",
    }
    of_job = f'{EXPORTERS[:-1]}, job=~"$job"}}'
    return [
        source,
        _variable("job", "Job", f"label_values({EXPORTERS}, job)"),
        _variable("instance", "Instance", f"label_values({of_job}, instance)"),
    ]


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "datasource": SOURCE,
        "definition": query,
        "hide": 0,
        "includeAll": True,
        "label": label,
        "multi": True,
        "name": name,
        "options": [],
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "type": "query",
    }


def _panels() -> list[dict[str, Any]]:
    """Returns the panels, from left to right and from top to bottom, below the title of a row."""
    found: list[dict[str, Any]] = []
    top = 0
    for row in ROWS:
        found.append(_row(len(found) + 1, row.title, top))
        top += ROW_HEIGHT
        left = height = 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top, height = 0, top + height, 0
            place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            found.append(_panel(len(found) + 1, panel, place))
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return found


def _row(number: int, title: str, top: int) -> dict[str, Any]:
    place = {"h": ROW_HEIGHT, "w": COLUMNS, "x": 0, "y": top}
    return {
        "collapsed": False, "gridPos": place, "id": number, "panels": [], "title": title,
        "type": "row",
    }  # fmt: skip


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "datasource": SOURCE,
        "description": panel.description,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "gridPos": place,
        "id": number,
        "options": _stat_options() if panel.is_stat else _series_options(),
        "targets": [
            _target(chr(ord("A") + place), query, legend)
            for place, (legend, query) in enumerate(panel.queries.items())
        ],
        "title": panel.title,
        "type": "stat" if panel.is_stat else "timeseries",
    }


def _target(letter: str, query: str, legend: str) -> dict[str, Any]:
    return {
        "datasource": SOURCE, "editorMode": "code", "expr": query, "legendFormat": legend,
        "range": True, "refId": letter,
    }  # fmt: skip


def _defaults(panel: Panel) -> dict[str, Any]:
    steps = [{"color": color, "value": value} for value, color in panel.steps]
    found: dict[str, Any] = {
        "color": {"mode": "thresholds" if panel.is_stat else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": steps},
        "unit": panel.unit,
    }
    if panel.unit == "percentunit":
        found |= {"max": 1, "min": 0}
    if not panel.is_stat:
        stacking = {"group": "A", "mode": "normal" if panel.stacked else "none"}
        found["custom"] = {
            "drawStyle": "line", "fillOpacity": 30 if panel.stacked else 8, "lineWidth": 1,
            "showPoints": "never", "stacking": stacking,
        }  # fmt: skip
    return found


def _stat_options() -> dict[str, Any]:
    return {
        "colorMode": "value", "graphMode": "area", "justifyMode": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "auto",
    }  # fmt: skip


def _series_options() -> dict[str, Any]:
    return {
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def text() -> str:
    """Returns the file's content."""
    return json.dumps(dashboard(), indent=2) + "\n"


def main(arguments: list[str]) -> int:
    """Writes the file; with --check returns 1 if it has another content. Run
    `python scripts/dashboard.py` after a change of the panels."""
    if arguments == ["--check"]:
        return int(PAGE.read_text() != text())
    PAGE.write_text(text())
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
