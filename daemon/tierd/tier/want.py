"""What a load asks of the device, as one value."""

from __future__ import annotations

from dataclasses import dataclass

from tierd.settings import ModelSettings, Settings

# Rows that all devices can have a group each for: Vulkan's least limit of groups along an axis.
_MOST_ROWS = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """A load's want. One that was made without arguments keeps the load off the device.

    mode: gpu.mode. require: the tier that must be reached, "none" for none. streams: served at a time.
    max_rows: of a step. pinned: it never leaves the device for another.
    Its pins: regions: streams whose K/V lies there. ctx_max: positions of each, 0 for as many as fit.
    ctx_strict: not one fewer. kv_dtype: how they are kept, kv_dtype_asked: because somebody said so.
    resident_prefill_allowed: a region more is there, for prompts of streams whose K/V lies elsewhere.
    """

    mode: str = "off"
    require: str = "none"
    streams: int = 0
    max_rows: int = 0
    pinned: bool = False
    regions: int = 0
    ctx_max: int = 0
    ctx_strict: bool = False
    kv_dtype: str = "f16"
    kv_dtype_asked: bool = False
    resident_prefill_allowed: bool = False

    @classmethod
    def of(cls, model: ModelSettings, settings: Settings) -> Want:
        """Return what the settings want for a model."""
        if settings.gpu.mode == "off":
            return cls()
        return cls(
            mode=settings.gpu.mode,
            require=settings.required(model),
            streams=model.streams,
            max_rows=min(settings.engine.chunk_rows + model.streams, _MOST_ROWS),
            pinned=model.pin,
            regions=model.regions or model.streams,
            ctx_max=model.context,
            ctx_strict=model.ctx_strict,
            kv_dtype=model.codec,
            kv_dtype_asked=model.kv_dtype != "",
            resident_prefill_allowed=model.resident_prefill_allowed,
        )

    @property
    def scratch(self) -> int:
        """Regions that are no stream's."""
        return int(self.resident_prefill_allowed)

    @property
    def whole(self) -> bool:
        """Whether the model is to be on the device as a whole."""
        return self.mode in ("auto", "resident")

    @property
    def rails(self) -> bool:
        """Whether rails will do, where it is not there as a whole."""
        return self.mode in ("auto", "rails") and self.require != "resident"

    def __bool__(self) -> bool:
        return self.mode != "off"
