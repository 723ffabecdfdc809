"""What the engine counts of claims, switches and loads, and what it makes of models that go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from engine.device_slot import device_slot
from engine.drive import greedy
from engine.harness import PATIENCE, Gate, Harness, model, running
from engine.null_slot import request
from engine.null_stage import NullStage, seated_slot
from tierd.core import FinishedEvent
from tierd.errors import ModelError
from tierd.kv.bank import Bank
from tierd.metrics import CLAIMS, NO_MODEL, REGIONS
from tierd.settings import ModelSettings, QueueSettings, Settings, SwitchSettings
from tierd.slot import Slot


def samples(harness: Harness, name: str) -> dict[tuple[str, ...], float]:
    """Return what was counted, by the values of the labels; without zeros."""
    return {
        tuple(sample.labels.values()): sample.value
        for family in harness.metrics.registry.collect()
        for sample in family.samples
        if sample.name == name and sample.value
    }


def serve(harness: Harness, id: str, prompt: Sequence[int], model: str) -> None:
    harness.engine.submit(request(id, prompt, 4, model=model))
    assert isinstance(harness.mail.terminal(id), FinishedEvent)


def test_claims_are_counted_by_what_became_of_them() -> None:
    with running(model("m", streams=2), open_slot=partial(device_slot, regions=2)) as harness:

        def becomes(**expected: int) -> bool:
            found = samples(harness, "tierd_gpu_claims_total")
            return found == {("m", event): count for event, count in expected.items()}

        serve(harness, "a", b"a conversation", "m")
        harness.snapshot_when(lambda _: becomes(parked=1))
        serve(harness, "b", [*greedy(b"a conversation", 4), *b" goes on"], "m")
        harness.snapshot_when(lambda _: becomes(parked=2, adopted=1))
        serve(harness, "c", b"a conversation of another kind", "m")
        harness.snapshot_when(lambda _: becomes(parked=3, adopted=1, forked=1))
        assert samples(harness, "tierd_gpu_regions") == {("m", "parked"): 2}
        serve(harness, "d", b"nothing like it", "m")
        harness.snapshot_when(lambda _: becomes(parked=4, adopted=1, forked=1, died=1))
        assert {event for _, event in samples(harness, "tierd_gpu_claims_total")} == set(CLAIMS)
        harness.engine.flush().result(PATIENCE)
        harness.snapshot_when(lambda _: becomes(parked=4, adopted=1, forked=1, died=3))


@contextmanager
def taking_turns(
    *, steps: Gate | None = None, cpu_steps: Gate | None = None, **switch: float | str
) -> Iterator[Harness]:
    """Run an engine over a device that has room for one of two models. steps: there; cpu_steps: elsewhere."""
    stage, bank = NullStage(10), Bank(1 << 20)

    def seat(settings: ModelSettings) -> Slot:
        return seated_slot(
            settings,
            stage,
            size=10,
            on=stage.reservations.free >= 10,
            bank=bank,
            before_step=steps,
            cpu_step=cpu_steps,
        )

    options: dict[str, float | str] = {"min_hold_s": 0.0, "max_wait_s": 0.0, **switch}
    with running(
        open_slot=seat,
        settings=Settings(switch=SwitchSettings(**options)),  # type: ignore[arg-type]
        engine={"bank": bank, "tier": stage.status, "release": stage.reservations.release},
    ) as harness:
        harness.load(model("a", default=True))
        harness.load(model("b"))
        yield harness


def test_switches_are_counted_by_who_came_and_why() -> None:
    with taking_turns() as harness:
        serve(harness, "1", b"hello", "b")
        harness.engine.activate("a").result(PATIENCE)
        expected = {("b", "waiting", "done"): 1.0, ("a", "admin", "done"): 1.0}
        harness.snapshot_when(lambda _: samples(harness, "tierd_switches_total") == expected)
        assert samples(harness, "tierd_gpu_claims_total")["b", "died"] == 1  # it went to the bank
        assert samples(harness, "tierd_model_on_device") == {("a",): 1}
        serve(harness, "2", b"hello", "b")
        assert samples(harness, "tierd_gpu_claims_total")["b", "parked"] == 2


def test_a_model_that_comes_back_for_streams_on_the_cpu_was_wished_for() -> None:
    steps, cpu_steps = Gate(), Gate()
    with taking_turns(steps=steps, cpu_steps=cpu_steps, resume="cpu") as harness:
        harness.engine.submit(request("long", b"hello", 50, model="a"))
        steps.wait()
        brought = harness.engine.activate("b")
        steps.let(100)
        brought.result(PATIENCE)
        cpu_steps.wait()
        harness.snapshot_when(lambda _: ("a", "wished", "done") in samples(harness, "tierd_switches_total"))
        cpu_steps.let(100)
        assert isinstance(harness.mail.terminal("long"), FinishedEvent)
        assert samples(harness, "tierd_gpu_cpu_passes_total")["a", "away"] > 0


def test_a_model_that_leaves_for_nobody_is_counted_too() -> None:
    with taking_turns(idle_s=0.01) as harness:
        harness.snapshot_when(lambda snapshot: snapshot.models["a"].seat == "away")
        harness.snapshot_when(
            lambda _: samples(harness, "tierd_switches_total") == {(NO_MODEL, "idle", "done"): 1}
        )


def test_loads_are_counted_and_names_that_nobody_configured_make_no_series() -> None:
    known = model("known")

    def refuse(settings: ModelSettings) -> Slot:
        raise ModelError("no such file")

    with running(open_slot=refuse, settings=Settings(models=(known,))) as harness:
        for settings in (known, *(model(f"made up {n}", path=Path(f"{n}.gguf")) for n in range(3))):
            with pytest.raises(ModelError):
                harness.load(settings)
        found = samples(harness, "tierd_model_loads_total")
        assert found == {("known", "failed"): 1, (NO_MODEL, "failed"): 3}


def test_the_capacity_of_the_queue_is_the_one_that_holds() -> None:
    with running(model("m"), settings=Settings(queue=QueueSettings(capacity=3))) as harness:
        assert samples(harness, "tierd_queue_capacity") == {(): 3}
        harness.engine.configure(Settings(queue=QueueSettings(capacity=5))).result(PATIENCE)
        assert samples(harness, "tierd_queue_capacity") == {(): 5}


def test_a_model_that_is_gone_has_counts_and_no_gauges() -> None:
    with running(model("m", streams=2), open_slot=device_slot) as harness:
        serve(harness, "a", b"hello", "m")
        assert samples(harness, "tierd_kv_pages") == {("m",): 2}
        assert {state for _, state in samples(harness, "tierd_gpu_regions")} <= set(REGIONS)
        harness.engine.unload("m", None).result(PATIENCE)
        harness.snapshot_when(lambda snapshot: not snapshot.models)
        left = {
            (family.name, family.type)
            for family in harness.metrics.registry.collect()
            for sample in family.samples
            if sample.labels.get("model") == "m"
        }
        assert {kind for _, kind in left} == {"counter", "histogram"}
        assert samples(harness, "tierd_requests_total") == {("m", "length"): 1}
