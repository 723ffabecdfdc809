"""Where everything that a step touches lies on the device: addresses, and how far apart rows are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tierd.backends.resident.image_layout import Vector
from tierd.backends.resident.ops import Matrix
from tierd.backends.resident.split import Split
from tierd.models.plan import RopeSpec

BLOCK = 32


@dataclass(frozen=True, slots=True)
class FloatRows:
    """Rows of `width` floats, `stride` floats apart."""

    address: int
    width: int
    stride: int


@dataclass(frozen=True, slots=True)
class QuantisedRows:
    """Rows of quantised blocks: the bytes of each, and its scale with its sums."""

    quants: int
    scales: int


@dataclass(frozen=True, slots=True)
class Weights:
    """A matrix, shape (rows, columns), in the planes of a layout; a plane that is not there is at 0.

    bytes: of all planes.
    """

    layout: str
    rows: int
    columns: int
    bytes: int
    quants: int
    high: int
    scales: int

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return -(-self.columns // BLOCK)


@dataclass(frozen=True, slots=True)
class RowPlanes:
    """The K and V rows of one layer in all regions; scales at 0 where the codec has none."""

    k_quants: int
    k_scales: int
    v_quants: int
    v_scales: int


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where attention keeps tiles until all of a row's are there, and counts which are."""

    partials: int
    counters: int
    split: Split


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlaces:
    """What belongs to one of the two steps in flight.

    block, selection: the step's block, and the rows of which something is wanted. before: the tokens drawn by
    the step before. logits: rows of the vocabulary.
    """

    block: int
    selection: int
    before: int
    logits: FloatRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """All addresses of a model.

    max_rows: rows that buffers hold. selected: rows of logits. positions: of one region.
    """

    floats: Mapping[str, FloatRows]
    quantised: Mapping[str, QuantisedRows]
    weights: Mapping[Matrix, Weights]
    vectors: Mapping[Vector, int]
    ropes: Mapping[RopeSpec, int]
    rows: Mapping[int, RowPlanes]
    shapes: Mapping[int, int]
    scratch: Scratch
    max_rows: int
    selected: int
    positions: int
