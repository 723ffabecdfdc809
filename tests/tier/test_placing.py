"""Where models run. Those that the device takes are in test_resident."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from no_gpu import NO_DRIVER, NO_GPU
from tier.tiers import TierOf, model
from tierd.errors import RequiredTierError, SettingsError, UnsupportedModelError
from tierd.settings import GPUSettings, Settings
from tierd.tier.placing import Foreseen, foresee
from tiny import write_llama


@pytest.fixture
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in NO_GPU.items():
        monkeypatch.setenv(name, value)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was warned of, but for the validation layer, which misses a driver too."""
    found = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    return [message for message in found if not message.startswith("Vulkan validation: ")]


def test_mode_off_imports_no_vulkan(tiny: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from tierd.backends.null import NullBackend
from tierd.backends.host import ThreadPool
from tierd.settings import GPUSettings, ModelSettings, Settings
from tierd.tier.host_site import HostSite
from tierd.tier.placing import Tier, foresee
model = ModelSettings(id="m", path=Path({str(tiny)!r}))
settings = Settings(gpu=GPUSettings(mode="off", allow_software=True), models=(model,))
tier = Tier(settings, HostSite(NullBackend()), ThreadPool(1))
slot = tier.open(model)
assert (slot.outcome, slot.decline) == ("cpu", ""), slot
assert tier.status().reason == "gpu.mode is off"
assert foresee(settings)["m"].decline == ""
slot.close()
tier.close()
assert not [name for name in sys.modules if "vulkan" in name or "vkapi" in name or "resident" in name]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.usefixtures("_no_gpu")
def test_without_a_device_auto_says_so_once_and_quietly(
    tiny: Path, tier_of: TierOf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tierd")
    models = [model(tiny, "a"), model(tiny, "b")]
    tier, settings = tier_of(*models)
    for each in models:
        slot = tier.open(each)
        assert (slot.outcome, slot.device, slot.decline) == ("cpu", "cpu", NO_DRIVER)
        slot.close()
    assert caplog.text.count(f"models run on the CPU: {NO_DRIVER}") == 1
    assert warnings(caplog) == []
    assert tier.status().reason == NO_DRIVER
    assert foresee(settings) == dict.fromkeys("ab", Foreseen("cpu", NO_DRIVER))


@pytest.mark.usefixtures("_no_gpu")
def test_without_a_device_resident_warns_of_each_model(
    tiny: Path, tier_of: TierOf, caplog: pytest.LogCaptureFixture
) -> None:
    models = [model(tiny, "a"), model(tiny, "b")]
    tier, _ = tier_of(*models, mode="resident")
    for each in models:
        tier.open(each).close()
    assert warnings(caplog) == [f"model={each} declined by the device: {NO_DRIVER}" for each in "ab"]


@pytest.mark.usefixtures("_no_gpu")
def test_a_required_tier_that_is_not_reached_is_an_error(tiny: Path, tier_of: TierOf) -> None:
    tier, _ = tier_of(model(tiny), require="resident")
    with pytest.raises(RequiredTierError) as refused:
        tier.open(model(tiny))
    message = f"tiny: it must be resident on the GPU, as `require` demands, but {NO_DRIVER}"
    assert str(refused.value) == message
    tier.open(model(tiny, require="none")).close()


def test_a_codec_that_the_device_lacks_is_declined(
    tiny: Path, tier_of: TierOf, caplog: pytest.LogCaptureFixture
) -> None:
    each = model(tiny, kv_dtype="f32")
    tier, settings = tier_of(each, mode="resident")
    slot = tier.open(each)
    reason = "K/V codec f32 is for the CPU only; choose kv_dtype f16, q8_0 or tq4"
    assert (slot.outcome, slot.decline) == ("cpu", reason)
    assert warnings(caplog) == [f"model=tiny declined by the device: {reason}"]
    assert foresee(settings) == {"tiny": Foreseen("cpu", reason)}
    slot.close()


def test_too_little_memory_is_declined_with_the_numbers(tiny: Path, tier_of: TierOf) -> None:
    each = model(tiny, context=4096, ctx_strict=True)
    tier, settings = tier_of(each, mode="resident", vram_limit_mb=1)
    slot = tier.open(each)
    assert slot.outcome == "cpu"
    assert slot.decline.startswith("weights and 2 regions at context 4096 need ")
    assert " of the device's 1.0 MiB; it would fit with context = " in slot.decline
    assert foresee(settings) == {"tiny": Foreseen("cpu", slot.decline)}
    slot.close()


def test_what_no_site_takes_is_no_decline(tiny: Path, tmp_path: Path, tier_of: TierOf) -> None:
    tier, settings = tier_of(model(tiny, context=4097), model(tmp_path / "missing.gguf", "missing"))
    with pytest.raises(SettingsError, match="tiny: context = 4097 is more than the 4096 positions"):
        tier.open(settings.models[0])
    path = write_llama(tmp_path / "odd.gguf", head_size=40)
    with pytest.raises(UnsupportedModelError, match="odd: K/V codec q8_0 needs a head size"):
        tier.open(model(path, "odd", kv_dtype="q8_0"))
    assert foresee(settings) == {}


def test_a_model_that_was_not_configured_gets_what_is_left(tiny: Path, tier_of: TierOf) -> None:
    tier, _ = tier_of(vram_limit_mb=1)
    slot = tier.open(model(tiny, context=4096, ctx_strict=True))
    assert " of the device's 1.0 MiB; it would fit with context = " in slot.decline
    slot.close()


def test_foreseeing_puts_nothing_anywhere(tiny: Path) -> None:
    settings = Settings(gpu=GPUSettings(allow_software=True), models=(model(tiny),))
    assert foresee(settings) == {"tiny": Foreseen("gpu:resident", products="bit for bit")}
