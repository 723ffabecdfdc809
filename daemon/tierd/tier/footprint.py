"""What a model takes in one place, foreseen from its file's header: the sums that put it there, undone.

Nothing is put anywhere, and no weight is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from tierd.backends.protocol import Backend
from tierd.errors import ModelError
from tierd.kv.sizing import PromisedMemory, pages_for
from tierd.models import GGUFFile
from tierd.models.plan import Plan
from tierd.settings import ModelSettings, Settings
from tierd.tier.host_needs import host_need


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """A model in one place. Sizes are bytes.

    weights: packed as that place reads them. kv: of all streams it keeps. working: what steps compute with.
    room: for all that. context: positions of a stream. streams: those whose K/V of so many positions is there
    at a time. most_streams: those that the room would hold. rows: of a step.
    decline: why it cannot be there, "" when it can; if it cannot, the rest is what it would take.
    """

    place: str
    weights: int
    kv: int
    working: int
    room: int
    context: int
    streams: int
    most_streams: int
    rows: int
    decline: str = ""

    @property
    def total(self) -> int:
        """All that it takes."""
        return self.weights + self.kv + self.working


def host_footprint(
    backend: Backend, model: ModelSettings, settings: Settings, plan: Plan, file: GGUFFile
) -> Footprint:
    """Foresee a model in the machine's own memory, as that is now.

    Raises UnsupportedModelError where its heads do not fit the codec, SettingsError for too long a context.
    """
    need = host_need(backend, model, settings, plan, file)
    budget, decline = need.budget(settings), ""
    try:
        need.check_working()
        size = need.cache(budget)
        need.promise(PromisedMemory(), size.pages)
        context, pages = size.context, size.pages
    except ModelError as error:
        decline = str(error)
        context = model.context or plan.context
        pages = model.streams * pages_for(context, need.page_positions)
    of_stream = pages_for(context, need.page_positions)
    return Footprint(
        place=backend.name,
        weights=need.weights,
        kv=pages * need.page,
        working=need.step,
        room=need.working + budget,
        context=context,
        streams=min(model.streams, pages // of_stream),
        most_streams=budget // (of_stream * need.page),
        rows=need.max_rows,
        decline=decline,
    )
