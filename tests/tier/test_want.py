from __future__ import annotations

from pathlib import Path

import pytest

from tierd.settings import EngineSettings, GPUSettings, ModelSettings, Settings
from tierd.tier.needs import shape_of
from tierd.tier.want import Want

MODEL = ModelSettings(id="m", path=Path("m.gguf"), streams=3, context=100, kv_dtype="q8_0", ctx_strict=True)


def test_a_zero_want_and_mode_off_keep_the_load_off() -> None:
    assert not Want()
    assert Want.of(MODEL, Settings(gpu=GPUSettings(mode="off", require="resident"))) == Want()


def test_a_want_is_what_the_settings_say() -> None:
    settings = Settings(engine=EngineSettings(chunk_rows=32), gpu=GPUSettings(require="resident"))
    want = Want.of(MODEL, settings)
    assert want
    assert want == Want(
        mode="auto",
        require="resident",
        streams=3,
        max_rows=35,
        regions=3,
        ctx_max=100,
        ctx_strict=True,
        kv_dtype="q8_0",
        kv_dtype_asked=True,
    )


def test_what_nobody_asked_for_is_told_apart() -> None:
    want = Want.of(ModelSettings(id="m", path=Path("m.gguf")), Settings())
    assert (want.regions, want.ctx_max, want.kv_dtype, want.kv_dtype_asked) == (8, 0, "f16", False)
    want = Want.of(ModelSettings(id="m", path=Path("m.gguf"), kv_dtype="f16"), Settings())
    assert (want.kv_dtype, want.kv_dtype_asked) == ("f16", True)


def test_regions_may_be_fewer_or_more_than_streams_and_one_may_be_for_scratch() -> None:
    for regions in (1, 20):
        pinned = ModelSettings(
            id="m", path=Path("m.gguf"), regions=regions, streams=4, resident_prefill_allowed=True
        )
        want = Want.of(pinned, Settings())
        assert (want.streams, want.regions, want.scratch) == (4, regions, 1)
        shape = shape_of(want, 64)
        assert (shape.regions, shape.selected) == (regions + 1, min(4, regions + 1))


@pytest.mark.parametrize(("chunk_rows", "max_rows"), [(65531, 65534), (65532, 65535), (65536, 65535)])
def test_a_step_has_no_more_rows_than_a_grid_can_have_groups(chunk_rows: int, max_rows: int) -> None:
    settings = Settings(engine=EngineSettings(chunk_rows=chunk_rows))
    assert Want.of(MODEL, settings).max_rows == max_rows
