"""Views on where models, streams and their K/V are: made of the engine's snapshot alone."""

from __future__ import annotations

import msgspec

from tierd.core import PassReason
from tierd.engine import BankSnapshot, ModelSnapshot, RegionSnapshot, SessionSnapshot, Snapshot
from tierd.kv.home import Room
from tierd.tier.status import TierStatus


class Pages(msgspec.Struct, frozen=True):
    """K/V pages: total = used + cached + free; reserved: those not in use that are promised to streams."""

    total: int
    used: int
    cached: int
    free: int
    reserved: int

    @classmethod
    def of(cls, model: ModelSnapshot) -> Pages:
        """Return those of a model, where it runs."""
        return cls(
            total=model.pages_total,
            used=model.pages_used,
            cached=model.pages_cached,
            free=model.pages_free,
            reserved=model.pages_reserved,
        )

    @classmethod
    def of_room(cls, room: Room) -> Pages:
        """Return those of one place."""
        return cls(
            total=room.total, used=room.used, cached=room.cached, free=room.free, reserved=room.reserved
        )


class Switch(msgspec.Struct, frozen=True):
    """A switch that is under way: who comes, null for nobody, who goes, what is done, and since when."""

    incoming: str | None
    outgoing: list[str]
    phase: str
    seconds: float

    @classmethod
    def of(cls, snapshot: Snapshot, now: float) -> Switch | None:
        """Return the one that there is. now: monotonic seconds."""
        switch = snapshot.switch
        if switch is None:
            return None
        seconds = round(max(0.0, now - switch.since), 3)
        return cls(switch.incoming, list(switch.outgoing), switch.phase, seconds)


class Memory(msgspec.Struct, frozen=True):
    """Bytes of the device that models take, may still take, and may take in all."""

    used: int
    free: int
    budget: int


class TierView(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tier. backend: what runs models on the device. device: its name, "" when there is none.

    products: how it multiplies by matrices, "bit for bit" or in other words; "" when there is none.
    reason: why there is none. reservations: bytes by model. away: bytes that models would take which are not
    there now. faults: how often the device was given up in the
    middle of its work; fault: what it said last, "" where it never was. retry_s: seconds until it is tried
    again; null where it is not.
    """

    backend: str
    device: str
    products: str
    reason: str
    memory: Memory
    reservations: dict[str, int]
    away: dict[str, int]
    faults: int
    fault: str
    retry_s: float | None

    @classmethod
    def of(cls, tier: TierStatus) -> TierView:
        """Return how the device stands."""
        return cls(
            backend=tier.backend,
            device=tier.device,
            products=tier.products,
            reason=tier.reason,
            memory=Memory(tier.used, tier.free, tier.budget),
            reservations=dict(sorted(tier.reservations.items())),
            away=dict(sorted(tier.away.items())),
            faults=tier.faults,
            fault=tier.fault,
            retry_s=None if tier.retry_s is None else round(tier.retry_s, 3),
        )


class Region(msgspec.Struct, frozen=True, kw_only=True):
    """One region. state: free, live, parked, pinned, leaving or scratch. positions: how many hold rows.

    request: whose stream is in it. claim: the number of what is parked there. age_s: since its last use; null
    where there was none.
    """

    region: int
    state: str
    positions: int
    request: str | None
    claim: int | None
    age_s: float | None

    @classmethod
    def of(cls, region: RegionSnapshot, now: float) -> Region:
        """Return a region as it is. now: monotonic seconds."""
        return cls(
            region=region.region,
            state=region.state,
            positions=region.positions,
            request=region.request,
            claim=region.claim,
            age_s=None if region.used is None else round(max(0.0, now - region.used), 3),
        )


class ModelRegions(msgspec.Struct, frozen=True):
    """The regions of one model."""

    id: str
    regions: list[Region]


class RegionsView(msgspec.Struct, frozen=True):
    """GET /regions: models that have regions, and these."""

    models: list[ModelRegions]

    @classmethod
    def of(cls, snapshot: Snapshot, now: float) -> RegionsView:
        """Return all regions. now: monotonic seconds."""
        return cls(
            [
                ModelRegions(id, [Region.of(region, now) for region in model.regions])
                for id, model in sorted(snapshot.models.items())
                if model.regions
            ]
        )


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One running stream. region: where its K/V is on the device; null: in pages of the host.

    positions: fed so far. prompt, generated: tokens. paused: its client does not keep up. moving: its rows
    are on their way. away: it waits for its model to be back on the GPU. reason, words: why it is on the CPU
    though meant for the GPU; null and "" if it is not.
    """

    id: str
    model: str
    region: int | None
    positions: int
    prompt: int
    generated: int
    paused: bool
    moving: bool
    away: bool
    reason: str | None
    words: str

    @classmethod
    def of(cls, model: str, session: SessionSnapshot) -> Session:
        """Return a stream of a model."""
        return cls(
            id=session.request,
            model=model,
            region=session.region,
            positions=session.positions,
            prompt=session.prompt,
            generated=session.generated,
            paused=session.paused,
            moving=session.moving,
            away=session.away,
            reason=session.reason,
            words=session.reason.words if session.reason else "",
        )


class SessionsView(msgspec.Struct, frozen=True):
    """GET /sessions: the running streams of all models."""

    sessions: list[Session]

    @classmethod
    def of(cls, snapshot: Snapshot) -> SessionsView:
        """Return all streams, by model, in order of admission."""
        return cls(
            [
                Session.of(id, session)
                for id, model in sorted(snapshot.models.items())
                for session in model.sessions
            ]
        )


class Pass(msgspec.Struct, frozen=True):
    """How often work was handed to the CPU for a reason. words: the reason, for people."""

    reason: str
    words: str
    count: int

    @classmethod
    def all_of(cls, model: ModelSnapshot) -> list[Pass]:
        """Return the passes of a model, in the order of the table of reasons."""
        return [
            cls(reason, reason.words, model.passes[reason]) for reason in PassReason if reason in model.passes
        ]


class ModelPasses(msgspec.Struct, frozen=True):
    """The passes of one model; none when all that was meant for the GPU ran there."""

    id: str
    outcome: str
    passes: list[Pass]


class PassesView(msgspec.Struct, frozen=True):
    """GET /passes, since each model was put where it is. The metric tierd_gpu_cpu_passes_total goes on."""

    models: list[ModelPasses]

    @classmethod
    def of(cls, snapshot: Snapshot) -> PassesView:
        """Return all passes, in the order of the table of reasons."""
        return cls(
            [
                ModelPasses(id, model.outcome, Pass.all_of(model))
                for id, model in sorted(snapshot.models.items())
            ]
        )


class Bank(msgspec.Struct, frozen=True, kw_only=True):
    """The host bank of /status: rows outside of any executor. limit, used: bytes.

    dropped: entries that had to make room for others so far; dropped_positions: what they held.
    """

    limit: int
    used: int
    entries: int
    dropped: int
    dropped_positions: int

    @classmethod
    def of(cls, bank: BankSnapshot) -> Bank:
        """Return how the bank stands."""
        return cls(
            limit=bank.limit,
            used=bank.used,
            entries=bank.entries,
            dropped=bank.dropped,
            dropped_positions=bank.dropped_positions,
        )
