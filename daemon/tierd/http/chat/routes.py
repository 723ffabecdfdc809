"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tierd.http.body import read_body
from tierd.http.chat.frames import ChatFrames
from tierd.http.chat.turn import take_turn
from tierd.http.encoder import Encoder
from tierd.http.generation import translate
from tierd.http.generation.choices import total_usage
from tierd.http.generation.fingerprint import Fingerprints
from tierd.http.generation.logprobs import CHARACTERS_PER_LOGPROB, ChatScribe
from tierd.http.requests import ChatBody
from tierd.http.shapes import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    Function,
    Heading,
    Timings,
    ToolCall,
    Usage,
    json_response,
)
from tierd.http.sse import EventStream
from tierd.http.turns.opening import Turns
from tierd.http.turns.whole import Answer, read_whole

_decoder = msgspec.json.Decoder(ChatBody)


class ChatRoutes:
    """The endpoint for conversations in OpenAI's older shape."""

    def __init__(self, turns: Turns, encoder: Encoder) -> None:
        self._turns = turns
        self._encoder = encoder
        self._fingerprints = Fingerprints()

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/v1/chat/completions", self.complete, methods=["POST"])]

    async def complete(self, request: Request) -> Response:
        """Answer a conversation."""
        body = await read_body(request, _decoder)
        turn = await take_turn(self._encoder, body)
        include_usage = translate.include_usage(body)
        name = f"chatcmpl-{request.state.request_id}"
        conversation = await self._turns.open(turn, name, request)
        entry = conversation.entry
        heading = Heading(
            id=name,
            created=int(time.time()),
            model=entry.id,
            system_fingerprint=await self._fingerprints.of(entry),
        )
        scribes = [ChatScribe(entry.tokenizer) for _ in range(conversation.count)]
        if body.stream:
            return EventStream(conversation, ChatFrames(heading, include_usage, scribes))
        answers = await read_whole(conversation)

        def written() -> Response:
            choices = [
                ChatChoice(
                    index,
                    _message(answer),
                    scribe.write(answer.logprobs) if body.logprobs else None,
                    answer.end.reason,
                )
                for index, (answer, scribe) in enumerate(zip(answers, scribes, strict=True))
            ]
            total = total_usage([answer.end.usage for answer in answers])
            return json_response(
                ChatCompletion(**heading, choices=choices, usage=Usage.of(total), timings=Timings.of(total))
            )

        return await self._encoder.run(_weight(answers), written)


def _message(answer: Answer) -> AssistantMessage:
    calls = [ToolCall(id=call.id, function=Function(call.name, call.arguments)) for call in answer.calls]
    return AssistantMessage(
        content=answer.text if answer.text or not calls else None,
        reasoning_content=answer.thought or msgspec.UNSET,
        tool_calls=calls or msgspec.UNSET,
    )


def _weight(answers: Sequence[Answer]) -> int:
    """Return how many characters take as long to encode as these answers take to be written down."""
    spelled = sum(1 + len(entry.top) for answer in answers for entry in answer.logprobs)
    return spelled * CHARACTERS_PER_LOGPROB
