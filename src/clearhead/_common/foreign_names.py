"""Names used by other libraries, and their equivalents in this one; docs/names.md lists them.

`convert` knows a layer by the names of its projections, `check` finds projections and sizes by
them, and the ladder loads weights that a tutorial saved under them.
"""

import re
from typing import NamedTuple

from clearhead._common.foreign_words import TABLES, by_name


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
        """Return the kind and the names in one line; of the output the first name only, up to its first dot.

        Example:
            >>> LLAMA.describe()
            'Llama, Mistral, Qwen, Gemma, Phi, BART, Whisper, CLIP: q_proj, k_proj, v_proj, o_proj'
        """
        output = [name.partition(".")[0] for name in self.output[:1]]
        return f"{self.kind}: {', '.join([*self.inputs, *output])}"

    def ours(self) -> dict[str, str]:
        """Return "query", "key", "value" or "output" by the name of each matrix; ValueError if inputs are not three.

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
NEOX = ProjectionNames("GPT-NeoX, Pythia, BLOOM, Falcon", ("query_key_value",), ("dense",))
MPT = ProjectionNames("MPT", ("Wqkv",), ("out_proj",))
LATENT = ProjectionNames("DeepSeek V2 and V3", ("kv_a_proj_with_mqa", "kv_b_proj"), ("o_proj",))
TIMM = ProjectionNames("timm", ("qkv",), ("proj",))
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

SIZE_NAMES = {ours: tuple(names.split()) for ours, names in TABLES["sizes"].items()}
"""The names of a size, by ours."""

ROLES = by_name(TABLES["roles"])
"""What a projection gives, by its name in letters only and without affixes."""

PROJECTED = set(TABLES["names"]["projected"].split())
AFFIXES = re.compile(
    r"proj(ection)?|linear|lin$|weights?|^w(?=[qkv])|^to|^fc|layer|dense|matrix|^w$|^in|^self"
)

DROPOUTS = re.compile(r"drop|^p$|_p$|pdrop")

SIDES = by_name(TABLES["sides"])
"""Inputs, by a word of their names."""

WIDTH_SIDES = by_name(TABLES["width-sides"])
CONTEXTS = tuple(TABLES["names"]["contexts"].split())
MASKS = re.compile(r"mask|valid")
# Masks, but not of padding.
OTHER_MASKS = re.compile(r"head_mask|causal|rel|bias")
PADDING = re.compile(r"pad")
OUTPUTS = tuple(TABLES["names"]["outputs"].split())
"""Outputs, in the order in which they are taken."""

# Of buffers and attributes.
KEPT_MASK = re.compile(r"mask|tril|triu|causal|visible|hidden$|^bias$|future")
ROTARY = tuple(TABLES["names"]["rotary"].split())


def size_of(name: str) -> str | None:
    """Return our name of a size that other libraries call `name`; None if it is not a size.

    Example:
        >>> size_of("d_model"), size_of("d_out_v"), size_of("flag")
        ('d_in', 'value_head_dim', None)
    """
    name = name.lower().strip("_")
    found = next((size for size, names in SIZE_NAMES.items() if name in names), None)
    if found is not None:
        return found
    # A width that names its side: d_out_kq, out_dim_v.
    words = name.split("_")
    sides = [WIDTH_SIDES[word] for word in words if word in WIDTH_SIDES]
    rest = "_".join(word for word in words if word not in WIDTH_SIDES)
    return sides[0] if len(set(sides)) == 1 and rest in SIZE_NAMES["d_out"] else None


def side_of(name: str) -> str | None:
    """Return "query", "key" or "value" if just one word of a name is that of such an input; None else, and for masks.

    Example:
        >>> side_of("query_states"), side_of("key_padding_mask")
        ('query', None)
    """
    found = [SIDES[word] for word in re.split(r"[_\d]+", name.lower()) if word in SIDES]
    return found[0] if len(found) == 1 and not MASKS.search(name) else None


def role(name: str) -> str | None:
    """Return the role of the projection of this name: q, k, v, qkv or kv; None for any other name.

    Of a name with dots the last part counts that is no number, "weight" or "bias".

    Example:
        >>> [role(name) for name in ("heads.0.W_query", "c_attn", "to_v", "out_proj")]
        ['q', 'qkv', 'v', None]
    """
    ends = ("weight", "bias")
    words = [part for part in name.split(".") if not part.isdigit() and part not in ends]
    letters = _letters(words[-1]) if words else ""
    for _ in range(3):
        if letters in ROLES:
            return ROLES[letters]
        letters = AFFIXES.sub("", letters)
    return ROLES.get(letters)


def is_output(name: str) -> bool:
    """Return True for a name of the output projection in some library; `name` is without the path of its parent module.

    Example:
        >>> is_output("W_o"), is_output("W_q")
        (True, False)
    """
    letters = _letters(name)
    return letters in PROJECTED or AFFIXES.sub("", letters) in PROJECTED


def _letters(name: str) -> str:
    """Return the letters a to z of a name, in lower case."""
    return re.sub(r"[^a-z]", "", name.lower())
