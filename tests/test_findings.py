from __future__ import annotations

import json
from pathlib import Path

import pytest

from findings import Findings


def report(name: str, when: str, outcome: str, *properties: tuple[str, object]) -> pytest.TestReport:
    return pytest.TestReport(
        name, ("", 0, ""), {}, outcome, None, when, user_properties=[*properties], duration=1.23
    )  # type: ignore[call-arg]


def test_outcomes_and_what_tests_note_are_kept_in_a_dated_file(tmp_path: Path) -> None:
    findings = Findings(tmp_path / "results")
    for each in (
        report("measures", "setup", "passed"),
        report("measures", "call", "passed", ("mean_kl", 0.5)),
        report("measures", "teardown", "passed", ("mean_kl", 0.5)),
        report("lacks something", "setup", "skipped"),
        report("leaves something", "call", "passed"),
        report("leaves something", "teardown", "failed"),
    ):
        findings.pytest_runtest_logreport(each)
    findings.pytest_sessionfinish()
    (path,) = (tmp_path / "results").iterdir()
    found = json.loads(path.read_text())
    assert path.stem == found["date"][:19].replace("T", "-").replace(":", "")
    assert set(found) == {"date", "commit", "machine", "tests"}
    assert found["tests"] == [
        {"test": "measures", "outcome": "passed", "seconds": 1.2, "mean_kl": 0.5},
        {"test": "lacks something", "outcome": "skipped", "seconds": 1.2},
        {"test": "leaves something", "outcome": "passed", "seconds": 1.2},
        {"test": "leaves something", "outcome": "failed", "seconds": 1.2},
    ]
