"""What was asked and answered, word for word, for the log: where `log.prompts` asks for it."""

from __future__ import annotations

import logging

from tierd.core import Request, TextEvent
from tierd.engine import Catalogue
from tierd.service.logs import PROMPTS, line


class Transcript:
    """Of one request. It logs nothing where nothing of that kind is to be logged when it begins."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._wanted = PROMPTS.isEnabledFor(logging.INFO)
        self._texts: list[str] = []

    def begin(self, catalogue: Catalogue) -> None:
        """Log the prompt, with all marks of its model's template."""
        entry = catalogue.entries.get(self._request.model)
        if self._wanted and entry is not None:
            self._log(prompt_text=entry.tokenizer.decode(self._request.prompt))

    def note(self, event: TextEvent) -> None:
        """Take in a piece of the answer."""
        if self._wanted:
            self._texts.append(event.text)

    def end(self) -> None:
        """Log the answer, as far as it came."""
        if self._wanted:
            self._log(answer_text="".join(self._texts))

    def _log(self, **said: str) -> None:
        PROMPTS.info(*line(request=self._request.id, model=self._request.model, **said))
