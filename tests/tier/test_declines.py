"""All reasons why a model is not put on the device, in words and as reasons of passes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from no_gpu import NO_DRIVER, NO_GPU
from tier.tiers import TierOf, model
from tierd.backends.host import ThreadPool
from tierd.backends.vkapi import Device, DeviceFacts, instance
from tierd.backends.vkapi.results import DEVICE_LOST, OUT_OF_DEVICE_MEMORY, TIMEOUT
from tierd.core import PassReason
from tierd.errors import DeviceError, RequiredTierError, UnsupportedModelError
from tierd.kv.bank import Bank
from tierd.kv.gone import Gone
from tierd.models import GGUFFile, build_plan
from tierd.models.plan import BlobStore, Plan
from tierd.settings import EngineSettings, GPUSettings, Settings
from tierd.tier.device_site import DeviceSite
from tierd.tier.placing import reason_of
from tiny import write_llama

Facts = Callable[[DeviceFacts], DeviceFacts]


def limited(**limits: object) -> Facts:
    return lambda facts: dataclasses.replace(facts, limits=dataclasses.replace(facts.limits, **limits))  # type: ignore[arg-type]


def other(**changes: object) -> Facts:
    return lambda facts: dataclasses.replace(facts, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Decline:
    """What a model asks for, of which device, and what comes of that.

    words: of the decline, a regular expression. reason: of passes, None where there is no device.
    facts: of the device, changed. faults: what its functions return. plan: the model's, changed.
    """

    words: str
    reason: PassReason | None
    model: dict[str, object] = field(default_factory=dict)
    file: dict[str, int] = field(default_factory=dict)
    gpu: dict[str, object] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    facts: Facts = lambda facts: facts
    faults: dict[str, int] = field(default_factory=dict)
    plan: Callable[[Plan], Plan] = lambda plan: plan


def recurrent(plan: Plan) -> Plan:
    return dataclasses.replace(plan, stores=(*plan.stores, BlobStore(0, 64)))


NEED = r"weights and {} regions at context {} need [0-9.]+ MiB of the device's {} MiB; it would fit with "
DECLINES = {
    "no driver": Decline(words=re.escape(NO_DRIVER), reason=None, environment=NO_GPU),
    "software": Decline(
        words="is a software device, which counts only when gpu.allow_software is set",
        reason=None,
        gpu={"allow_software": False},
    ),
    "kind": Decline(words="is no kind of GPU that is known", reason=None, facts=other(type="other")),
    "too old": Decline(words=r"offers Vulkan 1\.1, 1\.2 is needed", reason=None, facts=other(api=(1, 1, 9))),
    "features": Decline(
        words="lacks bufferDeviceAddress, timelineSemaphore, storageBuffer16BitAccess, shaderInt64",
        reason=None,
        facts=other(features=frozenset()),
    ),
    "queues": Decline(words="has no queue for compute", reason=None, facts=other(queues=())),
    "shared memory": Decline(
        words="has 16384 bytes of shared memory, 32768 are needed", reason=None, facts=limited(shared=1 << 14)
    ),
    "invocations": Decline(
        words="runs 128 invocations in a workgroup, 256 are needed",
        reason=None,
        facts=limited(invocations=128),
    ),
    "witness": Decline(words="did not finish in time", reason=None, faults={"vkWaitSemaphores": TIMEOUT}),
    "codec": Decline(
        words="K/V codec f32 is for the CPU only; choose kv_dtype f16, q8_0 or tq4",
        reason=PassReason.CODEC,
        model={"kv_dtype": "f32"},
    ),
    "heads": Decline(
        words="heads of 36 values do not fit the device's kernels, which take multiples of 8 up to 1024",
        reason=PassReason.UNSUPPORTED_OP,
        file={"head_size": 36},
    ),
    "op": Decline(
        words="llama keeps a recurrent state, which the device path does not have",
        reason=PassReason.UNSUPPORTED_OP,
        plan=recurrent,
    ),
    "grids": Decline(
        words=r"a matrix has \d+ rows, and llvmpipe .* takes 32 at a time",
        reason=PassReason.UNSUPPORTED_OP,
        facts=limited(groups=(1, 65535, 65535)),
    ),
    "kernel": Decline(
        words=r"failed with result -13 \(vkCreateShaderModule\)",
        reason=PassReason.UNSUPPORTED_OP,
        faults={"vkCreateShaderModule": -13},
    ),
    "weights": Decline(
        words=r"^weights alone need [0-9.]+ MiB of the device's 1\.0 MiB; choose a smaller model$",
        reason=PassReason.NO_ROOM,
        file={"vocab": 9000},
        gpu={"vram_limit_mb": 1},
    ),
    "piece": Decline(
        words=r"^the device allocates 0\.0 MiB in one piece and [0-9.]+ MiB are needed; lower regions, or ",
        reason=PassReason.NO_ROOM,
        facts=limited(allocation=1 << 14),
    ),
    "context": Decline(
        words=NEED.format(2, 4096, r"1\.0"),
        reason=PassReason.NO_ROOM,
        model={"context": 4096, "ctx_strict": True},
        gpu={"vram_limit_mb": 1},
    ),
    "floor": Decline(
        words=NEED.format(16, 512, r"2\.0"),
        reason=PassReason.NO_ROOM,
        model={"context": 4096, "regions": 16},
        gpu={"vram_limit_mb": 2},
    ),
    "memory": Decline(
        words=r"found no device memory \(vkAllocateMemory\)",
        reason=PassReason.NO_ROOM,
        faults={"vkAllocateMemory": OUT_OF_DEVICE_MEMORY},
    ),
    "lost": Decline(
        words="was lost", reason=PassReason.DEVICE_LOST, faults={"vkBeginCommandBuffer": DEVICE_LOST}
    ),
}


@pytest.mark.parametrize("name", DECLINES)
def test_a_model_is_declined_in_plain_words(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[Device]
) -> None:
    decline = DECLINES[name]
    for key, value in decline.environment.items():
        monkeypatch.setenv(key, value)
    read_facts = instance.read_facts
    monkeypatch.setattr(instance, "read_facts", lambda *args: decline.facts(read_facts(*args)))
    path = write_llama(tmp_path / "tiny.gguf", **{"head_size": 32, "context": 4096, **decline.file})
    each = model(path, **decline.model)
    settings = Settings(
        engine=EngineSettings(threads=1, chunk_rows=16),
        gpu=GPUSettings(**{"allow_software": True, **decline.gpu}),  # type: ignore[arg-type]
        models=(each,),
    )
    with closing(ThreadPool(1)) as pool, closing(DeviceSite(settings, pool, Bank(0), Gone())) as site:
        if decline.reason is not None:
            site.shares()
            for function, result in decline.faults.items():
                opened[0].vk.inject(function, result)
        elif decline.faults:
            inject_when_opened(monkeypatch, decline.faults)
        with GGUFFile.open(path) as file, pytest.raises((DeviceError, UnsupportedModelError)) as declined:
            site.put(each, settings, decline.plan(build_plan(file)), file)
        assert declined.match(decline.words)
        assert reason_of(declined.value) is decline.reason


def inject_when_opened(monkeypatch: pytest.MonkeyPatch, faults: dict[str, int]) -> None:
    open = Device.open

    def failing(**options: object) -> Device:
        device = open(**options)  # type: ignore[arg-type]
        for function, result in faults.items():
            device.vk.inject(function, result)
        return device

    monkeypatch.setattr(Device, "open", failing)


def test_a_decline_is_an_error_where_the_device_is_required(tiny: Path, tier_of: TierOf) -> None:
    each = model(tiny, context=4096, ctx_strict=True, require="resident")
    tier, _ = tier_of(each, vram_limit_mb=1)
    with pytest.raises(
        RequiredTierError, match="it must be resident on the GPU, as `require` demands, but w"
    ):
        tier.open(each)
