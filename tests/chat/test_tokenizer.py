from __future__ import annotations

import json
import lzma
import mmap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures import unicode_strings as texts
from fixtures import unicode_vocabularies as vocabularies
from fixtures.unicode_vocabularies import CONTROL, USER_DEFINED
from tierd.chat.tokenizer import Tokenizer, build_tokenizer
from tierd.errors import InvalidRequestError, ModelFileError, UnsupportedModelError
from tierd.models.gguf import GGUFFile, Value

MODELS = ("smollm2", "gemma3")
ORACLES = {"smollm2": "smollm2-135m-q4_1.json", "gemma3": "gemma3-270m-q4_k_m.json"}
TEXTS = texts.unicode_strings(texts.COUNT)


def from_metadata(metadata: dict[str, Value]) -> GGUFFile:
    return GGUFFile(Path("made-up.gguf"), mmap.mmap(-1, 1), metadata, {})


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    data = (Path(__file__).parent.parent / "fixtures" / "unicode_ids.json.xz").read_bytes()
    found: dict[str, Any] = json.loads(lzma.decompress(data))
    return found


def check(tokenizer: Tokenizer, strings: list[str], expected: list[list[int]], *, special: bool) -> None:
    """Compare ids, and name the texts that fail."""
    assert len(strings) == len(expected)
    wrong = []
    for text, ids in zip(strings, expected, strict=True):
        got = tokenizer.encode(text, add_special=special, parse_special=special)
        if got != ids:
            wrong.append(f"{text!a}: {got} is not {ids}")
    assert not wrong, f"{len(wrong)} of {len(strings)} texts:\n" + "\n".join(wrong[:5])


@pytest.mark.parametrize("model", MODELS)
def test_oracle_tokenize(model: str, tokenizers: dict[str, Tokenizer], oracle_dir: Path) -> None:
    rows = json.loads((oracle_dir / ORACLES[model]).read_text())["tokenize"]
    strings = [row["text"] for row in rows]
    check(tokenizers[model], strings, [row["plain"] for row in rows], special=False)
    check(tokenizers[model], strings, [row["special"] for row in rows], special=True)


@pytest.mark.parametrize("model", MODELS)
def test_oracle_detokenize(model: str, tokenizers: dict[str, Tokenizer], oracle_dir: Path) -> None:
    rows = json.loads((oracle_dir / ORACLES[model]).read_text())["detokenize"]
    assert [tokenizers[model].decode(row["tokens"]) for row in rows] == [row["text"] for row in rows]


@pytest.mark.parametrize("model", MODELS)
def test_random_unicode(model: str, tokenizers: dict[str, Tokenizer], truth: dict[str, Any]) -> None:
    tokenizer, plain = tokenizers[model], truth[model]["plain"]
    assert len(plain) == 2_000
    check(tokenizer, TEXTS, plain, special=False)
    begin = [] if model == "smollm2" else [tokenizer.bos_id]
    special = truth[model]["special"]
    check(
        tokenizer,
        TEXTS,
        [special.get(str(index), begin + ids) for index, ids in enumerate(plain)],
        special=True,
    )


@pytest.mark.parametrize("model", MODELS)
def test_round_trip(model: str, tokenizers: dict[str, Tokenizer]) -> None:
    """Every text comes back, but for bytes SmolLM2 has no token for, and Gemma's mark for a space."""
    tokenizer = tokenizers[model]
    spelled = {byte for token in range(tokenizer.vocabulary) for byte in tokenizer.token_bytes(token)}
    whole = [
        text for text in TEXTS if set(text.encode()) <= spelled and (model != "gemma3" or "▁" not in text)
    ]
    assert len(whole) > 0.85 * len(TEXTS)
    for text in whole:
        assert tokenizer.decode(tokenizer.encode(text, add_special=True, parse_special=False)) == text


def test_marks_for_spaces_decode_to_spaces(tokenizers: dict[str, Tokenizer]) -> None:
    ids = tokenizers["gemma3"].encode("a▁b", add_special=False, parse_special=False)
    assert tokenizers["gemma3"].decode(ids) == "a b"


@pytest.mark.parametrize("name", texts.PRE_TOKENIZERS)
def test_pre_tokenizers(name: str, truth: dict[str, Any]) -> None:
    tokenizer = build_tokenizer(from_metadata(vocabularies.merging_bytelevel(name)))
    expected = truth["pre"][name]
    assert len(expected) == 400
    check(tokenizer, TEXTS[: len(expected)], expected, special=True)


def test_pre_tokenizers_differ(truth: dict[str, Any]) -> None:
    """The fixture tells each from each."""
    every = list(truth["pre"].values())
    assert all(a != b for index, a in enumerate(every) for b in every[:index])


