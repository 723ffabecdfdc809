"""A response that has not begun, and the counts that one ends with, for tests without a server."""

from __future__ import annotations

from engine.null_slot import ByteTokenizer
from tierd.chat.tokenizer import Tokenizer
from tierd.core import Usage
from tierd.http.responses.requests import TextFormat
from tierd.http.responses.shapes import ReasoningEffect, ResponseObject, TextEffect

TOKENIZER: Tokenizer = ByteTokenizer()  # type: ignore[assignment]
HEAD = ResponseObject(
    id="resp_a",
    created_at=7,
    status="in_progress",
    background=False,
    instructions=None,
    max_output_tokens=None,
    max_tool_calls=None,
    model="m",
    parallel_tool_calls=True,
    previous_response_id=None,
    prompt_cache_key=None,
    reasoning=ReasoningEffect(None),
    safety_identifier=None,
    store=True,
    temperature=1.0,
    text=TextEffect(TextFormat("text")),
    tool_choice="auto",
    tools=[],
    top_logprobs=0,
    top_p=1.0,
    user=None,
    metadata={},
)
USAGE = Usage(3, 4, 1, 2)
