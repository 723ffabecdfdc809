"""What is asked of a device that is no software: each bar passed, failed, or not run and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from device.report import Found, line


@dataclass(frozen=True)
class Bar:
    """A figure, out of what the sections have found, and what it must reach, or not exceed if `at_most`."""

    name: str
    bar: float
    figure: Callable[[Mapping[str, Found]], float]
    at_most: bool = False

    def passed(self, figure: float) -> bool:
        """Whether a figure passes."""
        return figure <= self.bar if self.at_most else figure >= self.bar


BARS = (
    Bar(
        "decode, of the copy bandwidth",
        0.6,
        lambda found: found["decode"]["streams_1"]["rate"] / found["bandwidth"]["memory"],
    ),
    Bar("device idle between steps", 0.1, lambda found: found["decode"]["streams_1"]["idle"], at_most=True),
    Bar(
        "upload, of the host-to-device bandwidth",
        0.6,
        lambda found: found["switch"]["upload_rate"] / found["bandwidth"]["to_device"],
    ),
)


def judge(found: Mapping[str, Found], *, reason: str) -> Found:
    """Return every bar's figure and result. reason: why bars do not count here, "" where they do."""
    results: Found = {}
    for bar in BARS:
        try:
            figure, why = bar.figure(found), reason
        except KeyError as error:
            figure, why = None, f"{error.args[0]} was not measured"
        result = "not run" if why else "pass" if bar.passed(figure) else "fail"
        results[bar.name] = {"bar": bar.bar, "at_most": bar.at_most, "figure": figure, "result": result}
        if why:
            results[bar.name]["reason"] = why
        told = "" if figure is None else f"{figure:.1%}"
        line(bar.name, result, told, f"({'at most' if bar.at_most else 'at least'} {bar.bar:.0%})", why)
    return results
