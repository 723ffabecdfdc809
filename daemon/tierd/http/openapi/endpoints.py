"""What the public listener answers, route by route: the one table that /openapi.json is made from.

A route that is not in it, or one in it that is not there, fails a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from tierd.errors import (
    BusyError,
    ForbiddenError,
    InvalidRequestError,
    ModelNotFoundError,
    ResponseNotFoundError,
    SlowReaderError,
    TierdError,
    UnavailableError,
)
from tierd.http.embeddings.shapes import EmbeddingBody, VectorList
from tierd.http.errors import BodyTooLargeError, ErrorBody, HeadTooLargeError, LateRequestError
from tierd.http.exposition import PLAIN
from tierd.http.messages.requests import ConversationBody, MessagesBody
from tierd.http.messages.shapes import ErrorEvent, Event, Message, TokenCount
from tierd.http.page.state import PageState
from tierd.http.requests import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from tierd.http.responses import events
from tierd.http.responses.pages import MOST, USUAL
from tierd.http.responses.requests import ResponsesBody
from tierd.http.responses.routes import MOST_EVENTS
from tierd.http.responses.shapes import Deleted, InputTokens, ItemList, ResponseObject
from tierd.http.shapes import (
    ChatChunk,
    ChatCompletion,
    Completion,
    Content,
    Health,
    Model,
    ModelList,
    Prompt,
    Tokens,
)

HTML = "text/html; charset=utf-8"
JSON = "application/json"
EVENT_STREAM = "text/event-stream"

Errors = Sequence[type[TierdError]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A part of the address. kind: its type. default: what silence means; None where that is nothing."""

    name: str
    kind: Any
    description: str
    place: Literal["path", "query"] = "query"
    default: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A method of a path.

    body: what is posted. answer: what comes back whole, of a media type. stream: what each event holds, where
    the answer may be a stream. errors: what it may be refused with, beside what any request may be.
    refusal: the shape of its errors.
    """

    method: Literal["get", "post", "delete"]
    path: str
    summary: str
    tag: str
    parameters: Sequence[Parameter] = ()
    body: type[msgspec.Struct] | None = None
    answer: Any
    media_type: str = JSON
    stream: Any = None
    errors: Errors = ()
    refusal: type[msgspec.Struct] = ErrorBody


# What any request may end with: before its route is known, in OpenAI's shape, and by a fault of tierd's.
UNROUTED: Errors = (LateRequestError, HeadTooLargeError)
ANYWHERE: Errors = (InvalidRequestError, ForbiddenError, TierdError)
_POSTED: Errors = (InvalidRequestError, BodyTooLargeError)
_TEXT: Errors = (*_POSTED, ModelNotFoundError)
_MODEL: Errors = (*_TEXT, BusyError, SlowReaderError, UnavailableError)
_STORED: Errors = (InvalidRequestError, ResponseNotFoundError)

_RESPONSE_EVENT = (
    events.Created
    | events.InProgress
    | events.ItemAdded
    | events.ItemDone
    | events.PartAdded
    | events.PartDone
    | events.TextDelta
    | events.TextDone
    | events.ReasoningDelta
    | events.ReasoningDone
    | events.ArgumentsDelta
    | events.ArgumentsDone
    | events.Completed
    | events.Incomplete
    | events.Failed
    | events.Fault
)
_MODEL_ID = Parameter("id", str, "The name of a model.", "path")
_RESPONSE_ID = Parameter("id", str, "The id of a response.", "path")

ENDPOINTS: Sequence[Endpoint] = (
    Endpoint(
        method="get",
        path="/v1/models",
        summary="List the models that answer.",
        tag="models",
        answer=ModelList,
    ),
    Endpoint(
        method="get",
        path="/v1/models/{id}",
        summary="Show a model.",
        tag="models",
        parameters=[_MODEL_ID],
        answer=Model,
        errors=[ModelNotFoundError],
    ),
    Endpoint(
        method="post",
        path="/v1/chat/completions",
        summary="Answer a conversation.",
        tag="completions",
        body=ChatBody,
        answer=ChatCompletion,
        stream=ChatChunk,
        errors=_MODEL,
    ),
    Endpoint(
        method="post",
        path="/v1/completions",
        summary="Go on from a prompt.",
        tag="completions",
        body=CompletionBody,
        answer=Completion,
        stream=Completion,
        errors=_MODEL,
    ),
    Endpoint(
        method="post",
        path="/v1/responses",
        summary="Make a response: whole, as a stream, or in the background.",
        tag="responses",
        body=ResponsesBody,
        answer=ResponseObject,
        stream=_RESPONSE_EVENT,
        errors=_MODEL,
    ),
    Endpoint(
        method="post",
        path="/v1/responses/input_tokens",
        summary="Count the tokens of what a response would be made from.",
        tag="responses",
        body=ResponsesBody,
        answer=InputTokens,
        errors=_TEXT,
    ),
    Endpoint(
        method="get",
        path="/v1/responses/{id}",
        summary="Show a response, as far as it has come, or go on with its stream.",
        tag="responses",
        parameters=[
            _RESPONSE_ID,
            Parameter("stream", bool, "Whether to stream a response that was made so.", default=False),
            Parameter(
                "starting_after",
                Annotated[int, msgspec.Meta(ge=0, le=MOST_EVENTS)],
                "Of a stream: the number of the last event that is not to be sent again.",
            ),
        ],
        answer=ResponseObject,
        stream=_RESPONSE_EVENT,
        errors=_STORED,
    ),
    Endpoint(
        method="delete",
        path="/v1/responses/{id}",
        summary="Forget a response; one that runs ends.",
        tag="responses",
        parameters=[_RESPONSE_ID],
        answer=Deleted,
        errors=_STORED,
    ),
    Endpoint(
        method="post",
        path="/v1/responses/{id}/cancel",
        summary="End a response that runs in the background; there is no cancelling of others.",
        tag="responses",
        parameters=[_RESPONSE_ID],
        answer=ResponseObject,
        errors=_STORED,
    ),
    Endpoint(
        method="get",
        path="/v1/responses/{id}/input_items",
        summary="List the items that a response was given, those of the responses before it among them.",
        tag="responses",
        parameters=[
            _RESPONSE_ID,
            Parameter("after", str, "The id of the item that the page begins behind."),
            Parameter(
                "limit", Annotated[int, msgspec.Meta(ge=1, le=MOST)], "Items of a page.", default=USUAL
            ),
            Parameter("order", Literal["asc", "desc"], "Which items come first.", default="desc"),
        ],
        answer=ItemList,
        errors=_STORED,
    ),
    Endpoint(
        method="post",
        path="/v1/embeddings",
        summary="Turn texts into vectors of length 1.",
        tag="embeddings",
        body=EmbeddingBody,
        answer=VectorList,
        errors=_MODEL,
    ),
    Endpoint(
        method="post",
        path="/v1/messages",
        summary="Answer a conversation, in Anthropic's shape.",
        tag="messages",
        body=MessagesBody,
        answer=Message,
        stream=Event,
        errors=_MODEL,
        refusal=ErrorEvent,
    ),
    Endpoint(
        method="post",
        path="/v1/messages/count_tokens",
        summary="Count the tokens of a conversation.",
        tag="messages",
        body=ConversationBody,
        answer=TokenCount,
        errors=_TEXT,
        refusal=ErrorEvent,
    ),
    Endpoint(
        method="post",
        path="/tokenize",
        summary="Return the ids of a text.",
        tag="text",
        body=TokenizeBody,
        answer=Tokens,
        errors=_TEXT,
    ),
    Endpoint(
        method="post",
        path="/detokenize",
        summary="Return the text of ids.",
        tag="text",
        body=DetokenizeBody,
        answer=Content,
        errors=_TEXT,
    ),
    Endpoint(
        method="post",
        path="/apply-template",
        summary="Return the prompt of a conversation.",
        tag="text",
        body=ChatBody,
        answer=Prompt,
        errors=_TEXT,
    ),
    Endpoint(
        method="get",
        path="/health",
        summary="Tell whether a model can answer.",
        tag="watching",
        answer=Health,
        errors=[UnavailableError],
    ),
    Endpoint(
        method="get",
        path="/metrics",
        summary="Return the metrics in Prometheus' text format.",
        tag="watching",
        answer=str,
        media_type=PLAIN.media_type,
    ),
    Endpoint(
        method="get",
        path="/openapi.json",
        summary="Describe all this.",
        tag="watching",
        answer=dict[str, Any],
    ),
    Endpoint(
        method="get",
        path="/",
        summary="Show the status page.",
        tag="watching",
        answer=str,
        media_type=HTML,
    ),
    Endpoint(
        method="get",
        path="/page/state.json",
        summary="Tell what the status page shows.",
        tag="watching",
        answer=PageState,
    ),
)
