"""How K and V lie on the device: regions of a fixed number of positions, side by side in planes per layer.

`shaders/codec.glsl` says which unit is which. A unit is 16 bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from tierd.errors import UnsupportedCodecError, UnsupportedModelError
from tierd.models.formats import KVCodec
from tierd.models.plan import RowStore

# Positions of a region come in whole attention tiles.
TILE = 64
# Positions whose keys lie interleaved. Those of any plane lie in one piece.
STRIP = 32
UNIT = 16
_SCALE = 2
_F16_HEAD_MULTIPLE = 8
_LARGEST_HEAD = 1024


@dataclass(frozen=True, slots=True)
class RegionPlanes:
    """Bytes of one K or V plane pair of a layer, over all regions; scales 0 where the codec has none."""

    quants: int
    scales: int


def check_codec(codec: KVCodec, stores: Iterable[RowStore]) -> None:
    """Raise UnsupportedCodecError for a codec, UnsupportedModelError for heads, that the device lacks."""
    if codec.name == "f32":
        raise UnsupportedCodecError("K/V codec f32 is for the CPU only; choose kv_dtype f16, q8_0 or tq4")
    for store in stores:
        codec.row_bytes(store.head_size)
        if store.head_size % _F16_HEAD_MULTIPLE or store.head_size > _LARGEST_HEAD:
            raise UnsupportedModelError(
                f"heads of {store.head_size} values do not fit the device's kernels, which take multiples of "
                f"{_F16_HEAD_MULTIPLE} up to {_LARGEST_HEAD}"
            )


def plane_bytes(store: RowStore, codec: KVCodec, regions: int, positions: int) -> RegionPlanes:
    """Return the bytes of K (as many as V has) of one layer. positions: of one region, a multiple of TILE."""
    rows = regions * store.heads * positions
    if codec.name == "f16":
        return RegionPlanes(rows * store.head_size * _SCALE, 0)
    scales = rows * store.head_size // codec.elements * _SCALE
    return RegionPlanes(rows * codec.row_bytes(store.head_size) - scales, scales)


def region_bytes(stores: Iterable[RowStore], codec: KVCodec, positions: int) -> int:
    """Return the bytes of one region, all layers."""
    return sum(2 * store.heads * positions * codec.row_bytes(store.head_size) for store in stores)


def strip_bytes(store: RowStore, codec: KVCodec) -> RegionPlanes:
    """Return the bytes of one head's strip: what is copied between regions comes in whole ones."""
    return plane_bytes(dataclasses.replace(store, heads=1), codec, 1, STRIP)
