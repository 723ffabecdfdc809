"""Reading a request's JSON body: bounded, decoded into its shape, every fault named.

A fault of shape is reported with the path of the field, as OpenAI writes it: `messages[0].role`.
"""

from __future__ import annotations

import gc
import re
from typing import TypeVar

import msgspec
from starlette.requests import Request

from tierd.errors import InvalidRequestError
from tierd.http.errors import BodyTooLargeError

# Decoding holds the interpreter: some 10 ms for each MiB at worst.
MAX_BODY_BYTES = 8 << 20

_Shape = TypeVar("_Shape")

# msgspec ends a ValidationError's message with " - at `$.messages[0].role`".
_FAULT = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`")
# It names half of a surrogate pair so, but where the other half would reach over the end: truncated, it says.
_HALF = re.compile(r"(?:surrogate|hex escape).*\(byte (?P<place>\d+)\)")
_HALF_AT_END = re.compile(
    rb"(?<!\\)(?:\\\\)*\\ud[89ab][0-9a-f]{2}(?!\\(?:u[0-9a-f]{0,3})?\Z).{1,5}\Z", re.DOTALL | re.IGNORECASE
)


async def read_body(
    request: Request, decoder: msgspec.json.Decoder[_Shape], *, when_empty: bytes = b""
) -> _Shape:
    """Read and decode the body; when_empty stands for one of no bytes.

    Raises InvalidRequestError, BodyTooLargeError, ClientDisconnect.
    """
    if request.headers.get("content-encoding", "").lower() not in ("", "identity"):
        raise InvalidRequestError("the header Content-Encoding: not supported; send the body as it is")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
    return decode(body or when_empty, decoder)


def decode(body: bytes | bytearray, decoder: msgspec.json.Decoder[_Shape]) -> _Shape:
    """Decode JSON into the decoder's shape. Raises InvalidRequestError, which names the field."""
    # A body of millions of lists would have the collector look through them over and over.
    gc.disable()
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _shape_fault(str(error)) from error
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {json_fault(body, error)}") from error
    except RecursionError as error:
        raise InvalidRequestError("the body is nested too deeply") from error
    finally:
        gc.enable()


def json_fault(text: bytes | bytearray, error: msgspec.DecodeError) -> str:
    """Return what is wrong with a text that is no JSON."""
    said, place = str(error), len(text)
    if half := _HALF.search(said):
        place = int(half["place"])
    elif not ("truncated" in said and _HALF_AT_END.search(text[-64:])):
        return said
    return f"half of a surrogate pair before byte {place}; write both halves, or the character as it is"


def _too_large() -> BodyTooLargeError:
    return BodyTooLargeError(f"the body is larger than {MAX_BODY_BYTES} bytes")


def _shape_fault(message: str) -> InvalidRequestError:
    fault = _FAULT.fullmatch(message)
    assert fault is not None
    what, path = fault["what"], fault["path"] or ""
    missing = _MISSING.fullmatch(what)
    if missing is not None:
        path = f"{path}.{missing['name']}" if path else missing["name"]
        return InvalidRequestError(f"{path} is missing", param=path)
    what = what[:1].lower() + what[1:]
    return InvalidRequestError(f"{path}: {what}" if path else f"the body: {what}", param=path or None)
