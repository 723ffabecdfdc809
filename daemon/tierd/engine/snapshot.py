"""What the engine publishes about its work after each turn; immutable, replaced as a whole."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from tierd.backends.rails.executor import RailsExecutor
from tierd.core import PassReason, Sequence
from tierd.kv.bank import Bank
from tierd.kv.home import Room
from tierd.slot import Slot
from tierd.tier.device_home import DeviceHome
from tierd.tier.passes import Passes
from tierd.tier.regions import RegionView
from tierd.tier.seat import SeatState

if TYPE_CHECKING:
    from tierd.engine.dance import Dance
    from tierd.engine.switch import Switch


class RegionState(enum.StrEnum):
    """What a region of the device's K/V is there for.

    LIVE: a running stream's. PARKED: a conversation's that may go on; PINNED: one that no other may take.
    LEAVING: what it holds is on its way out. SCRATCH: prompts run there whose streams' K/V is on the host.
    """

    FREE = "free"
    LIVE = "live"
    PARKED = "parked"
    PINNED = "pinned"
    LEAVING = "leaving"
    SCRATCH = "scratch"


# Made anew each turn for every region and stream: a struct costs a tenth of what a frozen dataclass does.
class RegionSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One region. positions: how many hold rows. request: whose stream is in it. claim: of a parked one.

    used: when it was used last, monotonic seconds; None where it never was.
    """

    region: int
    state: RegionState
    positions: int = 0
    request: str | None = None
    claim: int | None = None
    used: float | None = None


class SessionSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One running stream. region: where its K/V is on the device, None: in pages of the host.

    positions: fed so far. prompt, generated: tokens. paused: its client does not keep up. moving: it waits
    for its rows, which are on their way to another place. away: it waits for its model to be back. reason:
    why it is on the CPU, though meant for the GPU; None where it is not.
    """

    request: str
    region: int | None = None
    positions: int
    prompt: int
    generated: int
    paused: bool = False
    moving: bool = False
    away: bool = False
    reason: PassReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BankSnapshot:
    """K/V rows that are kept outside of any executor. limit, used: bytes of memory; spilled: of files.

    dropped: entries that had to make room for others since the start, and the positions that they held.
    """

    limit: int = 0
    used: int = 0
    spilled: int = 0
    entries: int = 0
    dropped: int = 0
    dropped_positions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSnapshot:
    """A switch that is going on. incoming: who comes, None when a model only leaves. outgoing: who leave.

    since: monotonic seconds.
    """

    incoming: str | None
    outgoing: tuple[str, ...]
    phase: str
    since: float


class SwitchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A switch that has ended. incoming, outgoing: see SwitchSnapshot. ended: monotonic seconds.

    seconds: since it began. phases: seconds of each that it came to. error: why it failed, "" if it did not.
    """

    incoming: str | None
    outgoing: tuple[str, ...]
    ended: float
    seconds: float
    phases: Mapping[str, float]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Rails:
    """Layers whose matmuls are on the device, of all that may be. failure: why none is, "" while it works."""

    on_device: tuple[int, ...]
    layers: tuple[int, ...]
    failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSnapshot:
    """One model's streams and K/V pages. pages_free + pages_used + pages_cached = pages_total.

    outcome, device, decline: where the model runs, and why not on the device; see `slot.Placed`.
    seat: how it stands with a device that models take turns on: on, leaving, away, arriving or lost; "" where
    it is not for one.
    paused: those of the running streams whose clients do not keep up. preempted: those that have given up
    their pages for others and wait for new ones. preemptions: how often that has been, by what became of
    their rows: "banked" or "dropped".
    pages_used: held by streams. pages_cached: held by the prefix cache alone, which gives them up for
    others. pages_reserved: free or cached pages that are promised to running streams.
    understudy: its pages on the CPU, where it is on a device and streams had to go there.
    rails: where its layers' matmuls are; None where the model is whole in one place.
    regions: of its K/V on the device, in order; region_positions: what each holds. prefill_window: most rows
    of a step. prefill_continues: whether a prompt may be fed in several.
    claims: how often what became of the regions' conversations, by what; see `tier.regions.Regions.counts`.
    sessions: running streams, in order of admission. passes: see `tier.passes.Passes`.
    totals: a copy.
    """

    outcome: str
    device: str
    decline: str
    seat: str = ""
    running: int
    paused: int
    preempted: int = 0
    preemptions: Counter[str] = field(default_factory=Counter)
    waiting: int
    pages_total: int
    pages_free: int
    pages_used: int
    pages_cached: int
    pages_reserved: int
    understudy: Room | None = None
    rails: Rails | None = None
    region_positions: int = 0
    prefill_window: int = 0
    prefill_continues: bool = True
    regions: tuple[RegionSnapshot, ...] = ()
    claims: Mapping[str, int] = field(default_factory=dict)
    sessions: tuple[SessionSnapshot, ...] = ()
    passes: Mapping[PassReason, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All models that are loaded, by id, and what they share.

    switches: done since the start. recent: the last that ended, oldest first.
    """

    models: Mapping[str, ModelSnapshot] = field(default_factory=dict)
    bank: BankSnapshot = field(default_factory=BankSnapshot)
    switch: SwitchSnapshot | None = None
    switches: int = 0
    recent: tuple[SwitchRecord, ...] = ()


def observe(
    slots: Iterable[Slot],
    passes: Mapping[str, Passes] | None = None,
    bank: Bank | None = None,
    dance: Dance | None = None,
) -> Snapshot:
    """Return how things stand. Called on the engine thread. passes: by model."""
    passes = passes or {}
    return Snapshot(
        {slot.id: _model(slot, passes.get(slot.id)) for slot in slots},
        BankSnapshot() if bank is None else _bank(bank),
        None if dance is None or dance.switch is None else _switch(dance.switch),
        0 if dance is None else dance.switches,
        () if dance is None else dance.recent,
    )


_NONE: Counter[str] = Counter()
# How a state of a seat is called where what its model can do is all that matters.
_SEATS = {SeatState.DROPPED: "away", SeatState.RESTORED: "arriving", SeatState.ARMED: "arriving"}


def _seat(slot: Slot) -> str:
    if slot.seat is None:
        return ""
    return "lost" if slot.lost else _SEATS.get(SeatState(slot.seat.state), slot.seat.state)


def _switch(switch: Switch) -> SwitchSnapshot:
    return SwitchSnapshot(
        incoming=None if switch.incoming is None else switch.incoming.id,
        outgoing=tuple(slot.id for slot in switch.outgoing),
        phase=switch.phase,
        since=switch.began,
    )


def _model(slot: Slot, passes: Passes | None) -> ModelSnapshot:
    room, home, streams = slot.home.room, slot.home, slot.streams
    places = [slot] if slot.understudy is None else [slot, slot.understudy]
    rails = _rails(slot)
    failure = "" if rails is None else rails.failure
    return ModelSnapshot(
        outcome="cpu" if slot.lost or failure else slot.outcome,
        device="" if slot.lost or failure else slot.device,
        decline=slot.lost or failure or slot.decline,
        seat="lost" if failure else _seat(slot),
        running=len(streams),
        paused=sum(sequence.paused for sequence in streams),
        preempted=sum(sequence.preemptions > 0 for place in places for sequence in place.returning),
        preemptions=sum((place.preemptions for place in places if place.preemptions), _NONE),
        waiting=len(slot.waiting),
        pages_total=room.total,
        pages_free=room.free,
        pages_used=room.used,
        pages_cached=room.cached,
        pages_reserved=room.reserved,
        understudy=None if slot.understudy is None else slot.understudy.home.room,
        rails=rails,
        region_positions=home.most if isinstance(home, DeviceHome) else 0,
        prefill_window=slot.executor.max_rows,
        prefill_continues=slot.executor.prefill_continues,
        regions=_regions(slot, home) if isinstance(home, DeviceHome) else (),
        claims=home.regions.counts if isinstance(home, DeviceHome) else {},
        sessions=tuple(_session(slot, sequence) for sequence in streams),
        passes={} if passes is None else passes.status,
    )


def _rails(slot: Slot) -> Rails | None:
    executor = slot.executor
    if not isinstance(executor, RailsExecutor):
        return None
    return Rails(executor.layers, executor.all_layers, executor.failure)


def _regions(slot: Slot, home: DeviceHome) -> tuple[RegionSnapshot, ...]:
    regions = tuple(map(_region, home.regions, home.used))
    if slot.scratch is None:
        return regions
    return (*regions, RegionSnapshot(region=slot.scratch, state=RegionState.SCRATCH))


def _region(view: RegionView[Sequence], used: float | None) -> RegionSnapshot:
    state = RegionState.PINNED if view.pins else RegionState(view.state)
    return RegionSnapshot(
        region=view.region,
        state=state,
        positions=view.positions,
        request=None if view.session is None else view.session.request.id,
        claim=view.claim,
        used=used,
    )


def _session(slot: Slot, sequence: Sequence) -> SessionSnapshot:
    home = slot.home
    region = home.regions.region_of(sequence) if isinstance(home, DeviceHome) else None
    return SessionSnapshot(
        request=sequence.request.id,
        region=region,
        positions=sequence.fed if sequence.saved is None else sequence.saved.positions,
        prompt=len(sequence.request.prompt),
        generated=sequence.generated,
        paused=sequence.paused,
        moving=sequence.moves > 0 or sequence.saved is not None,
        away=not slot.serves and sequence in slot.returning,
        reason=sequence.passes,
    )


def _bank(bank: Bank) -> BankSnapshot:
    return BankSnapshot(
        limit=bank.limit,
        used=bank.used,
        spilled=bank.spilled,
        entries=bank.count,
        dropped=bank.dropped,
        dropped_positions=bank.dropped_positions,
    )
