"""llama.cpp's Vulkan backend as one side of device_throughput.py: a child process that answers its calls.

Needs cyllama-vulkan, nothing of tierd. All layers and the K/V are on the first device that
GGML_VK_VISIBLE_DEVICES leaves; the rest is as in `llama_side`: llama.cpp's defaults, and a sliding window's
cache that has the window's size.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any

import cyllama
from cyllama.llama import llama_cpp

import child

ALL_LAYERS = -1
Row = tuple[int, int, int, bool]  # token, position, sequence, and whether it is wanted


class Side:
    """A model and a context of several sequences, once they are loaded."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        llama_cpp.set_log_callback(lambda _, text: self._lines.append(text.rstrip()))
        llama_cpp.ggml_backend_load_all()
        llama_cpp.llama_backend_init()
        self.model = self.context = self.batch = None
        self._pick = llama_cpp.LlamaSampler(llama_cpp.LlamaSamplerChainParams())
        self._pick.add_greedy()

    def about(self) -> dict[str, Any]:
        """Return what it is. device: the first GPU's name; line: what the Vulkan backend says of it."""
        devices = [device for device in llama_cpp.ggml_backend_dev_info() if device["type"] == "GPU"]
        assert devices, self._lines
        return {
            "cyllama_vulkan": cyllama.__version__,
            "device": devices[0]["description"],
            "line": self._said(r"ggml_vulkan: 0 = .*")[0],
        }

    def load(self, path: str, threads: int, context: int, streams: int) -> dict[str, Any]:
        """Open a model anew; return the seconds that took."""
        self.close()
        self._lines.clear()
        started = time.perf_counter()
        options = llama_cpp.LlamaModelParams()
        options.n_gpu_layers = ALL_LAYERS
        self.model = llama_cpp.LlamaModel(path, options)
        settings = llama_cpp.LlamaContextParams()
        settings.n_ctx, settings.n_seq_max = context * streams, streams
        settings.n_threads = settings.n_threads_batch = threads
        settings.swa_full = False
        self.context = llama_cpp.LlamaContext(self.model, settings)
        seconds = time.perf_counter() - started
        offloaded = self._said(r"offloaded (\d+)/(\d+) layers to GPU")
        assert offloaded[1] == offloaded[2], offloaded[0]
        self.batch = llama_cpp.LlamaBatch(n_tokens=max(context, streams), embd=0, n_seq_max=1)
        return {"seconds": seconds, "vocabulary": self.model.get_vocab().n_vocab}

    def prefill(self, prompt: list[int]) -> float:
        """Return the seconds from a prompt to its first token."""
        self.context.kv_cache_clear()
        started = time.perf_counter()
        self._feed(0, prompt)
        return time.perf_counter() - started

    def decode(self, prompts: list[list[int]], tokens: int) -> float:
        """Return the seconds that so many more tokens take each sequence: one batch for all in each step."""
        self.context.kv_cache_clear()
        newest = [self._feed(sequence, prompt) for sequence, prompt in enumerate(prompts)]
        started = time.perf_counter()
        for step in range(tokens):
            newest = self._step(
                (token, len(prompts[sequence]) + step, sequence, True)
                for sequence, token in enumerate(newest)
            )
        return time.perf_counter() - started

    def close(self) -> None:
        """Free the model; the process must not end without."""
        if self.model is not None:
            self.batch.close()
            self.context.close()
            self.model.close()

    def _feed(self, sequence: int, prompt: list[int]) -> int:
        """Feed a prompt in one batch and return the most likely next token."""
        last = len(prompt) - 1
        return self._step((token, at, sequence, at == last) for at, token in enumerate(prompt))[0]

    def _step(self, rows: Iterable[Row]) -> list[int]:
        """Run a batch and return the most likely token behind each wanted row."""
        self.batch.clear()
        wanted = []
        for index, (token, position, sequence, asked) in enumerate(rows):
            self.batch.add(token, position, [sequence], asked)
            if asked:
                wanted.append(index)
        self.context.decode(self.batch)
        return [self._pick.sample(self.context, index) for index in wanted]

    def _said(self, pattern: str) -> re.Match[str]:
        """Return the first match in what llama.cpp has said."""
        found = re.search(pattern, "\n".join(self._lines))
        assert found is not None, pattern
        return found


if __name__ == "__main__":
    side = Side()
    child.serve(side)
    side.close()
