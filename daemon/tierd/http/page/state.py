"""What the status page shows: made of what the engine publishes, and nothing of any prompt."""

from __future__ import annotations

import time

import msgspec

from tierd import __version__
from tierd.engine import CatalogueEntry, Engine, ModelSnapshot, SwitchRecord
from tierd.http.roster import Roster
from tierd.http.tier_views import Bank, Pages, Pass, Session, SessionsView, Switch, TierView
from tierd.metrics import Metrics


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What a model has done since the start, as its metrics have it. generated: tokens.

    first_tokens: of requests, and the seconds from their submission in all. gaps: between two tokens of one
    request, and their seconds in all.
    """

    generated: int
    first_tokens: int
    first_token_s: float
    gaps: int
    gap_s: float

    @classmethod
    def of(cls, metrics: Metrics, model: str) -> Totals:
        """Return a model's."""
        first, between = metrics.time_to_first_token.labels(model), metrics.inter_token.labels(model)
        (generated,) = metrics.generated_tokens.labels(model).collect()
        return cls(
            generated=int(generated.samples[0].value),
            first_tokens=first.count,
            first_token_s=first.total,
            gaps=between.count,
            gap_s=between.total,
        )


class PageRegion(msgspec.Struct, frozen=True):
    """One region of K/V on the GPU. state: a word of `engine.RegionState`. positions: how many hold rows."""

    region: int
    state: str
    positions: int


class PageModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is loaded. Fields are those of the admin API's /status, /slots and /passes.

    totals: rates are made of what they grow by.
    """

    id: str
    default: bool
    architecture: str
    outcome: str
    device: str
    decline: str
    seat: str
    context: int
    streams: int
    kv_dtype: str
    running: int
    paused: int
    preempted: int
    waiting: int
    pages: Pages
    regions: list[PageRegion]
    region_positions: int
    passes: list[Pass]
    totals: Totals


class EndedSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """A switch that has ended, so many seconds ago. See `engine.SwitchRecord`."""

    incoming: str | None
    outgoing: list[str]
    ago_s: float
    seconds: float
    phases: dict[str, float]
    error: str


class PageState(msgspec.Struct, frozen=True, kw_only=True):
    """GET /page/state.json. admin: whether commands are taken here. guarded: API keys are asked for.

    draining: why no request is admitted, "" while they are. sessions: streams that run; null where whoever
    looks may not know of them.
    """

    version: str
    uptime_s: float
    admin: bool
    guarded: bool
    draining: str
    device: TierView
    models: list[PageModel]
    loading: list[str]
    unloaded: list[str]
    switch: Switch | None
    switches: list[EndedSwitch]
    bank: Bank
    sessions: list[Session] | None


def page_state(
    engine: Engine,
    roster: Roster,
    metrics: Metrics,
    *,
    started: float,
    admin: bool,
    guarded: bool,
    sessions: bool,
) -> PageState:
    """Return how things stand. started: monotonic seconds. sessions: whether to tell of streams."""
    snapshot, catalogue, now = engine.snapshot, engine.catalogue, time.monotonic()
    return PageState(
        version=__version__,
        uptime_s=round(now - started, 3),
        admin=admin,
        guarded=guarded,
        draining=catalogue.closed,
        device=TierView.of(engine.tier),
        models=[
            _model(entry, snapshot.models[id], Totals.of(metrics, id))
            for id, entry in catalogue.entries.items()
            if id in snapshot.models
        ],
        loading=list(catalogue.loading),
        unloaded=[id for id in roster.unloaded(catalogue) if id not in snapshot.models],
        switch=Switch.of(snapshot, now),
        switches=[_ended(switch, now) for switch in snapshot.recent],
        bank=Bank.of(snapshot.bank),
        sessions=SessionsView.of(snapshot).sessions if sessions else None,
    )


def _model(entry: CatalogueEntry, model: ModelSnapshot, totals: Totals) -> PageModel:
    return PageModel(
        id=entry.id,
        default=entry.default,
        architecture=entry.architecture,
        outcome=model.outcome,
        device=model.device,
        decline=model.decline,
        seat=model.seat,
        context=entry.context,
        streams=entry.streams,
        kv_dtype=entry.settings.codec,
        running=model.running,
        paused=model.paused,
        preempted=model.preempted,
        waiting=model.waiting,
        pages=Pages.of(model),
        regions=[PageRegion(region.region, region.state, region.positions) for region in model.regions],
        region_positions=model.region_positions,
        passes=Pass.all_of(model),
        totals=totals,
    )


def _ended(switch: SwitchRecord, now: float) -> EndedSwitch:
    return EndedSwitch(
        incoming=switch.incoming,
        outgoing=list(switch.outgoing),
        ago_s=round(now - switch.ended, 3),
        seconds=switch.seconds,
        phases=dict(switch.phases),
        error=switch.error,
    )
