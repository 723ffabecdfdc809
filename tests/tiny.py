"""Writes tiny GGUF files with random weights that are complete enough to be served: tokenizer, template, all.

Weights come from a seed, scaled so that activations stay near 1 and logits spread by about 2. Formats that
the `gguf` package can quantise to are quantised from those weights; for the K-quants, which it can only
dequantise, blocks are random bytes with sane scales (`random_tensor_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_letters

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Kind

Value = str | int | float | bool | list[bool]

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA_TURNS = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{{ message['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
WORDS = (
    "the and of to in is it that was for on are as with his they at be this from have or by one had not but "
    "what all were when we there can an your which their said if do will each about how up out them then she "
    "many some so these would other into has more her two like him see time could no make than first been"
)

UNKNOWN, NORMAL, CONTROL, UNUSED, BYTE = 2, 1, 3, 5, 6


def write_llama(
    path: Path,
    *,
    seed: int = 0,
    n_embd: int = 96,
    layers: int = 2,
    heads: int = 3,
    kv_heads: int = 1,
    head_size: int = 40,
    ff: int = 160,
    vocab: int = 301,
    context: int = 512,
    format: str = "F32",
    tied: bool = True,
    biases: bool = False,
    rope_base: float | None = None,
    rope_dimensions: int | None = None,
    rope_scaling: Mapping[str, str | int | float] | None = None,
    rope_factors: Sequence[float] | None = None,
    extra: Mapping[str, Value] | None = None,
) -> Path:
    """Write a `llama` file and return its path.

    rope_scaling: values under `llama.rope.scaling.`. rope_factors: the tensor `rope_freqs.weight`.
    tied: without a tensor `output.weight`. extra: further metadata, whole keys.
    """
    sizes = _Sizes(n_embd, layers, heads, kv_heads, head_size, ff, vocab, context)
    writer = _Writer(path, "llama", seed, format)
    writer.sizes(sizes, eps=1e-5)
    if rope_base is not None:
        writer.value("llama.rope.freq_base", rope_base)
    if rope_dimensions is not None:
        writer.value("llama.rope.dimension_count", rope_dimensions)
    for key, value in (rope_scaling or {}).items():
        writer.value(f"llama.rope.scaling.{key}", value)
    for key, value in (extra or {}).items():
        writer.value(key, value)
    _add_byte_level_tokenizer(writer.gguf, vocab)
    if rope_factors is not None:
        writer.gguf.add_tensor("rope_freqs.weight", np.asarray(rope_factors, np.float32))
    writer.decoder(sizes, norms=("attn_norm", "ffn_norm"), head_norms=(), tied=tied, biases=biases)
    writer.close()
    return path


def write_gemma3(
    path: Path,
    *,
    seed: int = 0,
    n_embd: int = 96,
    layers: int = 7,
    heads: int = 2,
    kv_heads: int = 1,
    head_size: int = 40,
    ff: int = 160,
    vocab: int = 405,
    context: int = 512,
    window: int = 8,
    format: str = "F32",
    tied: bool = True,
    rope_base: float = 1_000_000.0,
    rope_scaling: Mapping[str, str | int | float] | None = None,
    extra: Mapping[str, Value] | None = None,
) -> Path:
    """Write a `gemma3` file and return its path. Its sixth layer is global, the others see `window`."""
    sizes = _Sizes(n_embd, layers, heads, kv_heads, head_size, ff, vocab, context)
    writer = _Writer(path, "gemma3", seed, format)
    writer.sizes(sizes, eps=1e-6)
    writer.value("gemma3.rope.freq_base", rope_base)
    writer.value("gemma3.attention.sliding_window", window)
    for key, value in (rope_scaling or {}).items():
        writer.value(f"gemma3.rope.scaling.{key}", value)
    for key, value in (extra or {}).items():
        writer.value(key, value)
    _add_sentencepiece_tokenizer(writer.gguf, vocab)
    writer.decoder(
        sizes,
        norms=("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
        head_norms=("attn_q_norm", "attn_k_norm"),
        tied=tied,
        biases=False,
    )
    writer.close()
    return path


def random_tensor_bytes(
    format: str, rows: int, cols: int, seed: int, *, spread: float = 1.0
) -> npt.NDArray[np.uint8]:
    """Return random blocks of any weight format, shape (rows, bytes of a row).

    The values' standard deviation is about `spread`. Every bit pattern of the quants may occur; scales are
    finite, of both signs where the format allows it.
    """
    kind = Kind[format]
    rng = np.random.default_rng(seed)
    if format in ("F32", "F16", "BF16"):
        values = rng.standard_normal((rows, cols), np.float32) * np.float32(spread)
        return gguf.quants.quantize(values, kind).view(np.uint8)
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    if cols % elements:
        raise ValueError(f"{cols} columns are not whole {format} blocks of {elements}")
    layout = _SCALES[format]
    blocks = rng.integers(0, 256, (rows * cols // elements, size), np.uint8)
    scale = rng.uniform(0.5, 1.5, len(blocks)) * spread / layout.spread
    if layout.signed:
        scale *= rng.choice([-1.0, 1.0], len(blocks))
    _put_f16(blocks, layout.scale_at, scale)
    if layout.min_at is not None:
        _put_f16(blocks, layout.min_at, scale * layout.min_per_scale * rng.uniform(0.8, 1.2, len(blocks)))
    return blocks.reshape(rows, cols // elements * size)


@dataclass(frozen=True)
class _Scales:
    """Where a format's block keeps its f16 scale and min, and what they do.

    spread: standard deviation of the values of random blocks whose scale is 1.
    min_per_scale: the min that centres the values of a block whose scale is 1.
    """

    spread: float
    scale_at: int = 0
    min_at: int | None = None
    min_per_scale: float = 0.0
    signed: bool = True


_SCALES = {
    "Q4_0": _Scales(4.6),
    "Q4_1": _Scales(4.6, min_at=2, min_per_scale=-7.5),
    "Q5_0": _Scales(9.2),
    "Q5_1": _Scales(9.2, min_at=2, min_per_scale=-15.5),
    "Q8_0": _Scales(74.0),
    "Q2_K": _Scales(13.0, scale_at=80, min_at=82, min_per_scale=1.5, signed=False),
    "Q3_K": _Scales(42.0, scale_at=108),
    "Q4_K": _Scales(230.0, min_at=2, min_per_scale=7.5, signed=False),
    "Q5_K": _Scales(460.0, min_at=2, min_per_scale=15.5, signed=False),
    "Q6_K": _Scales(1370.0, scale_at=208),
}


def _put_f16(blocks: npt.NDArray[np.uint8], at: int, values: npt.NDArray[np.float64]) -> None:
    blocks[:, at : at + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)


@dataclass(frozen=True)
class _Sizes:
    n_embd: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    ff: int
    vocab: int
    context: int


class _Writer:
    """A GGUF file in the making, with a stream of random numbers."""

    def __init__(self, path: Path, architecture: str, seed: int, format: str) -> None:
        self.gguf = gguf.GGUFWriter(path, architecture)
        self.architecture = architecture
        self.format = format
        self.rng = np.random.default_rng(seed)

    def value(self, key: str, value: Value) -> None:
        add = {
            str: self.gguf.add_string,
            bool: self.gguf.add_bool,
            int: self.gguf.add_uint32,
            float: self.gguf.add_float32,
            list: self.gguf.add_array,
        }
        add[type(value)](key, value)

    def sizes(self, sizes: _Sizes, *, eps: float) -> None:
        writer = self.gguf
        writer.add_name(f"tiny {self.architecture}")
        writer.add_context_length(sizes.context)
        writer.add_embedding_length(sizes.n_embd)
        writer.add_block_count(sizes.layers)
        writer.add_feed_forward_length(sizes.ff)
        writer.add_head_count(sizes.heads)
        writer.add_head_count_kv(sizes.kv_heads)
        writer.add_key_length(sizes.head_size)
        writer.add_value_length(sizes.head_size)
        writer.add_layer_norm_rms_eps(eps)

    def decoder(
        self, sizes: _Sizes, *, norms: Iterable[str], head_norms: Iterable[str], tied: bool, biases: bool
    ) -> None:
        self.matrix("token_embd", sizes.vocab, sizes.n_embd, spread=2.0 / np.sqrt(sizes.n_embd))
        q, kv = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
        for layer in range(sizes.layers):
            block = f"blk.{layer}."
            for name in norms:
                self.norm(block + name, sizes.n_embd)
            for name in head_norms:
                self.norm(block + name, sizes.head_size)
            for name, rows, cols in (
                ("attn_q", q, sizes.n_embd),
                ("attn_k", kv, sizes.n_embd),
                ("attn_v", kv, sizes.n_embd),
                ("attn_output", sizes.n_embd, q),
                ("ffn_gate", sizes.ff, sizes.n_embd),
                ("ffn_up", sizes.ff, sizes.n_embd),
                ("ffn_down", sizes.n_embd, sizes.ff),
            ):
                self.matrix(block + name, rows, cols)
                if biases:
                    bias = self.rng.standard_normal(rows, np.float32) * np.float32(0.3)
                    self.gguf.add_tensor(f"{block}{name}.bias", bias)
        self.norm("output_norm", sizes.n_embd)
        if not tied:
            self.matrix("output", sizes.vocab, sizes.n_embd, spread=2.0 / np.sqrt(sizes.n_embd))

    def norm(self, stem: str, width: int) -> None:
        weight = 1.0 + 0.2 * self.rng.standard_normal(width, np.float32)
        self.gguf.add_tensor(f"{stem}.weight", weight.astype(np.float32))

    def matrix(self, stem: str, rows: int, cols: int, *, spread: float | None = None) -> None:
        spread = 1.0 / np.sqrt(cols) if spread is None else spread
        kind = Kind[self.format]
        if self.format.endswith("_K"):
            seed = int(self.rng.integers(2**31))
            data = random_tensor_bytes(self.format, rows, cols, seed, spread=spread)
        else:
            values = self.rng.standard_normal((rows, cols), np.float32) * np.float32(spread)
            data = gguf.quants.quantize(values, kind)
        self.gguf.add_tensor(f"{stem}.weight", data, raw_dtype=None if self.format == "F32" else kind)

    def close(self) -> None:
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()


def _add_byte_level_tokenizer(writer: gguf.GGUFWriter, vocab: int) -> None:
    """GPT-2 style: three special tokens, 256 byte tokens, then the merges that build common words."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = [_byte_letters()[byte] for byte in range(256)]
    tokens = special + letters
    merges: list[str] = []
    space = letters[ord(" ")]
    for left, right in _pairs(["in", "er", "on", *(space + word for word in WORDS.split())]):
        if len(tokens) == vocab:
            break
        tokens.append(left + right)
        merges.append(f"{left} {right}")
    types = [CONTROL] * len(special) + [NORMAL] * (len(tokens) - len(special))
    _fill(tokens, types, vocab, "<|unused{}|>")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHATML)


