"""What the engine publishes about its models for other threads to read; immutable, replaced as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tierd.chat.formats import ReplyFormat
from tierd.chat.grammar import Grammars
from tierd.chat.renderer import Renderer
from tierd.chat.tokenizer import Tokenizer
from tierd.core import Pooling, SamplingParams
from tierd.errors import ModelNotFoundError, UnavailableError
from tierd.settings import ModelSettings
from tierd.slot import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One model that answers.

    context: positions of one stream; prompt plus output never exceed it.
    streams: most requests, or choices of one, that run at the same time.
    max_prompt_tokens, max_output_tokens: the operator's caps, or the context where there is none.
    sampling: what a request gets where it is silent; its seed means nothing.
    renderer: None when the model has no chat template, and so is reply, how it answers.
    grammars: compiles what its answers may have to obey.
    pooling, dimensions: how its embeddings are made, and of how many values.
    settings: what it was loaded with.
    created: when it was loaded, Unix seconds.
    """

    id: str
    default: bool
    created: int
    architecture: str
    context: int
    streams: int
    max_prompt_tokens: int
    max_output_tokens: int
    sampling: SamplingParams
    tokenizer: Tokenizer
    renderer: Renderer | None
    reply: ReplyFormat | None
    grammars: Grammars
    pooling: Pooling
    dimensions: int
    settings: ModelSettings


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Models by id, sorted. False when none answers. closed: why none does, "" while that is open."""

    entries: Mapping[str, CatalogueEntry] = field(default_factory=dict)
    loading: tuple[str, ...] = ()
    closed: str = ""

    def __bool__(self) -> bool:
        return bool(self.entries) and not self.closed

    def extend(self, *entries: CatalogueEntry, loading: Iterable[str]) -> Catalogue:
        """Return a catalogue that lists these models as well, and those that are on their way."""
        merged = {**self.entries, **{entry.id: entry for entry in entries}}
        return Catalogue(dict(sorted(merged.items())), tuple(sorted(loading)), self.closed)

    def without(self, model: str) -> Catalogue:
        """Return a catalogue that does not list a model."""
        entries = {id: entry for id, entry in self.entries.items() if id != model}
        return Catalogue(entries, self.loading, self.closed)

    def close(self, reason: str) -> Catalogue:
        """Return a catalogue of the same models, of which none answers; reason: what is said instead."""
        return Catalogue(self.entries, self.loading, reason)

    def resolve(self, name: str | None = None) -> CatalogueEntry:
        """Return the model called `name`; None: the default one.

        Raises ModelNotFoundError, and UnavailableError while the model is not ready.
        """
        if self.closed:
            raise UnavailableError(self.closed)
        if name is None:
            for entry in self.entries.values():
                if entry.default:
                    return entry
            raise UnavailableError("the default model is not ready; try again later, or name another one")
        if name in self.entries:
            return self.entries[name]
        raise self.missing(name)

    def missing(self, name: str) -> ModelNotFoundError | UnavailableError:
        """Return the error that says why `name` does not answer and, if it never will, what does."""
        if self.closed:
            return UnavailableError(self.closed)
        if name in self.loading:
            return UnavailableError(f"the model {name!r} is still loading; try again later", param="model")
        names = ", ".join(self.entries) or "none yet"
        return ModelNotFoundError(f"there is no model {name!r}; models served: {names}", param="model")


def describe(slot: Slot) -> CatalogueEntry:
    """Return what other threads may know of a slot; none of it changes."""
    settings, limits = slot.settings, slot.limits
    return CatalogueEntry(
        id=slot.id,
        default=settings.default,
        created=slot.created,
        architecture=slot.plan.architecture,
        context=slot.context,
        streams=settings.streams,
        max_prompt_tokens=min(limits.max_prompt_tokens or slot.context, slot.context),
        max_output_tokens=min(limits.max_output_tokens or slot.context, slot.context),
        sampling=SamplingParams(
            repeat_penalty=settings.repeat_penalty,
            presence_penalty=settings.presence_penalty,
            frequency_penalty=settings.frequency_penalty,
            penalty_window=settings.penalty_window,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
        ),
        tokenizer=slot.tokenizer,
        renderer=slot.renderer,
        reply=slot.reply,
        grammars=slot.grammars,
        pooling=slot.pooling,
        dimensions=slot.plan.buffers[slot.plan.hidden],
        settings=settings,
    )
