from __future__ import annotations

import gguf
import pytest

from tierd.errors import UnsupportedModelError
from tierd.models.formats import KV_CODECS, WEIGHT_FORMATS, weight_format


@pytest.mark.parametrize("format", WEIGHT_FORMATS.values(), ids=lambda format: format.name)
def test_weight_formats_are_ggml_s(format):
    kind = gguf.GGMLQuantizationType(format.id)
    assert format.name == kind.name
    assert (format.elements, format.bytes) == gguf.GGML_QUANT_SIZES[kind]
    assert weight_format(format.name) is format
    assert format.row_bytes(768) == gguf.quants.quant_shape_to_byte_shape((1, 768), kind)[1]


def test_unknown_weight_format():
    with pytest.raises(UnsupportedModelError, match="IQ4_XS is not known; known are F32, F16"):
        weight_format("IQ4_XS")


@pytest.mark.parametrize(
    ("codec", "head_size", "row_bytes"),
    [
        ("f32", 40, 160),
        ("f16", 40, 80),
        ("q8_0", 96, 102),
        ("q8_0", 64, 68),
        ("tq4", 64, 36),
        ("tq4", 256, 144),
    ],
)
def test_row_bytes(codec, head_size, row_bytes):
    assert KV_CODECS[codec].row_bytes(head_size) == row_bytes


@pytest.mark.parametrize(
    ("codec", "head_size", "need"),
    [("q8_0", 40, "multiple of 32"), ("q8_0", 16, "multiple of 32"), ("tq4", 96, "power of two"),
     ("tq4", 16, "multiple of 32")],
)  # fmt: skip
def test_head_sizes_that_do_not_fit(codec, head_size, need):
    with pytest.raises(UnsupportedModelError, match=f"{codec} .*{need}, this model's is {head_size}"):
        KV_CODECS[codec].row_bytes(head_size)


def test_codec_ids_are_distinct():
    assert len({codec.id for codec in KV_CODECS.values()}) == len(KV_CODECS)
