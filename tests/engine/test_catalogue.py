from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.harness import NULL, model
from engine.null_slot import null_slot
from tierd.core import SamplingParams
from tierd.engine.catalogue import Catalogue, describe
from tierd.errors import ModelNotFoundError, UnavailableError
from tierd.settings import LimitsSettings, ModelSettings

A, B = describe(null_slot(model("a"))), describe(null_slot(replace(NULL, id="b")))


def test_an_entry_tells_what_a_request_may_ask_for() -> None:
    limits = LimitsSettings(max_prompt_tokens=50, max_output_tokens=1000)
    sampling = {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "penalty_window": 64}
    sampling |= {"repeat_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": -0.3}
    settings = ModelSettings(id="m", path=Path("m.gguf"), **sampling)
    entry = describe(null_slot(settings, limits=limits, pages=25))
    assert (entry.id, entry.architecture, entry.default, entry.renderer) == ("m", "null", False, None)
    assert (entry.context, entry.max_prompt_tokens, entry.max_output_tokens) == (100, 50, 100)
    assert entry.sampling == SamplingParams(**sampling)
    assert (
        entry.tokenizer.decode(entry.tokenizer.encode("hé", add_special=False, parse_special=False)) == "hé"
    )


def test_without_limits_the_context_is_the_limit() -> None:
    assert (A.max_prompt_tokens, A.max_output_tokens) == (A.context, A.context)


def test_models_are_found_by_name_and_the_default_without() -> None:
    catalogue = Catalogue().extend(B, loading=()).extend(A, loading=("z",))
    assert list(catalogue.entries) == ["a", "b"]
    assert catalogue.resolve("a") is A
    assert catalogue.resolve() is B
    with pytest.raises(ModelNotFoundError, match="no model 'x'; models served: a, b") as error:
        catalogue.resolve("x")
    assert error.value.param == "model"
    with pytest.raises(UnavailableError, match="'z' is still loading"):
        catalogue.resolve("z")


def test_without_the_default_one_must_name_a_model() -> None:
    for catalogue in (Catalogue(), Catalogue().extend(A, loading=("b",))):
        with pytest.raises(UnavailableError, match="the default model is not ready"):
            catalogue.resolve()
    assert not Catalogue(loading=("b",))
    with pytest.raises(ModelNotFoundError, match="served: none yet"):
        Catalogue().resolve("x")
