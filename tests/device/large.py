"""A model of a 7B's shape with random weights, written as fast as a disk takes it: all layers are alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from tiny import random_tensor_bytes


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a llama whose output is a matrix of its own."""

    embedding: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    feed_forward: int = 14336
    vocabulary: int = 32000
    context: int = 2048
    format: str = "Q4_0"

    @property
    def head_size(self) -> int:
        """Values of a head."""
        return self.embedding // self.heads

    def layer(self) -> dict[str, tuple[int, int]]:
        """Return the matrices of a layer, (rows, columns) by name."""
        kv = self.kv_heads * self.head_size
        return {
            "attn_q": (self.embedding, self.embedding),
            "attn_k": (kv, self.embedding),
            "attn_v": (kv, self.embedding),
            "attn_output": (self.embedding, self.embedding),
            "ffn_gate": (self.feed_forward, self.embedding),
            "ffn_up": (self.feed_forward, self.embedding),
            "ffn_down": (self.embedding, self.feed_forward),
        }

    @property
    def bytes(self) -> int:
        """The bytes of all matrices in a file; norms are nothing beside them."""
        elements, size = gguf.GGML_QUANT_SIZES[Kind[self.format]]
        layer = sum(rows * columns for rows, columns in self.layer().values())
        return (self.layers * layer + 2 * self.vocabulary * self.embedding) * size // elements


def write(path: Path, sizes: Sizes) -> None:
    """Write a file without a tokenizer, as random as one layer is."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.embedding)
    writer.add_block_count(sizes.layers)
    writer.add_feed_forward_length(sizes.feed_forward)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    kind, norm = Kind[sizes.format], np.ones(sizes.embedding, np.float32)

    def matrix(name: str, data: np.ndarray) -> None:
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)

    layer = {
        name: random_tensor_bytes(sizes.format, rows, columns, seed, spread=1.0 / np.sqrt(columns))
        for seed, (name, (rows, columns)) in enumerate(sizes.layer().items())
    }
    rows, columns = sizes.vocabulary, sizes.embedding
    ends = {
        name: random_tensor_bytes(sizes.format, rows, columns, seed, spread=2.0 / np.sqrt(columns))
        for seed, name in enumerate(("token_embd", "output"), len(layer))
    }
    matrix("token_embd", ends["token_embd"])
    for number in range(sizes.layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{number}.{name}.weight", norm)
        for name, data in layer.items():
            matrix(f"blk.{number}.{name}", data)
    writer.add_tensor("output_norm.weight", norm)
    matrix("output", ends["output"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
