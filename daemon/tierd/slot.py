"""A model's seat: all that serving it takes. Opened as a whole, then owned by the engine thread."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, field

from tierd.backends import library
from tierd.backends.protocol import Backend, Executor
from tierd.chat.renderer import Renderer, build_renderer
from tierd.chat.tokenizer import Tokenizer, build_tokenizer
from tierd.core import Batch, Request, Sequence
from tierd.errors import ModelError, ModelFileError, SettingsError
from tierd.kv.pool import PagePool
from tierd.kv.prefix import PrefixCache
from tierd.kv.sizing import PromisedMemory, available_memory, memory_budget, pages_for, size_cache
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS
from tierd.models.plan import Plan
from tierd.settings import LimitsSettings, ModelSettings, Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A batch and whose rows it holds: chunk i belongs to sequence i.

    void: sequences whose row was fed another token than the one that the stream got before it.
    """

    batch: Batch
    sequences: tuple[Sequence, ...]
    void: set[Sequence] = field(default_factory=set)


@dataclass(slots=True, eq=False, kw_only=True)
class Slot:
    """A loaded model and its streams.

    context: positions of one stream; the pool holds at least one stream of it.
    prefix_cache: False: no page outlives its streams.
    waiting: not admitted yet, in order of arrival. running: admitted, in order of admission.
    steps: what the executor has been given and is not done with, oldest first. Pages of a sequence of a step
    stay its own until the step is done, even when the sequence has left.
    outcome: where the model runs.
    """

    settings: ModelSettings
    limits: LimitsSettings
    plan: Plan
    tokenizer: Tokenizer
    renderer: Renderer | None
    executor: Executor
    context: int
    chunk_rows: int
    prefix_cache: bool = True
    created: int = field(default_factory=lambda: int(time.time()))
    outcome: str = "cpu"
    pool: PagePool = field(init=False)
    prefixes: PrefixCache = field(init=False)
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    steps: deque[Step] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.pool = PagePool(self.executor.pages)
        self.prefixes = PrefixCache(self.pool, self.executor.page_positions, enabled=self.prefix_cache)

    @property
    def id(self) -> str:
        """The model's name."""
        return self.settings.id

    def pages_needed(self, request: Request) -> int:
        """Return how many pages a request may ever fill: the last token it asks for is never fed."""
        return pages_for(len(request.prompt) + request.max_tokens - 1, self.executor.page_positions)

    @property
    def has_room(self) -> bool:
        """Whether the executor can be given another step."""
        return len(self.steps) < self.executor.depth

    def close(self) -> None:
        """Free weights and pages. No step may be running."""
        self.executor.close()


def open_slot(
    model: ModelSettings, settings: Settings, backend: Backend, promised: PromisedMemory | None = None
) -> Slot:
    """Open a model file and build all that serving it takes. Takes seconds; shares only `promised`.

    promised: what the other models of the process may still take; None: there are none.
    Raises ModelError and SettingsError, which name the model.
    """
    started = time.monotonic()
    try:
        slot = _build(model, settings, backend, promised or PromisedMemory())
    except ModelFileError as error:
        raise ModelFileError(f"{model.id}: {error}; fetch or convert the file again") from error
    except (ModelError, SettingsError) as error:
        raise type(error)(f"{model.id}: {error}") from error
    except MemoryError as error:
        raise ModelError(
            f"{model.id}: there is not the memory to load {model.path}; serve fewer models or smaller ones"
        ) from error
    library.trim()  # the file's texts
    pages, positions = slot.pool.total, slot.executor.page_positions
    log.info(
        "model=%s loaded in %.2f s: %s on %s, context %d%s, %d streams, "
        "K/V %s in %d pages of %d positions (%.0f MiB)",
        model.id, time.monotonic() - started, slot.plan.architecture, slot.executor.name, slot.context,
        "" if model.context or slot.context == slot.plan.context
        else f" of the model's {slot.plan.context} (K/V memory allows no more)",
        model.streams, model.kv_dtype, pages, positions,
        pages * slot.executor.page_bytes / (1 << 20),
    )  # fmt: skip
    return slot


def _build(model: ModelSettings, settings: Settings, backend: Backend, promised: PromisedMemory) -> Slot:
    with GGUFFile.open(model.path) as file:
        return _build_from(file, model, settings, backend, promised)


def _build_from(
    file: GGUFFile, model: ModelSettings, settings: Settings, backend: Backend, promised: PromisedMemory
) -> Slot:
    plan = build_plan(file)
    max_rows = settings.engine.chunk_rows + model.streams
    working = backend.working_bytes(plan, file, max_rows)
    _check_memory(working, max_rows)
    tokenizer = build_tokenizer(file)
    renderer = build_renderer(file, tokenizer, read_template(model))
    library.trim()  # what building them took
    codec = KV_CODECS[model.kv_dtype]
    page_bytes = backend.page_bytes(plan, codec)
    size = size_cache(
        trained=plan.context,
        asked=model.context,
        streams=model.streams,
        page_positions=backend.page_positions,
        page_bytes=page_bytes,
        budget=memory_budget(settings.kv.memory_mb, max(1, len(settings.models)), working),
    )
    pool = size.pages * page_bytes
    promised.promise(model.id, pool, working, available_memory())
    try:
        executor = backend.compile(plan, file, codec=codec, pages=size.pages, max_rows=max_rows)
    except BaseException:
        promised.settle(model.id, 0)
        raise
    promised.settle(model.id, pool)
    return Slot(
        settings=model,
        limits=settings.limits,
        plan=plan,
        tokenizer=tokenizer,
        renderer=renderer,
        executor=executor,
        context=size.context,
        chunk_rows=settings.engine.chunk_rows,
        prefix_cache=settings.kv.prefix_cache,
    )


def _check_memory(needed: int, max_rows: int) -> None:
    """Raise ModelError where taking so many bytes would leave the machine without memory."""
    there = available_memory()
    if needed > there:
        raise ModelError(
            f"its weights and the buffers of a step of {max_rows} rows need {needed >> 20:,} MiB, but only "
            f"{there >> 20:,} MiB are free; serve fewer models or smaller ones, or lower engine.chunk_rows"
        )


def read_template(model: ModelSettings) -> str | None:
    """Return the chat template that the settings name, None where they name none. Raises SettingsError."""
    if model.chat_template is None:
        return None
    try:
        return model.chat_template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read chat_template {model.chat_template}: {error}") from error
