"""Keeps what tests measure in a dated file: see `Findings`."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

import machine


class Findings:
    """Writes what a run of pytest has found: tests' outcomes, and what they note by `record_property`."""

    def __init__(self, folder: Path) -> None:
        """folder: where the file goes; its name is the time at which the run began, in UTC."""
        self._folder = folder
        self._commit = machine.commit()
        self._started = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        self._tests: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a test's report; of its set-up and end only what is no success."""
        if report.when == "call" or not report.passed:
            self._tests.append(
                {
                    "test": report.nodeid,
                    "outcome": report.outcome,
                    "seconds": round(report.duration, 1),
                    **dict(report.user_properties),
                }
            )

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        result = {
            "date": self._started.isoformat(),
            "commit": self._commit,
            "machine": machine.describe(),
            "tests": self._tests,
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self._started:%Y-%m-%d-%H%M%S}.json"
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