def test_pre_tokenizer_aliases_and_default() -> None:
    def ids(name: str | None) -> list[int]:
        file = altered(vocabularies.merging_bytelevel("gpt-2"), {"pre": name})
        text = "I'LL count 1234567 $$ things\r\n\r\n  \n-- 12"
        return build_tokenizer(file).encode(text, add_special=True, parse_special=False)

    assert ids("llama3") == ids("llama-v3") == ids("llama-bpe") != ids("qwen2")
    assert ids(None) == ids("default") != ids("gpt-2")


@pytest.mark.parametrize("name", vocabularies.SMALL_NAMES)
def test_small_sentencepiece(name: str, truth: dict[str, Any]) -> None:
    """A space before every text, white space swallowed after special tokens, an end token added."""
    tokenizer = build_tokenizer(from_metadata(vocabularies.small_sentencepiece(name)))
    expected = truth["small"][name]
    check(tokenizer, TEXTS[: texts.SMALL_COUNT], expected["plain"], special=False)
    check(tokenizer, TEXTS[: texts.SMALL_COUNT], expected["special"], special=True)
    pieces = [tokenizer.token_bytes(token).decode("latin-1") for token in range(tokenizer.vocabulary)]
    assert pieces == expected["pieces"]


def test_space_before_text_is_taken_away_again() -> None:
    tokenizer = build_tokenizer(from_metadata(vocabularies.small_sentencepiece("small")))
    for text in ("hello", " hello", "  hello  ", "好", ""):
        ids = tokenizer.encode(text, add_special=True, parse_special=False)
        assert ids[0] == tokenizer.bos_id
        assert ids[-1] == tokenizer.eos_id
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("model", MODELS)
def test_end_ids_of_real_models(model: str, tokenizers: dict[str, Tokenizer], truth: dict[str, Any]) -> None:
    assert sorted(tokenizers[model].end_ids) == truth[model]["end"]


@pytest.mark.parametrize("case", vocabularies.END_CASES)
def test_end_ids(case: str, truth: dict[str, Any]) -> None:
    """Which tokens end a generation, and which became control tokens for it."""
    tokenizer = build_tokenizer(from_metadata(vocabularies.END_CASES[case]))
    expected = truth["end"][case]
    assert sorted(tokenizer.end_ids) == expected["end"]
    check(tokenizer, [vocabularies.END_TEXT], [expected["plain"]], special=False)
    pieces = [tokenizer.token_bytes(token).decode("latin-1") for token in range(tokenizer.vocabulary)]
    assert pieces == expected["pieces"]


def test_special_spellings_need_asking(tokenizers: dict[str, Tokenizer]) -> None:
    """Control tokens are parsed only on request, user-defined ones always, the longest first."""
    smollm2, gemma3 = tokenizers["smollm2"], tokenizers["gemma3"]
    assert smollm2.encode("<|im_end|>", add_special=False, parse_special=True) == [2]
    assert 2 not in smollm2.encode("<|im_end|>", add_special=False, parse_special=False)
    table = gemma3.encode("<table>", add_special=False, parse_special=False)
    assert [gemma3.token_text(token) for token in table] == ["<table>"]
    lines = gemma3.encode("\n" * 33, add_special=False, parse_special=False)
    assert [gemma3.token_text(token) for token in lines] == ["\n" * 31, "\n\n"]


def test_surrogates(tokenizers: dict[str, Tokenizer]) -> None:
    """A pair is the character it stands for; half a pair becomes U+FFFD."""
    tokenizer = tokenizers["gemma3"]
    for given, meant in (("\ud83d\ude00!", "😀!"), ("a\ud83d", "a�"), ("\ude00\ud83d", "��")):
        ids = tokenizer.encode(given, add_special=False, parse_special=False)
        assert tokenizer.decode(ids) == meant


def test_decode_replaces_bad_bytes_and_hides_control(tokenizers: dict[str, Tokenizer]) -> None:
    gemma3 = tokenizers["gemma3"]
    byte = {gemma3.token_text(token): token for token in range(300, 600)}.get
    half = [byte("<0xF0>"), byte("<0x9F>")]
    assert None not in half
    assert gemma3.decode([gemma3.bos_id or 0, *[token or 0 for token in half], *gemma3.end_ids]) == "�"


