"""What a result depends on besides the code: the machine and its tools. Names nobody's machine."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent.parent
# Of /proc/cpuinfo, what the kernels of either side may use.
FLAGS = frozenset({
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "sve",
})  # fmt: skip


def describe() -> dict[str, Any]:
    """Return the machine's description; memory is in MiB."""
    processor = _fields("/proc/cpuinfo")
    have = f"{processor.get('flags', '')} {processor.get('Features', '')}".split()
    return {
        "processor": processor.get("model name", platform.machine()),
        "flags": sorted(FLAGS.intersection(have)),
        "cores": len(os.sched_getaffinity(0)),
        "memory": int(_fields("/proc/meminfo")["MemTotal"].split()[0]) // 1024,
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "compiler": _first_line(["gcc", "--version"]),
        "python": platform.python_version(),
    }


def commit() -> dict[str, Any]:
    """Return the commit that is measured, and whether tracked files differ from it."""
    git = ["git", "-C", str(REPOSITORY)]
    return {
        "id": _first_line([*git, "rev-parse", "HEAD"]),
        "changed": bool(_first_line([*git, "status", "--porcelain", "--untracked-files=no"])),
    }


def _fields(path: str) -> dict[str, str]:
    """Return the first value of each field."""
    fields: dict[str, str] = {}
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields


def _first_line(command: Sequence[str]) -> str:
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return run.stdout.partition("\n")[0]
