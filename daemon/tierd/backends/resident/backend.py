"""A Vulkan device as a backend: what a model would need of it, and how to put one on it."""

from __future__ import annotations

from pathlib import Path

from tierd.backends.host import ThreadPool
from tierd.backends.resident import regions
from tierd.backends.resident.executor import ResidentExecutor
from tierd.backends.resident.image import open_image
from tierd.backends.resident.lowering import Lowering
from tierd.backends.resident.memory import Demand, ModelMemory, Shape
from tierd.backends.resident.program import Pipelines
from tierd.backends.resident.shapes import shape_tables
from tierd.backends.vkapi import Device
from tierd.models.formats import KVCodec
from tierd.models.gguf import GGUFFile
from tierd.models.plan import Plan
from tierd.progress import Progress


class ResidentBackend:
    """One device, and the pipelines that its models share."""

    name = "gpu"

    def __init__(self, device: Device, pool: ThreadPool, *, images: Path | None) -> None:
        """pool: threads that pack and copy weights. images: where these are kept packed, if anywhere."""
        self.device = device
        self._pool = pool
        self._images = images
        self._pipelines = Pipelines(device)

    def demand(self, plan: Plan, file: GGUFFile, codec: KVCodec) -> Demand:
        """Return what a model needs. Raises UnsupportedModelError for what the device path lacks."""
        lowering = Lowering(plan, file)
        regions.check_codec(codec, lowering.stores.values())
        return Demand(plan, file, lowering, self.device.facts)

    def compile(
        self,
        plan: Plan,
        file: GGUFFile,
        *,
        codec: KVCodec,
        shape: Shape,
        packing: Progress | None = None,
        uploading: Progress | None = None,
    ) -> ResidentExecutor:
        """Put a model on the device. Takes seconds; may be called from any thread.

        packing, uploading: called as its weights are packed, unless they are kept packed, and copied there.

        Raises UnsupportedModelError, ModelError, and DeviceError where it does not fit. Copies what it needs
        of the file.
        """
        demand = self.demand(plan, file, codec)
        image = open_image(
            file,
            demand.matrices,
            demand.vectors,
            directory=self._images,
            pool=self._pool,
            progress=packing,
        )
        try:
            shapes = shape_tables(plan, file, codec)
            memory = ModelMemory(self.device, demand, image, codec, shape, shapes=shapes, uploading=uploading)
        finally:
            image.close()
        try:
            return ResidentExecutor(
                self.device,
                self._pipelines,
                plan,
                demand.lowering,
                memory,
                codec=codec,
                shape=shape,
                split=demand.split(shape.positions),
            )
        except BaseException:
            memory.close()
            raise
