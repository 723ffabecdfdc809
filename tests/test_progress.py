from __future__ import annotations

import logging

import pytest

from tierd import progress


def test_what_is_quick_stays_unsaid(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        report = progress.logged("model=m packing")
        report(5, 10)
        report(10, 10)
    assert caplog.messages == []


def test_what_is_slow_is_told_at_intervals(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 2.9, 3.0, 4.0, 6.1])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with caplog.at_level(logging.INFO):
        report = progress.logged("model=m packing", every_s=3.0)
        for done in (1, 2, 3, 4):
            report(done * 10**9, 4 * 10**9)
    assert caplog.messages == ["model=m packing: 50 % of 4000 MB", "model=m packing: 100 % of 4000 MB"]


def test_whoever_follows_is_told_too() -> None:
    told: list[tuple[int, int]] = []
    with progress.followed(lambda done, total: told.append((done, total))):
        report = progress.logged("x")
    report(1, 2)
    progress.logged("y")(2, 2)
    assert told == [(1, 2)]
