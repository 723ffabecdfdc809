from __future__ import annotations

import gc
import logging
from pathlib import Path

import pytest

from processes import children
from tierd.backends.null import NullBackend
from tierd.errors import ModelError, ModelFileError, SettingsError, UnsupportedModelError
from tierd.settings import EngineSettings, KVSettings, LimitsSettings, ModelSettings, Settings
from tierd.slot import Placed, Slot, open_slot
from tierd.tier.host_site import HostSite
from tiny import write_llama

# Two layers of one K/V head of 40 values; a page of the null backend is 4 positions of f16, K and V.
PAGE_BYTES = 2 * 2 * 40 * 2 * 4
MIB = 1 << 20


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("slot") / "tiny.gguf", context=8192)


def opened(path: Path, *, memory_mb: int = 100, neighbours: int = 0, **options: object) -> Slot:
    model = ModelSettings(id="tiny", path=path, **options)  # type: ignore[arg-type]
    settings = Settings(
        engine=EngineSettings(chunk_rows=32),
        limits=LimitsSettings(max_output_tokens=100),
        kv=KVSettings(memory_mb=memory_mb),
        models=(model,) * (1 + neighbours),
    )
    return open_slot(model, settings, HostSite(NullBackend()))


def test_a_slot_has_all_that_serving_takes(tiny: Path) -> None:
    slot = opened(tiny, streams=3)
    assert (slot.id, slot.plan.architecture) == ("tiny", "llama")
    assert (slot.outcome, slot.device, slot.decline) == ("cpu", "null", "")
    assert slot.context == 8192
    assert slot.home.pool.total == slot.executor.pages == 3 * 8192 // 4
    assert slot.executor.max_rows == 32 + 3
    assert slot.executor.vocabulary == slot.tokenizer.vocabulary == 301
    assert slot.limits.max_output_tokens == 100
    slot.close()
    slot.close()


def test_the_context_shrinks_to_what_memory_allows_and_says_so(
    tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tierd")
    slot = opened(tiny, memory_mb=1)
    pages = MIB // PAGE_BYTES
    assert (slot.context, slot.home.pool.total) == (pages * 4, pages)
    assert f"context {pages * 4} of the model's 8192 (K/V memory allows no more), 8 streams" in caplog.text
    slot.close()


def test_models_share_kv_memory(tiny: Path) -> None:
    slot = opened(tiny, memory_mb=2, neighbours=1)
    assert slot.home.pool.total == MIB // PAGE_BYTES
    slot.close()


def test_a_context_of_ones_own(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tierd")
    slot = opened(tiny, context=100, streams=2)
    assert (slot.context, slot.home.pool.total) == (100, 50)
    assert "allows no more" not in caplog.text
    slot.close()


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"context": 8193}, SettingsError, "tiny: context = 8193 is more than the 8192 positions"),
        ({"context": 8192, "memory_mb": 1}, ModelError, "tiny: one stream of 8192 positions needs 2.5 MiB"),
        ({"kv_dtype": "q8_0"}, UnsupportedModelError, "tiny: .*40"),
        ({"chat_template": Path("missing.jinja")}, SettingsError, "tiny: cannot read chat_template missing"),
    ],
)
def test_what_cannot_be_had_is_refused(
    tiny: Path, options: dict[str, object], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as refusal:
        opened(tiny, **options)  # type: ignore[arg-type]
    assert type(refusal.value) is kind


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF and then nothing")
    with pytest.raises(ModelFileError, match=r"^tiny: .*bad\.gguf"):
        opened(path)


def test_a_lack_of_memory_is_one_line(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(NullBackend, "compile", compile)
    with pytest.raises(ModelError) as refused:
        opened(tiny)
    assert str(refused.value) == (
        f"tiny: there is not the memory to load {tiny}; serve fewer models or smaller ones"
    )


def test_prompts_get_no_more_rows_than_steps_have_besides_those_of_streams(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ModelSettings(id="tiny", path=tiny, streams=3)
    site, settings = HostSite(NullBackend()), Settings(engine=EngineSettings(chunk_rows=32), models=(model,))

    def placed(*arguments: object) -> Placed:
        there = HostSite.put(site, *arguments)  # type: ignore[arg-type]
        monkeypatch.setattr(there.home.executor, "max_rows", 20)
        return there

    monkeypatch.setattr(site, "put", placed)
    slot = open_slot(model, settings, site)
    assert slot.chunk_rows == 20 - 3
    slot.close()


def test_the_process_of_its_template_ends_with_it(tiny: Path) -> None:
    gc.collect()
    before = children()
    slot = opened(tiny)
    assert len(children() - before) == 1
    slot.close()
    assert not children() - before


def test_an_error_that_is_kept_keeps_no_process(tiny: Path) -> None:
    gc.collect()
    before = children()
    with pytest.raises(ModelError, match="memory") as kept:
        opened(tiny, memory_mb=1, context=8192, ctx_strict=True)
    assert kept.value.__traceback__ is not None
    assert not children() - before
