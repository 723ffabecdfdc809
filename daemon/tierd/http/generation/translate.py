"""From a request body to the engine's nouns. Pure; every error names the field at fault."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import replace

from tierd.core import Request, SamplingParams, TokenMask
from tierd.engine import CatalogueEntry
from tierd.errors import ContextLengthExceededError, InvalidRequestError
from tierd.http.requests import ChatBody, CompletionBody, Generation

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
# Characters or ids. Encoding so much takes seconds at worst, and cannot be broken off.
MAX_CONTENT = 1 << 20
MAX_BIASES = 1024
SEED_BITS = 64

# Fields that a request and SamplingParams share.
_SAMPLING = (
    "repeat_penalty", "presence_penalty", "frequency_penalty", "temperature", "top_k", "top_p", "min_p",
)  # fmt: skip

# As json.dumps writes an integer that is a key: no sign, no leading zero, so no id comes twice.
_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def sampling(body: Generation, entry: CatalogueEntry) -> SamplingParams:
    """Return how to sample; the model's defaults hold for what the request leaves open.

    A signed seed is taken modulo 2**64; without one the answer differs from call to call. Raises
    InvalidRequestError: the seed, logit_bias or allowed_token_ids.
    """
    given = {name: getattr(body, name) for name in _SAMPLING if getattr(body, name) is not None}
    if "top_k" in given:
        given["top_k"] = max(given["top_k"], 0)
    if body.repeat_last_n == 0:
        given.update(repeat_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)
    elif body.repeat_last_n is not None:
        given["penalty_window"] = max(body.repeat_last_n, 0)
    vocabulary = entry.tokenizer.vocabulary
    return replace(
        entry.sampling,
        **given,
        logit_bias=logit_bias(body, vocabulary),
        allowed=allowed(body, vocabulary),
        seed=read_seed(body.seed),
    )


def logit_bias(body: Generation, vocabulary: int) -> tuple[tuple[int, float], ...]:
    """Return (id, bias), ascending. Raises InvalidRequestError for what is no token, or out of range."""
    biases = body.logit_bias or {}
    if len(biases) > MAX_BIASES:
        raise InvalidRequestError(
            f"logit_bias: {len(biases)} tokens; at most {MAX_BIASES}", param="logit_bias"
        )
    for key, bias in biases.items():
        if not _ID.fullmatch(key) or int(key) >= vocabulary:
            raise InvalidRequestError(
                f"logit_bias: {key[:20]!r} is not a token id; this model's run from 0 to {vocabulary - 1}",
                param="logit_bias",
            )
        if not -100 <= bias <= 100:
            raise InvalidRequestError(
                f"logit_bias: {bias:g} for token {key}; must lie between -100 and 100", param="logit_bias"
            )
    return tuple(sorted((int(key), bias) for key, bias in biases.items()))


def allowed(body: Generation, vocabulary: int) -> TokenMask | None:
    """Return which tokens may be generated, None for all. Raises InvalidRequestError for what is no token."""
    field, ids = "allowed_token_ids", body.allowed_token_ids
    if ids is None:
        return None
    if not ids:
        raise InvalidRequestError(f"{field}: empty; allow at least one, or leave it out for all", param=field)
    if len(ids) > vocabulary:
        raise InvalidRequestError(f"{field}: {len(ids)} tokens; this model has {vocabulary}", param=field)
    check_ids(ids, vocabulary, field)
    return TokenMask.of(ids, vocabulary)


def top_logprobs(body: ChatBody | CompletionBody) -> int | None:
    """Return how many log-probabilities to tell beside each token's own, None for none at all."""
    if isinstance(body, CompletionBody):
        return body.logprobs
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidRequestError("top_logprobs: only with logprobs true", param="top_logprobs")
    return None


def choices(body: Generation, entry: CatalogueEntry) -> int:
    """Return how many answers are asked for. Raises InvalidRequestError for more than can run together."""
    count = body.n or 1
    if count > entry.streams:
        raise InvalidRequestError(
            f"n: {count}; {entry.id!r} has {entry.streams} streams, so at most that many choices", param="n"
        )
    if body.best_of not in (None, count):
        raise InvalidRequestError(
            f"best_of: {body.best_of}; choosing the best is not supported, leave it out or send n, {count}",
            param="best_of",
        )
    return count


def each_choice(first: Request, body: Generation, entry: CatalogueEntry) -> list[Request]:
    """Return what the engine is asked for, one for each choice: they differ from the first in name and seed.

    Raises InvalidRequestError as `choices` does.
    """
    seeds = [choice_seed(first.sampling.seed, i) for i in range(choices(body, entry))]
    return [
        replace(first, id=f"{first.id}/{i}" if i else first.id, sampling=replace(first.sampling, seed=seed))
        for i, seed in enumerate(seeds)
    ]


def choice_seed(seed: int, index: int) -> int:
    """Return the seed of a choice: the request's own for the first, so that n does not change it.

    The steps, 2**64 divided by the golden ratio, keep the choices of neighbouring seeds apart.
    """
    return (seed + index * 0x9E3779B97F4A7C15) % (1 << SEED_BITS)


