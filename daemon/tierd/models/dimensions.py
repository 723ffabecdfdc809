"""The hyper-parameters that every decoder-only transformer's file states, read and held to their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tierd.errors import ModelFileError, UnsupportedModelError
from tierd.models.gguf import GGUFFile

_LARGEST_HEAD = 4096
"""Well above any head in use; keeps a lying file from asking for huge rotary tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """A model's sizes. eps: what RMS norms add to the mean square. context: positions trained for."""

    layers: int
    context: int
    vocabulary: int
    embedding: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_size: int
    eps: float

    @classmethod
    def read(cls, file: GGUFFile, architecture: str) -> Self:
        """Read the sizes under the keys of `architecture`.

        Raises ModelFileError naming a key that is missing, of the wrong type, out of range or at odds
        with another; UnsupportedModelError when keys and values differ in size.
        """
        embedding = file.integer(f"{architecture}.embedding_length", least=1)
        heads_key = f"{architecture}.attention.head_count"
        heads = file.integer(heads_key, least=1)
        kv_heads_key = f"{architecture}.attention.head_count_kv"
        kv_heads = file.integer(kv_heads_key, heads, least=1)
        if heads % kv_heads:
            raise ModelFileError(
                f"{file.path}: key {kv_heads_key} is {kv_heads}, which does not divide the {heads} heads"
            )
        return cls(
            vocabulary=_read_vocabulary(file),
            # Every layer has tensors, so their number keeps a lying file from asking for endless layers.
            layers=file.integer(f"{architecture}.block_count", least=1, most=len(file.tensors)),
            context=file.integer(f"{architecture}.context_length", least=1),
            embedding=embedding,
            feed_forward=file.integer(f"{architecture}.feed_forward_length", least=1),
            heads=heads,
            kv_heads=kv_heads,
            head_size=_read_head_size(file, architecture, embedding, heads),
            eps=file.number(f"{architecture}.attention.layer_norm_rms_epsilon", least=1e-12, most=1e-1),
        )


def refuse(file: GGUFFile, key: str, neutral: int | float | bool) -> None:
    """Raise UnsupportedModelError if `key` stands in the file with a value other than `neutral`.

    For features that change the result and that the architecture does not implement.
    """
    value = file.metadata.get(key, neutral)
    if isinstance(value, bool | int | float) and value == neutral:
        return
    shown = value if isinstance(value, bool | int | float) else "not a plain number"
    raise UnsupportedModelError(f"{file.path}: key {key} is {shown}; only {neutral} is implemented")


def _read_vocabulary(file: GGUFFile) -> int:
    rows = file.tensor("token_embd.weight").shape[0]
    key = "tokenizer.ggml.tokens"
    tokens = len(file.texts(key)) if key in file.metadata else rows
    if tokens != rows:
        raise ModelFileError(
            f"{file.path}: tensor token_embd.weight has {rows} rows, key {key} lists {tokens} tokens"
        )
    return rows


def _read_head_size(file: GGUFFile, architecture: str, embedding: int, heads: int) -> int:
    key, value_key = (f"{architecture}.attention.{part}_length" for part in ("key", "value"))
    if key in file.metadata:
        default = None
    elif embedding % heads == 0:
        default = embedding // heads
    else:
        raise ModelFileError(
            f"{file.path}: key {key} is missing, and {heads} heads do not divide an embedding of {embedding}"
        )
    head_size = file.integer(key, default, least=1, most=_LARGEST_HEAD)
    value_size = file.integer(value_key, default or head_size, least=1, most=_LARGEST_HEAD)
    if value_size != head_size:
        raise UnsupportedModelError(
            f"{file.path}: keys {key} and {value_key} differ ({head_size} and {value_size}); "
            "only equal sizes are implemented"
        )
    return head_size
