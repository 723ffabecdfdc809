"""Prompts of requests become token ids: templates are rendered, texts encoded, ids checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tierd.chat.renderer import encode_prompt
from tierd.chat.reply import PlainParser, ReplyParser
from tierd.engine import CatalogueEntry
from tierd.errors import InvalidRequestError
from tierd.http import translate
from tierd.http.encoder import Encoder
from tierd.http.requests import CompletionBody

if TYPE_CHECKING:
    from tierd.http.turn import Turn


@dataclass(frozen=True, slots=True)
class TurnPrompt:
    """The prompt of a turn, and what the answer is read with.

    parser: makes the parser of a choice. spelled: see core.Request.
    """

    ids: list[int]
    parser: Callable[[], ReplyParser]
    spelled: frozenset[int]


async def turn_text(encoder: Encoder, entry: CatalogueEntry, turn: Turn) -> str:
    """Return a conversation as the model's template writes it, the opening of the answer included.

    Raises InvalidRequestError: no template, a message at fault, or the template's own complaint.
    """
    return await encoder.run_in_thread(_rendering(entry, turn))


async def turn_prompt(encoder: Encoder, entry: CatalogueEntry, turn: Turn) -> TurnPrompt:
    """Return the prompt of a turn. Raises as `turn_text` does."""
    render = _rendering(entry, turn)

    def encode() -> TurnPrompt:
        rendered = render()
        translate.check_length(entry, rendered, turn.messages_field)
        ids = encode_prompt(entry.tokenizer, rendered)
        return TurnPrompt(ids, PlainParser, frozenset())

    return await encoder.run_in_thread(encode)


async def completion_ids(encoder: Encoder, entry: CatalogueEntry, body: CompletionBody) -> list[int]:
    """Return the ids of a completion's prompt. A text gets the tokens its model begins with.

    Raises InvalidRequestError: the prompt is empty, more than one, or holds an id that is no token.
    """
    prompt = body.prompt
    size = len(prompt)
    if prompt and not isinstance(prompt[0], int):
        size += len(prompt[0])
    return await encoder.run(size, lambda: _completion_ids(entry, body))


def _completion_ids(entry: CatalogueEntry, body: CompletionBody) -> list[int]:
    prompt, field = translate.one_prompt(body)
    if not prompt:
        raise InvalidRequestError(f"{field}: empty; a model needs something to go on from", param=field)
    if isinstance(prompt, str):
        translate.check_length(entry, prompt, field)
        return entry.tokenizer.encode(prompt, add_special=True, parse_special=True)
    translate.check_ids(prompt, entry.tokenizer.vocabulary, field)
    return prompt


def _rendering(entry: CatalogueEntry, turn: Turn) -> Callable[[], str]:
    """Return what renders a conversation, and waits for the template's process."""
    renderer = entry.renderer
    if renderer is None:
        raise InvalidRequestError(
            f"{entry.id!r} has no chat template; set chat_template for it or use /v1/completions",
            param="model",
        )
    return lambda: renderer.render(turn.messages)
