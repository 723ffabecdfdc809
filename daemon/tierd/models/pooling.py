"""How a file says that the hidden states of a text become one vector: `{architecture}.pooling_type`.

The numbers are those of llama.cpp's `enum llama_pooling_type`.
"""

from __future__ import annotations

from tierd.core import Pooling
from tierd.models.gguf import GGUFFile

_KINDS = (Pooling.NONE, Pooling.MEAN, Pooling.CLS, Pooling.LAST, Pooling.RANK)


def read_pooling(file: GGUFFile) -> Pooling | None:
    """Return what a file says, None where it is silent, as that of a model made to generate is.

    Raises ModelFileError for a number that stands for nothing.
    """
    key = f"{file.text('general.architecture')}.pooling_type"
    if key not in file.metadata:
        return None
    return _KINDS[file.integer(key, most=len(_KINDS) - 1)]
