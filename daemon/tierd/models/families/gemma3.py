"""The `gemma3` architecture: Gemma 3's text models.

Differs from `llama`: the embedding is scaled; every sub-layer has a norm before and one after; Q and K are
normed per head; the gate is GELU; rotary pairs are half a head apart; and of every six layers, five see
only a sliding window and turn by a rotary base of their own. Files store norm weights with the one
already added. Sources: "Gemma 3 Technical Report", arXiv 2503.19786; for what files leave out (window
pattern, local base, the 27B model's attention scale) llama.cpp and Google's gemma_pytorch, config.py.
"""

from __future__ import annotations

import math

import numpy as np

from tierd.errors import ModelFileError
from tierd.models.builder import PlanBuilder
from tierd.models.dimensions import Dimensions, refuse
from tierd.models.families import architecture
from tierd.models.gguf import GGUFFile
from tierd.models.plan import Activation, Plan
from tierd.models.rope import plain_rope, rope_base, rope_dimensions, scaled_rope

_WINDOW_PERIOD = 6
_LAYERS_OF_27B = 62


@architecture("gemma3")
def compose(file: GGUFFile) -> Plan:
    """Compose the plan of a `gemma3` file."""
    refuse(file, "gemma3.final_logit_softcapping", 0.0)
    refuse(file, "gemma3.attn_logit_softcapping", 0.0)
    dimensions = Dimensions.read(file, "gemma3")
    model = PlanBuilder(file, "gemma3", dimensions)
    heads, kv_heads, head_size = dimensions.heads, dimensions.kv_heads, dimensions.head_size
    scale = _attention_scale(dimensions)

    windows = _windows(file, dimensions.layers)
    turned = rope_dimensions(file, "gemma3", head_size)
    local_base = rope_base(file, "gemma3.rope.freq_base_swa")
    local_rope = plain_rope(turned, local_base, interleaved=False)
    global_base = rope_base(file, "gemma3.rope.freq_base")
    global_rope = scaled_rope(file, "gemma3", turned, global_base, interleaved=False)

    x = model.embed("token_embd", "x", scale=float(np.float32(math.sqrt(dimensions.embedding))))
    for layer, window in enumerate(windows):
        block = f"blk.{layer}"
        rope = local_rope if window else global_rope
        h = model.norm(x, f"{block}.attn_norm", "h")
        q = model.matmul(h, f"{block}.attn_q", "q", heads * head_size)
        k = model.matmul(h, f"{block}.attn_k", "k", kv_heads * head_size)
        v = model.matmul(h, f"{block}.attn_v", "v", kv_heads * head_size)
        model.norm(q, f"{block}.attn_q_norm", q, heads=heads)
        model.norm(k, f"{block}.attn_k_norm", k, heads=kv_heads)
        model.rope(q, heads, rope)
        model.rope(k, kv_heads, rope)
        attended = model.attend(layer, q, k, v, "attended", scale=scale, window=window)
        h = model.matmul(attended, f"{block}.attn_output", "h", dimensions.embedding)
        model.add(x, model.norm(h, f"{block}.post_attention_norm", h))
        if layer == dimensions.layers - 1:
            x = model.select_rows(x, "wanted")

        h = model.norm(x, f"{block}.ffn_norm", "h")
        gate = model.matmul(h, f"{block}.ffn_gate", "gate", dimensions.feed_forward)
        up = model.matmul(h, f"{block}.ffn_up", "up", dimensions.feed_forward)
        gated = model.gate(gate, up, Activation.GELU)
        h = model.matmul(gated, f"{block}.ffn_down", "h", dimensions.embedding)
        model.add(x, model.norm(h, f"{block}.post_ffw_norm", h))

    hidden = model.norm(x, "output_norm", "hidden")
    output = "output" if model.has("output") else "token_embd"
    return model.finish(hidden, model.matmul(hidden, output, "logits", dimensions.vocabulary))


def _attention_scale(dimensions: Dimensions) -> float:
    if dimensions.layers == _LAYERS_OF_27B:
        return math.sqrt(dimensions.heads / dimensions.embedding)
    return 1.0 / math.sqrt(dimensions.head_size)


def _windows(file: GGUFFile, layers: int) -> list[int]:
    """Return each layer's window, 0 for a global layer."""
    window = file.integer("gemma3.attention.sliding_window", 0)
    key = "gemma3.attention.sliding_window_pattern"
    pattern = file.metadata.get(key)
    if isinstance(pattern, np.ndarray):
        if len(pattern) != layers:
            raise ModelFileError(f"{file.path}: key {key} lists {len(pattern)} layers of {layers}")
        local = [bool(flag) for flag in pattern]
    else:
        period = file.integer(key, _WINDOW_PERIOD, least=1)
        local = [layer % period < period - 1 for layer in range(layers)]
    return [window if is_local else 0 for is_local in local]
