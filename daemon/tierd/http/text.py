"""Routes that only turn text into tokens or prompts and back, in the shapes of llama.cpp's server."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tierd.engine import Engine
from tierd.http.body import read_body
from tierd.http.chat.turn import take_turn
from tierd.http.encoder import Encoder
from tierd.http.generation.translate import check_content, check_ids
from tierd.http.requests import ChatBody, DetokenizeBody, TokenizeBody
from tierd.http.roster import Roster
from tierd.http.shapes import Content, Prompt, Tokens, json_response
from tierd.http.turns.prompts import turn_text
from tierd.http.unsupported import refuse_unsupported

_tokenize_decoder = msgspec.json.Decoder(TokenizeBody)
_detokenize_decoder = msgspec.json.Decoder(DetokenizeBody)
_chat_decoder = msgspec.json.Decoder(ChatBody)


class TextRoutes:
    """Endpoints that need a model's tokenizer and template, but not the engine."""

    def __init__(self, engine: Engine, encoder: Encoder, roster: Roster) -> None:
        self._engine = engine
        self._encoder = encoder
        self._roster = roster

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/apply-template", self.apply_template, methods=["POST"]),
        ]

    async def tokenize(self, request: Request) -> Response:
        """Return the ids of a text."""
        body = await read_body(request, _tokenize_decoder)
        refuse_unsupported(body)
        tokenizer = self._roster.resolve(self._engine.catalogue, body.model).tokenizer
        check_content(body.content, "content")
        ids = await self._encoder.run(
            len(body.content),
            lambda: tokenizer.encode(
                body.content, add_special=body.add_special, parse_special=body.parse_special
            ),
        )
        return json_response(Tokens(ids))

    async def detokenize(self, request: Request) -> Response:
        """Return the text of ids."""
        body = await read_body(request, _detokenize_decoder)
        check_content(body.tokens, "tokens")
        tokenizer = self._roster.resolve(self._engine.catalogue, body.model).tokenizer

        def decode() -> str:
            check_ids(body.tokens, tokenizer.vocabulary, "tokens")
            return tokenizer.decode(body.tokens)

        return json_response(Content(await self._encoder.run(len(body.tokens), decode)))

    async def apply_template(self, request: Request) -> Response:
        """Return the prompt of a conversation."""
        body = await read_body(request, _chat_decoder)
        turn = await take_turn(self._encoder, body)
        entry = self._roster.resolve(self._engine.catalogue, body.model)
        return json_response(Prompt(await turn_text(self._encoder, entry, turn)))
