"""Where a model runs: on the device if that is wanted and possible, else on the host, which is said aloud."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tierd.backends.host import HostBackend, ThreadPool
from tierd.core import PassReason
from tierd.errors import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    DeviceTimeoutError,
    ModelError,
    NoDeviceError,
    RequiredTierError,
    SettingsError,
    UnsupportedCodecError,
    UnsupportedModelError,
)
from tierd.kv.bank import Bank
from tierd.kv.gone import Gone
from tierd.models import GGUFFile, build_plan
from tierd.models.plan import Plan
from tierd.settings import ModelSettings, Settings
from tierd.slot import Placed, Slot, open_slot
from tierd.tier.fallback import TierFallback
from tierd.tier.host_site import HostSite
from tierd.tier.status import TierStatus
from tierd.tier.want import Want

if TYPE_CHECKING:
    from tierd.tier.device_site import DeviceSite
    from tierd.tier.rails_site import RailsSite

log = logging.getLogger(__name__)

# Why a whole model was declined where a part of it may do.
_FOR_RAILS = (PassReason.CODEC, PassReason.NO_ROOM, PassReason.UNSUPPORTED_OP)


class Tier:
    """Opens models where they belong. Any thread may ask. Without a want there is no Vulkan at all."""

    def __init__(
        self,
        settings: Settings,
        host: HostSite,
        pool: ThreadPool,
        *,
        bank: Bank | None = None,
        gone: Gone | None = None,
    ) -> None:
        """pool: threads that pack and copy weights. bank: takes rows that no region has room for; None: they
        are lost. gone: remembers those that are. The engine thread alone uses these two.
        """
        self._settings = settings
        self._host = host
        self._device = _device_site(settings, pool, bank or Bank(0), gone or Gone())
        self._rails = _rails_site(settings, host, self._device)
        self._said = threading.Lock()  # taken once it was said that there is no device

    def open(self, model: ModelSettings) -> Slot:
        """Open a model, which takes seconds. See `open_slot`.

        Raises RequiredTierError when it must be on the device and cannot.
        """
        return open_slot(model, self._settings, self)

    def put(self, model: ModelSettings, settings: Settings, plan: Plan, file: GGUFFile) -> Placed:
        """Put a model on the device, or on the host with the reason why; see `Site`."""
        want = Want.of(model, settings)
        if not want or self._device is None:
            return self._host.put(model, settings, plan, file)
        decline, declined = "", None
        if want.whole:
            try:
                placed = self._device.put(model, settings, plan, file)
                return dataclasses.replace(placed, fallback=self._fallback(want, settings, self._device))
            except (DeviceError, UnsupportedModelError) as error:
                decline, declined = str(error), reason_of(error)
        if want.rails and self._rails is not None and (declined in _FOR_RAILS or not want.whole):
            try:
                placed = self._rails.put(model, settings, plan, file, decline)
                self._say(model.id, want, decline)
                return placed
            except DeviceError as error:
                decline = f"{decline}; nor on rails: {error}" if decline else str(error)
                declined = declined or reason_of(error)
        if want.require != "none":
            raise required_error(want.require, decline)
        placed = self._host.put(model, settings, plan, file)
        self._say(model.id, want, decline)
        return dataclasses.replace(placed, resident_decline=decline, declined=declined)

    def _fallback(self, want: Want, settings: Settings, device: DeviceSite) -> TierFallback:
        required = want.require != "none"
        refusal = f"`require` demands that it is {want.require} on the GPU" if required else ""
        return TierFallback(settings, device, self._host, refusal)

    def release(self, model: str) -> None:
        """Give the room back that a model had, which has ended. Waits for nothing."""
        self._host.release(model)
        if self._device is not None:
            self._device.release(model)

    def want(self, model: ModelSettings) -> Want:
        """Return what loading a model asks of the device."""
        return Want.of(model, self._settings)

    def arm(self) -> bool:
        """Open the device unless it is turned off, and return whether there is one; `status` says why not.

        Takes seconds the first time.
        """
        return self._device is not None and not self._device.reason

    def weight_budget(self) -> int:
        """Return the bytes of the device that no model has now; 0 where none was opened."""
        return 0 if self._device is None else self._device.reservations.free

    def status(self) -> TierStatus:
        """Return how the device stands."""
        return TierStatus(reason="gpu.mode is off") if self._device is None else self._device.status()

    def close(self) -> None:
        """Close the device. All slots have been closed."""
        if self._device is not None:
            self._device.close()

    def _say(self, model: str, want: Want, decline: str) -> None:
        assert self._device is not None
        if not decline:
            return
        if want.mode != "auto" or not self._device.reason:
            log.warning("model=%s declined by the device: %s", model, decline)
        elif self._said.acquire(blocking=False):
            log.info("models run on the CPU: %s", decline)


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Where a model would run. decline: why not on the device, "" when it would or is not meant to.

    products: as in TierStatus, "" on the host. turns: whether it may have to leave the device for others, as
    not all of them fit there together.
    """

    outcome: str
    decline: str = ""
    products: str = ""
    turns: bool = False


