"""Names of other libraries, papers and tutorials, and their equivalents here: the tables of foreign.toml.

`hints` answers a call with their arguments, and `Answering` one of their attributes.
"""

import re
import sys
import tomllib
from collections.abc import Container, Mapping
from importlib import import_module, resources
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from clearhead.errors import NoAttributeError

TABLES: Mapping[str, Any] = tomllib.loads(
    resources.files("clearhead._common").joinpath("foreign.toml").read_text(encoding="utf-8")
)


def by_name(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new table by single names, from one whose keys are several names each, split at spaces.

    Example:
        >>> by_name({"q query": 1})
        {'q': 1, 'query': 1}
    """
    return {name: answer for names, answer in table.items() for name in names.split()}


WORDS: Mapping[str, Mapping[str, str]] = by_name(TABLES["arguments"])
"""The answers for an argument, by an argument of ours: the first one that a callable takes counts."""

SIZES = {name: tuple(ours.split()) for name, ours in TABLES["size-arguments"].items()}
"""Arguments that are a size, by the names that `foreign_names` has for sizes."""

PLACES: Mapping[str, str] = TABLES["positional"]
"""The hint for too many positional arguments, by the first parameter that must be passed by name."""

ATTRIBUTES = {owner: by_name(table) for owner, table in TABLES["attributes"].items()}
"""The answers for an attribute, by the package or class of the attribute."""

CACHES = ("past_key_values", "past_key_value", "layer_past", "cache")
"""The arguments by which models and layers receive their KV cache; of transformers, from 5.24 on, the last."""


def cache_of(words: Container[str]) -> str | None:
    """Return the name in `words` by which a call receives its KV cache, the first in `CACHES`; None if there is none.

    Example:
        >>> cache_of(["x", "layer_past"]), cache_of(["x"])
        ('layer_past', None)
    """
    return next((each for each in CACHES if each in words), None)


PLACES_OF_CLASSES = ("errors", "layers", "masks", "types")
"""The modules whose classes are named if somebody looks for them in clearhead."""


class Answering:
    """A class whose objects answer attributes of other libraries with a hint at their equivalents.

    Example:
        >>> class Edit(Answering): ...
        >>> Edit().steer
        Traceback (most recent call last):
        ...
        clearhead.errors.NoAttributeError: [attribute.name] Edit has no steer; write edit[layer]...
    """

    if not TYPE_CHECKING:  # a type checker knows what is not there

        def __getattr__(self, name: str) -> Any:
            """Raise the error of `no_attribute` for an attribute that the object lacks."""
            raise no_attribute(self, name)


def no_attribute(owner: object, name: str, first: str = "") -> AttributeError:
    """Return the AttributeError for an attribute that an object lacks, with its equivalent here if there is one.

    Without an equivalent and without `first` it is worded as Python's.

    Args:
        owner: the object.
        name: the attribute.
        first: a sentence before the answer of the table; "" for none.
    """
    kinds = type(owner).__mro__
    answers = [ATTRIBUTES.get(each.__name__, {}).get(name) for each in kinds]
    answer = next((each for each in answers if each and _is_for(owner, each)), "")
    return _error(owner, kinds[0].__name__, name, answer, first)


def no_name(package: str, name: str) -> AttributeError:
    """Return the AttributeError for a name that a package lacks, with its equivalent here if there is one.

    A capitalised name is also looked for in the modules of PLACES_OF_CLASSES, which are imported.

    Example:
        >>> print(no_name("clearhead", "DynamicCache"))
        [attribute.name] clearhead has no DynamicCache; write clearhead.layers.GrowingCache(), one for each layer.
        >>> print(no_name("clearhead", "Rotary"))
        [attribute.name] clearhead has no Rotary; write clearhead.layers.Rotary.
    """
    root = package.partition(".")[0]
    answer = ATTRIBUTES.get(root, {}).get(name, "")
    if not answer and name[:1].isupper():  # no module, which may be imported just now
        places = [import_module(f"{root}.{each}") for each in PLACES_OF_CLASSES]
        answer = next((f"{each.__name__}.{name}" for each in places if name in dir(each)), "")
    return _error(sys.modules.get(package), package, name, answer)


def _is_for(owner: object, answer: str) -> bool:
    """Return False if an answer begins with an "x.name" whose name the object lacks; True for `clearhead.name`."""
    first = re.match(r"(\w+)\.(\w+)", answer)
    return first is None or first[1] == "clearhead" or hasattr(owner, first[2])


def _error(owner: object, kind: str, name: str, answer: str, first: str = "") -> AttributeError:
    """Return the AttributeError for a name that `owner`, of kind `kind`, lacks.

    `answer` is what to write instead, `first` a sentence before it; without both the error is worded as Python's.
    """
    if not answer and not first:
        what = f"module {kind!r}" if isinstance(owner, ModuleType) else f"{kind!r} object"
        return AttributeError(f"{what} has no attribute {name!r}", name=name, obj=owner)
    write = f"{'Or write' if first else 'write'} {answer}." if answer else ""
    return NoAttributeError(
        "attribute.name", f"{kind} has no {name}; {' '.join(filter(None, (first, write)))}"
    )


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
    ("o_proj", "out_proj", "dense", "projection_layer"),
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
