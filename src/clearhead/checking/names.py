"""What other people call sizes, projections and inputs."""

import re
from collections.abc import Mapping

SIZE_NAMES: Mapping[str, tuple[str, ...]] = {
    "d_in": (
        "d_in", "input_dim", "in_dim", "in_features", "embed_dim", "d_model", "dim", "hidden_size",
        "n_embd", "emb_dim", "embed_size", "hid_dim", "hidden_dim", "hidden", "model_dim", "width",
        "query_dim", "channels", "dim_in", "d_emb", "embedding_dim", "emb_size", "n_embed", "emb",
        "in_channels", "in_channel", "feature_dim", "input_size", "n_dim", "d_hid", "d_embed",
        "hidden_channels", "embed_dims", "model_size", "d_q", "q_dim", "in_planes", "num_hiddens",
        "n_units", "size", "n_state", "embeddings_dim", "dims", "d", "in_size", "n_feat", "inp_dim",
    ),
    "d_out": (
        "d_out", "output_dim", "out_dim", "out_features", "dim_out", "out_channels", "output_size",
        "out_channel", "out_size",
    ),
    "num_heads": (
        "num_heads", "n_heads", "n_head", "nhead", "heads", "h", "num_attention_heads", "nheads",
        "num_head", "head_num", "n_h", "attention_heads", "attn_heads", "heads_num", "nb_heads",
        "encoder_attention_heads", "head", "num_q_heads",
    ),
    "num_kv_heads": (
        "num_kv_heads", "n_kv_heads", "num_key_value_heads", "kv_heads", "n_kv_head", "kv",
        "num_key_value_head", "num_kv_groups", "n_local_kv_heads", "kv_head",
    ),
    "head_dim": (
        "head_dim", "d_head", "dim_head", "d_k", "head_size", "attention_head_size", "d_kv",
        "dim_heads", "heads_dim", "d_keys", "dim_k", "key_dim", "qk_dim", "attention_dim",
        "d_qk", "d_attn", "attn_dim", "dim_key", "k_dim", "dim_qk", "key_size", "kdim_per_head",
        "temperature_dim", "d_key", "attention_head_dim", "dk", "head_width", "head_channels",
    ),
    "value_head_dim": (
        "value_head_dim", "d_v", "v_head_dim", "dim_v", "value_dim", "d_values", "v_dim", "dv",
        "dim_value", "value_size", "d_value",
    ),
    "context_length": (
        "context_length", "max_len", "block_size", "max_seq_len", "n_positions", "max_length",
        "ctx_len", "n_ctx", "max_position_embeddings", "seq_len", "seq_length", "sequence_length",
        "max_seq_length", "context_size", "max_context_length", "n_tokens", "num_tokens",
        "max_tokens", "context_window", "max_sequence_length", "seqlen", "num_patches", "n_token",
        "max_sequence_len", "max_relative_position", "size_of_context", "len_max", "max_position",
    ),
    "d_context": (
        "d_context", "context_dim", "kdim", "cross_attention_dim", "dim_context", "encoder_dim",
        "kv_dim", "memory_dim", "encoder_hidden_size", "vdim", "dim_kv", "ctx_dim", "cond_dim",
    ),
}  # fmt: skip
DROPOUTS = re.compile(r"drop|^p$|_p$|pdrop")

# What the inputs are called, without what stands around it.
SIDES = {
    **dict.fromkeys(("q", "query", "queries", "qs"), "query"),
    **dict.fromkeys(("k", "key", "keys", "ks"), "key"),
    **dict.fromkeys(("v", "value", "values", "vs", "val"), "value"),
}
CONTEXTS = (
    "encoder_hidden_states", "key_value_states", "context", "memory", "encoder_output", "enc_output",
    "encoder_out", "kv", "y", "cond", "source", "context_x", "x_2", "x2", "encoder_outputs", "ctx",
    "encoder_states", "latents_kv", "cross", "other", "src_hidden",
)  # fmt: skip
MASKS = re.compile(r"mask|valid")
# Masks that are none of padding, though their names say mask.
OTHER_MASKS = re.compile(r"head_mask|causal|rel|bias")
PADDING = re.compile(r"pad")
OUTPUTS = ("last_hidden_state", "logits", "output", "out", "attn_output", "hidden_states", "context", "x")
# Buffers and attributes that hold a mask.
KEPT_MASK = re.compile(r"mask|tril|triu|causal|visible|hidden$|^bias$|future")

AFFIXES = re.compile(
    r"proj(ection)?|linear|lin$|weights?|^w(?=[qkv])|^to|^fc|layer|dense|matrix|^w$|^in|^self"
)
ROLES = {
    "q": "q", "query": "q", "queries": "q", "qs": "q",
    "k": "k", "key": "k", "keys": "k", "ks": "k",
    "v": "v", "value": "v", "values": "v", "vs": "v", "val": "v",
    "qkv": "qkv", "cattn": "qkv", "queryvaluekey": "qkv", "querykeyvalue": "qkv",
    "kv": "kv", "keyvalue": "kv",
}  # fmt: skip
ROTARY = ("rope", "rotary", "rotat", "inv_freq", "freqs", "cos", "polar")


def size_of(name: str) -> str | None:
    """The size that a parameter of this name is; None for any other."""
    name = name.lower().strip("_")
    return next((size for size, names in SIZE_NAMES.items() if name in names), None)


def side_of(name: str) -> str | None:
    """The input that a parameter of this name is: query, key or value; None for any other."""
    words = re.split(r"[_\d]+", name.lower())
    found = [SIDES[word] for word in words if word in SIDES]
    return found[0] if len(found) == 1 and not MASKS.search(name) else None


def role(name: str) -> str | None:
    """What a layer of this name makes: q, k, v, qkv, kv; None for any other."""
    words = [part for part in name.split(".") if not part.isdigit() and part not in ("weight", "bias")]
    if not words:
        return None
    last = re.sub(r"[^a-z]", "", words[-1].lower())
    for _ in range(3):
        if last in ROLES:
            return ROLES[last]
        last = AFFIXES.sub("", last)
    return ROLES.get(last)
