"""The events of a response's stream, and how one is framed: its name in a line, its JSON in the next."""

from __future__ import annotations

import msgspec

from tierd.http.responses.shapes import Logprob, OutputItem, OutputText, ReasoningText, ResponseObject
from tierd.http.sse import named_frame

Part = OutputText | ReasoningText


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What all have. sequence_number: 0, 1, 2, … within a stream."""

    sequence_number: int


class Created(Event, frozen=True, kw_only=True, tag="response.created"):
    """The first one."""

    response: ResponseObject


class InProgress(Event, frozen=True, kw_only=True, tag="response.in_progress"):
    """The model is at work."""

    response: ResponseObject


class ItemAdded(Event, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item begins; the one before has ended."""

    output_index: int
    item: OutputItem


class ItemDone(Event, frozen=True, kw_only=True, tag="response.output_item.done"):
    """An item has ended."""

    output_index: int
    item: OutputItem


class _OfItem(Event, frozen=True, kw_only=True):
    """What all have that belong to an item."""

    item_id: str
    output_index: int


class _OfPart(_OfItem, frozen=True, kw_only=True):
    """What all have that belong to a part of an item's content; an item has one."""

    content_index: int = 0


class PartAdded(_OfPart, frozen=True, kw_only=True, tag="response.content_part.added"):
    """A part begins."""

    part: Part


class PartDone(_OfPart, frozen=True, kw_only=True, tag="response.content_part.done"):
    """A part has ended."""

    part: Part


class TextDelta(_OfPart, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """More of a text."""

    delta: str
    logprobs: list[Logprob]


class TextDone(_OfPart, frozen=True, kw_only=True, tag="response.output_text.done"):
    """A text, whole."""

    text: str
    logprobs: list[Logprob]


class ReasoningDelta(_OfPart, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """More of a thought."""

    delta: str


class ReasoningDone(_OfPart, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """A thought, whole."""

    text: str


class ArgumentsDelta(_OfItem, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of the JSON text of a call's arguments."""

    delta: str


class ArgumentsDone(_OfItem, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    """A call's arguments, whole. name: of the function, which some clients read here."""

    name: str
    arguments: str


class Completed(Event, frozen=True, kw_only=True, tag="response.completed"):
    """The last one of a response that the model has ended."""

    response: ResponseObject


class Incomplete(Event, frozen=True, kw_only=True, tag="response.incomplete"):
    """The last one of a response that was cut off: by its limit, or because it was cancelled."""

    response: ResponseObject


class Failed(Event, frozen=True, kw_only=True, tag="response.failed"):
    """The last one of a response that could not go on."""

    response: ResponseObject


class Fault(Event, frozen=True, kw_only=True, tag="error"):
    """Why a stream ends."""

    code: str | None
    message: str
    param: str | None


def frame(event: Event) -> bytes:
    """Return an event as it is sent."""
    return named_frame(str(event.__struct_config__.tag), event)
