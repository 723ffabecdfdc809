"""Prometheus' rules for tierd, as promtool sees and plays them."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus import RULES, promtool
from tierd.metrics import Metrics

HERE = Path(__file__).resolve().parent
PLAYED = HERE / "rules.yml"
EXPORTED = {row.name for row in Metrics("test").table}


def test_promtool_has_no_objection() -> None:
    assert "SUCCESS: 22 rules found" in promtool("check", "rules", str(RULES))
    config = RULES.parent / "prometheus.yml"
    assert "SUCCESS: 1 rule files found" in promtool("check", "config", str(config))


def test_all_alerts_come_when_they_should_and_only_then() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(PLAYED))


def test_each_alert_is_played_twice_and_each_record() -> None:
    rules, played = RULES.read_text(), PLAYED.read_text()
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert len(alerts) == len(set(alerts)) == 13
    for alert in alerts:
        assert f"{{eval_time: 50m, alertname: {alert}}}" in played  # where it must be silent
        assert re.search(rf"alertname: {alert}\n +exp_alerts:", played)
    for record in re.findall(r"- record: (\S+)", rules):
        assert record in played or f"{record} >" in rules  # else by the alert that compares it


def test_rules_know_only_metrics_that_there_are() -> None:
    for name in re.findall(r"(?<![\w:])tierd_\w+", RULES.read_text()):
        assert re.sub(r"_(bucket|sum|count)$", "", name) in EXPORTED


def test_the_page_names_all_alerts_with_their_severity() -> None:
    found = re.findall(r"- alert: (\w+)\n(?:.*\n)*? +severity: (\w+)\n", RULES.read_text())
    told = re.findall(
        r"^\| (Tierd\w+) \|.*\| (\w+) \|$", (RULES.parent / "README.md").read_text(), re.MULTILINE
    )
    assert sorted(told) == sorted(found)
