"""Prompts of requests become token ids: templates are rendered, texts encoded, ids checked."""

from __future__ import annotations

from dataclasses import dataclass

from tierd.chat.formats import Chat, ReplyFormat
from tierd.chat.renderer import encode_prompt
from tierd.engine import CatalogueEntry
from tierd.errors import InvalidRequestError
from tierd.http.encoder import Encoder
from tierd.http.generation import translate
from tierd.http.turns.turn import Turn


@dataclass(frozen=True, slots=True)
class TurnPrompt:
    """The prompt of a turn. opening: what the answer has begun with in it. format: how the model answers."""

    ids: list[int]
    opening: str
    format: ReplyFormat


async def turn_text(encoder: Encoder, entry: CatalogueEntry, turn: Turn) -> str:
    """Return a conversation as the model's template writes it, the opening of the answer included.

    Raises InvalidRequestError: no template, a message at fault, or the template's own complaint.
    """
    format = _format(entry, turn)
    return (await encoder.run_in_thread(lambda: format.render(_chat(turn)))).prompt


async def turn_prompt(encoder: Encoder, entry: CatalogueEntry, turn: Turn) -> TurnPrompt:
    """Return the prompt of a turn. Raises as `turn_text` does."""
    format = _format(entry, turn)

    def encode() -> TurnPrompt:
        rendered = format.render(_chat(turn))
        translate.check_length(entry, rendered.prompt, turn.messages_field)
        return TurnPrompt(encode_prompt(entry.tokenizer, rendered.prompt), rendered.opening, format)

    return await encoder.run_in_thread(encode)


def _format(entry: CatalogueEntry, turn: Turn) -> ReplyFormat:
    """Return how the model takes chats. Raises InvalidRequestError where it takes none, or no documents."""
    format = entry.reply
    if format is None:
        raise InvalidRequestError(
            f"{entry.id!r} has no chat template; set chat_template for it or use /v1/completions",
            param="model",
        )
    if turn.template_variables.get("documents") and "documents" not in format.renderer.takes:
        raise InvalidRequestError(
            f"documents: the chat template of {entry.id!r} takes none; put them into a message",
            param="documents",
        )
    return format


def _chat(turn: Turn) -> Chat:
    return Chat(
        messages=turn.messages,
        tools=turn.callable,
        parallel=turn.parallel_tool_calls,
        thinking=turn.thinks,
        effort=turn.effort,
        variables=turn.template_variables,
        continues=turn.continues,
        opens=turn.opens,
    )
