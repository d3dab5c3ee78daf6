"""Other people's names for what has a name here; docs/names.md lists them.

`convert` knows a layer by the names of its projections, `check` finds projections and sizes by
them, and the ladder loads weights that a tutorial saved under them.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple


class ProjectionNames(NamedTuple):
    """The names of the projections in one kind of layers.

    Attributes:
        kind: the libraries or models that such layers come from.
        inputs: those of query, key and value; or one, that gives all three.
        output: those of the output, where it is in the layer; the first that is there counts.
    """

    kind: str
    inputs: tuple[str, ...]
    output: tuple[str, ...] = ()

    def describe(self) -> str:
        """The names in one line.

        Example:
            >>> LLAMA.describe()
            'Llama, Mistral, Qwen, Gemma, Phi, BART, Whisper, CLIP: q_proj, k_proj, v_proj, o_proj'
        """
        output = [name.partition(".")[0] for name in self.output[:1]]
        return f"{self.kind}: {', '.join([*self.inputs, *output])}"

    def ours(self) -> dict[str, str]:
        """Query, key, value or output, by the name of each matrix of its own.

        Example:
            >>> T5.ours()
            {'q': 'query', 'k': 'key', 'v': 'value', 'o': 'output'}
        """
        inputs = dict(zip(self.inputs, ("query", "key", "value"), strict=True))
        return inputs | dict.fromkeys(self.output, "output")


GPT2 = ProjectionNames("GPT-2, nanoGPT", ("c_attn",), ("c_proj",))
LLAMA = ProjectionNames(
    "Llama, Mistral, Qwen, Gemma, Phi, BART, Whisper, CLIP",
    ("q_proj", "k_proj", "v_proj"),
    ("o_proj", "out_proj", "dense"),
)
PHI3 = ProjectionNames("Phi-3", ("qkv_proj",), ("o_proj",))
NEOX = ProjectionNames("GPT-NeoX, Pythia", ("query_key_value",), ("dense",))
DISTILBERT = ProjectionNames("DistilBERT", ("q_lin", "k_lin", "v_lin"), ("out_lin",))
BERT = ProjectionNames("BERT, RoBERTa", ("query", "key", "value"))
T5 = ProjectionNames("T5", ("q", "k", "v"), ("o",))
DIFFUSION = ProjectionNames("diffusion models", ("to_q", "to_k", "to_v"), ("to_out.0", "to_out"))
TUTORIALS = tuple(
    ProjectionNames("the tutorials", inputs, ("out_proj", "output_projection", "proj"))
    for inputs in (
        ("W_query", "W_key", "W_value"),
        ("weight_query", "weight_key", "weight_value"),
        ("query", "key", "value"),
    )
)

# Of a norm of the query, and of one of the key.
NORM_NAMES = (("q_norm", "k_norm"), ("norm_q", "norm_k"), ("query_norm", "key_norm"))

# By our names of the sizes.
SIZE_NAMES: Mapping[str, tuple[str, ...]] = {
    "d_in": (
        "d_in", "input_dim", "in_dim", "in_features", "embed_dim", "d_model", "dim", "hidden_size",
        "n_embd", "emb_dim", "embed_size", "hid_dim", "hidden_dim", "hidden", "model_dim", "width",
        "query_dim", "channels", "dim_in", "d_emb",
    ),
    "d_out": ("d_out", "output_dim", "out_dim", "out_features", "dim_out"),
    "num_heads": (
        "num_heads", "n_heads", "n_head", "nhead", "heads", "h", "num_attention_heads", "nheads",
    ),
    "num_kv_heads": (
        "num_kv_heads", "n_kv_heads", "num_key_value_heads", "kv_heads", "n_kv_head", "kv",
    ),
    "head_dim": (
        "head_dim", "d_head", "dim_head", "d_k", "head_size", "attention_head_size", "d_kv",
        "key_value_proj_dim",
    ),
    "value_head_dim": ("value_head_dim", "d_v", "v_head_dim"),
    "context_length": (
        "context_length", "max_len", "block_size", "max_seq_len", "n_positions",
        "max_length", "ctx_len", "n_ctx",
    ),
    "d_context": ("d_context", "context_dim", "kdim", "cross_attention_dim"),
}  # fmt: skip

# Of what a projection gives, in letters only and without affixes.
ROLES: Mapping[str, str] = {
    "q": "q", "query": "q", "queries": "q", "qs": "q",
    "k": "k", "key": "k", "keys": "k", "ks": "k",
    "v": "v", "value": "v", "values": "v", "vs": "v", "val": "v",
    "qkv": "qkv", "cattn": "qkv", "queryvaluekey": "qkv", "querykeyvalue": "qkv",
    "kv": "kv", "keyvalue": "kv",
}  # fmt: skip
OUTPUTS = {"o", "wo", "out", "wout", "output", "outputs", "outs", "proj", "projection", "oproj"}
AFFIXES = re.compile(
    r"proj(ection)?|linear|lin$|weights?|^w(?=[qkv])|^to|^fc|layer|dense|matrix|^w$"
)


def role(name: str) -> str | None:
    """The role of the projection of this name: q, k, v, qkv or kv; None for any other name.

    Example:
        >>> [role(name) for name in ("heads.0.W_query", "c_attn", "to_v", "out_proj")]
        ['q', 'qkv', 'v', None]
    """
    words = [part for part in name.split(".") if not part.isdigit()]
    letters = _letters(words[-1]) if words else ""
    without = AFFIXES.sub("", letters)
    found = (ROLES.get(each) for each in (letters, without, AFFIXES.sub("", without)))
    return next((each for each in found if each), None)


def is_output(name: str) -> bool:
    """True for the name of the projection behind the heads.

    Example:
        >>> is_output("W_o"), is_output("W_q")
        (True, False)
    """
    letters = _letters(name)
    return letters in OUTPUTS or AFFIXES.sub("", letters) in OUTPUTS


def normed_role(name: str) -> str | None:
    """q or k for the name of a norm of the query or the key; None for any other name.

    Example:
        >>> normed_role("attn.q_norm"), normed_role("attn.norm")
        ('q', None)
    """
    letters = _letters(name.rpartition(".")[2])
    for query, key in NORM_NAMES:
        if letters in (_letters(query), _letters(key)):
            return "q" if letters == _letters(query) else "k"
    return None


def _letters(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())
