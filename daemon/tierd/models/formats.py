"""Two tables: how weights are stored in a file, and how K/V rows are stored in memory.

Both store blocks: `elements` values in `bytes` bytes. Weight formats and their ids are GGML's, as the
GGUF specification lists them (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from tierd.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """One weight format. id: GGML's type id. A block holds `elements` values in `bytes` bytes."""

    id: int
    name: str
    elements: int
    bytes: int

    def row_bytes(self, columns: int) -> int:
        """Bytes of one row of `columns` values, which must be whole blocks."""
        return columns // self.elements * self.bytes


@dataclass(frozen=True, slots=True)
class KVCodec:
    """One storage form of K/V rows. id: its number in the kernels' ABI."""

    id: int
    name: str
    elements: int
    bytes: int

    def row_bytes(self, head_size: int) -> int:
        """Bytes of one row: one head's K or V vector at one position.

        Raises UnsupportedModelError when vectors of `head_size` do not fit the codec.
        """
        if self.name == "tq4" and head_size & (head_size - 1):
            raise UnsupportedModelError(
                f"K/V codec tq4 needs a head size that is a power of two, this model's is {head_size}; "
                "choose kv_dtype f16 or f32"
            )
        if head_size < self.elements or head_size % self.elements:
            raise UnsupportedModelError(
                f"K/V codec {self.name} needs a head size that is a multiple of {self.elements}, "
                f"this model's is {head_size}; choose kv_dtype f16 or f32"
            )
        return head_size // self.elements * self.bytes


WEIGHT_FORMATS: dict[int, WeightFormat] = {
    entry.id: entry
    for entry in (
        WeightFormat(0, "F32", 1, 4),
        WeightFormat(1, "F16", 1, 2),
        WeightFormat(2, "Q4_0", 32, 18),
        WeightFormat(3, "Q4_1", 32, 20),
        WeightFormat(6, "Q5_0", 32, 22),
        WeightFormat(7, "Q5_1", 32, 24),
        WeightFormat(8, "Q8_0", 32, 34),
        WeightFormat(10, "Q2_K", 256, 84),
        WeightFormat(11, "Q3_K", 256, 110),
        WeightFormat(12, "Q4_K", 256, 144),
        WeightFormat(13, "Q5_K", 256, 176),
        WeightFormat(14, "Q6_K", 256, 210),
        WeightFormat(30, "BF16", 1, 2),
    )
}

KV_CODECS: dict[str, KVCodec] = {
    entry.name: entry
    for entry in (
        KVCodec(0, "f32", 1, 4),
        KVCodec(1, "f16", 1, 2),
        KVCodec(2, "q8_0", 32, 34),
        KVCodec(3, "tq4", 32, 18),
    )
}

_FORMATS_BY_NAME = {entry.name: entry for entry in WEIGHT_FORMATS.values()}


def weight_format(name: str) -> WeightFormat:
    """Return the weight format called `name`, such as "Q4_1"; UnsupportedModelError if there is none."""
    try:
        return _FORMATS_BY_NAME[name]
    except KeyError:
        known = ", ".join(_FORMATS_BY_NAME)
        raise UnsupportedModelError(f"weight format {name} is not known; known are {known}") from None
