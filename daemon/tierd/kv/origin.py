"""The origin of K/V rows: all that their bits depend on, besides the tokens. Only rows of one are shared."""

from __future__ import annotations

from itertools import zip_longest

from tierd import __version__

# What the parts are called when they differ; the last one is where the rows were computed.
_PARTS = ("tierd", "model file", "codec")
_BETWEEN = "; "


def origin_of(file: str, codec: str, place: str) -> str:
    """Return the origin of a model's rows.

    file: identity of the model's file. codec: how K/V is kept. place: what computes: an executor with its
    level, or a device with its driver and its way to multiply.
    """
    return _BETWEEN.join((f"tierd {__version__}", f"file {file}", f"codec {codec}", place))


def strangeness(rows: str, model: str) -> str:
    """Say what of rows' origin makes them useless to a model, wherever that runs; "" for the place alone."""
    pairs = zip_longest(rows.split(_BETWEEN, 3), model.split(_BETWEEN, 3), fillvalue="")
    return next((f"another {name}" for name, (a, b) in zip(_PARTS, pairs, strict=False) if a != b), "")


def place_of(origin: str) -> str:
    """Return where rows of an origin were computed."""
    return origin.split(_BETWEEN, 3)[-1]
