from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

from starlette.requests import Request

from chat.test_grammar import TOKENIZERS
from tierd.chat.grammar import Grammars, Source
from tierd.core import Grammar
from tierd.engine import CatalogueEntry
from tierd.http.auth import Visit
from tierd.http.encoder import Encoder
from tierd.http.generation.formats import compile_source


def test_a_grammar_is_compiled_for_whose_the_request_is() -> None:
    grammars, encoder = Grammars(TOKENIZERS["bytes"]), Encoder()
    entry = cast(CatalogueEntry, SimpleNamespace(grammars=grammars))
    source = Source("regex", "a+")

    def compiled(owner: str) -> Grammar | None:
        request = Request({"type": "http", "state": {"visit": Visit("key", owner)}})
        return asyncio.run(compile_source(encoder, entry, source, request))

    try:
        mine = compiled("alice")
        assert mine == compiled("alice") == grammars.compile(source, "alice")
        assert mine not in (compiled("bob"), compiled(""))
    finally:
        encoder.close()
        grammars.close()
