"""A process that foresees a model, loads it as the daemon does, fills all that it got, and tells what it has.

Arguments: the settings' file, and a tiny model that is there before, so that what the first model of a
process brings with it is not counted. Prints a JSON object: what `tierd size` says, and bytes by name.
"""

from __future__ import annotations

import gc
import json
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from tierd.backends import library
from tierd.backends.host import HostBackend, HostExecutor
from tierd.backends.protocol import SCORED_ROWS
from tierd.backends.rails.executor import RailsExecutor
from tierd.backends.resident.executor import ResidentExecutor
from tierd.backends.vkapi import roles_on_device
from tierd.cli.size import describe
from tierd.cli.size_views import document
from tierd.core import Batch, Chunk
from tierd.kv.sizing import private_memory
from tierd.settings import ModelSettings, load_settings
from tierd.slot import Slot
from tierd.tier.host_site import HostSite
from tierd.tier.placing import Tier


def settled() -> int:
    """Return what the process holds, without what is free in its heap."""
    gc.collect()
    library.trim()
    return private_memory()


def fill(slot: Slot, executor: HostExecutor | RailsExecutor) -> None:
    """Write every row of every page, and let a step be as large as steps become."""
    for layer, size in enumerate(executor.row_bytes):
        rows = np.zeros((executor.page_positions, size), np.uint8)
        for page in range(executor.pages):
            executor.write_rows(layer, [page], 0, len(rows), rows)
    streams = slot.settings.streams
    count = slot.chunk_rows // streams + 1  # of rows of each
    pages = -(-count // executor.page_positions)
    tables = (tuple(range(first, first + pages)) for first in range(0, streams * pages, pages))
    chunks = [Chunk((5,) * count, 0, table, (0,)) for table in tables]
    chunks[0] = replace(chunks[0], logit_rows=tuple(range(1 + SCORED_ROWS)))
    executor.run(Batch(tuple(chunks)))


def on_device(executor: ResidentExecutor) -> int:
    """Return the bytes of all buffers in the device's own memory, once rows have moved there and back."""
    rows = np.zeros((executor.page_positions, executor.row_bytes[0]), np.uint8)
    executor.write_rows(0, [0], 0, len(rows), rows)
    executor.read_rows(0, [0], 0, len(rows), rows)
    device = executor._device
    roles = roles_on_device(device.facts.memory_types, device.facts.heaps)
    return sum(block.ranges.taken for role in roles for block in device._memory._blocks[role])


def shared() -> int:
    """Return the bytes of memory that the process shares with others, files apart."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssShmem:")[2].split()[0]) << 10


def lifted(executor: RailsExecutor) -> tuple[int, int]:
    """Return the bytes that are free once a model has nothing on the device any more; those shared apart."""
    assert executor.layers
    there, common = settled(), shared()
    executor.lift()
    return there - settled(), common - shared()


def main(config: str, warm: str) -> None:
    settings = load_settings(Path(config))
    report = document(describe(settings, settings.models[0].id, {}))
    backend = HostBackend(settings.engine.threads)
    with closing(backend), closing(Tier(settings, HostSite(backend), backend.pool)) as tier:
        first = tier.open(ModelSettings(id="warm", path=Path(warm), streams=1, context=64))
        first.close()
        tier.release("warm")
        before = settled()
        slot = tier.open(settings.models[0])
        executor, device, common = slot.executor, 0, 0
        if isinstance(executor, ResidentExecutor):
            device = on_device(executor)
        else:
            assert isinstance(executor, HostExecutor | RailsExecutor)
            fill(slot, executor)
        if isinstance(executor, RailsExecutor):
            device, common = lifted(executor)
        held = {"host": settled() - before, "device": device, "shared": common}
        print(json.dumps({"report": report, "held": held}))
        slot.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