def _add_sentencepiece_tokenizer(writer: gguf.GGUFWriter, vocab: int) -> None:
    """Gemma style: control tokens, turn marks, 256 byte tokens, letters, scored pieces of common words."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    types = [CONTROL, CONTROL, CONTROL, UNKNOWN, CONTROL, CONTROL]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    types += [BYTE] * 256
    fixed = len(tokens)
    letters = ["\u2581", *ascii_letters]
    for left, right in _pairs("\u2581" + word for word in WORDS.split()):
        if len(tokens) + len(letters) == vocab:
            break
        tokens.append(left + right)
    tokens += letters
    types += [NORMAL] * (len(tokens) - fixed)
    _fill(tokens, types, vocab, "<unused{}>")
    scores = [0.0] * fixed + [-float(rank) for rank in range(len(tokens) - fixed)]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(GEMMA_TURNS)


def _fill(tokens: list[str], types: list[int], vocab: int, spelling: str) -> None:
    if len(tokens) > vocab:
        raise ValueError(f"the tokenizer needs a vocabulary of {len(tokens)} at least")
    while len(tokens) < vocab:
        tokens.append(spelling.format(len(tokens)))
        types.append(UNUSED)


def _pairs(words: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yield each pair once that builds a word from left to right."""
    seen = set()
    for word in words:
        for end in range(1, len(word)):
            pair = word[:end], word[end]
            if pair not in seen:
                seen.add(pair)
                yield pair


def _byte_letters() -> dict[int, str]:
    """GPT-2's printable stand-in for every byte: itself if printable in Latin-1, else from U+0100 up."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + n) for n, byte in enumerate(others)}
