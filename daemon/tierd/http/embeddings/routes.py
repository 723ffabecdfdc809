"""POST /v1/embeddings: texts become vectors of length 1.

Each input is a request of its own to the engine. As many of them as the model has streams are under way at a
time, so that a long list waits in line with the requests of others. What one of them ends with ends all.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tierd import core
from tierd.core import Embedding, FinishedEvent, Pooling, SamplingParams
from tierd.engine import CatalogueEntry, Engine
from tierd.errors import ContextLengthExceededError, ExecutorError, InvalidRequestError
from tierd.http.body import read_body
from tierd.http.embeddings.shapes import EmbeddingBody, EmbeddingUsage, Vector, VectorList
from tierd.http.encoder import Encoder
from tierd.http.generation import translate
from tierd.http.generation.contents import Content, read_contents
from tierd.http.generation.exchange import Exchange
from tierd.http.mailboxes import Mailboxes
from tierd.http.roster import Roster
from tierd.http.shapes import json_response
from tierd.http.unsupported import refuse_unsupported

MAX_INPUTS = 2048
# What it takes to write one value, in characters of a text to be encoded.
CHARACTERS_PER_VALUE = 0.25

_decoder = msgspec.json.Decoder(EmbeddingBody)


class EmbeddingRoutes:
    """The endpoint for embeddings."""

    def __init__(self, engine: Engine, mailboxes: Mailboxes, encoder: Encoder, roster: Roster) -> None:
        self._engine = engine
        self._mailboxes = mailboxes
        self._encoder = encoder
        self._roster = roster

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/v1/embeddings", self.embed, methods=["POST"])]

    async def embed(self, request: Request) -> Response:
        """Answer with a vector for each input, in order."""
        body = await read_body(request, _decoder)
        refuse_unsupported(body)
        entry = self._roster.resolve(self._engine.catalogue, body.model)
        embedding = wanted_embedding(body, entry)
        contents = await self._encoder.run(
            len(body.input), lambda: read_contents(body.input, "input", MAX_INPUTS)
        )
        prompts = await self._encoder.run(
            sum(len(content) for content, _ in contents),
            lambda: [encode(entry, content, field) for content, field in contents],
        )
        wanted = [
            core.Request(
                id=f"embd-{request.state.request_id}{f'/{index}' if index else ''}",
                model=entry.id,
                operation="embeddings",
                prompt=tuple(ids),
                max_tokens=0,
                sampling=SamplingParams(),
                priority=body.priority or 0,
                embedding=embedding,
            )
            for index, ids in enumerate(prompts)
        ]
        ends = await self._run(wanted, entry.streams, request)
        tokens = sum(end.usage.prompt_tokens for end in ends)

        def written() -> Response:
            as_base64 = body.encoding_format == "base64"
            data = [
                Vector(index=index, embedding=_written(entry, end, as_base64=as_base64))
                for index, end in enumerate(ends)
            ]
            return json_response(VectorList(data=data, model=entry.id, usage=EmbeddingUsage(tokens, tokens)))

        values = len(ends) * (embedding.dimensions or entry.dimensions)
        return await self._encoder.run(int(values * CHARACTERS_PER_VALUE), written)

    async def _run(
        self, wanted: Sequence[core.Request], at_once: int, request: Request
    ) -> list[FinishedEvent]:
        """Have all requests served, so many at a time; return how they ended. Raises what one ends with."""
        request.state.asked = True  # from here on the engine notes how they end
        ends: dict[int, FinishedEvent] = {}
        left = iter(enumerate(wanted))

        async def serve() -> None:
            for index, one in left:
                async with Exchange(self._engine, self._mailboxes, one, request) as exchange:
                    (end,) = await exchange.take()
                assert isinstance(end, FinishedEvent)
                ends[index] = end

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(at_once, len(wanted))):
                    group.create_task(serve())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return [ends[index] for index in range(len(wanted))]


def wanted_embedding(body: EmbeddingBody, entry: CatalogueEntry) -> Embedding:
    """Return how the vectors are to be made. Raises InvalidRequestError: the model, dimensions."""
    if entry.pooling in (Pooling.NONE, Pooling.RANK):
        raise InvalidRequestError(
            f"model: {entry.id!r} gives no embeddings, its pooling is {entry.pooling}; set `pooling` for it, "
            "or name another",
            param="model",
        )
    asked = body.dimensions
    if asked is None or asked == entry.dimensions:
        return Embedding(entry.pooling)
    if asked > entry.dimensions:
        raise InvalidRequestError(
            f"dimensions: {asked}; vectors of {entry.id!r} have {entry.dimensions} values", param="dimensions"
        )
    if not entry.settings.matryoshka:
        raise InvalidRequestError(
            f"dimensions: {asked}; vectors of {entry.id!r} may not be cut, leave it out for all "
            f"{entry.dimensions} values (or set `matryoshka` for a model that was trained for it)",
            param="dimensions",
        )
    return Embedding(entry.pooling, asked)


def encode(entry: CatalogueEntry, content: Content, field: str) -> list[int]:
    """Return the ids of an input, a text's with those that its model begins, and may end, texts with.

    Raises InvalidRequestError for an empty one and for an id that is no token; ContextLengthExceededError.
    """
    if not content:
        raise InvalidRequestError(f"{field}: empty; there is nothing to embed", param=field)
    if isinstance(content, str):
        translate.check_length(entry, content, field)
        ids = entry.tokenizer.encode(content, add_special=True, parse_special=True)
    else:
        ids = content
    if len(ids) > entry.max_prompt_tokens:
        what = "this server takes prompts of at most"
        if entry.max_prompt_tokens == entry.context:
            what = f"the context of {entry.id!r} is"
        raise ContextLengthExceededError(
            f"{field}: {len(ids)} tokens; {what} {entry.max_prompt_tokens}; shorten the text, or send it in "
            "parts",
            param=field,
        )
    translate.check_ids(ids, entry.tokenizer.vocabulary, field)
    return ids


def _written(entry: CatalogueEntry, end: FinishedEvent, *, as_base64: bool) -> list[float] | str:
    """Return a vector as JSON has it. Raises ExecutorError for one that JSON has no numbers for."""
    vector = end.embedding
    assert vector is not None
    if not np.isfinite(vector).all():
        raise ExecutorError(f"{entry.id}: the model makes no numbers of this text")
    if as_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    values: list[float] = vector.tolist()
    return values
