"""Models that the device takes."""

from __future__ import annotations

import logging
import re
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tier.tiers import TierOf, model
from tierd.backends.host import ThreadPool
from tierd.backends.resident.backend import Prepared, ResidentBackend
from tierd.backends.resident.executor import ResidentExecutor
from tierd.backends.resident.memory import Shape
from tierd.backends.vkapi import Role
from tierd.core import Batch, Chunk
from tierd.errors import DeviceLostError, DeviceMemoryError
from tierd.kv.bank import Bank
from tierd.kv.gone import Gone
from tierd.models import GGUFFile, build_plan
from tierd.progress import Progress
from tierd.settings import EngineSettings, GPUSettings, ModelSettings, Settings
from tierd.slot import open_slot
from tierd.tier.budget import Placement
from tierd.tier.device_site import DeviceSite
from tierd.tier.placing import Foreseen, foresee
from tiny import write_llama

PROMPT = Batch((Chunk((5,), start=0, pages=(0,), logit_rows=(0,)),))


def test_a_model_lives_on_the_device(tiny: Path, tier_of: TierOf, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tierd")
    each = model(tiny, context=100)
    tier, settings = tier_of(each)
    slot = tier.open(each)
    status = tier.status()
    assert (slot.outcome, slot.device, slot.decline) == ("gpu:resident", status.device, "")
    assert "llama on gpu:resident, context 100, 2 streams" in caplog.text
    assert (slot.context, slot.executor.pages, slot.executor.page_positions) == (100, 2, 128)
    assert slot.executor.max_rows == 16 + 2
    assert 0 < status.used < status.budget
    assert foresee(settings) == {"tiny": Foreseen("gpu:resident", products="bit for bit")}

    host = tier_of(each, mode="off")[0].open(each)
    assert isinstance(slot.executor, ResidentExecutor)
    (logits,) = slot.executor.run(PROMPT)
    (expected,) = host.executor.run(PROMPT)
    np.testing.assert_allclose(logits, expected, atol=0.01)
    (again,) = slot.executor.run(PROMPT)
    np.testing.assert_array_equal(again, logits)

    host.close()
    slot.close()
    assert tier.status().used == 0
    tier.close()
    assert (tier.status().device, tier.status().reason) == ("", "closed")


def test_it_is_said_whether_cooperative_matrices_are_used(
    tiny: Path, tier_of: TierOf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tierd")
    each = model(tiny, context=100)
    tier, settings = tier_of(each, cooperative_matrix=True)
    slot = tier.open(each)
    status = tier.status()
    lacking = re.fullmatch(rf"bit for bit, since {re.escape(status.device)} (lacks|has) .+", status.products)
    used = re.fullmatch(r"on cooperative matrices of \d+ x \d+ x \d+, not bit for bit", status.products)
    assert lacking or used
    (record,) = (record for record in caplog.records if "gpu.cooperative_matrix" in record.message)
    assert record.message == f"gpu.cooperative_matrix is set: products are {status.products}"
    assert record.levelname == ("WARNING" if lacking else "INFO")
    assert (slot.outcome, slot.decline) == ("gpu:resident", "")
    assert foresee(settings) == {"tiny": Foreseen("gpu:resident", products=status.products)}
    slot.close()


@pytest.mark.parametrize("kv_dtype", ["f16", "q8_0", "tq4"])
def test_what_is_promised_is_what_is_taken(tmp_path: Path, kv_dtype: str) -> None:
    """Never less: a model that was given room must not fail in the middle of its upload."""
    path = write_llama(tmp_path / "wide.gguf", head_size=32, ff=96, vocab=9000, context=4096)
    each = ModelSettings(id="wide", path=path, streams=16, context=1024, kv_dtype=kv_dtype)
    settings = Settings(
        engine=EngineSettings(chunk_rows=16), gpu=GPUSettings(allow_software=True), models=(each,)
    )
    with closing(ThreadPool(1)) as pool, closing(DeviceSite(settings, pool, Bank(0), Gone())) as site:
        slot = open_slot(each, settings, site)
        share = site.shares()["wide"]
        assert isinstance(share, Placement)
        blocks = slot.executor._device._memory._blocks  # type: ignore[attr-defined]
        # What comes and goes lies in a software device's own memory, too.
        others = sum(block.ranges.taken for role in (Role.UPLOAD, Role.READBACK) for block in blocks[role])
        assert 0 <= share.bytes - site.status().used - others < 16 << 10
        slot.close()


def test_a_context_that_nobody_asked_for_shrinks_to_the_limit(tiny: Path, tier_of: TierOf) -> None:
    tier, _ = tier_of(model(tiny), vram_limit_mb=2)
    slot = tier.open(model(tiny))
    assert slot.outcome == "gpu:resident"
    assert 512 <= slot.context < 4096
    assert slot.context % 64 == 0
    assert tier.status().used <= 2 << 20
    slot.close()


def test_a_region_may_hold_less_than_the_context_unless_all_must_be_there(
    tiny: Path, tier_of: TierOf
) -> None:
    each = model(tiny, context=4096, resident_prefill_allowed=True)
    for require in ("none", "resident"):
        tier, settings = tier_of(each, vram_limit_mb=2, require=require)
        with GGUFFile.open(tiny) as file:
            placed = tier.put(each, settings, build_plan(file), file)
        assert 512 <= placed.region_positions < 4096
        assert placed.context == (4096 if require == "none" else placed.region_positions)
        assert (placed.regions, placed.scratch, placed.home.executor.pages) == (2, 2, 3)
        assert (placed.codec, placed.prefill_window) == ("f16", 16 + 2)
        assert (placed.resident_decline, placed.declined) == ("", None)
        assert tier.status().used <= 2 << 20
        placed.home.executor.close()


def test_streams_may_have_fewer_regions(tiny: Path, tier_of: TierOf) -> None:
    each = model(tiny, regions=1, resident_prefill_allowed=True)
    tier, _ = tier_of(each)
    slot = tier.open(each)
    assert (slot.executor.pages, slot.home.room.total, slot.scratch) == (2, 1, 1)
    slot.close()


def test_models_share_the_device_whichever_comes_first(tiny: Path, tier_of: TierOf) -> None:
    models = [model(tiny, id) for id in "ab"]
    contexts = []
    for order in (models, models[::-1]):
        tier, _ = tier_of(*models, vram_limit_mb=5)
        slots = [tier.open(each) for each in order]
        assert [slot.outcome for slot in slots] == 2 * ["gpu:resident"]
        contexts.append({slot.id: slot.context for slot in slots})
        for slot in slots:
            slot.close()
    assert contexts[0] == contexts[1]


def test_what_does_not_fit_in_pieces_gets_less(
    tiny: Path, tier_of: TierOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm, tries = ResidentBackend.arm, []

    def full_once(
        backend: ResidentBackend, prepared: Prepared, shape: Shape, uploading: Progress
    ) -> ResidentExecutor:
        tries.append(shape)
        if len(tries) == 1:
            raise DeviceMemoryError("no room in one piece")
        return arm(backend, prepared, shape, uploading)

    monkeypatch.setattr(ResidentBackend, "arm", full_once)
    tier, _ = tier_of(model(tiny))
    slot = tier.open(model(tiny))
    assert slot.outcome == "gpu:resident"
    assert [shape.positions for shape in tries] == [4096, slot.context]
    assert slot.context < 4096
    slot.close()


def test_a_device_that_fails_while_it_is_loaded_is_a_decline_and_its_room_is_free(
    tiny: Path, tier_of: TierOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise DeviceLostError("the device is lost")

    tier, _ = tier_of(model(tiny, "a", context=4096), vram_limit_mb=4)
    with monkeypatch.context() as patch:
        patch.setattr(ResidentBackend, "arm", lost)
        slot = tier.open(model(tiny, "a", context=4096))
        assert (slot.outcome, slot.decline) == ("cpu", "the device is lost")
        slot.close()
    slot = tier.open(model(tiny, "b", context=4096))
    assert slot.outcome == "gpu:resident"
    slot.close()
