"""The processor and the machine's memory."""

from __future__ import annotations

import os

from tierd.backends import library
from tierd.backends.cores import usable_cores
from tierd.cli.checks.finding import Finding, note, problem
from tierd.errors import TierdError
from tierd.kv.sizing import available_memory, mib
from tierd.settings import Settings

_MIB = 1 << 20


def processor() -> Finding:
    """Say which level of the kernels is active, and whether HOSTKERNELS_LEVEL has a part in that."""
    asked = os.environ.get("HOSTKERNELS_LEVEL", "")
    try:
        level = library.level()
    except TierdError as error:
        return problem("processor", str(error), "unset HOSTKERNELS_LEVEL" if asked else "", TierdError)
    best = library.LEVELS[-1]
    if asked and level == asked != best:
        text = f"kernels of level {level}, as HOSTKERNELS_LEVEL allows no higher one"
        return note("processor", text, "unset HOSTKERNELS_LEVEL")
    if level != best:
        return note("processor", f"kernels of level {level}; this processor has not what {best} needs")
    return Finding(subject="processor", text=f"kernels of level {level}, the best that there is")


def cores(settings: Settings) -> Finding:
    """Say on how many cores tierd may compute."""
    usable, there = usable_cores(), os.cpu_count() or 1
    text = f"{usable} of {there} may be used"
    threads = settings.engine.threads
    if threads > usable:
        text += f", and engine.threads starts {threads} threads, which get in each other's way"
        return note("cores", text, f"set engine.threads = {usable}, or 0")
    return Finding(subject="cores", text=text)


def memory(settings: Settings) -> Finding:
    """Say how much of the machine's memory tierd could still have."""
    there, asked = available_memory(), settings.kv.memory_mb * _MIB
    text = f"{mib(there)} are free for tierd"
    if asked > there:
        remedy = "lower kv.memory_mb, or set it to 0: half of what is free"
        return note("memory", f"{text}, less than the {mib(asked)} of kv.memory_mb", remedy)
    return Finding(subject="memory", text=text)
