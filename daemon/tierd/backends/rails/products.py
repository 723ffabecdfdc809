"""What a model has on the device: the weights of some layers, and the tensors that steps carry to and fro."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tierd.backends.host import HostExecutor
from tierd.backends.rails.card import COPIES, WORD, Algorithm, Card, Recording, Shared, Tensor, Words
from tierd.backends.rails.cuts import HEAD, Group, Matmul
from tierd.backends.resident import manifest
from tierd.errors import DeviceError
from tierd.progress import Progress

TILE = 64
# Bytes of a binding that every device allows (maxStorageBufferRange of Vulkan's required limits).
_BINDING_BYTES = 1 << 27
# A tensor that matmuls share is not filled beyond this: it is packed whole before it is carried.
_CHUNK_BYTES = 1 << 26


def fits(group: Group, max_rows: int) -> bool:
    """Whether weights, and the activations and products of so many rows, can be bound at all, wherever."""
    largest = max(matmul.words for matmul in group.matmuls)
    return max(largest, group.x_words(max_rows), group.out_words(max_rows)) * WORD <= _BINDING_BYTES


def product_bytes(groups: Sequence[Group], max_rows: int) -> int:
    """Return the bytes of the device that these take, for steps of so many rows; 0 for none."""
    words = sum(_words(group.matmuls) for group in groups)
    return COPIES * WORD * (words + sum(_carried(groups, max_rows)))


def host_bytes(groups: Sequence[Group], max_rows: int) -> int:
    """Return the bytes of the host's memory that they take: Kompute's copies, and what is shared with it."""
    return product_bytes(groups, max_rows) // COPIES + WORD * max(_carried(groups, max_rows))


def _carried(groups: Sequence[Group], max_rows: int) -> tuple[int, int]:
    """Return the words of the largest activations, and of the largest products."""
    x = max((group.x_words(max_rows) for group in groups), default=0)
    return x, max((group.out_words(max_rows) for group in groups), default=0)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a weight lies. algorithm: that reads its tensor. values, scales: in units of four words."""

    algorithm: Algorithm
    values: int
    scales: int


class Products:
    """The products of some groups of matmuls on a card. One thread at a time may use it. bytes: it takes."""

    def __init__(
        self,
        card: Card,
        groups: Sequence[Group],
        host: HostExecutor,
        progress: Progress | None = None,
    ) -> None:
        """Carry the weights there. host: has them packed. Raises DeviceError: then nothing is there."""
        self.bytes = product_bytes(groups, host.max_rows)
        self._card = card
        self._rows = host.max_rows
        self._places: dict[int, _Place] = {}  # by weight
        self._recordings: dict[Group, Recording] = {}
        self._made = contextlib.ExitStack()
        try:
            x, out = map(_whole, _carried(groups, host.max_rows))
            with contextlib.closing(Shared(max(x, out))) as shared:
                self._x, self._out = self._tensor(x, shared), self._tensor(out, shared)
            matmuls = [matmul for group in groups for matmul in group.matmuls]
            chunks, done = _chunks(matmuls), 0
            with contextlib.closing(Shared(max(map(_words, chunks)))) as shared:
                for chunk in chunks:
                    self._carry(chunk, host, shared)
                    done += _words(chunk) * WORD
                    if progress is not None:
                        progress(done, _words(matmuls) * WORD)
            for group in groups:
                self._record(group)
        except BaseException:
            self.close()
            raise

    @property
    def lost(self) -> str:
        """Why nothing can be computed any more, "" while it can."""
        return self._card.abandoned

    def values(self) -> Words:
        """Return where the activations of a group go: bytes or floats, (rows, whole blocks)."""
        return self._x.words[HEAD:]

    def scales(self, group: Group, rows: int) -> Words:
        """Return where the scales of so many rows of bytes go."""
        return self._x.words[group.scales_at(rows) :]

    def compute(self, group: Group, rows: int) -> list[Words]:
        """Multiply what lies there by a group's weights; the products, (rows, outputs) each, as float bits.

        They lie over the activations: until others are put there. Raises DeviceError: the card is given up
        then.
        """
        self._x.words[0] = rows
        self._recordings[group].run([group.x_words(rows)], [group.out_words(rows)])
        products, at = [], 0
        for matmul in group.matmuls:
            products.append(self._out.words[at : at + rows * matmul.outputs])
            at += rows * matmul.outputs
        return products

    def abandon(self, error: DeviceError) -> None:
        """See `Process.abandon`."""
        self._card.abandon(error)

    def close(self) -> None:
        """Free all of it. Idempotent; nothing is being computed."""
        self._places.clear()
        self._recordings.clear()
        self._made.close()

    def _tensor(self, words: int, shared: Shared) -> Tensor:
        tensor = self._card.tensor(words, shared)
        self._made.callback(tensor.close)
        return tensor

    def _carry(self, chunk: Sequence[Matmul], host: HostExecutor, shared: Shared) -> None:
        """Put the weights of a chunk into a tensor of their own."""
        tensor = self._tensor(_words(chunk), shared)
        outputs = max(matmul.outputs for matmul in chunk)
        kernel = manifest.kernel("rails")
        algorithm = self._card.algorithm(
            [self._x, tensor, self._out],
            manifest.spirv(kernel, "bytes" if chunk[0].parts else "floats"),
            (-(-outputs // TILE), -(-self._rows // TILE), 1),
            kernel.push_bytes // WORD,
        )
        self._made.callback(algorithm.close)
        at = 0
        for matmul in chunk:
            scales = at + matmul.value_words
            host.lay_out(
                matmul.weight,
                tensor.words[at:scales],
                tensor.words[scales : scales + matmul.scale_words],
            )
            self._places[matmul.weight] = _Place(algorithm, at // 4, scales // 4)
            at = scales + matmul.scale_words
        with contextlib.closing(self._card.record([tensor], [], [])) as carrying:
            carrying.run([at], [])
        tensor.hide()

    def _record(self, group: Group) -> None:
        dispatches, before = [], 0
        for matmul in group.matmuls:
            place = self._places[matmul.weight]
            push = (matmul.outputs, before, matmul.blocks, place.values, place.scales, matmul.parts)
            dispatches.append((place.algorithm, np.array(push, np.uint32)))
            before += matmul.outputs
        recording = self._card.record([self._x], dispatches, [self._out])
        self._made.callback(recording.close)
        self._recordings[group] = recording


def _chunks(matmuls: Iterable[Matmul]) -> list[list[Matmul]]:
    """Share weights out to tensors, bytes and floats apart, in order."""
    chunks: list[list[Matmul]] = []
    open_chunks: dict[bool, list[Matmul]] = {}
    for matmul in matmuls:
        chunk = open_chunks.get(matmul.parts > 0)
        if chunk is None or _words([*chunk, matmul]) * WORD > _CHUNK_BYTES:
            chunk = open_chunks[matmul.parts > 0] = []
            chunks.append(chunk)
        chunk.append(matmul)
    return chunks


def _words(matmuls: Iterable[Matmul]) -> int:
    """Return the words of weights."""
    return sum(matmul.words for matmul in matmuls)


def _whole(words: int) -> int:
    """Return words of a tensor that holds so many, in whole vectors of four."""
    return -(-words // 4) * 4
