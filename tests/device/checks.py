"""The sections of the check, in order."""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import sys
from pathlib import Path

from device import facts
from device.bandwidth import bandwidth
from device.bars import judge
from device.clocked import ClockedDevice
from device.matrices import Matrices
from device.parity import parity
from device.report import Report
from device.speed import FULL, PATIENCE_S, SMALL, Speed
from tierd.backends.host import ThreadPool
from tierd.backends.resident.backend import ResidentBackend
from tierd.errors import DeviceError, DeviceLostError

# How long all of the check may take, and what a section is given at least that has no other to go by.
MOST_S, SECTION_S = 300.0, 60.0
# What is done once more on matrices, and how much longer that may take: products of all layouts come first.
_AGAIN = ("parity", "switch", "prefill", "operations")
_LONGER = 1.5


def run(options: argparse.Namespace, folder: Path) -> int:
    """Run all that this machine can, print and write it; return the exit code. folder: for models."""
    date = datetime.datetime.now(datetime.UTC).replace(microsecond=0).isoformat()
    report = Report(options.out, date=date, small=options.small)
    report.section("host", facts.host_facts)
    try:
        device = ClockedDevice.open(
            allow_software=options.allow_software, pipeline_cache=folder / "pipelines"
        )
    except DeviceError as error:
        report.section("device", dict, reason=str(error))
        print(f"check: {error}", file=sys.stderr)
        return 2
    pool = ThreadPool(0)
    _measure(report, device, pool, folder, small=options.small)
    report.found["passed"] = not report.failed
    report.write()
    print(
        f"\n{'failed: ' + ', '.join(report.failed) if report.failed else 'passed'} ({report.seconds:.0f} s)"
    )
    if report.lost:  # whoever closes it waits for it
        shutil.rmtree(folder, ignore_errors=True)
        sys.stdout.flush()
        os._exit(1)
    device.close()
    pool.close()
    return 1 if report.failed else 0


def _measure(report: Report, device: ClockedDevice, pool: ThreadPool, folder: Path, *, small: bool) -> None:
    report.section("device", lambda: facts.device_facts(device))
    backend = ResidentBackend(device, pool, images=None)
    report.section("parity", lambda: parity(backend, pool, folder, small=small))
    software = device.facts.type == "software"
    effort = SMALL if small or software else FULL
    report.section("bandwidth", lambda: bandwidth(device, largest=effort.copied))

    speed = Speed(device, pool, folder, effort)
    reason = late(report, PATIENCE_S)
    if report.section("load", speed.load, reason=reason) is None:
        reason = reason or "the model was not loaded"
    for name in ("switch", "decode", "prefill", "operations"):
        reason = reason or late(report, SECTION_S)
        report.section(name, getattr(speed, name), reason=reason)
    if not report.lost:
        speed.close()
    _on_matrices(report, speed, pool, folder, small=small, software=software)
    why = "a software device" if software else "a tiny model" if small else ""
    report.section("bars", lambda: judge(report.found, reason=why))


def late(report: Report, seconds: float) -> str:
    """Return why a section that may take so many seconds is not begun, "" where there is time for it."""
    left = MOST_S - report.seconds
    return "" if seconds <= left else f"out of time: it may take {seconds:.0f} s, {left:.0f} s are left"


def _on_matrices(
    report: Report,
    speed: Speed,
    pool: ThreadPool,
    folder: Path,
    *,
    small: bool,
    software: bool,
) -> None:
    """Check the form that a setting chooses, on the same device opened anew."""
    exact = report.found["prefill"]
    reason = "prefill was not measured" if "reason" in exact else ""
    reason = reason or late(report, _LONGER * sum(report.took[name] for name in _AGAIN))
    if reason or report.lost:
        report.section("matrices", dict, reason=reason)
        return
    with ClockedDevice.open(
        allow_software=software, cooperative_matrix=True, pipeline_cache=folder / "pipelines"
    ) as device:
        decline = f"{device.facts.name} {device.matrix_decline}" if device.matrix_decline else ""
        section = Matrices(device, pool, folder)
        report.section("matrices", lambda: section.run(speed, exact, small=small), reason=decline)
        if report.lost:
            device.abandon(DeviceLostError(report.lost))
