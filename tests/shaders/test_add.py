from __future__ import annotations

import numpy as np
import pytest

from gpu import Gpu

BEYOND = np.float32(-7.0)


@pytest.mark.parametrize(("width", "rows"), [(32, 1), (288, 5), (250, 3)])
def test_adds_rows_of_any_stride(gpu: Gpu, width: int, rows: int) -> None:
    random = np.random.default_rng(width)
    padded = (width + 31) // 32 * 32
    a, b = (random.standard_normal((rows, padded + more), np.float32) for more in (0, 32))
    out = gpu.place(np.full((rows, padded + 64), BEYOND))
    gpu.run(
        "add",
        "plain",
        (-(-width // 256), rows, 1),
        a=gpu.place(a).address,
        b=gpu.place(b).address,
        out=out.address,
        width=width,
        a_stride=padded,
        b_stride=padded + 32,
        out_stride=padded + 64,
    )
    np.testing.assert_array_equal(out.values[:, :width], a[:, :width] + b[:, :width])
    assert (out.values[:, padded:] == BEYOND).all()


def test_adds_to_one_of_its_operands_in_place(gpu: Gpu) -> None:
    random = np.random.default_rng(1)
    a, b = (random.standard_normal((2, 64), np.float32) for _ in range(2))
    x = gpu.place(a)
    strides = {"a_stride": 64, "b_stride": 64, "out_stride": 64}
    gpu.run(
        "add", "plain", (1, 2, 1), a=x.address, b=gpu.place(b).address, out=x.address, width=64, **strides
    )
    np.testing.assert_array_equal(x.values, a + b)
