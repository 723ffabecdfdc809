"""What all architectures share: lookup, sizes read from keys, and that every tensor has a use."""

from __future__ import annotations

import struct

import pytest

from forged import STRING, U16, Entry, Key, forge, string
from tierd.errors import ModelFileError, UnsupportedModelError
from tierd.models import GGUFFile, architectures, build_plan
from tiny import write_gemma3, write_llama

WRITERS = {"llama": write_llama, "gemma3": write_gemma3}


@pytest.fixture(params=WRITERS)
def architecture(request):
    return request.param


@pytest.fixture
def plan_of(tmp_path):
    def open_and_plan(writer, **arguments):
        with GGUFFile.open(writer(tmp_path / "tiny.gguf", **arguments)) as file:
            return build_plan(file)

    return open_and_plan


def forged_file(tmp_path, *keys, entries=(), data=b""):
    (tmp_path / "forged.gguf").write_bytes(forge(keys, entries, data))
    return GGUFFile.open(tmp_path / "forged.gguf")


def test_families_are_found():
    assert architectures() == ("gemma3", "llama")


def test_unknown_architecture(tmp_path):
    file = forged_file(tmp_path, Key("general.architecture", STRING, string("mamba\n" + "x" * 500)))
    with pytest.raises(UnsupportedModelError, match=r"is mamba\\n.*; known are gemma3, llama") as caught:
        build_plan(file)
    assert len(str(caught.value)) < 400


def test_no_architecture(tmp_path):
    with pytest.raises(ModelFileError, match=r"general\.architecture is missing"):
        build_plan(forged_file(tmp_path))


def test_one_part_of_several(plan_of, architecture):
    with pytest.raises(UnsupportedModelError, match=r"split\.count"):
        plan_of(WRITERS[architecture], extra={"split.count": 2})


def test_a_later_part_which_does_not_name_the_architecture(tmp_path):
    file = forged_file(tmp_path, Key("split.count", U16, struct.pack("<H", 3)))
    with pytest.raises(UnsupportedModelError, match=r"split\.count .* llama-gguf-split --merge"):
        build_plan(file)


@pytest.mark.parametrize(
    "key",
    ["embedding_length", "block_count", "context_length", "feed_forward_length", "attention.head_count",
     "attention.layer_norm_rms_epsilon"],
)  # fmt: skip
def test_a_missing_key_is_named(tmp_path, architecture, key):
    path = WRITERS[architecture](tmp_path / "tiny.gguf", layers=1)
    name = f"{architecture}.{key}".encode()
    content = path.read_bytes()
    assert content.count(struct.pack("<Q", len(name)) + name) == 1
    path.write_bytes(content.replace(name, b"?" * len(name)))
    with GGUFFile.open(path) as file, pytest.raises(ModelFileError, match=f"key {name.decode()} is missing"):
        build_plan(file)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kv_heads": 2, "heads": 3}, r"attention\.head_count_kv is 2, which does not divide the 3 heads"),
        ({"head_size": 5000, "n_embd": 1, "ff": 1}, r"attention\.key_length is 5000, outside 1 to 4096"),
        ({"context": 0}, r"context_length is 0, outside"),
        ({"layers": 0}, r"block_count is 0, outside"),
    ],
)
def test_a_key_out_of_range_is_named(plan_of, architecture, arguments, message):
    with pytest.raises(ModelFileError, match=rf"key {architecture}\.{message}"):
        plan_of(WRITERS[architecture], **arguments)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("block_count", 3, r"tensor blk\.2\.attn_norm\.weight is missing"),
        ("embedding_length", 64, r"token_embd\.weight has shape \(\d+, 96\), \w+ needs \(\d+, 64\)"),
        ("feed_forward_length", 128, r"ffn_gate\.weight has shape \(160, 96\), \w+ needs \(128, 96\)"),
        ("attention.head_count", 6, r"attn_q\.weight has shape"),
        ("attention.head_count", 0, r"key \w+\.attention\.head_count is 0, outside"),
    ],
)
def test_a_lying_key_names_the_tensor(tmp_path, architecture, key, value, message):
    path = WRITERS[architecture](tmp_path / "tiny.gguf", layers=2)
    content = bytearray(path.read_bytes())
    name = f"{architecture}.{key}".encode()
    at = content.index(struct.pack("<Q", len(name)) + name) + 8 + len(name) + 4
    content[at : at + 4] = struct.pack("<I", value)
    path.write_bytes(content)
    with GGUFFile.open(path) as file, pytest.raises(ModelFileError, match=message):
        build_plan(file)


def test_fewer_layers_than_tensors(tmp_path, architecture):
    path = WRITERS[architecture](tmp_path / "tiny.gguf", layers=2)
    content = path.read_bytes()
    name = f"{architecture}.block_count".encode()
    assert name + struct.pack("<II", 4, 2) in content
    path.write_bytes(content.replace(name + struct.pack("<II", 4, 2), name + struct.pack("<II", 4, 1)))
    with (
        GGUFFile.open(path) as file,
        pytest.raises(UnsupportedModelError, match=r"tensor blk\.1\.\w+\.weight belongs to nothing"),
    ):
        build_plan(file)


def test_keys_and_values_of_different_sizes(tmp_path, architecture):
    path = WRITERS[architecture](tmp_path / "tiny.gguf", layers=1)
    content = path.read_bytes()
    name = f"{architecture}.attention.value_length".encode() + struct.pack("<I", 4)
    path.write_bytes(content.replace(name + struct.pack("<I", 40), name + struct.pack("<I", 32)))
    with GGUFFile.open(path) as file, pytest.raises(UnsupportedModelError, match=r"differ \(40 and 32\)"):
        build_plan(file)


def test_a_vocabulary_at_odds_with_the_embedding(tmp_path):
    keys = [Key("general.architecture", STRING, string("llama"))]
    keys += [
        Key(f"llama.{key}", 4, struct.pack("<I", 4))
        for key in ("embedding_length", "block_count", "context_length", "attention.head_count")
    ]
    keys.append(Key("tokenizer.ggml.tokens", 9, struct.pack("<IQ", STRING, 1) + string("a")))
    file = forged_file(tmp_path, *keys, entries=[Entry("token_embd.weight")], data=bytes(32))
    with pytest.raises(ModelFileError, match=r"has 2 rows, key tokenizer\.ggml\.tokens lists 1 tokens"):
        build_plan(file)
