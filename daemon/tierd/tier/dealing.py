"""A device's room, dealt out to all models that are configured or loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tierd.backends.resident.backend import ResidentBackend
from tierd.errors import ModelError, SettingsError, UnsupportedModelError
from tierd.kv.sizing import check_context
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS
from tierd.settings import ModelSettings, Settings
from tierd.tier.budget import Need, Placement, Room, share_out
from tierd.tier.marks import DeviceMarks
from tierd.tier.needs import need_of
from tierd.tier.want import Want


def all_fit(shares: Mapping[str, Placement | str], total: int) -> bool:
    """Whether shares of another device can be had on one of so many bytes as they are."""
    there = [share for share in shares.values() if isinstance(share, Placement)]
    beside = sum(share.bytes for share in there if not share.turns)
    pinned = sum(share.bytes for share in there if share.pinned)
    alone = [share.bytes for share in there if share.turns and not share.pinned]
    return max(beside, pinned + max(alone, default=0)) <= total


def deal(
    backend: ResidentBackend,
    settings: Settings,
    marks: Mapping[str, DeviceMarks],
    room: Room,
    besides: Collection[str] = (),
) -> dict[str, Placement | str]:
    """Deal a device out to the configured models, and to others that are loaded. marks: of those that are.

    besides: models that are not dealt to.
    """
    needs: dict[str, Need] = {}
    declines: dict[str, Placement | str] = {}
    configured = {model.id: model for model in settings.models}
    for model in (model for model in {**configured, **marks} if model not in besides):
        known = marks.get(model)
        need = _read_need(backend, configured[model], settings) if known is None else _need(backend, known)
        if isinstance(need, Need):
            needs[model] = need
        elif need:
            declines[model] = need
    return declines | share_out(needs, room)


def _read_need(backend: ResidentBackend, model: ModelSettings, settings: Settings) -> Need | str:
    """Read from a file what its model needs, or why the device declines it.

    "" where it is no sound model, or not to be there as a whole.
    """
    want = Want.of(model, settings)
    if not want.whole:
        return ""
    try:
        with GGUFFile.open(model.path) as file:
            plan = build_plan(file)
            check_context(model.context, plan.context)
            try:
                return need_of(want, plan, backend.demand(plan, file, KV_CODECS[want.kv_dtype]))
            except UnsupportedModelError as error:
                return str(error)
    except (ModelError, SettingsError):
        return ""  # it will be said when it is loaded


def _need(backend: ResidentBackend, marks: DeviceMarks) -> Need | str:
    try:
        return marks.on(backend.device.facts).need
    except UnsupportedModelError as error:
        return str(error)
