"""From the body of a chat completion to a Turn. Pure; every error names the field at fault."""

from __future__ import annotations

from tierd.http import translate
from tierd.http.formats import source
from tierd.http.requests import ChatBody
from tierd.http.turn import Turn
from tierd.http.unsupported import refuse_unsupported


def read_turn(body: ChatBody) -> Turn:
    """Return what a body asks for. Raises InvalidRequestError."""
    refuse_unsupported(body)
    max_tokens, tokens_field = translate.asked_tokens(body)
    return Turn(
        generation=body,
        messages=translate.messages(body),
        max_tokens=max_tokens,
        tokens_field=tokens_field,
        format=source(body),
        top_logprobs=translate.top_logprobs(body),
    )
