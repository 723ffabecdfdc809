"""How many K/V pages a model gets, and how long its streams may therefore be."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from tierd.errors import ModelError, SettingsError
from tierd.settings import KVSettings

FREE_MEMORY_SHARE = 0.5
BANK_MEMORY_SHARE = 0.25
# A page costs some bytes and time of bookkeeping too: keeps a file with tiny heads and a boundless context
# from making more pages than that could bear.
MOST_PAGES = 1 << 20
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """context: positions of one stream. pages: of the whole pool; at least one stream's context fits."""

    context: int
    pages: int


def pages_for(positions: int, page_positions: int) -> int:
    """Return how many pages hold that many positions."""
    return -(-positions // page_positions)


def size_cache(
    *, trained: int, asked: int, streams: int, page_positions: int, page_bytes: int, budget: int
) -> CacheSize:
    """Choose a model's context and number of pages. Pure.

    trained: positions the model was trained for. asked: the context setting, 0 for the model's own
    as far as memory allows. page_bytes: of one page, all layers. budget: bytes for all pages.
    There are enough pages for `streams` full contexts, or as many as the budget and MOST_PAGES allow.
    Raises SettingsError when more than the trained context is asked for, ModelError when the
    budget does not hold one stream.
    """
    check_context(asked, trained)
    affordable = min(budget // page_bytes, MOST_PAGES)
    least = pages_for(asked or 1, page_positions)
    if affordable < least:
        raise ModelError(
            f"one stream of {asked or page_positions} positions needs {mib(least * page_bytes)} of K/V "
            f"memory, but only {mib(budget)} are there for it; lower context or raise kv.memory_mb"
        )
    context = asked or min(trained, affordable * page_positions)
    return CacheSize(context=context, pages=min(streams * pages_for(context, page_positions), affordable))


def check_context(asked: int, trained: int) -> None:
    """Raise SettingsError when a context is asked for that is longer than the trained one."""
    if asked > trained:
        raise SettingsError(
            f"context = {asked} is more than the {trained} positions the model was trained for; lower it"
        )


def memory_budget(memory_mb: int, models: int, working: int = 0) -> int:
    """Return the bytes of K/V memory for one of `models` models that share alike.

    memory_mb: for all of them, in MiB; 0: half of the memory that is free now. working: bytes that the
    model takes besides, which are not free.
    """
    free = max(0, available_memory() - working)
    total = memory_mb * _MIB if memory_mb else int(free * FREE_MEMORY_SHARE)
    return total // models


def bank_limit(settings: KVSettings) -> int:
    """Return the bytes that the host bank may take; asked at the start, before models take theirs."""
    return settings.bank_mb * _MIB or int(available_memory() * BANK_MEMORY_SHARE)


class PromisedMemory:
    """The K/V pools of all models, which take no memory until they are used. May be shared by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._promised: dict[str, int] = {}

    def promise(self, model: str, pool: int, working: int, available: int) -> None:
        """Promise a model a pool of so many bytes, besides `working` bytes that it is about to take.

        Counts what others were promised as if none of it had been used. Raises ModelError, with the
        numbers, when `available` bytes do not hold all that.
        """
        with self._lock:
            others = sum(self._promised.values())
            if pool + working + others > available:
                besides = f", {mib(others)} are promised to other models" if others else ""
                raise ModelError(
                    f"its K/V pool of {mib(pool)} and {mib(working)} of weights and buffers are more than "
                    f"the {mib(available)} of memory that are free{besides}; "
                    "lower kv.memory_mb, context or streams"
                )
            self._promised[model] = pool + working

    def settle(self, model: str, pool: int) -> None:
        """Note that the model has taken its working memory: only the pool, 0 for none, is promised still."""
        with self._lock:
            self._promised[model] = pool


def available_memory() -> int:
    """Return the bytes this process could still use: what the machine has left, and its cgroup allows.

    From MemAvailable of proc(5) and memory.max, memory.current and inactive_file of cgroup v2; the
    page cache counts as free.
    """
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    machine = int(fields["MemAvailable"].split()[0]) * 1024
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    groups = [Path("/sys/fs/cgroup") / line[4:] for line in lines if line.startswith("0::/")]
    return min([machine, *(cgroup_memory(group, machine) for group in groups)])


def private_memory() -> int:
    """Return the bytes of memory that this process and its children have written and share with no others.

    From Pss_Dirty of smaps_rollup, or Private_Dirty where Linux is older than 6.0; see proc(5).
    """
    own = Path("/proc/self")
    children = [pid for task in own.glob("task/*/children") for pid in task.read_text().split()]
    return sum(map(_written, [own, *(Path("/proc", pid) for pid in children)]))


def _written(process: Path) -> int:
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()[1:]
    except OSError:  # it has ended
        return 0
    kib = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
    return kib.get("Pss_Dirty", kib["Private_Dirty"]) * 1024


def cgroup_memory(group: Path, unlimited: int) -> int:
    """Return the bytes that a cgroup v2 folder still allows, or `unlimited`."""
    try:
        limit = (group / "memory.max").read_text().strip()
        current = int((group / "memory.current").read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except OSError:  # the root group has none of these files
        return unlimited
    if limit == "max":
        return unlimited
    return max(0, int(limit) - current + int(statistics["inactive_file"]))


def mib(count: int) -> str:
    """Return a number of bytes in MiB, for people."""
    return f"{count / _MIB:,.1f} MiB"
