"""What a load asks of the device, as one value."""

from __future__ import annotations

from dataclasses import dataclass

from tierd.settings import ModelSettings, Settings

# Rows that all devices can have a group each for: Vulkan's least limit of groups along an axis.
_MOST_ROWS = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """A load's want. One that was made without arguments keeps the load off the device.

    mode: gpu.mode. require: the tier that must be reached, "none" for none. regions: streams whose K/V lies
    there. ctx_max: positions of each, 0 for as many as fit. max_rows: of a step.
    """

    mode: str = "off"
    require: str = "none"
    regions: int = 0
    ctx_max: int = 0
    kv_dtype: str = "f16"
    max_rows: int = 0

    @classmethod
    def of(cls, model: ModelSettings, settings: Settings) -> Want:
        """Return what the settings want for a model."""
        if settings.gpu.mode == "off":
            return cls()
        return cls(
            mode=settings.gpu.mode,
            require=settings.required(model),
            regions=model.streams,
            ctx_max=model.context,
            kv_dtype=model.kv_dtype,
            max_rows=min(settings.engine.chunk_rows + model.streams, _MOST_ROWS),
        )

    def __bool__(self) -> bool:
        return self.mode != "off"
