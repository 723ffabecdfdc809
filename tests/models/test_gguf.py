from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forged import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    Entry,
    Key,
    array,
    forge,
    string,
)
from tierd.errors import ModelError, ModelFileError, UnsupportedModelError
from tierd.models import GGUFFile, build_plan
from tiny import write_gemma3, write_llama


@pytest.fixture
def opened(tmp_path):
    def write_and_open(content: bytes) -> GGUFFile:
        path = tmp_path / "forged.gguf"
        path.write_bytes(content)
        return GGUFFile.open(path)

    return write_and_open


def assert_same_as_package(path: Path) -> None:
    with mock.patch("numpy.memmap", lambda path, mode: np.fromfile(path, np.uint8)):
        reader = gguf.GGUFReader(path)  # three times as fast over a plain array as over a memmap
    with GGUFFile.open(path) as file:
        fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
        assert list(file.metadata) == list(fields)
        for name, field in fields.items():
            value = file.metadata[name]
            if field.types[0] != gguf.GGUFValueType.ARRAY:
                assert value == field.contents(), name
                assert type(value) is type(field.contents()), name
            elif field.types[-1] == gguf.GGUFValueType.STRING:
                theirs = [
                    bytes(field.parts[index]).decode("utf-8", "surrogateescape") for index in field.data
                ]
                assert value == theirs, name
            else:
                theirs = np.array([field.parts[index][0] for index in field.data])
                assert value.dtype == theirs.dtype, name
                np.testing.assert_array_equal(value, theirs, name)
        assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
        for theirs in reader.tensors:
            ours = file.tensors[theirs.name]
            assert ours.format.id == theirs.tensor_type
            assert ours.shape == tuple(theirs.shape[::-1].tolist())
            assert (ours.offset, ours.nbytes) == (theirs.data_offset, theirs.n_bytes)
            sample = slice(None, None, max(1, ours.nbytes // 4096))
            theirs_data = theirs.data.view(np.uint8).reshape(-1)
            assert np.array_equal(file.data(theirs.name)[sample], theirs_data[sample])


class TestAgainstThePackage:
    def test_every_value_type(self, tmp_path):
        writer = gguf.GGUFWriter(tmp_path / "types.gguf", "llama")
        kinds = {
            "u8": 200, "i8": -100, "u16": 60_000, "i16": -30_000, "u32": 4_000_000_000, "i32": -2_000_000_000,
            "u64": 2**63 + 1, "i64": -(2**62), "f32": 0.1, "f64": 0.1, "bool": True, "string": "Größe 🙂\n",
        }  # fmt: skip
        for name, value in kinds.items():
            method = {"u": "uint", "i": "int", "f": "float"}.get(name[0], name[0])
            method = name if name in ("bool", "string") else method + name[1:]
            getattr(writer, f"add_{method}")(f"scalar.{name}", value)
        arrays = {
            "ints": [1, -2, 3], "floats": [0.5, -1e30], "bools": [True, False, True],
            "strings": ["", "a", "Größe", "\x00"],
        }  # fmt: skip
        for name, value in arrays.items():
            writer.add_array(f"array.{name}", value)
        for name, shape in (("one", (7,)), ("two", (3, 5)), ("three", (2, 3, 5)), ("four", (2, 1, 3, 5))):
            writer.add_tensor(name, np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        assert_same_as_package(tmp_path / "types.gguf")

    @pytest.mark.parametrize("format", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
    def test_tiny_llama(self, tmp_path, format):
        assert_same_as_package(write_llama(tmp_path / "t.gguf", format=format, head_size=32, tied=False))

    @pytest.mark.parametrize("format", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
    def test_tiny_gemma3(self, tmp_path, format):
        path = write_gemma3(tmp_path / "t.gguf", format=format, n_embd=256, head_size=128, ff=256, layers=1)
        assert_same_as_package(path)

    def test_smollm2(self, smollm2_path):
        assert_same_as_package(smollm2_path)

    def test_gemma3(self, gemma3_path):
        assert_same_as_package(gemma3_path)


def test_opens_a_vocabulary_of_262144_quickly(gemma3_path):
    def seconds() -> float:
        start = time.perf_counter()
        with GGUFFile.open(gemma3_path) as file:
            assert len(file.texts("tokenizer.ggml.tokens")) == 262_144
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 1.0


def test_undecodable_bytes_survive(opened):
    file = opened(
        forge(
            [
                Key("text", STRING, string(b"\xff\xfe")),
                Key("texts", ARRAY, array(STRING, 2, string(b"\x80") + string("ok"))),
            ]
        )
    )
    assert file.text("text").encode("utf-8", "surrogateescape") == b"\xff\xfe"
    assert file.texts("texts")[0].encode("utf-8", "surrogateescape") == b"\x80"


def test_version_2_and_a_wider_alignment(opened):
    keys = [Key("general.alignment", U32, struct.pack("<I", 256))]
    entries = [Entry("a", offset=0), Entry("b", offset=256)]
    data = np.arange(72, dtype=np.float32).tobytes()
    file = opened(forge(keys, entries, data, version=2, alignment=256))
    assert file.tensors["b"].offset % 256 == 0
    assert file.data("b").view(np.float32).tolist() == list(range(64, 72))


def test_data_is_read_only_and_outlives_close(opened):
    with opened(forge([], [Entry("a")], bytes(range(32)))) as file:
        data = file.data("a")
    with pytest.raises(ValueError, match="read-only"):
        data[0] = 1
    assert data.tolist() == list(range(32))
    with pytest.raises(ValueError, match="closed"):
        file.data("a")


def test_identity_is_of_the_file_that_was_opened(tmp_path):
    path = tmp_path / "file.gguf"

    def identity(content: bytes, written_ns: int) -> str:
        path.write_bytes(content)
        os.utime(path, ns=(written_ns, written_ns))
        with GGUFFile.open(path) as file:
            return file.identity()

    content = forge([Key("a", U8, b"\x01")], [Entry("w")], bytes(32))
    first = identity(content, 1)
    assert identity(content, 1) == first
    assert identity(content, 2) != first
    assert identity(forge([Key("a", U8, b"\x02")], [Entry("w")], bytes(32)), 1) != first
    assert identity(content + b"\0", 1) != first

    identity(content, 1)
    with GGUFFile.open(path) as file:
        replacement = tmp_path / "other.gguf"
        replacement.write_bytes(content)
        os.utime(replacement, ns=(1, 1))
        replacement.replace(path)
        assert file.identity() == first
    with GGUFFile.open(path) as file:
        assert file.identity() != first
    with pytest.raises(ValueError, match="closed"):
        file.identity()


def test_no_tensors_and_no_keys(opened):
    file = opened(forge())
    assert not file.metadata
    assert not file.tensors


class TestNotAFile:
    def test_missing(self, tmp_path):
        with pytest.raises(ModelError, match="No such file"):
            GGUFFile.open(tmp_path / "missing.gguf")

    def test_directory(self, tmp_path):
        with pytest.raises(ModelError, match="not a regular file"):
            GGUFFile.open(tmp_path)

    def test_pipe(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ModelError, match="not a regular file"):
            GGUFFile.open(tmp_path / "pipe")

    @pytest.mark.parametrize("size", [0, 23])
    def test_too_short(self, opened, size):
        with pytest.raises(ModelFileError, match=f"only {size} bytes"):
            opened(bytes(size))

    def test_magic(self, opened):
        with pytest.raises(ModelFileError, match="not a GGUF file"):
            opened(forge(magic=b"GGML"))

    def test_other_version(self, opened):
        with pytest.raises(UnsupportedModelError, match="version 4"):
            opened(forge(version=4))

    def test_big_endian(self, opened):
        with pytest.raises(UnsupportedModelError, match="big-endian"):
            opened(forge(version=0x03000000))


HUGE = 2**63
FLOATS = bytes(64)

LYING_METADATA = {
    "key count": (forge(key_count=10**9), "claims 1000000000 metadata keys"),
    "tensor count": (forge(entry_count=HUGE), f"claims {HUGE} tensors"),
    "key name too long": (forge([Key(b"k" * 70_000, U8, b"\1")]), "key 1 of 1 has a name of 70000"),
    "string length": (forge([Key("k", STRING, string("abc", HUGE))]), "key k needs"),
    "value type": (forge([Key("k", 13, bytes(64))]), "key k has the unknown value type 13"),
    "array type": (forge([Key("k", ARRAY, array(99, 1, bytes(64)))]), "key k has the unknown value type 99"),
    "array count": (forge([Key("k", ARRAY, array(F64, HUGE, bytes(64)))]), "key k needs"),
    "string count": (forge([Key("k", ARRAY, array(STRING, HUGE, b""))]), "key k claims"),
    "string in array": (
        forge([Key("k", ARRAY, array(STRING, 2, string("a") + string("b", HUGE)))]),
        "key k .* string 1 of 2",
    ),
    "few strings": (
        forge([Key("k", ARRAY, array(STRING, 3, string("a" * 30)))]),
        "key k .* string [12] of 3",
    ),
    "boolean": (forge([Key("k", BOOL, b"\2")]), "key k holds a boolean"),
    "booleans": (forge([Key("k", ARRAY, array(BOOL, 3, b"\1\0\7"))]), "key k holds a boolean"),
    "twice": (forge([Key("k", U8, b"\1"), Key("k", U8, b"\1")]), "key k stands in the file twice"),
    "alignment 0": (forge([Key("general.alignment", U32, bytes(4))]), "general.alignment"),
    "alignment 24": (forge([Key("general.alignment", U32, struct.pack("<I", 24))]), "general.alignment"),
    "alignment text": (forge([Key("general.alignment", STRING, string("32"))]), "general.alignment"),
}

LYING_TENSORS = {
    "twice": ([Entry("t"), Entry("t", offset=32)], "tensor t stands in the file twice"),
    "no dimensions": ([Entry("t", dims=())], "tensor t has 0 dimensions"),
    "many dimensions": ([Entry("t", dims=(1,) * 5)], "tensor t has 5 dimensions"),
    "dimension count": ([Entry("t", n_dims=2**32 - 1)], "tensor t has 4294967295 dimensions"),
    "empty": ([Entry("t", dims=(4, 0))], "tensor t has shape .0, 4.: it is empty"),
    "overflow": ([Entry("t", dims=(2**62, 2**62, 2**62, 2**62))], "tensor t should end at byte"),
    "wraps to a small size": ([Entry("t", dims=(2**32, 2**32 + 1))], "tensor t should end at byte"),
    "too large": ([Entry("t", dims=(4, 5))], "tensor t should end at byte"),
    "offset": ([Entry("t", offset=2**63)], "tensor t should end at byte"),
    "misaligned": ([Entry("t", offset=4)], "tensor t lies at offset 4"),
    "overlap": ([Entry("a", dims=(4, 3)), Entry("b", offset=32)], "tensor b overlaps tensor a"),
    "same place": ([Entry("a"), Entry("b")], "overlaps tensor"),
    "part of a block": ([Entry("t", dims=(16, 2), kind=8)], "tensor t .* not whole Q8_0 blocks of 32"),
}


class TestLies:
    @pytest.mark.parametrize("case", LYING_METADATA)
    def test_metadata(self, opened, case):
        content, message = LYING_METADATA[case]
        with pytest.raises(ModelFileError, match=message):
            opened(content)

    @pytest.mark.parametrize("case", LYING_TENSORS)
    def test_tensors(self, opened, case):
        entries, message = LYING_TENSORS[case]
        with pytest.raises(ModelFileError, match=message):
            opened(forge([], entries, FLOATS))

    @pytest.mark.parametrize("kind", [4, 5, 9, 16, 23, 24, 39, 2**32 - 1])
    def test_unknown_weight_type(self, opened, kind):
        with pytest.raises(UnsupportedModelError, match=f"tensor t has weight type {kind}"):
            opened(forge([], [Entry("t", kind=kind)], FLOATS))

    def test_array_of_arrays(self, opened):
        with pytest.raises(UnsupportedModelError, match="key k is an array of arrays"):
            opened(forge([Key("k", ARRAY, array(ARRAY, 1, array(U8, 1, b"\1")))]))

    def test_names_with_any_bytes_stay_on_one_line(self, opened):
        with pytest.raises(ModelFileError) as caught:
            opened(forge([Key(b"a\nb\xff" + b"c" * 500, 77, bytes(8))]))
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400
        assert r"a\nb\udcff" in str(caught.value)


CHANGES = settings(
    max_examples=300,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def model_error(action: Callable[[], object]) -> str:
    """Return the message of the model error that `action` ends in, "" for none; let others through."""
    try:
        action()
    except ModelError as error:
        return str(error)
    return ""


def sound_content() -> bytes:
    """A small file with every kind of value and a few tensors."""
    keys = [
        Key("general.architecture", STRING, string("llama")),
        *(
            Key(f"k.{kind}", kind, bytes(size))
            for kind, size in ((U8, 1), (I8, 1), (U16, 2), (I16, 2), (I32, 4), (F32, 4), (BOOL, 1), (U64, 8))
        ),
        Key("k.i64", I64, bytes(8)),
        Key("strings", ARRAY, array(STRING, 3, string("a") + string("") + string("Größe"))),
        Key("doubles", ARRAY, array(F64, 2, bytes(16))),
    ]
    entries = [Entry("a.weight", (4, 2)), Entry("b.weight", (32, 2), 8, 32), Entry("c.weight", (3,), 1, 128)]
    return forge(keys, entries, bytes(134))


def test_cut_anywhere(opened):
    content = sound_content()
    opened(content)
    for length in range(len(content)):
        with pytest.raises(ModelFileError):
            opened(content[:length])


def test_a_cut_names_what_was_cut(opened):
    content = sound_content()
    for name in (b"strings", b"doubles"):
        with pytest.raises(ModelFileError, match=f"key {name.decode()}"):
            opened(content[: content.index(name) + len(name) + 14])
    with pytest.raises(ModelFileError, match=r"tensor b\.weight"):
        opened(content[: content.index(b"b.weight") + 20])
    with pytest.raises(ModelFileError, match=r"tensor c\.weight"):
        opened(content[:-1])


@CHANGES
@given(data=st.data())
def test_changed_bytes_never_escape_the_error_tree(opened, data):
    content = bytearray(sound_content())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))

    def open_and_read() -> None:
        file = opened(bytes(content))
        assert all(file.data(name).nbytes for name in file.tensors)

    assert "\n" not in model_error(open_and_read)


@pytest.fixture(scope="module")
def tiny_models(tmp_path_factory):
    """Two whole model files as bytes, and where in them the numbers stand that shape a plan."""
    folder = tmp_path_factory.mktemp("tiny")
    contents = [write(folder / "tiny.gguf", layers=1).read_bytes() for write in (write_llama, write_gemma3)]
    marks = re.compile(
        rb"(llama|gemma3)\.[a-z._]+|general\.alignment|blk\.0\.[a-z_]+\.weight|token_embd\.weight"
    )
    return [(content, [match.end() for match in marks.finditer(content)]) for content in contents]


@CHANGES
@given(data=st.data())
def test_changed_model_files_never_escape_the_error_tree(tmp_path, tiny_models, data):
    sound, spots = data.draw(st.sampled_from(tiny_models))
    content = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.sampled_from(spots)) + data.draw(st.integers(-4, 40))
        content[at] = data.draw(st.integers(0, 255))
    path = tmp_path / "changed.gguf"
    path.write_bytes(content)

    def open_and_plan() -> None:
        with GGUFFile.open(path) as file:
            build_plan(file)

    assert "\n" not in model_error(open_and_plan)


class TestAccessors:
    @pytest.fixture
    def file(self, opened):
        return opened(
            forge(
                [
                    Key("int", I32, struct.pack("<i", -5)),
                    Key("big", U64, struct.pack("<Q", 2**63 + 5)),
                    Key("float", F32, struct.pack("<f", 2.5)),
                    Key("nan", F32, struct.pack("<f", float("nan"))),
                    Key("flag", BOOL, b"\1"),
                    Key("text", STRING, string("hello")),
                    Key("texts", ARRAY, array(STRING, 1, string("hello"))),
                    Key("ints", ARRAY, array(I32, 2, struct.pack("<2i", -1, 2))),
                    Key("bigs", ARRAY, array(U64, 1, struct.pack("<Q", 2**64 - 1))),
                    Key("floats", ARRAY, array(F32, 2, struct.pack("<2f", 0.5, -1))),
                    Key("infinite", ARRAY, array(F32, 1, struct.pack("<f", float("inf")))),
                    Key("nothing", ARRAY, array(F32, 0, b"")),
                ]
            )
        )

    def test_values(self, file):
        assert file.integer("int", least=-5) == -5
        assert file.number("float") == 2.5
        assert file.number("int") == -5.0
        assert file.flag("flag") is True
        assert file.text("text") == "hello"
        assert file.texts("texts") == ["hello"]
        assert file.integers("ints").tolist() == [-1, 2]
        assert file.numbers("floats").tolist() == [0.5, -1.0]
        assert file.numbers("ints").tolist() == [-1.0, 2.0]
        assert file.numbers("nothing").tolist() == []

    def test_defaults(self, file):
        assert file.integer("absent", 7) == 7
        assert file.number("absent", 7) == 7.0
        assert file.flag("absent", False) is False
        assert file.text("absent", "") == ""

    @pytest.mark.parametrize(
        "accessor", ["integer", "number", "flag", "text", "texts", "integers", "numbers"]
    )
    def test_missing(self, file, accessor):
        with pytest.raises(ModelFileError, match="key absent is missing"):
            getattr(file, accessor)("absent")

    @pytest.mark.parametrize(
        ("accessor", "key"),
        [
            ("integer", "float"), ("integer", "flag"), ("integer", "text"), ("integer", "ints"),
            ("number", "flag"), ("number", "text"), ("number", "floats"), ("flag", "int"), ("text", "texts"),
            ("texts", "text"), ("texts", "ints"), ("integers", "floats"), ("integers", "int"),
            ("integers", "texts"), ("numbers", "float"), ("numbers", "texts"),
        ],
    )  # fmt: skip
    def test_wrong_type(self, file, accessor, key):
        with pytest.raises(ModelFileError, match=f"key {key} should be"):
            getattr(file, accessor)(key)

    @pytest.mark.parametrize(
        ("accessor", "key", "bounds"),
        [
            ("integer", "int", {}), ("integer", "big", {}), ("integer", "int", {"least": -9, "most": -6}),
            ("number", "nan", {}), ("number", "float", {"most": 2.0}), ("number", "float", {"least": 3.0}),
        ],
    )  # fmt: skip
    def test_out_of_range(self, file, accessor, key, bounds):
        with pytest.raises(ModelFileError, match=f"key {key} is .*, outside"):
            getattr(file, accessor)(key, **bounds)

    def test_arrays_out_of_range(self, file):
        with pytest.raises(ModelFileError, match="key bigs"):
            file.integers("bigs")
        with pytest.raises(ModelFileError, match="key infinite"):
            file.numbers("infinite")

    def test_missing_tensor(self, file):
        with pytest.raises(ModelFileError, match="tensor x is missing"):
            file.data("x")
