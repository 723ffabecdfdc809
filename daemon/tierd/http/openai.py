"""The OpenAI routes for models and completions of texts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tierd import core
from tierd.core import FinishedEvent, TextEvent
from tierd.engine import CatalogueEntry, Engine
from tierd.http import translate
from tierd.http.body import read_body
from tierd.http.choices import Choices, total_usage
from tierd.http.encoder import Encoder
from tierd.http.exchange import Exchange
from tierd.http.fingerprint import Fingerprints
from tierd.http.formats import compile_source, source
from tierd.http.logprobs import CHARACTERS_PER_LOGPROB, TextScribe
from tierd.http.mailboxes import Mailboxes
from tierd.http.prompts import completion_ids
from tierd.http.requests import CompletionBody
from tierd.http.roster import Roster
from tierd.http.shapes import (
    Completion,
    Heading,
    Model,
    ModelList,
    TextChoice,
    Usage,
    json_response,
)
from tierd.http.sse import EventStream, completion_frames
from tierd.http.unsupported import refuse_unsupported

_completion_decoder = msgspec.json.Decoder(CompletionBody)


class OpenAIRoutes:
    """Endpoints of `/v1/…`."""

    def __init__(self, engine: Engine, mailboxes: Mailboxes, encoder: Encoder, roster: Roster) -> None:
        self._engine = engine
        self._mailboxes = mailboxes
        self._encoder = encoder
        self._roster = roster
        self._fingerprints = Fingerprints()

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v1/models", self.list_models),
            Route("/v1/models/{id:path}", self.show_model),
            Route("/v1/completions", self.complete_text, methods=["POST"]),
        ]

    async def list_models(self, request: Request) -> Response:
        """List the models that answer."""
        return json_response(ModelList(data=[_model(e) for e in self._engine.catalogue.entries.values()]))

    async def show_model(self, request: Request) -> Response:
        """Show one of them."""
        return json_response(_model(self._resolve(request.path_params["id"])))

    async def complete_text(self, request: Request) -> Response:
        """Go on from a prompt."""
        body = await read_body(request, _completion_decoder)
        refuse_unsupported(body)
        entry = self._resolve(body.model)
        include_usage = translate.include_usage(body)
        grammar = await compile_source(self._encoder, entry, source(body))
        ids = await completion_ids(self._encoder, entry, body)
        wanted = _requests(f"cmpl-{request.state.request_id}", entry, body, ids, "prompt", grammar)
        heading = await self._heading(wanted[0], entry)
        choices = self._choices(wanted, request)
        scribes = [TextScribe(entry.tokenizer, with_top=bool(body.logprobs)) for _ in wanted]
        if body.stream:
            return EventStream(choices, completion_frames(heading, include_usage, scribes))
        answers = await _whole(choices, len(wanted))

        def written() -> Response:
            written_choices = [
                TextChoice(
                    answer.text,
                    answer.end.reason,
                    index,
                    None if body.logprobs is None else scribe.write(answer.logprobs),
                )
                for index, (answer, scribe) in enumerate(zip(answers, scribes, strict=True))
            ]
            return json_response(Completion(**heading, choices=written_choices, usage=_usage(answers)))

        return await self._encoder.run(_weight(answers), written)

    def _choices(self, wanted: Sequence[core.Request], request: Request) -> Choices:
        request.state.asked = True  # from here on the engine notes how it ends
        return Choices([Exchange(self._engine, self._mailboxes, one, request.receive) for one in wanted])

    def _resolve(self, name: str | None) -> CatalogueEntry:
        return self._roster.resolve(self._engine.catalogue, name)

    async def _heading(self, wanted: core.Request, entry: CatalogueEntry) -> Heading:
        return Heading(
            id=wanted.id,
            created=int(time.time()),
            model=entry.id,
            system_fingerprint=await self._fingerprints.of(entry),
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    """One choice, whole."""

    text: str
    logprobs: list[core.TokenLogprobs]
    end: FinishedEvent


async def _whole(choices: Choices, count: int) -> list[_Answer]:
    """Run a request to its end; return all its choices."""
    events: list[list[TextEvent]] = [[] for _ in range(count)]
    ends: dict[int, FinishedEvent] = {}
    async with choices:
        while not choices.ended:
            for index, event in await choices.take():
                if isinstance(event, TextEvent):
                    events[index].append(event)
                else:
                    ends[index] = event
    return [
        _Answer(
            "".join(event.text for event in texts),
            [entry for event in texts for entry in event.logprobs],
            ends[index],
        )
        for index, texts in enumerate(events)
    ]


def _weight(answers: Sequence[_Answer]) -> int:
    """Return how many characters take as long to encode as these answers take to be written down."""
    spelled = sum(1 + len(entry.top) for answer in answers for entry in answer.logprobs)
    return spelled * CHARACTERS_PER_LOGPROB


def _usage(answers: Sequence[_Answer]) -> Usage:
    return Usage.of(total_usage([answer.end.usage for answer in answers]))


def _requests(
    name: str,
    entry: CatalogueEntry,
    body: CompletionBody,
    ids: Sequence[int],
    field: str,
    grammar: core.Grammar | None,
) -> list[core.Request]:
    """Return what the engine is asked for, one for each choice: they differ in name and seed.

    Raises InvalidRequestError; `field` brought the prompt.
    """
    first = core.Request(
        id=name,
        model=entry.id,
        prompt=tuple(ids),
        max_tokens=translate.budget(entry, len(ids), translate.asked_tokens(body), field),
        sampling=translate.sampling(body, entry),
        stop=translate.stops(body),
        ignore_eos=bool(body.ignore_eos),
        priority=body.priority or 0,
        top_logprobs=translate.top_logprobs(body),
        grammar=grammar,
    )
    return translate.each_choice(first, body, entry)


def _model(entry: CatalogueEntry) -> Model:
    return Model(id=entry.id, created=entry.created)
