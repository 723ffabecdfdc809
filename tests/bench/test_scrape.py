from __future__ import annotations

import sys

import pytest

import scrape


def test_a_line_for_each_number_of_models(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scrape.py", "--models", "1", "2", "--rounds", "1"])
    assert scrape.main() == 0
    _, *rows = capsys.readouterr().out.splitlines()
    one, two = ([float(word) for word in row.split()] for row in rows)
    assert (one[0], two[0]) == (1, 2)
    assert one[1] < two[1] < 2 * one[1]
    assert all(word > 0 for word in one + two)
