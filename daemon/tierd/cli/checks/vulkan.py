"""Vulkan's loader and devices, and the witness: whether one computes right."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from tierd.backends.vkapi import (
    DeviceFacts,
    available,
    choose_device,
    decline_of,
    loader_version,
    matrix_decline,
    missing_features,
    physical_devices,
)
from tierd.cli.checks.drivers import remedy_for
from tierd.cli.checks.finding import Finding, note
from tierd.errors import DeviceError
from tierd.kv.sizing import mib
from tierd.settings import GPUSettings
from tierd.tier.availability import Verdict


def loader() -> Finding:
    """Say whether Vulkan can be called at all."""
    try:
        version = ".".join(map(str, loader_version()))
    except DeviceError as error:
        package = find_spec("vulkan") is None
        remedy = f"{sys.executable} -m pip install vulkan" if package else "sudo apt install libvulkan1"
        return note("loader", str(error), remedy)
    return Finding(subject="loader", text=f"Vulkan {version}")


def devices(settings: GPUSettings, cards: Sequence[str]) -> list[Finding]:
    """Say of each device what it is, and whether it would be used. There is a loader."""
    subject = "devices"
    try:
        found = physical_devices()
    except DeviceError as error:
        return [note(subject, str(error), remedy_for(cards))]
    if not found:
        return [note(subject, "Vulkan's drivers find no device", remedy_for(cards))]
    try:
        chosen = choose_device(found, allow_software=settings.allow_software)
    except DeviceError:
        chosen = -1
    return [
        finding
        for index, facts in enumerate(found)
        for finding in _device(facts, settings, is_chosen=index == chosen)
    ]


def _device(facts: DeviceFacts, settings: GPUSettings, *, is_chosen: bool) -> list[Finding]:
    local = max((heap.size for heap in facts.heaps if heap.device_local), default=0)
    version = ".".join(map(str, facts.api))
    text = f"{facts.type}, {facts.driver}, Vulkan {version}, {mib(local)} of its own"
    subject = f"device {facts.name}"
    decline = decline_of(facts, allow_software=settings.allow_software)
    if decline:
        software = facts.type == "software" and not settings.allow_software
        remedy = "for tests, set gpu.allow_software = true" if software else "update its driver"
        return [note(subject, f"{text}; {decline}", remedy)]
    if not is_chosen:
        return [Finding(subject=subject, text=f"{text}; could be used, another one comes first")]
    return [
        Finding(subject=subject, text=f"{text}; it is the one that is used"),
        _features(facts),
        _matrices(facts, settings),
    ]


def _features(facts: DeviceFacts) -> Finding:
    missing = missing_features(facts)
    if missing:
        return note(
            "features", f"{facts.name} goes without {', '.join(missing)}", "a newer driver may have more"
        )
    return Finding(subject="features", text="all that tierd knows to use")


def _matrices(facts: DeviceFacts, settings: GPUSettings) -> Finding:
    subject, decline = "matrix units", matrix_decline(facts)
    if decline and settings.cooperative_matrix:
        return note(subject, f"{facts.name} {decline}", "unset gpu.cooperative_matrix, or update the driver")
    if decline:
        return Finding(subject=subject, text=f"not used, nor usable: {facts.name} {decline}")
    sizes = ", ".join(map(str, facts.matrices))
    used = "used" if settings.cooperative_matrix else "not used unless gpu.cooperative_matrix is set"
    return Finding(subject=subject, text=f"of sizes {sizes}, {used}")


def witness(settings: GPUSettings, verdict: Verdict) -> Finding:
    """Say what came of letting the device compute something."""
    subject = "witness"
    if verdict.device is None:
        usable = not available(allow_software=settings.allow_software)
        remedy = "update the device's driver; gpu.mode = 'off' goes without it" if usable else ""
        return note(subject, verdict.reason, remedy)
    name, budget = verdict.device.facts.name, mib(verdict.device.budget())
    return Finding(subject=subject, text=f"{name} computes right, with {budget} for models")
