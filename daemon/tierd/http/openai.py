"""The OpenAI routes: models, chat completions, completions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tierd import core
from tierd.core import FinishedEvent, TextEvent
from tierd.engine import CatalogueEntry, Engine
from tierd.http import translate
from tierd.http.body import read_body
from tierd.http.encoder import Encoder
from tierd.http.exchange import Exchange
from tierd.http.mailboxes import Mailboxes
from tierd.http.prompts import chat_ids, completion_ids
from tierd.http.requests import ChatBody, CompletionBody
from tierd.http.responses import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    Completion,
    Heading,
    Model,
    ModelList,
    TextChoice,
    Usage,
    json_response,
)
from tierd.http.sse import EventStream, chat_frames, completion_frames
from tierd.http.unsupported import refuse_unsupported

_chat_decoder = msgspec.json.Decoder(ChatBody)
_completion_decoder = msgspec.json.Decoder(CompletionBody)


class OpenAIRoutes:
    """Endpoints of `/v1/…`. fingerprints: by model."""

    def __init__(
        self, engine: Engine, mailboxes: Mailboxes, encoder: Encoder, fingerprints: Mapping[str, str]
    ) -> None:
        self._engine = engine
        self._mailboxes = mailboxes
        self._encoder = encoder
        self._fingerprints = fingerprints

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v1/models", self.list_models),
            Route("/v1/models/{id:path}", self.show_model),
            Route("/v1/chat/completions", self.complete_chat, methods=["POST"]),
            Route("/v1/completions", self.complete_text, methods=["POST"]),
        ]

    async def list_models(self, request: Request) -> Response:
        """List the models that answer."""
        return json_response(ModelList(data=[_model(e) for e in self._engine.catalogue.entries.values()]))

    async def show_model(self, request: Request) -> Response:
        """Show one of them."""
        return json_response(_model(self._engine.catalogue.resolve(request.path_params["id"])))

    async def complete_chat(self, request: Request) -> Response:
        """Answer a conversation."""
        body = await read_body(request, _chat_decoder)
        refuse_unsupported(body)
        entry = self._engine.catalogue.resolve(body.model)
        include_usage = translate.include_usage(body)
        ids = await chat_ids(self._encoder, entry, body)
        wanted = _request(f"chatcmpl-{request.state.request_id}", entry, body, ids, "messages")
        exchange = Exchange(self._engine, self._mailboxes, wanted, request.receive)
        heading = self._heading(wanted)
        if body.stream:
            return EventStream(exchange, chat_frames(heading, include_usage))
        text, end = await _whole(exchange)
        choice = ChatChoice(AssistantMessage(text), end.reason)
        return json_response(ChatCompletion(**heading, choices=[choice], usage=Usage.of(end.usage)))

    async def complete_text(self, request: Request) -> Response:
        """Go on from a prompt."""
        body = await read_body(request, _completion_decoder)
        refuse_unsupported(body)
        entry = self._engine.catalogue.resolve(body.model)
        include_usage = translate.include_usage(body)
        ids = await completion_ids(self._encoder, entry, body)
        wanted = _request(f"cmpl-{request.state.request_id}", entry, body, ids, "prompt")
        exchange = Exchange(self._engine, self._mailboxes, wanted, request.receive)
        heading = self._heading(wanted)
        if body.stream:
            return EventStream(exchange, completion_frames(heading, include_usage))
        text, end = await _whole(exchange)
        choice = TextChoice(text, end.reason)
        return json_response(Completion(**heading, choices=[choice], usage=Usage.of(end.usage)))

    def _heading(self, wanted: core.Request) -> Heading:
        return Heading(
            id=wanted.id,
            created=int(time.time()),
            model=wanted.model,
            system_fingerprint=self._fingerprints[wanted.model],
        )


async def _whole(exchange: Exchange) -> tuple[str, FinishedEvent]:
    """Run a request to its end; return all its text."""
    texts: list[str] = []
    async with exchange:
        while True:
            for event in await exchange.take():
                if isinstance(event, TextEvent):
                    texts.append(event.text)
                else:
                    return "".join(texts), event


def _request(
    name: str, entry: CatalogueEntry, body: ChatBody | CompletionBody, ids: Sequence[int], field: str
) -> core.Request:
    """Return what the engine is asked for. Raises InvalidRequestError; `field` brought the prompt."""
    return core.Request(
        id=name,
        model=entry.id,
        prompt=tuple(ids),
        max_tokens=translate.budget(entry, len(ids), translate.asked_tokens(body), field),
        sampling=translate.sampling(body, entry.sampling),
        stop=translate.stops(body),
        ignore_eos=bool(body.ignore_eos),
    )


def _model(entry: CatalogueEntry) -> Model:
    return Model(id=entry.id, created=entry.created)
