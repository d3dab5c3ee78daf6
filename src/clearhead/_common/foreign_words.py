"""Other people's arguments, and what they are here.

Of PyTorch, transformers, flash-attention, xformers, FlexAttention, Keras and JAX. `hints` answers a
call with them; the names of sizes and projections stand in `foreign_names`.
"""

from collections.abc import Container, Mapping

Answers = Mapping[str, str]
"""What a word is here, by an argument of ours that stands beside it where that holds: the first one
that a callable takes counts, and "" is any."""

SIZES: Mapping[str, tuple[str, ...]] = {
    "d_in": ("embed_dim", "head_dim"),
    "d_out": ("output_dim",),
    "d_context": ("context_dim",),
    "num_heads": ("num_heads", "heads"),
    "num_kv_heads": ("num_kv_heads",),
    "head_dim": ("head_dim", "head_dims"),
    "value_head_dim": ("value_head_dim",),
    "context_length": ("max_len", "original_len", "tokens"),
}
"""Arguments that are a size, by the names that `foreign_names` has for sizes."""

PLACES: Mapping[str, str] = {
    "left": "; a window of W tokens that looks back is left=W-1, right=0",
    "offset": "; a mask fits any number of tokens, and takes none",
}
"""What is meant by arguments by place, by the first one that is taken by name."""

# Of PyTorch the first query sits on the first key; of a layer there are as many.
FROM_FIRST: Answers = {
    "query": "mask=clearhead.causal(offset=0); of as many queries as keys it is clearhead.causal()",
    "causal": "causal",
    "x": "mask=clearhead.causal(), of the layer or of a call",
    "embed_dim": "mask=clearhead.causal(), of the layer or of a call",
    "mask": "mask=clearhead.causal()",
}
CAUSAL: Answers = {
    name: "mask=clearhead.causal()" if name == "query" else ours
    for name, ours in FROM_FIRST.items()
    if name != "causal"
}
TOKENS: Answers = {
    "left": "left=W-1, right=0, for a window of W tokens that looks back",
    "mask": "mask=clearhead.sliding_window(left=W-1, right=0), for a window of W tokens that looks back",
}
SIDES: Answers = {
    "left": "left=L, right=R, of (L, R), with None for -1",
    "window": "window",
    "mask": "mask=clearhead.sliding_window(left=L, right=R), of (L, R), with None for -1",
}
REAL = "mask=clearhead.padding({}), True at real tokens"
ATTENTION_MASK: Answers = {
    "valid": "valid=attention_mask.bool(), True at real tokens",
    "lengths_or_valid": "lengths_or_valid=attention_mask.bool(), True at real tokens",
    "mask": REAL.format("attention_mask.bool()"),
}
KEY_PADDING: Answers = {
    "valid": "valid=~key_padding_mask: here True is a real token",
    "lengths_or_valid": "lengths_or_valid=~key_padding_mask: here True is a real token",
    "mask": REAL.format("~key_padding_mask"),
}
VALID: Answers = {"lengths_or_valid": "lengths_or_valid"}
PADDED_LENGTHS: Answers = {"lengths_or_valid": "lengths_or_valid", "mask": REAL.format("lengths")}
PACKED: Answers = {
    "offsets": "offsets, and queries where they are packed apart",
    "mask": "mask=clearhead.documents(offsets=cu_seqlens), of tokens in one row",
}
SCALE: Answers = {"scale": "scale"}
DROPOUT: Answers = {"dropout": "dropout"}
BIAS: Answers = {
    "query": "bias= for numbers that are added to the scores, mask= for a bool tensor",
    "parts": "parts=[clearhead.layers.ScoreBias(…)]",
    "bias": "bias",
}
WEIGHTS: Answers = {
    "value": "clearhead.AttentionMatrix(query, key) has the weights",
    "query": "leave it out: the weights are what this is",
    "x": "layer.weights(x) has the weights, and forward returns the output alone",
    "embed_dim": "layer.weights(x) has the weights, and forward returns the output alone",
    "model": "leave it out: the model is asked for nothing",
}
CACHES = ("past_key_values", "past_key_value", "layer_past", "cache")
"""The arguments by which models and layers are handed their KV cache; of transformers, from 5.24 on, the last."""


def cache_of(words: Container[str]) -> str | None:
    """The argument by which a call with these is handed its KV cache; None where there is none.

    Example:
        >>> cache_of(["x", "layer_past"]), cache_of(["x"])
        ('layer_past', None)
    """
    return next((each for each in CACHES if each in words), None)


