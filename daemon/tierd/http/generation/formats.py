"""From the fields of a request that say what its answer must obey to the source of a grammar.

`response_format` is OpenAI's; `structured_outputs` and those that begin with "guided" are vLLM's, `grammar`
and `json_schema` llama.cpp's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec
from starlette.requests import Request

from tierd.chat.grammar import Source
from tierd.core import Grammar
from tierd.engine import CatalogueEntry
from tierd.errors import InvalidRequestError
from tierd.http.auth import Visit
from tierd.http.body import json_fault
from tierd.http.encoder import Encoder
from tierd.http.requests import Generation, ResponseFormat, StructuredOutputs
from tierd.http.unsupported import SILENT, refuse_unsupported

_FORMATS = ("text", "json_object", "json_schema")
# A rule of llama.cpp's notation; in Lark's a name is followed by a colon alone.
_GBNF_RULE = re.compile(r"^[ \t]*[A-Za-z][\w-]*\s*::=", re.MULTILINE)


def source(body: Generation, *first: Source) -> Source | None:
    """Return what the answer must obey, None where it is free. Raises InvalidRequestError: more than one.

    first: what fields of an API's own say.
    """
    found = [*first, *_sources(body)]
    if len(found) > 1:
        one, other = found[0].field, found[1].field
        raise InvalidRequestError(
            f"{other}: not together with {one}; an answer obeys one of them", param=other
        )
    return found[0] if found else None


def check_format(kind: str, field: str) -> None:
    """Raise InvalidRequestError where OpenAI has no format of that name. field: what named it."""
    if kind not in _FORMATS:
        raise InvalidRequestError(
            f"{field}: no such format, {kind!r}; use {', '.join(_FORMATS)}", param=field
        )


async def compile_source(
    encoder: Encoder, entry: CatalogueEntry, source: Source | None, request: Request
) -> Grammar | None:
    """Return the grammar that a source describes. Raises InvalidRequestError, which names its field.

    request: the one that it came with.
    """
    if source is None:
        return None
    visit: Visit = request.state.visit
    return await encoder.run_in_thread(lambda: entry.grammars.compile(source, visit.owner))


def _sources(body: Generation) -> Iterator[Source]:
    if body.response_format is not None:
        yield from _response_format(body.response_format)
    if body.structured_outputs is not None:
        yield from _structured_outputs(body.structured_outputs)
    yield from _json(body.json_schema, "json_schema")
    if body.grammar:
        yield _grammar(body.grammar, "grammar")
    yield from _json(body.guided_json, "guided_json")
    if body.guided_regex is not None:
        yield Source("regex", body.guided_regex, "guided_regex")
    if body.guided_choice is not None:
        yield _choice(body.guided_choice, "guided_choice")
    if body.guided_grammar is not None:
        yield _grammar(body.guided_grammar, "guided_grammar")


def _response_format(wanted: ResponseFormat) -> Iterator[Source]:
    """Return what `response_format` asks for. Its schema may also stand where llama.cpp has it."""
    field = "response_format"
    check_format(wanted.type, f"{field}.type")
    if wanted.type == "text":
        return
    schema, path = wanted.schema, f"{field}.schema"
    if wanted.type == "json_schema" and wanted.json_schema is not None:
        schema, path = wanted.json_schema.schema, f"{field}.json_schema.schema"
    if schema is not SILENT:
        yield from _json(schema, path)
    elif wanted.type == "json_object":
        yield Source("json_object", "", field)
    else:
        path = f"{field}.json_schema" + (".schema" if wanted.json_schema is not None else "")
        raise InvalidRequestError(f"{path} is missing", param=path)


def _structured_outputs(wanted: StructuredOutputs) -> Iterator[Source]:
    field = "structured_outputs"
    refuse_unsupported(wanted, field + ".")
    yield from _json(wanted.json, f"{field}.json")
    if wanted.json_object:
        yield Source("json_object", "", f"{field}.json_object")
    if wanted.regex is not None:
        yield Source("regex", wanted.regex, f"{field}.regex")
    if wanted.choice is not None:
        yield _choice(wanted.choice, f"{field}.choice")
    if wanted.grammar is not None:
        yield _grammar(wanted.grammar, f"{field}.grammar")


def _json(given: msgspec.Raw, field: str) -> Iterator[Source]:
    """Return a schema, which may come as a string that spells it."""
    text = bytes(given).decode(errors="replace")
    if text.startswith('"'):
        try:
            text = msgspec.json.decode(given, type=str)
        except msgspec.DecodeError as error:
            fault = json_fault(bytes(given), error)
            raise InvalidRequestError(f"{field}: not valid JSON: {fault}", param=field) from error
    if text != "null":
        yield Source("json_schema", text, field)


def _choice(choices: list[str], field: str) -> Source:
    return Source("choice", json.dumps(choices, ensure_ascii=False), field)


def _grammar(text: str, field: str) -> Source:
    """Return a grammar, in whichever notation it is."""
    return Source("gbnf" if _GBNF_RULE.search(text) else "lark", text, field)
