"""POST /v1/messages, Anthropic's API, and POST /v1/messages/count_tokens.

Headers: whatever `anthropic-version` and `anthropic-beta` say, the API is the one that is described here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tierd import core
from tierd.chat.reply import Piece
from tierd.engine import Engine
from tierd.errors import InvalidRequestError
from tierd.http.body import read_body
from tierd.http.encoder import Encoder
from tierd.http.messages.content import content
from tierd.http.messages.events import PING, MessageFrames, ending
from tierd.http.messages.requests import ConversationBody, MessagesBody
from tierd.http.messages.shapes import Counts, Message, TokenCount
from tierd.http.messages.turn import read_conversation, read_turn
from tierd.http.roster import Roster
from tierd.http.shapes import json_response
from tierd.http.sse import EventStream
from tierd.http.turns.conversation import Conversation, Ended
from tierd.http.turns.fields import few_texts
from tierd.http.turns.opening import Turns
from tierd.http.turns.turn import Turn

_Body = TypeVar("_Body", bound=ConversationBody)

_decoder = msgspec.json.Decoder(MessagesBody)
_counted_decoder = msgspec.json.Decoder(ConversationBody)


class MessageRoutes:
    """The endpoints for conversations in Anthropic's shape."""

    def __init__(self, turns: Turns, engine: Engine, encoder: Encoder, roster: Roster) -> None:
        self._turns = turns
        self._engine = engine
        self._encoder = encoder
        self._roster = roster

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v1/messages", self.create, methods=["POST"]),
            Route("/v1/messages/count_tokens", self.count, methods=["POST"]),
        ]

    async def create(self, request: Request) -> Response:
        """Answer a conversation."""
        body = await read_body(request, _decoder)
        turn = await self._read(body, read_turn)
        self._check_thinking(turn)
        id = f"msg_{request.state.request_id}"
        conversation = await self._turns.open(turn, id, request)
        model = conversation.entry.id
        if body.stream:
            return EventStream(conversation, MessageFrames(id, model, lambda: _begun(conversation)), PING)
        pieces, end = await _read_whole(conversation)
        why = ending(end)
        return json_response(
            Message(
                id=id,
                model=model,
                content=content(pieces),
                stop_reason=why.stop_reason,
                stop_sequence=why.stop_sequence,
                usage=Counts.of(end.usage),
            )
        )

    async def count(self, request: Request) -> Response:
        """Count the tokens of a conversation, however many they are."""
        body = await read_body(request, _counted_decoder)
        turn = await self._read(body, read_conversation)
        self._check_thinking(turn)
        return json_response(TokenCount(await self._turns.count(turn)))

    async def _read(self, body: _Body, read: Callable[[_Body], Turn]) -> Turn:
        """Return what a body asks for; of one that may be long it is read in a thread."""
        if few_texts(body.messages) and not body.tools:
            return read(body)
        return await self._encoder.run_in_thread(lambda: read(body))

    def _check_thinking(self, turn: Turn) -> None:
        """Raise InvalidRequestError where a model is to think that cannot."""
        entry = self._roster.resolve(self._engine.catalogue, turn.generation.model)
        if turn.thinking and entry.reply is not None and entry.reply.marks is None:
            raise InvalidRequestError(
                f"thinking: {entry.id!r} is no model that thinks; leave it out", param="thinking"
            )


def _begun(conversation: Conversation) -> core.Usage:
    """Return the counts of an answer of which nothing has come yet."""
    return core.Usage(conversation.prompt_tokens, 0, conversation.cached_tokens)


async def _read_whole(conversation: Conversation) -> tuple[list[Piece], Ended]:
    """Run a conversation of one choice to its end."""
    pieces: list[Piece] = []
    async with conversation:
        while True:
            for _, piece in await conversation.take():
                if isinstance(piece, Ended):
                    return pieces, piece
                pieces.append(piece)
