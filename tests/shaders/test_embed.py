from __future__ import annotations

import numpy as np
import pytest

from device_matmul import FLOAT_LAYOUTS, FORMATS, Weights
from gpu import Gpu

BEYOND = np.float32(-7.0)


@pytest.mark.parametrize("layout", FORMATS)
def test_looks_up_the_rows_of_given_and_of_sampled_tokens(gpu: Gpu, layout: str) -> None:
    columns = 330 if layout in FLOAT_LAYOUTS else 512
    weights = Weights.random(layout, 70, columns)
    tokens, sampled = np.array([69, 0, -2, 31, -1]), np.array([64, 32], np.uint32)
    step = np.zeros((1 + len(tokens), 4), np.int32)
    step[0, 0], step[1:, 0] = len(tokens), tokens
    quants, high, scales = (gpu.place(plane).address if plane.size else 0 for plane in weights.planes)
    scale, stride = np.float32(1.7), weights.blocks * 32 + 32
    out = gpu.place(np.full((len(tokens), stride), BEYOND))
    gpu.run(
        "embed",
        layout,
        (1, len(tokens), 1),
        quants=quants,
        high=high,
        scales=scales,
        step=gpu.place(step).address,
        sampled=gpu.place(sampled).address,
        out=out.address,
        blocks=weights.blocks,
        out_stride=stride,
        scale=float(scale),
    )
    expected = weights.values[[69, 0, 32, 31, 64]] * scale
    np.testing.assert_array_equal(out.values[:, :columns], expected)
    assert (out.values[:, weights.blocks * 32 :] == BEYOND).all()
