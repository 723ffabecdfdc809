"""Write the Grafana dashboard.

Usage: python tools/make_dashboard.py

dashboard_rows.py says what it shows; this is how Grafana wants it told.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dashboard_rows import ROWS, Panel

PLACE = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "tierd.json"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24  # columns of the grid
SIZES = {"stat": (3, 4), "names": (3, 4), "table": (WIDTH, 6)}  # width and height of panels; others:
SIZE = (8, 8)

VARIABLES: Sequence[dict[str, Any]] = (
    {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
    {"name": "instance", "label": "Daemon", "query": 'label_values(up{job="tierd"}, instance)'},
    {
        "name": "model",
        "label": "Model",
        "query": 'label_values(tierd_model_outcome{job="tierd",instance=~"$instance"}, model)',
    },
)


def steps(panel: Panel) -> list[dict[str, Any]]:
    """Return the colours of a panel's values."""
    good = {"color": "green", "value": None}
    if panel.bounds is None:
        return [good]
    return [
        good,
        *({"color": color, "value": at} for color, at in zip(("orange", "red"), panel.bounds, strict=True)),
    ]


def field_config(panel: Panel) -> dict[str, Any]:
    """Return how a panel's values are shown."""
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": steps(panel)},
        "color": {"mode": "thresholds" if panel.kind in ("stat", "names") else "palette-classic"},
    }
    if panel.kind == "timeseries":
        defaults["min"] = 0
        defaults["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 30 if panel.stacked else 8,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if panel.bounds else "off"},
        }
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.words:
        options = {
            value: {"text": text, "color": color, "index": index}
            for index, (value, (text, color)) in enumerate(panel.words.items())
        }
        defaults["mappings"] = [{"type": "value", "options": options}]
    return {"defaults": defaults, "overrides": []}


OPTIONS: Mapping[str, dict[str, Any]] = {
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "textMode": "value",
    },
    "names": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "none",
        "textMode": "name",
    },
    "timeseries": {
        "legend": {
            "displayMode": "list",
            "placement": "bottom",
            "showLegend": True,
            "calcs": ["lastNotNull"],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "state-timeline": {
        "mergeValues": True,
        "showValue": "auto",
        "rowHeight": 0.8,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
        "tooltip": {"mode": "single"},
    },
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
        "yAxis": {"unit": "s", "axisPlacement": "left"},
        "legend": {"show": True},
        "tooltip": {"mode": "single"},
    },
    "table": {"showHeader": True, "footer": {"show": False}},
}


def targets(panel: Panel) -> Iterator[dict[str, Any]]:
    """Yield a panel's queries."""
    for index, (expression, legend) in enumerate(panel.queries):
        yield {
            "refId": chr(ord("A") + index),
            "datasource": SOURCE,
            "editorMode": "code",
            "expr": expression,
            "legendFormat": legend,
            "range": panel.kind not in ("table", "names"),
            "instant": panel.kind in ("table", "names"),
            "format": {"table": "table", "heatmap": "heatmap"}.get(panel.kind, "time_series"),
        }


def shown(panel: Panel, id: int, x: int, y: int, size: tuple[int, int]) -> dict[str, Any]:
    """Return a panel as Grafana has it."""
    made: dict[str, Any] = {
        "id": id,
        "type": "stat" if panel.kind == "names" else panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": size[0], "h": size[1]},
        "fieldConfig": field_config(panel),
        "options": OPTIONS[panel.kind],
        "targets": list(targets(panel)),
    }
    if panel.kind == "table":
        hidden = {"Time": True, "Value": True, "__name__": True, "job": True, "alertstate": True}
        made["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return made


def panels() -> Iterator[dict[str, Any]]:
    """Yield all rows and panels, in columns from left to right."""
    id, y = 0, 0
    for title, row in ROWS.items():
        id += 1
        yield {
            "id": id,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
            "panels": [],
        }
        x, y, tall = 0, y + 1, 0
        for panel in row:
            size = SIZES.get(panel.kind, SIZE)
            if x + size[0] > WIDTH:
                x, y = 0, y + tall
            id += 1
            yield shown(panel, id, x, y, size)
            x, tall = x + size[0], size[1]
        y += tall


def variables() -> Iterator[dict[str, Any]]:
    """Yield what can be chosen above the panels."""
    for variable in VARIABLES:
        if variable.get("type") == "datasource":
            yield variable
            continue
        yield {
            **variable,
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": variable["query"], "refId": variable["name"]},
            "definition": variable["query"],
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
            "refresh": 2,
            "sort": 1,
        }


def dashboard() -> str:
    """Return the dashboard as JSON."""
    made = {
        "uid": "tierd-daemons",
        "title": "tierd",
        "description": "Made by tools/make_dashboard.py. What the metrics mean: docs/metrics.md.",
        "tags": ["tierd"],
        "schemaVersion": 38,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": list(variables())},
        "annotations": {"list": []},
        "links": [],
        "panels": list(panels()),
    }
    return json.dumps(made, indent=2) + "\n"


if __name__ == "__main__":
    PLACE.write_text(dashboard())
