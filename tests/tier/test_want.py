from __future__ import annotations

from pathlib import Path

import pytest

from tierd.settings import EngineSettings, GPUSettings, ModelSettings, Settings
from tierd.tier.want import Want

MODEL = ModelSettings(id="m", path=Path("m.gguf"), streams=3, context=100, kv_dtype="q8_0")


def test_a_zero_want_and_mode_off_keep_the_load_off() -> None:
    assert not Want()
    assert Want.of(MODEL, Settings(gpu=GPUSettings(mode="off", require="resident"))) == Want()


def test_a_want_is_what_the_settings_say() -> None:
    settings = Settings(engine=EngineSettings(chunk_rows=32), gpu=GPUSettings(require="resident"))
    want = Want.of(MODEL, settings)
    assert want
    assert want == Want(mode="auto", require="resident", regions=3, ctx_max=100, kv_dtype="q8_0", max_rows=35)


@pytest.mark.parametrize(("chunk_rows", "max_rows"), [(65531, 65534), (65532, 65535), (65536, 65535)])
def test_a_step_has_no_more_rows_than_a_grid_can_have_groups(chunk_rows: int, max_rows: int) -> None:
    settings = Settings(engine=EngineSettings(chunk_rows=chunk_rows))
    assert Want.of(MODEL, settings).max_rows == max_rows
