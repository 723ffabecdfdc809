"""An executor's facts without the executor: what is known of a model whose device state is elsewhere."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from tierd.backends.protocol import Executor, Result
from tierd.core import Batch
from tierd.errors import ExecutorError


class AbsentExecutor:
    """See Executor. It says what the model has when it is there, and refuses to compute."""

    def __init__(
        self,
        *,
        name: str,
        page_positions: int,
        page_bytes: int,
        pages: int,
        max_rows: int,
        logit_rows: int,
        vocabulary: int,
        row_bytes: tuple[int, ...],
        depth: int,
        prefill_continues: bool = True,
        rewinds: bool = True,
    ) -> None:
        """All as an executor has them; see there."""
        self.name = name
        self.page_positions = page_positions
        self.page_bytes = page_bytes
        self.pages = pages
        self.max_rows = max_rows
        self.logit_rows = logit_rows
        self.vocabulary = vocabulary
        self.row_bytes = row_bytes
        self.depth = depth
        self.prefill_continues = prefill_continues
        self.rewinds = rewinds

    @classmethod
    def of(cls, executor: Executor) -> AbsentExecutor:
        """Return the facts of an executor that is about to be closed, or is."""
        return cls(
            name=executor.name,
            page_positions=executor.page_positions,
            page_bytes=executor.page_bytes,
            pages=executor.pages,
            max_rows=executor.max_rows,
            logit_rows=executor.logit_rows,
            vocabulary=executor.vocabulary,
            row_bytes=executor.row_bytes,
            depth=executor.depth,
            prefill_continues=executor.prefill_continues,
            rewinds=executor.rewinds,
        )

    def submit(self, batch: Batch) -> None:
        """Raise ExecutorError."""
        self._refuse()

    def collect(self) -> Result:
        """Raise ExecutorError."""
        self._refuse()

    def copy_rows(self, source: int, target: int, positions: int) -> None:
        """Raise ExecutorError."""
        self._refuse()

    def read_rows(
        self, layer: int, pages: Ordered[int], start: int, stop: int, out: npt.NDArray[np.uint8]
    ) -> None:
        """Raise ExecutorError."""
        self._refuse()

    def write_rows(
        self, layer: int, pages: Ordered[int], start: int, stop: int, rows: npt.NDArray[np.uint8]
    ) -> None:
        """Raise ExecutorError."""
        self._refuse()

    def close(self) -> None:
        """Do nothing: it has nothing."""

    def _refuse(self) -> NoReturn:
        raise ExecutorError("the model is not on its device now")
