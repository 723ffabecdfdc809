"""The references in docs/ are what their tools make of the tables."""

from __future__ import annotations

import dataclasses
import re
import typing

import make_metrics_page
import make_settings_page
import pytest

from tierd.core import PassReason
from tierd.metrics import Metrics
from tierd.settings import Settings


@pytest.mark.parametrize("tool", [make_metrics_page, make_settings_page], ids=["metrics", "settings"])
def test_the_page_is_current(tool: typing.Any) -> None:
    assert tool.PLACE.read_text(encoding="utf-8") == tool.page(), "run `make pages`"


def test_each_metric_and_each_word_of_its_labels_is_explained() -> None:
    page = make_metrics_page.page()
    for row in Metrics("test").table:
        assert page.count(f"| `{row.name}` | {row.kind} |") == 1
        for words in row.labels.values():
            assert all(f"| `{word}` | {meaning} |" in page for word, meaning in words.items())
    assert all(f"| `{reason.value}` | {reason.words} |" in page for reason in PassReason)


def test_each_setting_has_a_text() -> None:
    page = make_settings_page.page()
    for section in typing.get_type_hints(Settings):
        (part,) = re.findall(rf"^## \[\[?{section}\]\]?\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
        for row in dataclasses.fields(make_settings_page.table_of(section)):
            (text,) = re.findall(rf"^### .*`{row.name}`.*\n\n```toml\n[^`]*```\n\n(\S.*)", part, re.MULTILINE)
            assert len(text) > 10


def test_what_may_change_while_tierd_runs_is_marked() -> None:
    page = make_settings_page.page()
    live = [
        f"{section.name}.{row.name}"
        for section in dataclasses.fields(Settings)
        for row in dataclasses.fields(make_settings_page.table_of(section.name))
        if "live" in section.metadata or "live" in row.metadata
    ]
    assert {"queue.capacity", "keys.requests"} <= set(live)
    assert page.count("\nLive: ") == len(live)


@pytest.mark.parametrize(
    ("section", "name", "said"),
    [
        ("queue", "capacity", "It must lie between 0 and 2147483647."),
        ("models", "weight", "It must lie between 1 and 1000."),
        ("switch", "resume", "It must be one of device, cpu."),
        ("models", "kv_dtype", 'It must be one of f32, f16, q8_0, tq4, or "".'),
        ("kv", "share_prefix", ""),
    ],
)
def test_what_a_setting_must_be_comes_of_its_check(section: str, name: str, said: str) -> None:
    assert make_settings_page.demand(section, name) == said
