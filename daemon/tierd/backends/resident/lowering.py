"""From a plan's ops to the device's.

Fewer dispatches is what fusing is for: matmuls that read the same buffer run as one where their weights have
one format, with the sum behind them; a norm takes in the norm and the sum before it; the norms and rotations
of heads happen while K and V are stored. A plan that does not come in one of these shapes is declined.

What the classifier reads is quantised in two terms: with one, its roundings alone, which go straight into the
logits, are a quarter of all that the device's logits diverge by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tierd.backends.lowering import operands
from tierd.backends.resident import ops
from tierd.errors import UnsupportedModelError
from tierd.models import plan as models
from tierd.models.gguf import GGUFFile
from tierd.models.plan import Plan, RowStore

# Rows of a matrix that lie side by side in a device layout: matrices are joined at such edges.
ROW_GROUP = 32
_BLOCK = 32
_FLOAT_FORMATS = ("F32", "F16", "BF16")
_CLASSIFIER_TERMS = 2


class Lowering:
    """The device's ops of one plan.

    body, tail: before and after rows are selected. head: behind the hidden states. neighbours: buffers that
    lie side by side in one, by the first of them, in order. stores: by layer. token_ids: how many ids there
    are embeddings for.
    """

    def __init__(self, plan: Plan, file: GGUFFile) -> None:
        """Raises UnsupportedModelError, naming the op, for what the device's kernels lack."""
        self._plan = plan
        self._tensors = file.tensors
        self.body: list[ops.Op] = []
        self.tail: list[ops.Op] = []
        self.head: list[ops.Op] = []
        self._ops = self.body
        self._quantised: dict[str, int] = {}  # terms of the buffers whose quantised form is up to date
        self.stores = self._row_stores()
        self.neighbours = _neighbours(plan)
        embeds = [op.weight for op in plan.ops if isinstance(op, models.Embed)]
        self.token_ids = min(file.tensors[weight].shape[0] for weight in embeds)
        index = 0
        while index < len(plan.ops):
            index += self._lower(index)
            if operands(plan.ops[index - 1])[1] == plan.hidden:
                self._ops = self.head

    def is_float(self, matrix: ops.Matrix) -> bool:
        """Whether a matrix multiplies floats, not quantised values."""
        return self._tensors[matrix.tensors[0]].format.name in _FLOAT_FORMATS

    def _row_stores(self) -> dict[int, RowStore]:
        stores = {}
        for store in self._plan.stores:
            if not isinstance(store, RowStore):
                raise UnsupportedModelError(
                    f"{self._plan.architecture} keeps a recurrent state, which the device path does not have"
                )
            stores[store.layer] = store
        return stores

    def _lower(self, index: int) -> int:
        """Lower the op at `index`, with those behind it that fuse; return how many that were."""
        match self._plan.ops[index]:
            case models.Embed(weight, out, scale):
                self._emit(ops.Lookup(ops.Matrix((weight,)), out, scale), out)
            case models.Norm(heads=1):
                return self._norms(index)
            case models.MatMul():
                return self._products(index)
            case models.Norm() | models.Rope() | models.StoreRows():
                return self._heads(index)
            case models.Gate(gate, up, out, activation):
                quantised = self._wanted_terms(index, out) == 1
                self._emit_either(ops.Gated(gate, up, out, quantised, activation))
            case models.Add(a, b, out):
                self._emit(ops.Sum(a, b, out), out)
            case models.SelectRows(src, out):
                self._ops = self.tail
                self._emit(ops.Select(src, out), out)
            case models.Attention():
                raise self._declined(index, "does not follow the store of its layer")
        return 1

    def _norms(self, index: int) -> int:
        """Fuse norm, sum and norm; the first two or the last may stand alone."""
        plan_ops = self._plan.ops
        first = plan_ops[index]
        assert isinstance(first, models.Norm)
        following = plan_ops[index + 1] if index + 1 < len(plan_ops) else None
        norm = ops.Norm(first.weight, first.eps)
        if isinstance(following, models.Add) and (residual := _other(following, first.out)):
            total = following.out
            if total == first.out or not self._is_read(index + 2, first.out):
                last = plan_ops[index + 2]
                if isinstance(last, models.Norm) and last.heads == 1 and last.src == total != last.out:
                    terms = self._wanted_terms(index + 2, last.out)
                    then = ops.Norm(last.weight, last.eps)
                    self._emit_norm(
                        ops.FusedNorm(first.src, last.out, terms, then, norm, residual, total), total
                    )
                    return 3
                self._emit(ops.FusedNorm(first.src, total, 0, None, norm, residual, total), total)
                return 2
        terms = self._wanted_terms(index, first.out)
        self._emit_norm(ops.FusedNorm(first.src, first.out, terms, norm))
        return 1

    def _products(self, index: int) -> int:
        """Run matmuls of one buffer and one format as one, with the sum behind a single one."""
        run = [op for op in self._run_of_matmuls(index) if isinstance(op, models.MatMul)]
        first = run[0]
        matrix = ops.Matrix(tuple(op.weight for op in run))
        terms = max(self._terms(op) for op in run)
        if terms and self._quantised.get(first.src) != terms:
            self._emit(ops.Quantise(first.src, terms), quantised={first.src: terms})
        following = self._plan.ops[index + 1] if index + 1 < len(self._plan.ops) else None
        outs, residual, count = tuple(op.out for op in run), None, len(run)
        if count == 1 and isinstance(following, models.Add):
            other = _other(following, first.out)
            dead = following.out == first.out or not self._is_read(index + 2, first.out)
            if other is not None and dead and following.out != first.src:
                outs, residual, count = (following.out,), other, 2
        biases = tuple(op.bias for op in run if op.bias is not None)
        self._emit(ops.Product(first.src, terms, matrix, outs, biases, residual), *outs)
        return count

    def _run_of_matmuls(self, index: int) -> Iterator[models.Op]:
        """Yield the matmul at `index` and those behind it that can run with it as one."""
        first = self._plan.ops[index]
        assert isinstance(first, models.MatMul)
        yield first
        group = next((names for names in self.neighbours if first.out in names), (first.out,))
        expected = list(group[group.index(first.out) + 1 :])
        before = first
        for op in self._plan.ops[index + 1 :]:
            if not isinstance(op, models.MatMul) or not expected or op.out != expected.pop(0):
                return
            tensor, other = self._tensors[before.weight], self._tensors[op.weight]
            joins = tensor.format is other.format and tensor.shape[0] % ROW_GROUP == 0
            if op.src != first.src or not joins or (op.bias is None) != (first.bias is None):
                return
            yield op
            before = op

    def _heads(self, index: int) -> int:
        """Fuse what happens to heads between their projections and the attention over them."""
        norms: dict[str, ops.Norm] = {}
        ropes: dict[str, models.RopeSpec] = {}
        for at, op in enumerate(self._plan.ops[index:], index):
            match op:
                case models.Norm(src, weight, out, eps) if (
                    src == out and out not in norms and out not in ropes
                ):
                    norms[out] = ops.Norm(weight, eps)
                case models.Rope(buffer, _, spec) if buffer not in ropes:
                    ropes[buffer] = spec
                case models.StoreRows(k, v, layer):
                    return self._attend(at, k, v, layer, norms, ropes) + at + 1 - index
                case _:
                    break
        raise self._declined(index, "works on heads in an order that is not known")

    def _attend(
        self,
        index: int,
        k: str,
        v: str,
        layer: int,
        norms: dict[str, ops.Norm],
        ropes: dict[str, models.RopeSpec],
    ) -> int:
        """Lower a store of rows at `index` and the attention behind it; return 1 for the latter."""
        attention = self._plan.ops[index + 1] if index + 1 < len(self._plan.ops) else None
        if not isinstance(attention, models.Attention) or attention.layer != layer:
            raise self._declined(index, "is not followed by the attention of its layer")
        q, out, store = attention.q, attention.out, self.stores[layer]
        if not {*norms, *ropes} <= {q, k} or ropes.get(q) != ropes.get(k):
            raise self._declined(index, "stores rows that were turned in another way than the queries")
        if any(self._is_read(index + 2, name) for name in (q, k, v)):
            raise self._declined(index, "stores rows that are used once more behind the attention")
        self._emit(ops.Heads(q, k, v, attention.heads, store, norms.get(q), norms.get(k), ropes.get(q)), q, k)
        quantised = store.head_size % _BLOCK == 0 and self._wanted_terms(index + 1, out) == 1
        self._emit_either(
            ops.Attend(q, out, quantised, attention.heads, store, attention.scale, attention.window)
        )
        return 1

    def _terms(self, op: models.Op) -> int:
        """Return in how many quantised terms an op reads its source; 0 for floats."""
        if not isinstance(op, models.MatMul) or self.is_float(ops.Matrix((op.weight,))):
            return 0
        return _CLASSIFIER_TERMS if op.out == self._plan.logits else 1

    def _wanted_terms(self, index: int, out: str) -> int:
        """Return in how many terms all read what the op at `index` writes; 0 where not all in as many."""
        terms = {self._terms(op) for op in self._readers(index + 1, out)}
        return terms.pop() if len(terms) == 1 and out != self._plan.logits else 0

    def _is_read(self, index: int, buffer: str) -> bool:
        return buffer == self._plan.logits or any(self._readers(index, buffer))

    def _readers(self, index: int, buffer: str) -> Iterator[models.Op]:
        """Yield the ops from `index` on that read a buffer as it is now, until one writes it anew."""
        for op in self._plan.ops[index:]:
            reads, written = operands(op)
            if buffer in reads:
                yield op
            if buffer == written:
                return

    def _emit(self, op: ops.Op, *floats: str, quantised: Mapping[str, int] | None = None) -> None:
        """Append an op that writes these float buffers, and the quantised form, in so many terms, of some."""
        self._ops.append(op)
        for name in floats:
            self._quantised.pop(name, None)
        self._quantised.update(quantised or {})

    def _emit_norm(self, op: ops.FusedNorm, *floats: str) -> None:
        """Append a norm, whose `out` is wanted as floats in any case where it is the hidden states."""
        if op.out == self._plan.hidden and op.quantised:
            self._emit(replace(op, both=True), *floats, op.out, quantised={op.out: op.terms})
        else:
            self._emit_either(op, *floats)

    def _emit_either(self, op: ops.FusedNorm | ops.Attend | ops.Gated, *floats: str) -> None:
        """Append an op that writes its `out` in one form or the other, and these float buffers."""
        if op.quantised:
            terms = op.terms if isinstance(op, ops.FusedNorm) else 1
            self._emit(op, *floats, quantised={op.out: terms})
        else:
            self._emit(op, *floats, op.out)

    def _declined(self, index: int, why: str) -> UnsupportedModelError:
        op = type(self._plan.ops[index]).__name__
        return UnsupportedModelError(f"op {index} ({op}) of {self._plan.architecture} {why}")


def _other(add: models.Add, buffer: str) -> str | None:
    """Return what is added to `buffer`; None where that is not one of two."""
    if add.a == add.b or buffer not in (add.a, add.b):
        return None
    return add.a if add.b == buffer else add.b


def _neighbours(plan: Plan) -> list[tuple[str, ...]]:
    """Return the groups of buffers that consecutive matmuls of one source write, where all groups agree."""
    groups: dict[tuple[str, ...], None] = {}
    run: list[models.MatMul] = []
    for op in (*plan.ops, None):
        if run and not (isinstance(op, models.MatMul) and op.src == run[0].src):
            groups[tuple(before.out for before in run)] = None
            run = []
        if isinstance(op, models.MatMul):
            run.append(op)
    members = [name for group in groups for name in group]
    return [
        group
        for group in groups
        if len(group) > 1
        and all(members.count(name) == 1 and plan.buffers[name] % ROW_GROUP == 0 for name in group)
    ]