@pytest.mark.parametrize("token", [-1, 49_152, 2**40])
def test_ids_outside_the_vocabulary(token: int, tokenizers: dict[str, Tokenizer]) -> None:
    with pytest.raises(
        InvalidRequestError, match=f"token {token} is outside the model's vocabulary of 49152"
    ):
        tokenizers["smollm2"].decode([5, token])


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"tokens": None}, "key tokenizer.ggml.tokens is missing"),
    ({"tokens": []}, "key tokenizer.ggml.tokens is empty"),
    ({"tokens": 3}, "key tokenizer.ggml.tokens should be an array of strings"),
    ({"tokens": ["a", "b", "a"]}, "key tokenizer.ggml.tokens spells tokens 0 and 2 alike: 'a'"),
    ({"tokens": ["a", "\udcff"]}, "key tokenizer.ggml.tokens: token 1 is not valid UTF-8"),
    ({"token_type": np.ones(3, np.int32)}, "key tokenizer.ggml.token_type has 3 entries for 258 tokens"),
    ({"token_type": "x"}, "key tokenizer.ggml.token_type should be an array of whole numbers"),
    ({"token_type": np.full(258, 6, np.int32)}, "token 0 is a byte and should be spelled like <0x0A>"),
    ({"merges": None}, "key tokenizer.ggml.merges is missing"),
    ({"merges": ["a b", "ab"]}, "key tokenizer.ggml.merges: merge 1 should be two tokens, not 'ab'"),
    ({"merges": ["a zz"]}, "key tokenizer.ggml.merges: merge 0 should be two tokens, not 'a zz'"),
    ({"merges": ["a c"]}, "key tokenizer.ggml.merges: merge 0 makes 'ac', which is no token"),
    ({"bos_token_id": 258}, "key tokenizer.ggml.bos_token_id is 258, outside 0 to 257"),
    ({"eot_token_id": -1}, "key tokenizer.ggml.eot_token_id is -1, outside 0 to 257"),
    ({"eom_token_id": "x"}, "key tokenizer.ggml.eom_token_id should be a whole number"),
    ({"add_bos_token": 1}, "key tokenizer.ggml.add_bos_token should be true or false"),
    ({"add_bos_token": True, "bos_token_id": None}, "key tokenizer.ggml.bos_token_id is missing"),
    ({"add_eos_token": True, "eos_token_id": None}, "key tokenizer.ggml.eos_token_id is missing"),
    ({"model": None}, "key tokenizer.ggml.model is missing"),
]


def altered(metadata: dict[str, Value], changes: dict[str, Any]) -> GGUFFile:
    metadata = metadata | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    return from_metadata({key: value for key, value in metadata.items() if value is not None})


@pytest.mark.parametrize(("changes", "message"), FAULTS, ids=lambda value: str(value)[:40])
def test_faults_name_the_key(changes: dict[str, Any], message: str) -> None:
    file = altered(vocabularies.special_bytelevel({"<|im_end|>": CONTROL}), changes)
    with pytest.raises(ModelFileError) as caught:
        build_tokenizer(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


SENTENCEPIECE_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"scores": None}, "key tokenizer.ggml.scores is missing"),
    ({"scores": np.zeros(5, np.float32)}, "key tokenizer.ggml.scores has 5 entries for"),
    ({"scores": np.full(500, 1e300)}, "key tokenizer.ggml.scores holds a number that float32 does not"),
    ({"unknown_token_id": 99}, "key tokenizer.ggml.tokens: "),
    ({"tokens": ["<unk>", "<s>", "</s>", "a"]}, "key tokenizer.ggml.tokens lacks the byte token <0x00>"),
    ({"add_space_prefix": "yes"}, "key tokenizer.ggml.add_space_prefix should be true or false"),
]


@pytest.mark.parametrize(("changes", "message"), SENTENCEPIECE_FAULTS, ids=lambda value: str(value)[:40])
def test_sentencepiece_faults_name_the_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        build_tokenizer(altered(vocabularies.small_sentencepiece("small"), changes))
    assert message in str(caught.value)


def test_unsupported_tokenizers_are_named() -> None:
    metadata = vocabularies.special_bytelevel({"<x>": USER_DEFINED})
    with pytest.raises(
        UnsupportedModelError, match=r"tokenizer\.ggml\.pre .* 'deepseek-llm'.*known are default"
    ):
        build_tokenizer(altered(metadata, {"pre": "deepseek-llm"}))
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.model .* 't5'.*known are gpt2, llama"):
        build_tokenizer(altered(metadata, {"model": "t5"}))


def test_empty_spellings_get_one(tokenizers: dict[str, Tokenizer]) -> None:
    metadata = vocabularies.special_bytelevel({"": CONTROL, "<x>": CONTROL})
    tokenizer = build_tokenizer(from_metadata(metadata))
    assert tokenizer.token_text(257) == "[EMPTY_257]"
    assert tokenizer.encode("<x>", add_special=False, parse_special=True) == [258]


def test_long_runs_take_linear_time(tokenizers: dict[str, Tokenizer]) -> None:
    """A long run of one letter, or of spaces, is encoded well within the test's time limit."""
    for tokenizer in tokenizers.values():
        for text in ("a" * 200_000, " " * 200_000, "<unused1" * 20_000):
            ids = tokenizer.encode(text, add_special=False, parse_special=True)
            assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_other_threads_run_during_a_long_encode(model: str, tokenizers: dict[str, Tokenizer]) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 10_000
    beats = 0
    done = threading.Event()

    def beat() -> None:
        nonlocal beats
        while not done.wait(0.001):
            beats += 1

    heart = threading.Thread(target=beat)
    heart.start()
    before = beats
    ids = tokenizers[model].encode(text, add_special=False, parse_special=True)
    during = beats - before
    done.set()
    heart.join()
    assert len(ids) > 10_000
    assert during >= 5
