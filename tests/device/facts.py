"""What the results depend on besides the code: the device and the host."""

from __future__ import annotations

import dataclasses
import os
import platform
from pathlib import Path

import numpy as np

from device.report import Found, line
from tierd.backends import library
from tierd.backends.cores import usable_cores
from tierd.backends.vkapi import Device


def device_facts(device: Device) -> Found:
    """Return a device's facts; sizes in bytes."""
    facts = dataclasses.asdict(device.facts)
    facts["features"] = sorted(device.facts.features)
    facts["extensions"] = sorted(device.facts.extensions)
    facts["budget"] = device.budget()
    facts["fast_dot"] = device.facts.fast_dot
    line("device", f"{facts['name']} ({facts['type']}, {facts['vendor']})")
    line("driver", facts["driver"], "Vulkan " + ".".join(map(str, facts["api"])))
    line("subgroup", facts["limits"]["subgroup"])
    line("features", ", ".join(facts["features"]))
    line("budget", f"{facts['budget'] / 1e9:.2f} GB")
    for number, heap in enumerate(facts["heaps"]):
        kinds = {
            "/".join(name for name in ("device_local", "host_visible", "coherent", "cached") if entry[name])
            for entry in facts["memory_types"]
            if entry["heap"] == number
        }
        line(f"heap {number}", f"{heap['size'] / 1e9:.2f} GB", ", ".join(sorted(filter(None, kinds))))
    for number, family in enumerate(facts["queues"]):
        does = [name for name in ("compute", "transfer", "graphics", "other") if family[name]]
        line(f"queue family {number}", "/".join(does), f"timestamps of {family['timestamp_bits']} bits")
    return facts


def host_facts() -> Found:
    """Return the host's facts; memory in bytes."""
    found = {
        "processor": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": usable_cores(),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "memory_available": memory_available(),
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "level": library.level(),
    }
    for name, value in found.items():
        line(name, f"{value / 1e9:.2f} GB" if name.startswith("memory") else value)
    return found


def memory_available() -> int:
    """Return the bytes that this host could give to programs."""
    return int(_field("/proc/meminfo", "MemAvailable").split()[0]) * 1024


def _field(path: str, name: str) -> str:
    """Return the first value of a field of a file of fields, "" when it has none."""
    for text in Path(path).read_text().splitlines():
        key, _, value = text.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
