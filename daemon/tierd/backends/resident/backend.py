"""A Vulkan device as a backend: what a model would need of it, and how to put one on it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from tierd.backends.absent import AbsentExecutor
from tierd.backends.host import ThreadPool
from tierd.backends.moves import row_bytes
from tierd.backends.resident import regions
from tierd.backends.resident.executor import ResidentExecutor
from tierd.backends.resident.image import Image, open_image
from tierd.backends.resident.lowering import Lowering
from tierd.backends.resident.memory import Demand, ModelMemory, Shape
from tierd.backends.resident.program import Pipelines
from tierd.backends.resident.shapes import shape_tables
from tierd.backends.vkapi import Device, DeviceFacts
from tierd.models.formats import KVCodec
from tierd.models.gguf import GGUFFile
from tierd.models.plan import Plan
from tierd.progress import Progress


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Prepared:
    """A model as a device takes it, each time that it is put there.

    demand: of the device that it was prepared for. image: its weights, packed and mapped. codec, shapes: of
    K and V, and of keys by layer.
    """

    plan: Plan
    demand: Demand
    codec: KVCodec
    image: Image
    shapes: Mapping[int, npt.NDArray[np.float32]]

    def close(self) -> None:
        """Let go of the weights. Idempotent; it cannot be armed any more."""
        self.image.close()


class ResidentBackend:
    """One device, and the pipelines that its models share."""

    name = "gpu"

    def __init__(self, device: Device, pool: ThreadPool, *, images: Path | None) -> None:
        """pool: threads that pack and copy weights. images: where these are kept packed, if anywhere."""
        self.device = device
        self._pool = pool
        self._images = images
        self._pipelines = Pipelines(device)
        self._armed: WeakKeyDictionary[Prepared, Shape] = WeakKeyDictionary()  # before, and in what shape

    def demand(self, plan: Plan, file: GGUFFile, codec: KVCodec) -> Demand:
        """Return what a model needs. Raises UnsupportedModelError for what the device path lacks."""
        return demand_of(plan, file, codec, self.device.facts)

    def prepare(
        self, plan: Plan, file: GGUFFile, codec: KVCodec, packing: Progress | None = None
    ) -> Prepared:
        """Pack a model's weights, or find them packed. Takes seconds; may be called from any thread.

        packing: called as they are packed. Raises UnsupportedModelError, and ModelError where there is no
        place for them. The file may be closed afterwards.
        """
        demand = self.demand(plan, file, codec)
        shapes = shape_tables(plan, file, codec)
        image = open_image(
            file,
            demand.matrices,
            demand.vectors,
            directory=self._images,
            pool=self._pool,
            progress=packing,
        )
        return Prepared(plan, demand, codec, image, shapes)

    def arm(self, prepared: Prepared, shape: Shape, uploading: Progress | None = None) -> ResidentExecutor:
        """Put a model on the device. Takes seconds; may be called from any thread.

        One that has been there before, in the same shape, is ready sooner: its unusual steps are recorded as
        they are wanted. uploading: called as its weights are copied there.

        Raises DeviceError where it does not fit, and UnsupportedModelError where it was prepared for another
        device and this one lacks what it needs.
        """
        demand = prepared.demand.on(self.device.facts)
        memory = ModelMemory(
            self.device,
            demand,
            prepared.image,
            prepared.codec,
            shape,
            shapes=prepared.shapes,
            uploading=uploading,
        )
        try:
            executor = ResidentExecutor(
                self.device,
                self._pipelines,
                prepared.plan,
                demand.lowering,
                memory,
                codec=prepared.codec,
                shape=shape,
                split=demand.split(shape.positions),
                at_once=self._armed.get(prepared) != shape,
            )
        except BaseException:
            memory.close()
            raise
        self._armed[prepared] = shape
        return executor

    def compile(self, plan: Plan, file: GGUFFile, *, codec: KVCodec, shape: Shape) -> ResidentExecutor:
        """Prepare a model and put it on the device, for good: its weights are let go of. See both."""
        with contextlib.closing(self.prepare(plan, file, codec)) as prepared:
            return self.arm(prepared, shape)


def demand_of(plan: Plan, file: GGUFFile, codec: KVCodec, facts: DeviceFacts) -> Demand:
    """Return what a model needs of a device of these facts. See `ResidentBackend.demand`."""
    lowering = Lowering(plan, file)
    regions.check_codec(codec, lowering.stores.values())
    return Demand(plan, file, lowering, facts)


def absent(prepared: Prepared, shape: Shape) -> AbsentExecutor:
    """Return the facts of the executor that arming a model would make."""
    codec, executor = prepared.codec, ResidentExecutor
    return AbsentExecutor(
        name=executor.name,
        page_positions=shape.positions,
        page_bytes=regions.region_bytes(prepared.demand.stores, codec, shape.positions),
        pages=shape.regions,
        max_rows=shape.max_rows,
        logit_rows=shape.selected,
        vocabulary=prepared.plan.vocabulary,
        row_bytes=row_bytes(prepared.plan, codec),
        depth=executor.depth,
        prefill_continues=executor.prefill_continues,
        rewinds=executor.rewinds,
    )
