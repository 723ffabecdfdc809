"""Turns the messages of a chat into one prompt, through the model's chat template.

A template is a program out of a model file, run on a client's words, so it runs in a process of its own
(`template_worker`) with bounded time, memory and output; one that goes too far is killed and the next
rendering starts a new one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence

from tierd.chat.confined import Confined, ConfinedError
from tierd.chat.tokenizer import Tokenizer
from tierd.errors import InvalidRequestError, ModelFileError, SettingsError, UnavailableError
from tierd.models.gguf import GGUFFile

CHAT_TEMPLATE = "tokenizer.chat_template"

MOST_SECONDS = 2.0
MOST_MEMORY = 512 << 20
MOST_CHARACTERS = 8 << 20
# Not imported: its template engine is for its own process.
_WORKER = "tierd.chat.template_worker"
_CLOSED = "the model is being unloaded; try again later, or ask for another"


class Renderer:
    """One model's chat template. Thread-safe; renderings take turns.

    template: its text. takes: the variables that it reads and does not set, beside the two of `variables`.
    """

    def __init__(self, template: str, variables: Mapping[str, str]) -> None:
        """Compile the template, `variables` being known to it. Raises ConfinedError."""
        self.template = template
        self._setup = {
            "template": template,
            "globals": dict(variables),
            "memory": MOST_MEMORY,
            "seconds": MOST_SECONDS,
            "characters": MOST_CHARACTERS,
        }
        self._turn = threading.Lock()
        self._closed = False
        self._worker: Confined | None = Confined(_WORKER, self._setup)
        self.takes = frozenset[str](json.loads(self._worker.told))

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the prompt. Blocks, for milliseconds as a rule, for ten seconds at worst.

        tools: in OpenAI's shape. variables: more that the template may take.
        Raises InvalidRequestError with the template's own message if it refuses the messages, fails, or
        takes too much time, memory or room; UnavailableError once it is closed.
        """
        given = {
            "documents": None,
            **(variables or {}),
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        with self._turn:
            try:
                if self._closed:
                    raise UnavailableError(_CLOSED)
                if self._worker is None:
                    self._worker = Confined(_WORKER, self._setup)
                return self._worker.ask(given)
            except ConfinedError as error:
                if self._closed:
                    raise UnavailableError(_CLOSED) from None
                if self._worker is not None and not self._worker.alive:
                    self._worker = None
                raise InvalidRequestError(f"the chat template failed: {error}", param="messages") from None

    def close(self) -> None:
        """End its process, and a rendering that is going on. Idempotent."""
        self._closed = True
        if (worker := self._worker) is not None:
            worker.kill()
        with self._turn:
            if self._worker is not None:
                self._worker.end()
                self._worker = None


def build_renderer(file: GGUFFile, tokenizer: Tokenizer, template: str | None = None) -> Renderer | None:
    """Return the renderer of `template`, or else of the file's own; None if there is neither.

    Raises SettingsError or ModelFileError if the template, given or the file's, does not compile.
    """
    given = template is not None
    if template is None:
        template = file.text(CHAT_TEMPLATE, "")
    if not template:
        return None
    variables = {
        name: tokenizer.token_text(token)
        for name, token in (("bos_token", tokenizer.bos_id), ("eos_token", tokenizer.eos_id))
        if token is not None
    }
    try:
        return Renderer(template, variables)
    except ConfinedError as error:
        if given:
            raise SettingsError(f"the chat template given for {file.path} is wrong: {error}") from None
        raise ModelFileError(
            f"{file.path}: key {CHAT_TEMPLATE} does not compile: {error}; give the model another template "
            "with chat_template in the settings"
        ) from None


def encode_prompt(tokenizer: Tokenizer, rendered: str) -> list[int]:
    """Return the ids of a rendered prompt: control tokens parsed, begin token added unless it is there.

    Templates may write the begin token themselves; models are trained with one. (llama.cpp's server
    takes it off the rendered text for the same reason.)
    """
    ids = tokenizer.encode(rendered, add_special=True, parse_special=True)
    if tokenizer.adds_bos and ids[:2] == [tokenizer.bos_id, tokenizer.bos_id]:
        del ids[0]
    return ids