CACHE: Answers = {
    "x": "cache=clearhead.layers.GrowingCache(), one for each layer",
    "embed_dim": "cache=clearhead.layers.GrowingCache() of a call, one for each layer",
}
POSITIONS: Answers = {
    "x": "positions=, a number for each token, by which parts such as clearhead.layers.Rotary go",
    "ids": "ids or offsets, of the documents",
    "embed_dim": "positions= of a call, by which parts such as clearhead.layers.Rotary go",
}
CONTEXT: Answers = {
    "x": "x and context are what is projected; keys and values are made of one context",
    "embed_dim": "x and context are what is projected; keys and values are made of one context",
}
ADDED: Answers = {
    "x": "only clearhead.layers.MultiheadAttention has it",
    "embed_dim": "only clearhead.layers.MultiheadAttention has it",
}
BATCH_FIRST: Answers = {
    "embed_dim": "leave it out: the batch is always first",
    "x": "leave it out: the batch is always first",
    "query": "leave it out: tensors are (batch, num_heads, len, dim)",
}
TRAINING: Answers = {
    "query": "leave it out: dropout= is applied whenever it is given",
    "x": "layer.train() or layer.eval()",
    "embed_dim": "layer.train() or layer.eval()",
}
GROUPED: Answers = {
    "query": "leave it out: fewer heads of key and value are shared by neighbours",
    "num_kv_heads": "num_kv_heads",
}
ROTARY: Answers = {
    "rope": "rope=dict(base=…)",
    "parts": "parts=[clearhead.layers.Rotary(head_dim)]",
}
THETA: Answers = {
    "rotated_dim": "base",
    "rope": "rope=dict(base=…)",
    "parts": "parts=[clearhead.layers.Rotary(head_dim, base=…)]",
}
ALIBI: Answers = {
    "slopes": "slopes",
    "parts": "parts=[clearhead.layers.ScoreBias(clearhead.alibi(num_heads))]",
    "bias": "bias=clearhead.alibi(slopes=…)",
}
SOFTCAP: Answers = {
    "softcap": "softcap",
    "parts": "parts=[clearhead.layers.Softcap(…)]",
}
NORM: Answers = {
    "parts": "parts=[clearhead.layers.QueryKeyNorm(head_dim)]",
}
PAGES: Answers = {"page_len": "page_len"}
NONE_NEEDED: Answers = {"rotated_dim": "leave it out: there is no table and no longest text"}

