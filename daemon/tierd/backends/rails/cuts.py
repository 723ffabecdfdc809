"""Where a step is cut: which matmuls of a lowered plan may run on a device, and what lies between. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tierd.backends import library
from tierd.backends.lowering import Lowering
from tierd.backends.profile import name_ops
from tierd.models.gguf import GGUFFile

BLOCK = 32
# Words before the activations, of which the first one is the number of rows.
HEAD = 4
_WORD = 4


@dataclass(frozen=True, slots=True)
class Matmul:
    """A matmul of a layer, of all rows of a step.

    op, weight: their numbers in the lowering. layout: of the host's packed weight, (outputs, columns).
    value_words, scale_words: of the weight on the device. parts: scales of 32 columns, 0 for floats.
    """

    op: int
    weight: int
    layer: int
    layout: int
    outputs: int
    columns: int
    value_words: int
    scale_words: int
    parts: int

    @property
    def words(self) -> int:
        """Words of the weight on the device."""
        return self.value_words + self.scale_words

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return -(-self.columns // BLOCK)


@dataclass(frozen=True, slots=True)
class Group:
    """Matmuls that follow each other and read the same buffer. src: that buffer's number."""

    src: int
    matmuls: tuple[Matmul, ...]

    @property
    def first(self) -> int:
        """The first one's op."""
        return self.matmuls[0].op

    def x_words(self, rows: int) -> int:
        """Words of the activations of so many rows, and of their number; scales come behind bytes."""
        matmul = self.matmuls[0]
        if not matmul.parts:
            return HEAD + rows * matmul.blocks * BLOCK
        return self.scales_at(rows) + -(-rows * matmul.blocks // 4) * 4

    def scales_at(self, rows: int) -> int:
        """The word where the scales of so many rows begin."""
        return HEAD + rows * self.matmuls[0].blocks * BLOCK // _WORD

    def out_words(self, rows: int) -> int:
        """Words of the products of so many rows."""
        return rows * sum(matmul.outputs for matmul in self.matmuls)


@dataclass(frozen=True, slots=True)
class Segment:
    """Ops first to last - 1, of which the first `brought` are matmuls of the device.

    group: what the device computes then; None behind the last op.
    """

    first: int
    last: int
    brought: int
    group: Group | None


def find_groups(lowering: Lowering, file: GGUFFile) -> tuple[Group, ...]:
    """Return the matmuls that a device may have, in order: those of the layers that see all rows."""
    _, lib = library.load()
    weights = list(lowering.weights)
    groups: list[Group] = []
    for number, (op, name) in enumerate(zip(lowering.ops, name_ops(lowering), strict=True)):
        if op["kind"] != lib.HK_OP_MATMUL or op["selected"] or name.layer is None:
            continue
        tensor = file.tensors[weights[op["weight"]]]
        layout = int(lib.hk_layout_of(tensor.format.id))
        outputs, columns = tensor.shape
        matmul = Matmul(
            number,
            op["weight"],
            name.layer,
            layout,
            outputs,
            columns,
            int(lib.hk_rails_value_words(layout, outputs, columns)),
            int(lib.hk_rails_scale_words(layout, outputs, columns)),
            int(lib.hk_rails_scales(layout)),
        )
        before = groups[-1] if groups else None
        if before is not None and before.src == op["src"] and before.matmuls[-1].op == number - 1:
            groups[-1] = Group(before.src, (*before.matmuls, matmul))
        else:
            groups.append(Group(op["src"], (matmul,)))
    return tuple(groups)


def cut(ops: int, groups: Sequence[Group]) -> tuple[Segment, ...]:
    """Cut so many ops at the groups that the device computes."""
    segments = []
    first = brought = 0
    for group in groups:
        segments.append(Segment(first, group.first, brought, group))
        first, brought = group.first, len(group.matmuls)
    return (*segments, Segment(first, ops, brought, None))


def of_layers(groups: Sequence[Group], layers: Collection[int]) -> tuple[Group, ...]:
    """Return those groups whose layers are among these. A group is of one layer."""
    return tuple(group for group in groups if group.matmuls[0].layer in layers)
