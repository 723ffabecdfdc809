"""Shapes of POST /v1/embeddings. Fields keep OpenAI's order; see `requests` and `shapes`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Raw

from tierd.http.requests import MAX_PRIORITY, Positive
from tierd.http.unsupported import SILENT, off


class EmbeddingBody(msgspec.Struct, kw_only=True):
    """input: a text, token ids, or a list of these.

    encoding_format: as OpenAI has it, "float" where the request is silent. dimensions: only of models whose
    vectors may be cut. priority: as of completions.
    """

    input: str | list[int | str | list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Positive | None = None
    priority: Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None

    add_special_tokens: Annotated[Raw, off(True)] = SILENT
    embd_normalize: Annotated[Raw, off(2)] = SILENT
    input_type: Annotated[Raw, off()] = SILENT
    instruction: Annotated[Raw, off("")] = SILENT
    late_chunking: Annotated[Raw, off(False)] = SILENT
    messages: Annotated[Raw, off()] = SILENT
    normalize: Annotated[Raw, off(True)] = SILENT
    pooling: Annotated[Raw, off()] = SILENT
    prompt_name: Annotated[Raw, off()] = SILENT
    task: Annotated[Raw, off()] = SILENT
    truncate: Annotated[Raw, off(False)] = SILENT
    truncate_prompt_tokens: Annotated[Raw, off()] = SILENT


class Vector(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one input. embedding: its values, or base64 of them as little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Token counts of all inputs; nothing is generated."""

    prompt_tokens: int
    total_tokens: int


class VectorList(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, in the order of the inputs."""

    object: Literal["list"] = "list"
    data: list[Vector]
    model: str
    usage: EmbeddingUsage
