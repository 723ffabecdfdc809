"""POST /v1/completions: answers to a prompt, or to each of a list of prompts.

Choices stand prompt by prompt, n of each, and a prompt of a list is answered as it would be alone. As many
are under way at a time as the model has streams, so that a long list waits in line with the requests of
others. Log-probabilities are of every token that was sampled, one that has ended the text among them: whoever
scores texts counts from behind.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tierd import core
from tierd.core import FinishedEvent, TextEvent
from tierd.engine import CatalogueEntry, Engine
from tierd.errors import InvalidRequestError
from tierd.http.body import read_body
from tierd.http.completions.echo import Echo, TextPrompt, spell, token_starts
from tierd.http.completions.frames import CompletionFrames
from tierd.http.encoder import Encoder
from tierd.http.generation import translate
from tierd.http.generation.choices import Choices, list_usage
from tierd.http.generation.contents import Content, content_ids, read_contents
from tierd.http.generation.exchange import Exchange
from tierd.http.generation.fingerprint import Fingerprints
from tierd.http.generation.formats import compile_source, source
from tierd.http.generation.logprobs import CHARACTERS_PER_LOGPROB, TextScribe
from tierd.http.mailboxes import Mailboxes
from tierd.http.requests import CompletionBody
from tierd.http.roster import Roster
from tierd.http.shapes import Completion, Heading, TextChoice, Timings, Usage, json_response
from tierd.http.sse import EventStream
from tierd.http.unsupported import refuse_unsupported

# Of one request, whatever it asks for.
MAX_ANSWERS = 256
# Log-probabilities of prompts that one request is told.
MAX_SCORES = 1 << 18

_decoder = msgspec.json.Decoder(CompletionBody)


class CompletionRoutes:
    """The endpoint for completions of texts."""

    def __init__(self, engine: Engine, mailboxes: Mailboxes, encoder: Encoder, roster: Roster) -> None:
        self._engine = engine
        self._mailboxes = mailboxes
        self._encoder = encoder
        self._roster = roster
        self._fingerprints = Fingerprints()

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/v1/completions", self.complete, methods=["POST"])]

    async def complete(self, request: Request) -> Response:
        """Go on from one or more prompts."""
        body = await read_body(request, _decoder)
        refuse_unsupported(body)
        entry = self._roster.resolve(self._engine.catalogue, body.model)
        include_usage = translate.include_usage(body)
        contents = await self._encoder.run(
            len(body.prompt), lambda: read_contents(body.prompt, "prompt", MAX_ANSWERS)
        )
        grammar = await compile_source(self._encoder, entry, source(body), request)
        prompts = await self._encoder.run(
            sum(len(content) for content, _ in contents), lambda: read_prompts(entry, body, contents)
        )
        name = f"cmpl-{request.state.request_id}"
        wanted = requests_of(name, entry, body, prompts, grammar)
        heading = Heading(
            id=name,
            created=int(time.time()),
            model=entry.id,
            system_fingerprint=await self._fingerprints.of(entry),
        )
        each = len(wanted) // len(prompts)
        shown = [prompt for prompt in prompts for _ in range(each)]
        scribes = [
            TextScribe(entry.tokenizer, with_top=bool(body.logprobs), offset=len(prompt.text))
            for prompt in shown
        ]
        echoes = [
            Echo(prompt, None if body.logprobs is None else scribe)
            for prompt, scribe in zip(shown, scribes, strict=True)
            if body.echo
        ]
        request.state.asked = True  # from here on the engine notes how it ends
        choices = Choices(
            [Exchange(self._engine, self._mailboxes, one, request) for one in wanted],
            at_once=entry.streams,
        )
        if body.stream:
            frames = CompletionFrames(heading, include_usage, scribes, echoes, prompts=len(prompts))
            return EventStream(choices, frames)
        answers = await _whole(choices, len(wanted), each)

        def written() -> Response:
            total = list_usage([answer.end.usage for answer in answers], each)
            return json_response(
                Completion(
                    **heading,
                    choices=[
                        _choice(index, answer, scribes[index], echoes[index] if echoes else None, body)
                        for index, answer in enumerate(answers)
                    ],
                    usage=Usage.of(total),
                    timings=Timings.of(total),
                )
            )

        return await self._encoder.run(_weight(answers), written)


def read_prompts(
    entry: CatalogueEntry, body: CompletionBody, contents: Sequence[tuple[Content, str]]
) -> list[TextPrompt]:
    """Return the prompts, with what it takes to show them where that is asked for. Raises RequestError."""
    tokenizer = entry.tokenizer
    prompts = []
    for content, field in contents:
        ids = content_ids(entry, content, field)
        if not body.echo:
            prompts.append(TextPrompt(ids, field))
            continue
        text = content if isinstance(content, str) else spell(tokenizer, ids)
        starts = () if body.logprobs is None else token_starts(tokenizer, ids, text)
        prompts.append(TextPrompt(ids, field, text, starts))
    return prompts


def requests_of(
    name: str,
    entry: CatalogueEntry,
    body: CompletionBody,
    prompts: Sequence[TextPrompt],
    grammar: core.Grammar | None,
) -> list[core.Request]:
    """Return what the engine is asked for, one for each choice, those of the first prompt first.

    They differ in name and seed, and of those of a prompt the first alone is told how likely that is.
    Raises InvalidRequestError, ContextLengthExceededError.
    """
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequestError(
            "max_tokens: 0; ask for at least 1, or with echo for the prompt alone", param="max_tokens"
        )
    each = translate.choices(body, entry)
    if len(prompts) * each > MAX_ANSWERS:
        raise InvalidRequestError(
            f"prompt: {len(prompts)} prompts of {each} choices are {len(prompts) * each}; at most "
            f"{MAX_ANSWERS} in one request",
            param="prompt",
        )
    told = body.logprobs if body.echo else None
    if told is not None:
        _check_scores(each * sum(len(prompt.ids) for prompt in prompts), told)
    sampling = translate.sampling(body, entry)
    wanted: list[core.Request] = []
    for prompt in prompts:
        seed = sampling.seed if body.seed is not None else translate.read_seed(None)
        first = core.Request(
            id=name,
            model=entry.id,
            prompt=tuple(prompt.ids),
            max_tokens=translate.budget(entry, len(prompt.ids), translate.asked_tokens(body), prompt.field),
            sampling=replace(sampling, seed=seed),
            stop=translate.stops(body),
            ignore_eos=bool(body.ignore_eos),
            priority=body.priority or 0,
            top_logprobs=translate.top_logprobs(body),
            prompt_logprobs=told,
            grammar=grammar,
        )
        scored, *others = translate.each_choice(first, body, entry)
        wanted += [scored, *(replace(one, prompt_logprobs=None) for one in others)]
    return [replace(one, id=f"{name}/{i}" if i else name) for i, one in enumerate(wanted)]


def _check_scores(tokens: int, top: int) -> None:
    """Raise InvalidRequestError where telling all that of a request's prompts would take too long."""
    scores = tokens * (top + 1)
    if scores > MAX_SCORES:
        raise InvalidRequestError(
            f"logprobs: {top + 1} for each of {tokens} tokens that are echoed are {scores}; at most "
            f"{MAX_SCORES} in one request, ask for fewer or send the prompts in parts",
            param="logprobs",
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    """One choice, whole. prompt: how likely the tokens of its prompt are, from the second on."""

    prompt: list[core.TokenLogprobs]
    text: str
    logprobs: list[core.TokenLogprobs]
    end: FinishedEvent


async def _whole(choices: Choices, count: int, each: int) -> list[_Answer]:
    """Run a request to its end; return all its choices, `each` of which share a prompt."""
    events: list[list[TextEvent]] = [[] for _ in range(count)]
    ends: dict[int, FinishedEvent] = {}
    async with choices:
        while not choices.ended:
            for index, event in await choices.take():
                if isinstance(event, TextEvent):
                    events[index].append(event)
                else:
                    ends[index] = event
    scores = [[entry for event in texts for entry in event.prompt] for texts in events[::each]]
    return [
        _Answer(
            scores[index // each],
            "".join(event.text for event in texts),
            [*(entry for event in texts for entry in event.logprobs), *ends[index].logprobs],
            ends[index],
        )
        for index, texts in enumerate(events)
    ]


def _choice(
    index: int, answer: _Answer, scribe: TextScribe, echo: Echo | None, body: CompletionBody
) -> TextChoice:
    text = answer.text
    logprobs = None if body.logprobs is None else scribe.write(answer.logprobs)
    if echo is not None:
        before, of_prompt = echo.show(answer.prompt)
        text = before + text
        if of_prompt is not None and logprobs is not None:
            logprobs = of_prompt + logprobs
    return TextChoice(text, index, logprobs, answer.end.reason)


def _weight(answers: Sequence[_Answer]) -> int:
    """Return how many characters take as long to encode as these answers take to be written down."""
    entries = (entry for answer in answers for entry in (*answer.prompt, *answer.logprobs))
    return sum(1 + len(entry.top) for entry in entries) * CHARACTERS_PER_LOGPROB
