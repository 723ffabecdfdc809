"""The Grafana dashboard against what Grafana documents of its JSON; no Grafana is there to ask.

https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model, and the schemas
in its repository: kinds/dashboard/dashboard_kind.cue and public/app/plugins/panel/*/panelcfg.cue.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest
from make_dashboard import PLACE

DASHBOARD: dict[str, Any] = json.loads(PLACE.read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [target for panel in PANELS for target in panel["targets"]]
VARIABLES: dict[str, Any] = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

# Of Grafana 10.0, the oldest that the dashboard is for; a newer number would ask for a newer Grafana.
SCHEMA = 38
FIELDS = {
    "uid", "title", "description", "tags", "schemaVersion", "editable", "graphTooltip", "refresh", "time",
    "timezone", "templating", "annotations", "links", "panels",
}  # fmt: skip
PANEL_FIELDS = {
    "id", "type", "title", "description", "datasource", "gridPos", "fieldConfig", "options", "targets",
    "transformations",
}  # fmt: skip
# Without those that are deprecated: graph, singlestat, table-old, and others.
KINDS = {
    "timeseries", "stat", "gauge", "bargauge", "barchart", "table", "state-timeline", "status-history",
    "heatmap", "histogram", "piechart", "text",
}  # fmt: skip
UNITS = {"none", "short", "percent", "percentunit", "bytes", "s", "ms", "reqps", "ops", "cps"}
COLORS = {"green", "orange", "red", "blue", "yellow", "purple", "text"}
# What an option may say, wherever it stands.
WORDS: Mapping[str, set[object]] = {
    "colorMode": {"value", "background", "background_solid", "none"},
    "graphMode": {"none", "line", "area"},
    "textMode": {"auto", "value", "value_and_name", "name", "none"},
    "displayMode": {"list", "table", "hidden"},
    "placement": {"bottom", "right"},
    "sort": {"asc", "desc", "none"},
    "showPoints": {"auto", "never", "always"},
    "showValue": {"auto", "never", "always"},
    "axisPlacement": {"auto", "top", "right", "bottom", "left", "hidden"},
}
MODES: Mapping[str, set[object]] = {
    "thresholds": {"absolute", "percentage"},
    "stacking": {"none", "normal", "percent"},
    "thresholdsStyle": {"off", "line", "dashed", "area", "line+area", "dashed+area", "series"},
    "tooltip": {"single", "multi", "none"},
}
CALCULATIONS = {"last", "lastNotNull", "first", "firstNotNull", "min", "max", "mean", "sum", "count"}
BUILT_IN = {"__rate_interval", "__interval", "__range"}


def entries(value: object) -> Iterator[tuple[str, Any]]:
    """Go through all keys and values below a value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from entries(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from entries(inner)


def used(text: str) -> set[str]:
    """Return the variables that a text names."""
    return {one or other for one, other in re.findall(r"\$(?:\{(\w+)[^}]*\}|(\w+))", text)}


def test_the_dashboard_itself() -> None:
    assert set(DASHBOARD) <= FIELDS
    assert re.fullmatch(r"[A-Za-z0-9_-]{8,40}", DASHBOARD["uid"])
    assert DASHBOARD["schemaVersion"] == SCHEMA
    assert DASHBOARD["timezone"] in ("browser", "utc")
    assert DASHBOARD["graphTooltip"] in (0, 1, 2)
    assert re.fullmatch(r"\d+[smhd]", DASHBOARD["refresh"])
    assert DASHBOARD["time"] == {"from": "now-1h", "to": "now"}


def test_the_source_of_data_is_a_variable_and_nothing_asks_another() -> None:
    assert VARIABLES["datasource"]["type"] == "datasource"
    assert VARIABLES["datasource"]["query"] == "prometheus"
    assert next(iter(VARIABLES)) == "datasource"  # variables are asked for in their order
    sources = [source for key, source in entries(DASHBOARD) if key == "datasource"]
    assert all(source == SOURCE for source in sources)
    assert len(sources) == len(VARIABLES) - 1 + len(PANELS) + len(TARGETS)


def test_daemons_and_models_can_be_chosen_one_several_or_all() -> None:
    chosen = {name: variable for name, variable in VARIABLES.items() if variable["type"] == "query"}
    assert chosen.keys() == {"instance", "model"}
    for name, variable in chosen.items():
        assert (variable["multi"], variable["includeAll"], variable["allValue"]) == (True, True, ".*")
        assert variable["current"] == {"text": ["All"], "value": ["$__all"]}
        assert variable["query"] == {"query": variable["definition"], "refId": name}
        assert variable["refresh"] == 2  # whenever the time range changes
        before = list(VARIABLES)[: list(VARIABLES).index(name)]
        assert used(variable["definition"]) <= set(before)


def test_queries_say_what_variables_hold_as_expressions() -> None:
    """Several values become `a|b`, which only `=~` takes."""
    for target in TARGETS:
        assert used(target["expr"]) <= set(VARIABLES) | BUILT_IN
        assert not re.search(r'[^~]"\$(instance|model)"', target["expr"])
        assert "$instance" in target["expr"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_each_panel(panel: dict[str, Any]) -> None:
    assert set(panel) <= PANEL_FIELDS
    assert panel["type"] in KINDS
    place = panel["gridPos"]
    assert place["h"] > 0
    assert 0 < place["w"] <= 24 - place["x"]
    names = [target["refId"] for target in panel["targets"]]
    assert names == list("ABCDEFGH"[: len(names)])
    for target in panel["targets"]:
        assert target["range"] is not target["instant"]
        assert target["format"] in ("time_series", "table", "heatmap")
        assert target["legendFormat"]
        assert re.sub(r"\{\{\w+\}\}", "", target["legendFormat"]).count("{") == 0


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_how_each_panel_shows_its_values(panel: dict[str, Any]) -> None:
    assert set(panel["fieldConfig"]) == {"defaults", "overrides"}
    shown = panel["fieldConfig"]["defaults"]
    assert shown["unit"] in UNITS
    assert shown["color"]["mode"] in ("thresholds", "palette-classic", "fixed")
    steps = shown["thresholds"]["steps"]
    assert steps[0]["value"] is None
    assert all(low["value"] < high["value"] for low, high in pairwise(steps[1:]))
    assert {step["color"] for step in steps} <= COLORS
    for mapping in shown.get("mappings", ()):
        assert mapping["type"] == "value"
        assert [result["index"] for result in mapping["options"].values()] == list(
            range(len(mapping["options"]))
        )
        assert all(set(result) == {"text", "color", "index"} for result in mapping["options"].values())
    for key, value in entries([shown, panel["options"]]):
        if key in WORDS:
            assert value in WORDS[key], key
        elif key in MODES and isinstance(value, dict):
            assert value["mode"] in MODES[key], key
        elif key == "calcs":
            assert set(value) <= CALCULATIONS


def test_rows_are_open_and_hold_what_lies_below_them() -> None:
    rows = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert DASHBOARD["panels"][0] is rows[0]
    for row in rows:
        assert (row["collapsed"], row["panels"]) == (False, [])
        assert row["gridPos"] == {"x": 0, "y": row["gridPos"]["y"], "w": 24, "h": 1}
    order = [panel["gridPos"]["y"] for panel in DASHBOARD["panels"]]
    assert order == sorted(order)