def foresee(settings: Settings) -> dict[str, Foreseen]:
    """Return where each sound configured model would run if it were loaded now. Puts nothing anywhere."""
    with closing(HostBackend(1)) as host:
        site = _device_site(settings, host.pool, Bank(0), Gone())
        if site is None:
            return {model.id: Foreseen("cpu") for model in settings.models}
        with closing(site):
            if site.reason:
                return {model.id: Foreseen("cpu", site.reason) for model in settings.models}
            shares = site.shares()
            products = site.status().products
            turns = any(not isinstance(share, str) and share.turns for share in shares.values())
            foreseen = {
                model: Foreseen("cpu", share)
                if isinstance(share, str)
                else Foreseen(site.outcome, products=products, turns=turns and not share.pinned)
                for model, share in shares.items()
            }
            return foreseen | _foresee_rails(settings, site, host, foreseen)


def _foresee_rails(
    settings: Settings, device: DeviceSite, host: HostBackend, foreseen: Mapping[str, Foreseen]
) -> dict[str, Foreseen]:
    """Return which of the models that are not whole on the device have layers there, or why they have not."""
    from tierd.tier.rails_site import RailsSite

    site = RailsSite(settings, HostSite(host), host, device)
    found = {}
    for model in settings.models:
        want, there = Want.of(model, settings), foreseen.get(model.id, Foreseen("cpu"))
        if not want.rails or there.outcome != "cpu":
            continue
        try:
            with GGUFFile.open(model.path) as file:
                site.foresee(model, settings, build_plan(file), file)
            found[model.id] = Foreseen(site.outcome, there.decline)
        except DeviceError as error:
            decline = f"{there.decline}; nor on rails: {error}" if there.decline else str(error)
            found[model.id] = Foreseen("cpu", decline)
        except (ModelError, SettingsError):
            continue  # it will be said when it is loaded
    return found


def reason_of(error: DeviceError | UnsupportedModelError) -> PassReason | None:
    """Return why a model that the device declines passes to the CPU; None where there is no device."""
    match error:
        case UnsupportedCodecError():
            return PassReason.CODEC
        case DeviceMemoryError():
            return PassReason.NO_ROOM
        case DeviceLostError() | DeviceTimeoutError():
            return PassReason.DEVICE_LOST
        case NoDeviceError():
            return None
        case _:
            return PassReason.UNSUPPORTED_OP


def required_error(required: str, decline: str) -> RequiredTierError:
    """Return the error for a model that must reach a tier and was declined."""
    return RequiredTierError(f"it must be {required} on the GPU, as `require` demands, but {decline}")


def _rails_site(settings: Settings, host: HostSite, device: DeviceSite | None) -> RailsSite | None:
    """Return the device as a site for parts of models, None where it is turned off or the host is no host."""
    if device is None or not isinstance(host.backend, HostBackend):
        return None
    from tierd.tier.rails_site import RailsSite

    return RailsSite(settings, host, host.backend, device)


def _device_site(settings: Settings, pool: ThreadPool, bank: Bank, gone: Gone) -> DeviceSite | None:
    """Return the device as a site, None when it is turned off: then nothing of Vulkan is imported."""
    if settings.gpu.mode == "off":
        return None
    from tierd.tier.device_site import DeviceSite

    return DeviceSite(settings, pool, bank, gone)
