"""Prompts of requests become token ids: templates are rendered, texts encoded, ids checked."""

from __future__ import annotations

from collections.abc import Callable

from tierd.chat.renderer import encode_prompt
from tierd.engine import CatalogueEntry
from tierd.errors import InvalidRequestError
from tierd.http import translate
from tierd.http.encoder import Encoder
from tierd.http.requests import ChatBody, CompletionBody


async def chat_prompt(encoder: Encoder, entry: CatalogueEntry, body: ChatBody) -> str:
    """Return a conversation as the model's template writes it, the opening of the answer included.

    Raises InvalidRequestError: no template, a message at fault, or the template's own complaint.
    """
    return await encoder.run_in_thread(_rendering(entry, body))


async def chat_ids(encoder: Encoder, entry: CatalogueEntry, body: ChatBody) -> list[int]:
    """Return the ids of a conversation. Raises as `chat_prompt` does."""
    render = _rendering(entry, body)

    def encode() -> list[int]:
        rendered = render()
        translate.check_length(entry, rendered, "messages")
        return encode_prompt(entry.tokenizer, rendered)

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


def _rendering(entry: CatalogueEntry, body: ChatBody) -> Callable[[], str]:
    """Return what renders a conversation; it checks the messages, and waits for the template's process."""
    renderer = entry.renderer
    if renderer is None:
        raise InvalidRequestError(
            f"{entry.id!r} has no chat template; set chat_template for it or use /v1/completions",
            param="model",
        )
    return lambda: renderer.render(translate.messages(body))
