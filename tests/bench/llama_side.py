"""llama.cpp as one side of throughput.py: a child process that answers its calls.

Needs llama-cpp-python and numpy, nothing of tierd. Whatever has no reason to differ is left at llama.cpp's
defaults: weights are mapped and repacked, flash attention is chosen by itself, K/V is f16; the cache of
sliding windows has the window's size, as in its server.
"""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Any

import llama_cpp
import numpy as np

import child

ERROR = 4  # GGML_LOG_LEVEL_ERROR


@llama_cpp.llama_log_callback
def log(level: int, text: bytes, _: object) -> None:
    if level == ERROR:
        sys.stderr.write(text.decode())


class Side:
    """A model and a context of several sequences, once they are loaded."""

    def __init__(self) -> None:
        llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = self.context = self.batch = None

    def about(self) -> dict[str, Any]:
        """Return what it is."""
        return {
            "llama_cpp_python": llama_cpp.__version__,
            "system_info": llama_cpp.llama_print_system_info().decode().strip(),
        }

    def load(self, path: str, threads: int, context: int, streams: int) -> dict[str, Any]:
        """Open a model anew; return the seconds that took."""
        self._free()
        started = time.perf_counter()
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), options)
        assert self.model is not None, path
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max = context * streams, streams
        settings.n_threads = settings.n_threads_batch = threads
        settings.swa_full = False
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        assert self.context is not None, path
        seconds = time.perf_counter() - started
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(max(context, streams), 0, 1)
        return {"seconds": seconds, "vocabulary": self.vocabulary}

    def prefill(self, prompt: list[int]) -> float:
        """Return the seconds from a prompt to its first token."""
        llama_cpp.llama_memory_clear(self.memory, False)
        started = time.perf_counter()
        self._feed(0, prompt)
        return time.perf_counter() - started

    def decode(self, prompts: list[list[int]], tokens: int) -> float:
        """Return the seconds that so many more tokens take each sequence: one batch for all in each step."""
        llama_cpp.llama_memory_clear(self.memory, False)
        newest = np.array([self._feed(sequence, prompt) for sequence, prompt in enumerate(prompts)])
        positions = np.array([len(prompt) for prompt in prompts])
        rows = len(prompts)
        started = time.perf_counter()
        for _ in range(tokens):
            newest = self._step(newest, positions, np.arange(rows), np.ones(rows))
            positions += 1
        return time.perf_counter() - started

    def fill(self, prompts: list[list[int]], tokens: int) -> None:
        """Let each prompt go on for so many tokens."""
        self.decode(prompts, tokens)

    def _feed(self, sequence: int, prompt: list[int]) -> int:
        """Feed a prompt in one batch and return the most likely next token."""
        rows = len(prompt)
        wanted = np.arange(rows) == rows - 1
        return int(self._step(np.array(prompt), np.arange(rows), np.full(rows, sequence), wanted)[0])

    def _step(self, tokens: Any, positions: Any, sequences: Any, wanted: Any) -> Any:
        """Run a batch and return the most likely token behind each wanted row."""
        batch, rows = self.batch, len(tokens)
        batch.n_tokens = rows
        for target, values in ((batch.token, tokens), (batch.pos, positions), (batch.logits, wanted)):
            np.ctypeslib.as_array(target, (rows,))[:] = values
        for row, sequence in enumerate(sequences.tolist()):
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
        status = llama_cpp.llama_decode(self.context, batch)
        assert status == 0, status
        shape = (int(wanted.sum()), self.vocabulary)
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.context), shape).argmax(axis=1)

    def _free(self) -> None:
        if self.model is not None:
            llama_cpp.llama_batch_free(self.batch)
            llama_cpp.llama_free(self.context)
            llama_cpp.llama_model_free(self.model)


if __name__ == "__main__":
    child.serve(Side())
