"""Create a model and run steps of it under allocations.c; print how often each call asked for memory.

Usage: LD_PRELOAD=SHIM python count_allocations.py SHIM MODEL.gguf

Prints a line "level NAME", then "create COUNT", then "threads COUNT", then a line "step COUNT" for each step.
threads: all that the process has, since whatever any of them asks for is counted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tierd.backends import library
from tierd.backends.host import PAGE_POSITIONS, ThreadPool, compile_plan
from tierd.core import Batch, Chunk
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS

THREADS = 2
STREAMS = 3
PAGES = 2


class Counting:
    """The library with two of its functions called through the counter."""

    def __init__(self, ffi: Any, lib: Any, shim: Any) -> None:
        self._ffi, self._lib, self._shim = ffi, lib, shim

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def hk_model_create(self, spec: Any, pool: Any) -> Any:
        create, model = self._ffi.addressof(self._lib, "hk_model_create"), self._ffi.new("hk_model **")
        print("create", self._shim.count_create(create, spec, pool, model))
        return model[0]

    def hk_model_step(self, model: Any, step: Any) -> None:
        function = self._ffi.addressof(self._lib, "hk_model_step")
        print("step", self._shim.count_step(function, model, step))


def batches() -> list[Batch]:
    """Prompts of three streams in one step, across a page's edge, then each one token on, then all alone."""
    prompt = range(PAGE_POSITIONS + 5)
    pages = [list(range(PAGES * n, PAGES * n + PAGES)) for n in range(STREAMS)]
    fed = Batch(tuple(Chunk(prompt, 0, table, (len(prompt) - 1,)) for table in pages))
    grown = [Chunk([n], len(prompt), table, (0,)) for n, table in enumerate(pages)]
    return [fed, Batch(tuple(grown)), *(Batch((chunk,)) for chunk in grown)]


def main() -> None:
    ffi, lib = library.load()
    ffi.cdef(
        "long count_step(void (*)(hk_model *, const hk_step *), hk_model *, const hk_step *);"
        "long count_create(hk_model *(*)(const hk_model_spec *, hk_pool *), const hk_model_spec *, hk_pool *,"
        " hk_model **);"
    )
    counting = Counting(ffi, lib, ffi.dlopen(sys.argv[1]))
    library.load = lambda: (ffi, counting)  # type: ignore[assignment]
    print("level", library.level())
    pool = ThreadPool(THREADS)
    with GGUFFile.open(Path(sys.argv[2])) as file:
        plan = build_plan(file)
        executor = compile_plan(
            plan, file, codec=KV_CODECS["f16"], pages=STREAMS * PAGES, max_rows=256, pool=pool
        )
        print("threads", len(os.listdir("/proc/self/task")))
        for batch in batches():
            executor.run(batch)
        executor.close()
    pool.close()


if __name__ == "__main__":
    main()
