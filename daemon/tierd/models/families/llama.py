"""The `llama` architecture: Llama 1 to 3, SmolLM2, Mistral and their kin.

A pre-norm decoder: RMS norm, grouped-query attention with interleaved rotary pairs (converters permute
Q and K to that order), RMS norm, gated SiLU feed-forward. The embedding doubles as the output where the
file has no `output.weight`. Llama 3's rope scaling comes as a tensor of factors.
"""

from __future__ import annotations

import math

from tierd.models.builder import PlanBuilder
from tierd.models.dimensions import Dimensions, refuse
from tierd.models.families import architecture
from tierd.models.gguf import GGUFFile
from tierd.models.plan import Activation, Plan
from tierd.models.rope import rope_base, rope_dimensions, scaled_rope


@architecture("llama")
def compose(file: GGUFFile) -> Plan:
    """Compose the plan of a `llama` file."""
    refuse(file, "llama.expert_count", 0)
    refuse(file, "llama.attention.sliding_window", 0)
    refuse(file, "llama.attention.causal", True)
    dimensions = Dimensions.read(file, "llama")
    model = PlanBuilder(file, "llama", dimensions)
    heads, kv_heads, head_size = dimensions.heads, dimensions.kv_heads, dimensions.head_size
    scale = file.number("llama.attention.scale", 0.0, least=0.0, most=1e6) or 1.0 / math.sqrt(head_size)

    turned = rope_dimensions(file, "llama", head_size)
    factors = model.constants("rope_freqs", turned // 2) if model.has("rope_freqs") else None
    rope = scaled_rope(
        file, "llama", turned, rope_base(file, "llama.rope.freq_base"), interleaved=True, factors=factors
    )

    x = model.embed("token_embd", "x")
    for layer in range(dimensions.layers):
        block = f"blk.{layer}"
        h = model.norm(x, f"{block}.attn_norm", "h")
        q = model.matmul(h, f"{block}.attn_q", "q", heads * head_size)
        k = model.matmul(h, f"{block}.attn_k", "k", kv_heads * head_size)
        v = model.matmul(h, f"{block}.attn_v", "v", kv_heads * head_size)
        model.rope(q, heads, rope)
        model.rope(k, kv_heads, rope)
        attended = model.attend(layer, q, k, v, "attended", scale=scale)
        model.add(x, model.matmul(attended, f"{block}.attn_output", "h", dimensions.embedding))
        if layer == dimensions.layers - 1:
            x = model.select_rows(x, "wanted")

        h = model.norm(x, f"{block}.ffn_norm", "h")
        gate = model.matmul(h, f"{block}.ffn_gate", "gate", dimensions.feed_forward)
        up = model.matmul(h, f"{block}.ffn_up", "up", dimensions.feed_forward)
        gated = model.gate(gate, up, Activation.SILU)
        model.add(x, model.matmul(gated, f"{block}.ffn_down", "h", dimensions.embedding))

    hidden = model.norm(x, "output_norm", "hidden")
    output = "output" if model.has("output") else "token_embd"
    return model.finish(hidden, model.matmul(hidden, output, "logits", dimensions.vocabulary))
