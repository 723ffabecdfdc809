"""A model's seat: all that serving it takes. Opened as a whole, then owned by the engine thread."""

from __future__ import annotations

import logging
import time
from bisect import insort
from collections import Counter, deque
from collections.abc import MutableSequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tierd.backends import library
from tierd.backends.protocol import Executor
from tierd.chat.formats import ReplyFormat
from tierd.chat.grammar import Grammars
from tierd.chat.probing import find_format
from tierd.chat.renderer import Renderer, build_renderer
from tierd.chat.tokenizer import Tokenizer, build_tokenizer
from tierd.core import Batch, Chunk, Following, PassReason, Pooling, Sequence
from tierd.errors import ModelError, ModelFileError, RequiredTierError, SettingsError
from tierd.kv.home import Home
from tierd.kv.moves import Move
from tierd.models import GGUFFile, build_plan
from tierd.models.plan import Plan
from tierd.models.pooling import read_pooling
from tierd.settings import LimitsSettings, ModelSettings, Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Guest:
    """A chunk of a stream that is elsewhere, to be computed in the scratch region."""

    sequence: Sequence
    chunk: Chunk


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A batch and whose rows it holds: chunk i belongs to sequence i.

    guests: whose chunks come behind these; their streams are elsewhere.
    following: what follows those of the sequences that have a grammar and get a token.
    void: sequences whose row was fed another token than the one that the stream got before it.
    """

    batch: Batch
    sequences: tuple[Sequence, ...]
    guests: tuple[Guest, ...] = ()
    following: tuple[Following, ...] = ()
    void: set[Sequence] = field(default_factory=set)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks of its sequences."""
        return self.batch.chunks[: len(self.sequences)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A model where it runs, and what it got there. home: of its streams, on its executor.

    context: positions of one stream. outcome: "cpu", "gpu:rails" or "gpu:resident". device: what computes,
    by name. codec: how K/V is kept.
    regions: of the device, a stream's K/V in each; 0 on the host. region_positions: what each holds, may be
    less than the context. scratch: the region that is no stream's; None without.
    prefill_window: most rows of a step. prefill_continues: whether a prompt may be fed in parts.
    experts_on_host: layers whose experts are not on the device.
    resident_decline: why the model is not on the device, in plain words; "" when it is, or is not to be.
    declined: the same as a reason of passes; None where there is no device that could serve.
    fallback, seat, marks: see Slot.
    """

    home: Home
    context: int
    outcome: str
    device: str
    codec: str
    regions: int = 0
    region_positions: int = 0
    scratch: int | None = None
    prefill_window: int
    prefill_continues: bool = True
    experts_on_host: int = 0
    resident_decline: str = ""
    declined: PassReason | None = None
    fallback: Fallback | None = None
    seat: Seat | None = None
    marks: Any = None


class Fallback(Protocol):
    """What becomes of a model when the device cannot have its streams. For worker threads; takes seconds.

    refusal: why the CPU must not have them, "" when it may.
    """

    refusal: str

    def understudy(self, slot: Slot) -> Slot:
        """Return the same model on the CPU. Raises TierdError where it cannot be there."""

    def rearm(self, slot: Slot) -> Placed:
        """Put the model on the device once more, after that was lost. Raises DeviceError where that fails."""

    def retry_at(self) -> float | None:
        """Return when that may be tried, monotonic seconds; None: never again."""


class Seat(Protocol):
    """A model's seat at a device that models take turns on; see `tier.seat.DeviceSeat`, which says what when.

    serves: whether streams may have rows in steps there. holds_rows: whether their K/V is there too, so that
    it leaves with the model; else they go on without the device, unless there is a refusal. Marks are what
    `save` returns and `restore` takes.
    """

    @property
    def holds_rows(self) -> bool:
        """Whether streams' K/V is on the device when the model is."""

    @property
    def state(self) -> str:
        """How the model stands with the device, a word of `tier.seat.SeatState`."""

    @property
    def serves(self) -> bool:
        """Whether streams may have rows in steps there."""

    @property
    def refusal(self) -> str:
        """Why streams whose K/V is on the host must not go on without the device, "" where they may."""

    @property
    def barred(self) -> float:
        """Until when the device is not to be tried, monotonic seconds: infinite where it never is again."""

    @property
    def bytes(self) -> int:
        """What the model takes of the device when it is there."""

    def leave(self) -> None:
        """Mark the model to leave."""

    def stay(self) -> None:
        """Call that off."""

    def drop(self, home: Home) -> None:
        """Free all that it has on the device, once its rows are elsewhere. For worker threads."""

    def save(self) -> Any:
        """Return its marks."""

    def restore(self, marks: Any) -> None:
        """Take its marks in."""

    def rearm(self) -> Placed:
        """Put it on the device. For worker threads; takes seconds. Raises DeviceError, OrderError."""

    def settle(self) -> None:
        """Note that its streams are at home."""

    def lose(self) -> None:
        """Note that the device is lost."""

    def release(self) -> None:
        """Give the seat up for good."""


class Site(Protocol):
    """Where models can be put."""

    def put(self, model: ModelSettings, settings: Settings, plan: Plan, file: GGUFFile) -> Placed:
        """Reserve room for a model and compile it there. Called from any thread; takes seconds.

        Copies what it needs of the file. Raises TierdError when the model cannot be there.
        """


@dataclass(slots=True, eq=False, kw_only=True)
class Slot:
    """A loaded model and its streams.

    home: gives streams their pages. context: positions of one stream.
    waiting: not admitted yet. running: admitted. These and the next two are in the order of their ranks; who
    has the same stands in the order of coming there.
    leaving: were running, and keep their pages while a step or a move works on them.
    returning: streams that come from elsewhere and are admitted before any that wait with the same rank.
    exiles: those that can be here no longer and wait for a place on the CPU.
    steps: what the executor has been given and is not done with, oldest first. Pages of a sequence of a step
    stay its own until the step is done, even when the sequence has left.
    guests: chunks to be computed in the scratch region.
    preempting: who is about to give up its pages for others. preemptions: how many streams have, by what
    became of their rows: "banked" or "dropped".
    move: what is at work on a slice of the first of `home.moves`, None when nothing is.
    pooling: how its embeddings come of hidden states.
    outcome, device, decline, declined, scratch: where the model runs, and why not on the device; see Placed.
    fallback: what becomes of its streams when the device cannot have them; None where it is the only place.
    understudy: the same model on the CPU, once a stream needs that. stranded: why there can be none.
    lost: why the device is lost, "" while it is there.
    seat: its place on a device that models take turns on; None where it needs none. marks: with which it
    comes back to it, while it is away. handed: to a worker, which takes it off the device or puts it there.
    barred: why it cannot come there for now. back: when it came there last, monotonic seconds.
    """

    settings: ModelSettings
    limits: LimitsSettings
    plan: Plan
    tokenizer: Tokenizer
    renderer: Renderer | None
    reply: ReplyFormat | None = None
    grammars: Grammars = field(init=False)
    home: Home
    context: int
    chunk_rows: int
    created: int = field(default_factory=lambda: int(time.time()))
    pooling: Pooling = Pooling.LAST
    outcome: str = "cpu"
    device: str = ""
    decline: str = ""
    declined: PassReason | None = None
    scratch: int | None = None
    waiting: deque[Sequence] = field(default_factory=deque)
    returning: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    leaving: set[Sequence] = field(default_factory=set)
    exiles: deque[Sequence] = field(default_factory=deque)
    guests: deque[Guest] = field(default_factory=deque)
    steps: deque[Step] = field(default_factory=deque)
    preempting: Sequence | None = None
    preemptions: Counter[str] = field(default_factory=Counter)
    move: Move | None = None
    fallback: Fallback | None = None
    understudy: Slot | None = None
    stranded: str = ""
    lost: str = ""
    seat: Seat | None = None
    marks: Any = None
    handed: bool = False
    barred: PassReason | None = None
    back: float = 0.0

    def __post_init__(self) -> None:
        self.grammars = Grammars(self.tokenizer)

    @property
    def id(self) -> str:
        """The model's name."""
        return self.settings.id

    @property
    def serves(self) -> bool:
        """Whether its streams may have rows in steps: not while what they must have is not there."""
        return self.there or (self.seat is not None and not self.seat.holds_rows and not self.seat.refusal)

    @property
    def there(self) -> bool:
        """Whether it is on its device, and neither leaves it nor comes to it."""
        return not self.lost and not self.handed and (self.seat is None or self.seat.serves)

    @property
    def awaited(self) -> bool:
        """Whether its streams wait for it to come to its device, and for nothing else."""
        return not self.serves and not self.lost and self.barred is None

    @property
    def executor(self) -> Executor:
        """What computes its steps."""
        return self.home.executor

    @property
    def line(self) -> deque[Sequence]:
        """At the head of which who is admitted next stands; empty when nobody waits."""
        if self.returning and self.waiting and self.waiting[0].rank < self.returning[0].rank:
            return self.waiting
        return self.returning or self.waiting

    @property
    def first(self) -> Sequence | None:
        """Who is admitted next, None when nobody waits."""
        return next(iter(self.line), None)

    @property
    def streams(self) -> list[Sequence]:
        """All that are served, here or by the understudy: those who wait in the queue are not."""
        there = self.understudy.streams if self.understudy is not None else []
        return [*self.running, *self.returning, *self.exiles, *there]

    @property
    def occupied(self) -> int:
        """How many those are."""
        here = len(self.running) + len(self.returning) + len(self.exiles)
        return here if self.understudy is None else here + self.understudy.occupied

    @property
    def longest(self) -> int:
        """Most tokens with which a stream can begin here."""
        most = self.home.most
        return most if self.executor.prefill_continues else min(most, self.chunk_rows)

    @property
    def has_work(self) -> bool:
        """Whether anybody might have rows in its next step."""
        return bool(self.running or self.returning or self.waiting or self.guests)

    @property
    def has_room(self) -> bool:
        """Whether the executor can be given another step."""
        return len(self.steps) < self.executor.depth

    def capture(self, placed: Placed) -> str:
        """Take over what the model got where it was put; return the outcome."""
        self.home = placed.home
        self.outcome, self.device = placed.outcome, placed.device
        self.decline, self.declined = placed.resident_decline, placed.declined
        self.scratch, self.marks = placed.scratch, placed.marks
        return self.outcome

    def flush(self) -> int:
        """Forget the rows of streams that have ended; return how many pages are free now that were not."""
        there = self.understudy.flush() if self.understudy is not None else 0
        return self.home.flush() + there

    def close(self) -> None:
        """Free weights and pages, and end its processes. No step may be running."""
        if self.renderer is not None:
            self.renderer.close()
        self.grammars.close()
        if self.understudy is not None:
            self.understudy.close()
        self.executor.close()


def line_up(line: MutableSequence[Sequence], sequence: Sequence) -> None:
    """Put a stream where its rank has it, behind all of the same one."""
    insort(line, sequence, key=lambda sequence: sequence.rank)


def exile(slot: Slot, sequence: Sequence, reason: PassReason | None, line: deque[Sequence]) -> None:
    """Take a running stream off its executor, to go on elsewhere with what is saved of its rows.

    reason: why it is for the CPU, None when it is not. line: where it waits for its new place.
    Its pages are its own no longer: they were given back, or are lost.
    """
    slot.running.remove(sequence)
    if slot.preempting is sequence:
        slot.preempting = None
    sequence.pages.clear()
    sequence.held.clear()
    sequence.fed, sequence.foreseen, sequence.follows = 0, -1, None
    sequence.passes = reason
    line_up(line, sequence)


def open_slot(model: ModelSettings, settings: Settings, site: Site) -> Slot:
    """Open a model file and build all that serving it takes. Takes seconds; shares only `site`.

    Raises ModelError, SettingsError and RequiredTierError, which name the model.
    """
    started = time.monotonic()
    try:
        slot = _build(model, settings, site)
    except ModelFileError as error:
        raise ModelFileError(f"{model.id}: {error}; fetch or convert the file again") from error
    except (ModelError, SettingsError, RequiredTierError) as error:
        raise type(error)(f"{model.id}: {error}") from error
    except MemoryError as error:
        raise ModelError(
            f"{model.id}: there is not the memory to load {model.path}; serve fewer models or smaller ones"
        ) from error
    library.trim()  # the file's texts
    pages, positions = slot.home.room.total, slot.executor.page_positions
    log.info(
        "model=%s loaded in %.2f s: %s on %s, context %d%s, %d streams, "
        "K/V %s in %d pages of %d positions (%.0f MiB)",
        model.id, time.monotonic() - started, slot.plan.architecture,
        slot.outcome if slot.there else f"{slot.outcome} when it is its turn", slot.context,
        "" if model.context or slot.context == slot.plan.context
        else f" of the model's {slot.plan.context} (K/V memory allows no more)",
        model.streams, model.codec, pages, positions,
        pages * slot.executor.page_bytes / (1 << 20),
    )  # fmt: skip
    return slot


def _build(model: ModelSettings, settings: Settings, site: Site) -> Slot:
    with GGUFFile.open(model.path) as file:
        plan = build_plan(file)
        pooling = read_pooling(file) or Pooling.LAST
        tokenizer = build_tokenizer(file)
        renderer = build_renderer(file, tokenizer, read_template(model))
        reply: ReplyFormat | None = None
        library.trim()  # what building them took
        try:
            if renderer is not None:
                reply = find_format(renderer, tokenizer)
            placed = site.put(model, settings, plan, file)
        except BaseException:  # whoever keeps the error would keep the template's process
            if renderer is not None:
                renderer.close()
            raise
    return Slot(
        settings=model,
        limits=settings.limits,
        plan=plan,
        tokenizer=tokenizer,
        renderer=renderer,
        reply=reply,
        home=placed.home,
        context=placed.context,
        chunk_rows=min(settings.engine.chunk_rows, placed.home.executor.max_rows - model.streams),
        pooling=Pooling(model.pooling) if model.pooling else pooling,
        outcome=placed.outcome,
        device=placed.device,
        decline=placed.resident_decline,
        declined=placed.declined,
        scratch=placed.scratch,
        fallback=placed.fallback,
        seat=placed.seat,
        marks=placed.marks,
    )


def read_template(model: ModelSettings) -> str | None:
    """Return the chat template that the settings name, None where they name none. Raises SettingsError."""
    if model.chat_template is None:
        return None
    try:
        return model.chat_template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read chat_template {model.chat_template}: {error}") from error