def read_seed(seed: int | None) -> int:
    """Return 64 bits; without a seed others each time. Raises InvalidRequestError."""
    if seed is None:
        return secrets.randbits(SEED_BITS)
    if not -(1 << SEED_BITS - 1) <= seed < 1 << SEED_BITS - 1:
        raise InvalidRequestError("seed: must be a signed 64-bit integer", param="seed")
    return seed % (1 << SEED_BITS)


def stops(body: Generation) -> tuple[str, ...]:
    """Return the stop strings."""
    if body.stop is None:
        return ()
    if isinstance(body.stop, str):
        return (_stop(body.stop, "stop"),)
    return stop_strings(body.stop, "stop")


def stop_strings(given: Sequence[str], field: str) -> tuple[str, ...]:
    """Return the stop strings of a list, which came in `field`."""
    if len(given) > MAX_STOPS:
        raise InvalidRequestError(f"{field}: {len(given)} strings; at most {MAX_STOPS}", param=field)
    return tuple(_stop(text, f"{field}[{i}]") for i, text in enumerate(given))


def _stop(text: str, where: str) -> str:
    if not text:
        raise InvalidRequestError(f"{where}: must not be empty; leave it out for none", param=where)
    if len(text) > MAX_STOP_CHARACTERS:
        raise InvalidRequestError(
            f"{where}: {len(text)} characters; at most {MAX_STOP_CHARACTERS}", param=where
        )
    return text


def include_usage(body: Generation) -> bool:
    """Return whether a stream ends with token counts."""
    if body.stream_options is None:
        return False
    if not body.stream:
        raise InvalidRequestError(
            "stream_options: only for a stream; send stream true or leave it out", param="stream_options"
        )
    return bool(body.stream_options.include_usage)


def asked_tokens(body: ChatBody | CompletionBody) -> tuple[int | None, str]:
    """Return how many tokens the answer may have, None for what the context leaves, and the field."""
    if isinstance(body, CompletionBody) or body.max_completion_tokens is None:
        return body.max_tokens, "max_tokens"
    if body.max_tokens not in (None, body.max_completion_tokens):
        raise InvalidRequestError(
            "max_tokens: differs from max_completion_tokens, its newer name; send one", param="max_tokens"
        )
    return body.max_completion_tokens, "max_completion_tokens"


def budget(entry: CatalogueEntry, prompt: int, asked: tuple[int | None, str], field: str) -> int:
    """Return how many tokens the answer may have, so that nothing is ever cut in silence.

    prompt: tokens of the prompt, which came in `field`. asked: as `asked_tokens` returns it.
    Raises ContextLengthExceededError with both numbers, and InvalidRequestError.
    """
    if prompt == 0:
        raise InvalidRequestError(f"{field}: empty; a model needs something to go on from", param=field)
    tokens, name = asked
    wanted = 1 if tokens is None else tokens
    if prompt + wanted > entry.context:
        raise ContextLengthExceededError(
            f"{field}: {prompt} tokens and {wanted} for the answer are {prompt + wanted}, more than the "
            f"context of {entry.id!r}, {entry.context}; shorten the prompt or lower {name}",
            param=field,
        )
    if prompt > entry.max_prompt_tokens:
        raise ContextLengthExceededError(
            f"{field}: {prompt} tokens; this server takes prompts of at most {entry.max_prompt_tokens}",
            param=field,
        )
    if wanted > entry.max_output_tokens:
        raise InvalidRequestError(
            f"{name}: {wanted}; this server gives at most {entry.max_output_tokens}", param=name
        )
    return min(entry.context - prompt, entry.max_output_tokens) if tokens is None else tokens


def check_length(entry: CatalogueEntry, text: str, field: str) -> None:
    """Raise ContextLengthExceededError for a text that cannot fit, however it is cut into tokens.

    Spares the time to encode it, which may be minutes.
    """
    tokens = -(-len(text) // entry.tokenizer.longest)
    if tokens > entry.context:
        raise ContextLengthExceededError(
            f"{field}: {len(text)} characters, at least {tokens} tokens, more than the context of "
            f"{entry.id!r}, {entry.context}; shorten the prompt",
            param=field,
        )


def check_content(content: str | list[int], field: str) -> None:
    """Raise InvalidRequestError for a text, or ids, that would take too long to encode or decode."""
    if len(content) > MAX_CONTENT:
        what = "characters" if isinstance(content, str) else "tokens"
        raise InvalidRequestError(
            f"{field}: {len(content)} {what}; at most {MAX_CONTENT}, send it in parts", param=field
        )


def check_ids(ids: list[int], vocabulary: int, field: str) -> None:
    """Raise InvalidRequestError for the first id that is not a token of the model."""
    for i, token in enumerate(ids):
        if not 0 <= token < vocabulary:
            raise InvalidRequestError(
                f"{field}[{i}]: {token} is not a token; this model's run from 0 to {vocabulary - 1}",
                param=f"{field}[{i}]",
            )