WORDS: Mapping[str, Answers] = {
    # Masks.
    "attn_mask": {
        "x": "mask=clearhead.dense(~attn_mask): here True is visible",
        "embed_dim": "mask=clearhead.dense(~attn_mask): here True is visible",
        "query": "mask=attn_mask for a bool one, True = visible as there; numbers that are added to "
        "the scores are bias=",
        "tensor": "tensor, True = visible: that of nn.MultiheadAttention is ~attn_mask",
        "mask": "mask, a clearhead.Mask or a bool tensor with True = visible",
    },
    "attention_mask": ATTENTION_MASK,
    "key_padding_mask": KEY_PADDING,
    "src_key_padding_mask": KEY_PADDING,
    "padding_mask": ATTENTION_MASK,
    "key_mask": ATTENTION_MASK,
    "valid": VALID,
    "lengths": VALID,
    "key_value_seq_lengths": PADDED_LENGTHS,
    "valid_lens": PADDED_LENGTHS,
    "cu_seqlens": PACKED,
    "cu_seqlens_q": PACKED,
    "cu_seqlens_k": PACKED,
    "document_ids": {"ids": "ids", "mask": "mask=clearhead.documents(document_ids)"},
    "segment_ids": {"ids": "ids", "mask": "mask=clearhead.documents(segment_ids)"},
    "block_mask": {"mask": "mask, a clearhead.Mask; a BlockMask of FlexAttention is not read"},
    "mask_mod": {"mask": "mask, a clearhead.Mask, such as clearhead.causal()"},
    "is_causal": FROM_FIRST,
    "use_causal_mask": FROM_FIRST,
    "causal": CAUSAL,
    "window": TOKENS,
    "sliding_window": {"window": "window", **TOKENS},
    "attention_window": {"window": "window", **TOKENS},
    "size": TOKENS,
    "window_size": SIDES,
    "local_window_size": SIDES,
    "prefix_len": {"length": "length"},
    "prefix_length": {"length": "length"},
    # Scores and weights.
    "attn_bias": BIAS,
    "attention_bias": {"query": BIAS["query"], "bias": "bias"},
    "position_bias": {**BIAS, "parts": "parts=[clearhead.layers.RelativeBias(num_heads)]"},
    "score_mod": {"query": "bias=, a clearhead.Bias such as clearhead.alibi(num_heads)"},
    "alibi": {"alibi_slopes": "alibi_slopes", **ALIBI},
    "alibi_slopes": ALIBI,
    "softmax_scale": SCALE,
    "scaling": SCALE,
    "sm_scale": SCALE,
    "temperature": {"scale": "scale=1/temperature"},
    "logits_soft_cap": SOFTCAP,
    "attn_logit_softcapping": SOFTCAP,
    "logit_cap": SOFTCAP,
    "softcap": {"parts": SOFTCAP["parts"]},
    "s_aux": {"sinks": "sinks"},
    "learnable_sink": {"sinks": "sinks"},
    "p": DROPOUT,
    "dropout_p": DROPOUT,
    "dropout_rate": DROPOUT,
    "attn_dropout": DROPOUT,
    "attention_dropout": DROPOUT,
    "attn_pdrop": DROPOUT,
    "need_weights": WEIGHTS,
    "average_attn_weights": WEIGHTS,
    "output_attentions": WEIGHTS,
    "return_attention_scores": WEIGHTS,
    "return_attn_probs": WEIGHTS,
    "enable_gqa": GROUPED,
    "multi_query": {"num_kv_heads": "num_kv_heads=1"},
    "qk_norm": NORM,
    "use_qk_norm": NORM,
    "training": TRAINING,
    "attn_implementation": {"kernel": "kernel", "embed_dim": "kernel= of a call"},
    "backend": {"kernel": "kernel", "embed_dim": "kernel= of a call"},
    # Layers.
    "past_key_values": CACHE,
    "past_key_value": CACHE,
    "layer_past": CACHE,
    "use_cache": CACHE,
    "kv_cache": CACHE,
    "position_ids": POSITIONS,
    "cache_position": POSITIONS,
    "position_embeddings": POSITIONS,
    "query": CONTEXT,
    "key": CONTEXT,
    "value": CONTEXT,
    "hidden_states": CONTEXT,
    "key_value_states": CONTEXT,
    "encoder_hidden_states": CONTEXT,
    "batch_first": BATCH_FIRST,
    "add_bias_kv": ADDED,
    "add_zero_attn": ADDED,
    "device": {"x": "layer.to(device)", "embed_dim": "layer.to(device)", "query": "tensor.to(device)"},
    "dtype": {"x": "layer.to(dtype)", "embed_dim": "layer.to(dtype)", "query": "tensor.to(dtype)"},
    "qkv_bias": {"bias": "bias"},
    "use_bias": {"output_bias": "bias and output_bias", "bias": "bias"},
    "out_bias": {"output_bias": "output_bias"},
    "proj_bias": {"output_bias": "output_bias"},
    "rope": {"parts": ROTARY["parts"]},
    "use_rope": ROTARY,
    "rotary": ROTARY,
    "theta": THETA,
    "rope_theta": THETA,
    "rotary_base": THETA,
    # Parts and caches.
    "max_position_embeddings": NONE_NEEDED,
    "max_seq_len": NONE_NEEDED,
    "rope_scaling": {"scaling": "scaling, such as clearhead.layers.Yarn"},
    "interleaved": {"layout": 'layout="interleaved"'},
    "rotary_dim": {"rotated_dim": "rotated_dim"},
    "partial_rotary_factor": {"rotated_dim": "rotated_dim=int(head_dim · factor)"},
    "mrope_section": {"axes": "axes"},
    "original_max_position_embeddings": {"original_len": "original_len"},
    "scaling_factor": {"factor": "factor"},
    "beta_fast": {"fast": "fast"},
    "beta_slow": {"slow": "slow"},
    "low_freq_factor": {"low": "low"},
    "high_freq_factor": {"high": "high"},
    "short_factor": {"short": "short"},
    "long_factor": {"long": "long"},
    "attention_factor": {"attention_gain": "attention_gain"},
    "rms_norm_eps": {"eps": "eps"},
    "norm_eps": {"eps": "eps"},
    "variance_epsilon": {"eps": "eps"},
    "relative_attention_num_buckets": {"num_buckets": "num_buckets"},
    "relative_attention_max_distance": {"max_distance": "max_distance"},
    "max_cache_len": {"max_len": "max_len"},
    "max_batch_size": {"max_len": "leave it out: the first tokens say the batch"},
    "page_size": PAGES,
    "block_size": PAGES,
    "num_blocks": {"num_pages": "num_pages"},
    "layer": {"layers": "layers"},
    "modules": {"layers": "layers"},
    "head": {"heads": "heads"},
}  # fmt: skip
"""Every word with its answers; a callable that takes none of what they stand beside lists what it takes."""
