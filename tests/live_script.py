"""A device whose model says what a test wants, for answers that must be of a certain form."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tierd.backends.null import NullBackend, NullExecutor
from tierd.backends.protocol import Executor
from tierd.core import Chunk
from tierd.models.formats import KVCodec
from tierd.models.gguf import GGUFFile
from tierd.models.plan import Plan

FIRST_BYTE, END = 3, 2  # ids of the tiny `llama` file's vocabulary


class ScriptedBackend(NullBackend):
    """Every answer is `says`, byte by byte, then the end. A prompt must not end with the beginning of it."""

    def __init__(self) -> None:
        super().__init__()
        self.says = ""

    def compile(
        self, plan: Plan, file: GGUFFile, *, codec: KVCodec, pages: int, max_rows: int, progress: Any = None
    ) -> Executor:
        return _ScriptedExecutor(
            self,
            pages=pages,
            page_positions=self.page_positions,
            page_bytes=self.page_bytes(plan, codec),
            max_rows=max_rows,
            vocabulary=plan.vocabulary,
            width=plan.buffers[plan.hidden],
        )


class _ScriptedExecutor(NullExecutor):
    """See ScriptedBackend."""

    def __init__(self, backend: ScriptedBackend, **more: Any) -> None:
        super().__init__(**more)
        self._backend = backend

    def _row(self, chunk: Chunk, offset: int, width: int) -> npt.NDArray[np.float32]:
        row = super()._row(chunk, offset, width)
        script = np.frombuffer(self._backend.says.encode(), np.uint8).astype(np.int64) + FIRST_BYTE
        length = chunk.start + offset + 1
        history = self._tokens[list(chunk.pages)].reshape(-1)[:length]
        said = next(
            count
            for count in range(min(len(script), length), -1, -1)
            if np.array_equal(history[length - count :], script[:count])
        )
        row[END if said == len(script) else script[said]] += 50
        return row
