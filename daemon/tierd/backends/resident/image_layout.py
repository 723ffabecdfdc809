"""Where everything lies in a device image: the planes of all matrices, then vectors of floats.

Computed from the tensors' shapes and formats alone. `hostkernels/device_layouts.c` describes the planes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tierd.backends import library
from tierd.backends.resident.ops import Matrix
from tierd.models.gguf import Tensor

ALIGNMENT = 256

# Names of tensors whose values stand end to end, such as the biases of matrices that are joined.
Vector = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """A run of the image's bytes. offset: a multiple of ALIGNMENT. size: 0 for a plane that is not there."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class PlacedMatrix:
    """A matrix, shape (rows, columns), in the planes of a device layout, such as "q4"."""

    layout: str
    rows: int
    columns: int
    quants: Span
    high: Span
    scales: Span

    @property
    def planes(self) -> tuple[Span, Span, Span]:
        """The spans in the order in which kernels take them."""
        return self.quants, self.high, self.scales


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """Where matrices and vectors lie. size: of the whole, in bytes."""

    matrices: Mapping[Matrix, PlacedMatrix]
    vectors: Mapping[Vector, Span]
    size: int

    @classmethod
    def of(
        cls, tensors: Mapping[str, Tensor], matrices: Iterable[Matrix], vectors: Iterable[Vector]
    ) -> ImageLayout:
        """Place matrices, then vectors, each once, in the order given.

        Raises ValueError for tensors that cannot be joined to one matrix.
        """
        spans = _Spans()
        placed = {matrix: _place(tensors, matrix, spans) for matrix in dict.fromkeys(matrices)}
        floats = {
            vector: spans.take(4 * sum(tensors[name].shape[-1] for name in vector))
            for vector in dict.fromkeys(vectors)
        }
        return cls(placed, floats, spans.end)

    def description(self) -> str:
        """Return what is where, a line each: two images of one model are alike where these are."""
        parts = [repr(item) for item in (*self.matrices.items(), *self.vectors.items())]
        return "\n".join([*parts, str(self.size)])


class _Spans:
    """Hands out aligned runs of bytes, one behind the other. end: of all so far, aligned."""

    def __init__(self) -> None:
        self.end = 0

    def take(self, size: int) -> Span:
        span = Span(self.end, size)
        self.end += -(-size // ALIGNMENT) * ALIGNMENT
        return span


def _place(tensors: Mapping[str, Tensor], matrix: Matrix, spans: _Spans) -> PlacedMatrix:
    ffi, lib = library.load()
    parts = [tensors[name] for name in matrix.tensors]
    first = parts[0]
    columns = first.shape[-1]
    if any(part.format is not first.format or part.shape[-1] != columns for part in parts) or any(
        part.shape[0] % lib.HK_DEVICE_ROWS for part in parts[:-1]
    ):
        raise ValueError(f"tensors {', '.join(matrix.tensors)} cannot be joined to one matrix")
    rows = sum(part.shape[0] for part in parts)
    layout = lib.hk_layout_of(first.format.id)
    planes = (lib.HK_PLANE_QUANTS, lib.HK_PLANE_HIGH, lib.HK_PLANE_SCALES)
    sizes = [int(lib.hk_device_plane_bytes(layout, rows, columns, plane)) for plane in planes]
    name = ffi.string(lib.hk_device_layout_name(layout)).decode()
    return PlacedMatrix(name, rows, columns, *map(spans.take, sizes))
