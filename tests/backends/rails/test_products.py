"""Products through Kompute, on the first Vulkan device that may be used, here llvmpipe."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import numpy as np
import pytest

from backends.rails.conftest import Opener
from backends.rails.models import TOKENS, activations, batch, weights_of
from kompute import needs_kompute
from tierd.backends.rails.card import Card, Shared, Tensor
from tierd.backends.rails.products import Products, fits, product_bytes
from tierd.backends.rails.witness import open_card
from tierd.backends.vkapi import physical_devices
from tierd.errors import DeviceError, DeviceMemoryError, NoDeviceError
from tierd.models.formats import WEIGHT_FORMATS

pytestmark = needs_kompute


@pytest.fixture(scope="module")
def card() -> Iterator[Card]:
    card = open_card(allow_software=True)
    yield card
    card.close()


def test_a_software_device_counts_only_where_it_may() -> None:
    with pytest.raises(DeviceError, match=r"which counts only when gpu\.allow_software is set"):
        open_card(allow_software=False)


def test_another_device_than_expected_is_refused(card: Card) -> None:
    facts = physical_devices()[0]
    with pytest.raises(NoDeviceError, match=re.escape(f"Kompute cannot open {card.name}")):
        Card(99, facts)
    with pytest.raises(NoDeviceError, match=re.escape(f"where another {card.name} was expected")):
        Card(0, dataclasses.replace(facts, name=f"another {card.name}"))


@pytest.mark.parametrize("format", [entry.name for entry in WEIGHT_FORMATS.values()])
def test_products_equal_numpy(format: str, card: Card, opened: Opener) -> None:
    """Q, K and V of the first layer, in tiles that are not full: 90 rows, 256 and 32 outputs."""
    executor = opened(format, heads=8, kv_heads=1, head_size=32)
    group, rows = executor.groups[0], len(TOKENS)
    products = Products(card, (group,), executor.host)
    scales = products.scales(group, rows) if group.matmuls[0].parts else None
    executor.host.load(batch())
    executor.host.run_part(0, group.first, put=group.src, values=products.values(), scales=scales)
    x = activations(products.values(), products.scales(group, rows), group, rows).astype(np.float64)
    found = [product.view(np.float32).copy() for product in products.compute(group, rows)]
    products.close()
    for product, weight in zip(found, weights_of(executor, group), strict=True):
        expected = x @ weight.T
        assert np.abs(product.reshape(expected.shape) - expected).max() <= 1e-5 * np.abs(expected).max()


def test_steps_equal_the_hosts(card: Card, opened: Opener) -> None:
    """Of floats, so that no last bit rounds a byte another way."""
    executor = opened("F32", biases=True, layers=3, ff=288)
    whole = executor.run(batch()).copy()
    executor.lay(Products(card, executor.groups, executor.host), executor.groups)
    for _ in range(2):
        assert np.abs(executor.run(batch()) - whole).max() <= 2e-5 * np.abs(whole).max()
    assert executor.failure == ""


def test_weights_are_shared_out_to_several_tensors(
    card: Card, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tierd.backends.rails.products._CHUNK_BYTES", 1 << 18)
    executor = opened("Q8_0")
    whole = executor.run(batch()).copy()
    seen: list[tuple[int, int]] = []
    products = Products(card, executor.groups, executor.host, lambda *step: seen.append(step))
    assert len(seen) > 1
    assert seen[-1][0] == seen[-1][1]
    assert products.bytes == product_bytes(executor.groups, executor.max_rows)
    executor.lay(products, executor.groups)
    assert np.abs(executor.run(batch()) - whole).max() <= 2e-2 * np.abs(whole).max()


def test_what_fails_leaves_nothing_there(card: Card, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[object] = []
    made: list[Tensor] = []
    tensor, close = Card.tensor, Tensor.close

    def scarce(self: Card, words: int, shared: Shared) -> Tensor:
        if len(made) == 2:
            raise DeviceMemoryError("no room")
        made.append(tensor(self, words, shared))
        return made[-1]

    def noted(self: Tensor) -> None:
        freed.append(self)
        close(self)

    monkeypatch.setattr(Card, "tensor", scarce)
    monkeypatch.setattr(Tensor, "close", noted)
    executor = opened()
    with pytest.raises(DeviceMemoryError, match="no room"):
        Products(card, executor.groups, executor.host)
    assert len(made) == 2
    assert set(freed) == set(made)


def test_what_cannot_be_bound_is_not_for_a_device(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, activations and products alike; which is the largest depends on the rows of a step."""
    group = opened(ff=512, layers=2).groups[2]  # 2 x 512 products of 256 activations each
    weight = max(matmul.words for matmul in group.matmuls) * 4
    assert group.out_words(8) * 4 < weight < group.out_words(64) * 4
    monkeypatch.setattr("tierd.backends.rails.products._BINDING_BYTES", weight)
    assert fits(group, 8)
    assert not fits(group, 64)
    monkeypatch.setattr("tierd.backends.rails.products._BINDING_BYTES", weight - 1)
    assert not fits(group, 8)
