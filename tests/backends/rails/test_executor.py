"""Steps that are cut: with products that numpy computes, so that no device is needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backends.rails.conftest import Opener
from backends.rails.models import LEAST, TOKENS, NumpyProducts, activations, batch, write
from tierd.backends.host import HostBackend
from tierd.backends.rails.backend import Demand, RailsBackend, demand_of
from tierd.backends.rails.cuts import cut, of_layers
from tierd.backends.rails.products import product_bytes
from tierd.core import Batch
from tierd.errors import DeviceLostError, ExecutorError
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS


def test_all_matmuls_of_layers_that_see_all_rows_may_be_on_a_device(opened: Opener) -> None:
    executor = opened(layers=3, biases=True)
    assert [len(group.matmuls) for group in executor.groups] == [3, 1, 2, 1, 3, 1, 2, 1, 3, 1]
    assert executor.all_layers == (0, 1, 2)


def test_segments_cover_all_ops(opened: Opener) -> None:
    executor = opened(layers=2)
    segments = cut(executor.host.op_count, of_layers(executor.groups, (1,)))
    assert [segment.first for segment in segments[1:]] == [segment.last for segment in segments[:-1]]
    assert (segments[0].first, segments[-1].last) == (0, executor.host.op_count)
    assert [segment.brought for segment in segments] == [0, 3, 1]
    assert cut(5, ()) == (type(segments[0])(0, 5, 0, None),)


def test_parts_of_a_step_give_the_bits_of_the_whole(opened: Opener) -> None:
    host = opened(biases=True).host
    whole = host.run(batch()).copy()
    host.load(batch())
    for first in range(0, host.op_count, 3):
        host.run_part(first, min(first + 3, host.op_count))
    np.testing.assert_array_equal(host.logits(batch()), whole)


def test_what_is_put_out_is_what_the_first_matmul_reads(opened: Opener) -> None:
    """Rows that were normed: floats as they are, and bytes with their scales."""
    found = []
    for format in ("F32", "Q8_0"):
        executor = opened(format)
        source, group = NumpyProducts(executor), executor.groups[0]
        scales = source.scales(group, len(TOKENS)) if group.matmuls[0].parts else None
        executor.host.load(batch())
        executor.host.run_part(0, group.first, put=group.src, values=source.values(), scales=scales)
        found.append(activations(source.values(), source.scales(group, len(TOKENS)), group, len(TOKENS)))
    for x in found:
        np.testing.assert_allclose((x**2).mean(axis=1), 1.0, rtol=0.5)


@pytest.mark.parametrize(
    ("format", "options"),
    [("F32", {"biases": True}), ("F32", {"layers": 3}), ("Q8_0", {"biases": True}), ("Q6_K", {})],
)
def test_cut_steps_equal_whole_ones(format: str, options: dict[str, object], opened: Opener) -> None:
    executor = opened(format, **options)
    products = NumpyProducts(executor)
    whole = executor.run(batch()).copy()
    executor.lay(products, executor.groups)  # type: ignore[arg-type]
    ours = executor.run(batch())
    assert [group for group, _ in products.computed] == list(executor.groups)
    bound = 2e-5 if format == "F32" else 2e-2  # a last bit may round a byte another way
    assert np.abs(ours - whole).max() <= bound * np.abs(whole).max()


def test_k_and_v_of_a_cut_step_are_there_for_the_next(opened: Opener) -> None:
    executor = opened("F32")
    alone = executor.run(batch()).copy()[-1]
    executor.lay(NumpyProducts(executor), executor.groups)  # type: ignore[arg-type]
    executor.run(batch(TOKENS[:-1], wanted=1))
    last = executor.run(batch(TOKENS[-1:], len(TOKENS) - 1))[0]
    assert np.abs(last - alone).max() <= 2e-5 * np.abs(alone).max()


def test_hidden_states_come_of_cut_steps_too(opened: Opener) -> None:
    """And of those that the host computes once more, as the device has failed."""
    executor = opened("F32")
    products = NumpyProducts(executor)

    def hidden() -> np.ndarray:
        executor.submit(Batch((replace(*batch().chunks, logit_rows=(3,), hidden_rows=(0, 5)),)))
        return executor.collect().hidden.copy()

    whole = hidden()
    executor.lay(products, executor.groups)  # type: ignore[arg-type]
    cut = hidden()
    assert whole.shape == cut.shape
    assert np.abs(cut - whole).max() <= 2e-5 * np.abs(whole).max()
    products.error = DeviceLostError("it is lost")
    np.testing.assert_array_equal(hidden(), whole)


def test_few_rows_stay_on_the_host(opened: Opener) -> None:
    executor = opened()
    few = batch(TOKENS[: LEAST - 1])
    before = executor.run(few).copy()
    products = NumpyProducts(executor)
    executor.lay(products, executor.groups)  # type: ignore[arg-type]
    np.testing.assert_array_equal(executor.run(few), before)
    assert products.computed == []
    executor.run(batch(TOKENS[:LEAST]))
    assert len(products.computed) == len(executor.groups)


def test_a_device_that_fails_is_left_and_the_step_is_the_hosts(opened: Opener) -> None:
    executor = opened()
    before = executor.run(batch()).copy()
    products = NumpyProducts(executor)
    executor.lay(products, executor.groups)  # type: ignore[arg-type]
    assert executor.layers == (0, 1)
    products.error = DeviceLostError("it is lost")
    np.testing.assert_array_equal(executor.run(batch()), before)
    assert (executor.layers, executor.failure, products.closed) == ((), "it is lost", 1)
    products.error = None
    executor.run(batch())
    assert products.computed == []
    executor.lay(products, executor.groups)  # type: ignore[arg-type]
    assert (executor.layers, executor.failure) == ((0, 1), "")
    executor.run(batch())
    assert len(products.computed) == len(executor.groups)


def test_the_host_does_not_get_what_it_must_not_have(opened: Opener) -> None:
    """As often as it is tried; and K and V are right once the device is there again."""
    executor = opened("F32")
    before = executor.run(batch()).copy()
    executor.strict = True
    products = NumpyProducts(executor)
    executor.lay(products, executor.groups)  # type: ignore[arg-type]
    products.error = DeviceLostError("it is lost")
    for _ in range(2):
        executor.submit(batch())
        with pytest.raises(DeviceLostError, match="it is lost"):
            executor.collect()
    products.error = None
    executor.lay(products, executor.groups)  # type: ignore[arg-type]
    assert np.abs(executor.run(batch()) - before).max() <= 2e-5 * np.abs(before).max()


def test_a_device_that_failed_another_model_has_failed_this_one_too(opened: Opener) -> None:
    executor = opened()
    products = NumpyProducts(executor)
    executor.lay(products, executor.groups)  # type: ignore[arg-type]
    assert executor.failure == ""
    products.lost = "its process is gone"
    assert executor.failure == "its process is gone"
    other = NumpyProducts(executor)
    executor.lay(other, executor.groups)  # type: ignore[arg-type]
    assert (executor.failure, products.closed, other.closed) == ("", 1, 0)


def test_what_is_lifted_is_freed_once(opened: Opener) -> None:
    executor = opened()
    before = executor.run(batch()).copy()
    products = NumpyProducts(executor)
    executor.lay(products, executor.groups)  # type: ignore[arg-type]
    executor.lift()
    executor.lift()
    assert (products.closed, executor.layers) == (1, ())
    np.testing.assert_array_equal(executor.run(batch()), before)


def test_a_batch_that_does_not_fit_is_refused(opened: Opener) -> None:
    executor = opened()
    executor.lay(NumpyProducts(executor), executor.groups)  # type: ignore[arg-type]
    with pytest.raises(ExecutorError, match="a step of 180 rows; 1 to 96 are possible"):
        executor.run(batch(TOKENS * 2))


def test_what_kompute_keeps_of_a_part_is_the_hosts_memory(tmp_path: Path, host: HostBackend) -> None:
    """Copies of weights and of what steps carry, and what is shared: products lie over activations there."""
    with GGUFFile.open(write(tmp_path, layers=3)) as file:
        plan = build_plan(file)
        demand = demand_of(plan, file, KV_CODECS["f32"], 96)
        backends = [RailsBackend(host, 8, demand.part(layers, "a device")) for layers in ((), (0,), (0, 1))]
        none, one, two = (
            backend.weight_bytes(plan, file) - host.weight_bytes(plan, file) for backend in backends
        )
    layer = 4 * sum(matmul.words for group in demand.groups[:4] for matmul in group.matmuls)
    x, products = 4 * (4 + 96 * (512 + 4 * 16) // 4), 4 * 96 * 2 * 512
    assert none == 0
    assert one == layer + (x + products) + products
    assert two - one == layer


def test_as_many_layers_as_fit_are_wanted(opened: Opener) -> None:
    executor = opened(layers=3)
    demand = Demand(executor.groups, 96)
    sizes = [demand.bytes_of(demand.layers[:count]) for count in range(4)]
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 0
    for count in range(1, 4):
        assert demand.within(sizes[count]) == tuple(range(count))
        assert demand.within(sizes[count] - 1) == tuple(range(count - 1))
    assert sizes[3] == product_bytes(executor.groups, 96)
