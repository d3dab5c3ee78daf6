"""The arguments of a constructor, where they are not given: from sizes, names, or an instance."""

import dataclasses
import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from clearhead._common.foreign_names import DROPOUTS, size_of
from clearhead.checking.contract import Contract
from clearhead.checking.subject.signatures import CONFIGS, FLAGS, PLAIN, needed, of_constructor
from clearhead.checking.thresholds import PARAMETERS
from clearhead.errors import ModelError

MISSING = object()
# Every size another, so that a mixed-up axis and the wrong size of a scale show.
HEADS, HEAD_DIM, VALUE_DIM, WIDTH, LENGTH, CONTEXT = 3, 10, 14, 22, 16, 26
# Of names that are no size that we know: most likely a width, and what has these words is none.
WIDTHS = re.compile(r"dim|emb|feat|chan|model|hidden|width|depth|units|size$")
OTHER_SIZES = re.compile(
    r"patch|window|kernel|image|img|vocab|batch|block|stride|halo|pool|grid|spat|group|layer|num|n_|count"
)
COUNTS = re.compile(r"^(num|n|nb|number)_")
# Of settings: what makes a model large, and no attention another.
SMALLER = re.compile(
    r"^(num_|n_)(hidden_|encoder_|decoder_)?layers?$|^vocab_size$|^intermediate_size$"
)
# What names say that are no sizes.
VALUES: tuple[tuple[tuple[str, ...], Any], ...] = (
    (("eps",), 1e-5),
    (("layer_idx", "layer_id", "layer_index", "layer_number", "layer_num", "block_idx"), 0),
    (("num_layers", "n_layers", "n_layer", "depth", "num_hidden_layers", "layers"), 2),
    (("vocab",), 53),
    (("base", "theta"), 10000.0),
    (("temperature",), HEAD_DIM**0.5),
    (("scale", "scaling"), None),
    (("batch", "bs"), 2),
    (("device",), "cpu"),
    (("bias",), True),
    (("causal",), True),
    (("mlp_ratio", "expansion", "ratio", "mult"), 2),
    (("intermediate", "ffn", "ff", "mlp", "feedforward", "d_inner"), 34),
    (("kernel",), 3),
    (("stride", "groups", "dilation"), 1),
    (("window",), None),
)


def declared_arguments(cls: type, contract: Contract) -> dict[str, Any]:
    """The arguments of a class that the contract gives, by their names."""
    heads, kv_heads = contract.heads()
    known: dict[str, Any] = {"num_heads": heads, "num_kv_heads": kv_heads, **contract.sizes}
    found = {}
    for name, parameter in of_constructor(cls).items():
        value = known.get(size_of(name) or "")
        if DROPOUTS.search(name):
            needed = 0.0 if parameter.default is parameter.empty else None
            value = needed if contract.dropout is None else contract.dropout
        if value is not None:
            found[name] = value
    return found


def guessed_arguments(cls: type, known: Mapping[str, Any], contract: Contract) -> dict[str, Any]:
    """Arguments for what a constructor wants and that are not given, each size another."""
    mine = of_constructor(cls)
    wanted = [name for name in needed(mine) if name not in known]
    sizes = {size for name in (*wanted, *known) if (size := size_of(name))}
    # A number of heads that is a default in the signature is one of its own.
    own = [
        each.default
        for name, each in mine.items()
        if name not in known and size_of(name) == "num_heads" and type(each.default) is int
    ]
    fitting = sizes_for(sizes, contract, max(own[0], 1) if own else HEADS)
    return {name: guess(name, _annotation(cls, mine[name]), fitting) for name in wanted}


def unguessed(cls: type) -> list[str]:
    """The arguments of a class for which no name and no type says what they are."""
    mine = of_constructor(cls)
    return [
        name
        for name in needed(mine)
        if mine[name].annotation not in (int, float, bool, str)
        and not FLAGS.search(name)
        and not is_config(name)
        and any(guess(name, mine[name].annotation, _NONE) is each for each in (False, None))
    ]


class _NoSizes(dict[str, int]):
    def __missing__(self, name: str) -> int:
        return 1


_NONE = _NoSizes()


def _annotation(cls: type, parameter: inspect.Parameter) -> Any:
    """The type of a parameter; of a config that does not say it, the dataclass beside its class."""
    found = parameter.annotation
    if found is not parameter.empty or not is_config(parameter.name):
        return found
    around = vars(sys.modules[cls.__module__])
    known = {n: each for n, each in around.items() if n.endswith("Config") and _is_dataclass(each)}
    named = [name for name in known if cls.__name__.startswith(name.removesuffix("Config"))]
    fitting = sorted(named, key=len) or (list(known) if len(known) == 1 else [])
    return known[fitting[-1]] if fitting else found


def _is_dataclass(found: Any) -> bool:
    return isinstance(found, type) and dataclasses.is_dataclass(found)


def sizes_for(wanted: set[str], contract: Contract, num_heads: int = HEADS) -> dict[str, int]:
    """One number for each size, such that they fit each other and differ."""
    heads, kv_heads = contract.heads()
    heads = heads or (kv_heads * 3 if kv_heads else num_heads)
    dim = contract.sizes.get("head_dim", HEAD_DIM)
    whole = heads * dim
    several = bool(wanted & {"num_heads", "num_kv_heads"})
    d_out = whole if several or "d_out" not in wanted else dim + 2
    d_in = WIDTH if "d_out" in wanted or ("head_dim" in wanted and several) else whole
    found = {
        "num_heads": heads,
        "num_kv_heads": kv_heads or heads,
        "head_dim": dim,
        "value_head_dim": VALUE_DIM,
        "d_in": d_in,
        "d_out": d_out,
        "context_length": LENGTH,
        "d_context": CONTEXT,
    }
    return {**found, **contract.sizes}


def guess(name: str, annotation: Any, sizes: Mapping[str, int]) -> Any:
    """A value for a parameter, by its name and its type."""
    plain, size = name.lower(), size_of(name) or _heads(name)
    if annotation in (int, float, bool, str) and size is None:
        by_name = _by_name(plain)
        if annotation is int and by_name is False and _is_width(plain):
            return sizes["d_in"]
        known = isinstance(by_name, annotation) and not (annotation is int and by_name is True)
        return by_name if known else {int: 2, float: 0.1, bool: False, str: ""}[annotation]
    if size is not None:
        return sizes[size]
    if is_config(plain) or dataclasses.is_dataclass(annotation):
        return config(annotation, {}, sizes)
    found = _by_name(plain)
    return sizes["d_in"] if found is False and _is_width(plain) else found


def _is_width(name: str) -> bool:
    """True of a name that is most likely the width of a token."""
    return bool(WIDTHS.search(name)) and not OTHER_SIZES.search(name)


def _heads(name: str) -> str | None:
    """The size that a number of heads is, of one side of a model or another."""
    if not re.search(r"(^|_)(n|num|attention|attn)_?heads?$", name.lower()):
        return None
    return "num_kv_heads" if re.search(r"kv|key_value", name.lower()) else "num_heads"


def _by_name(name: str) -> Any:
    if DROPOUTS.search(name):
        return 0.0
    for words, value in VALUES:
        if any(word in name for word in words):
            return value
    return 4 if COUNTS.search(name) else False


def is_config(name: str) -> bool:
    """True of what people call an object of settings."""
    return bool(CONFIGS.search(name))


class GuessedConfig:
    """Settings that answer whatever is asked of them: what is given, else a guess by the name."""

    def __init__(self, given: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        self.__dict__.update(given)
        self.__dict__["_sizes"] = sizes

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = guess(name, None, self._sizes)
        self.__dict__[name] = value
        return value

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: str) -> bool:
        return True

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name, as a dict gives it."""
        return getattr(self, name) if default is None or size_of(name) else default


def config(annotation: Any, given: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """An object of settings: of the annotated dataclass, or one that guesses."""
    if not _is_dataclass(annotation):
        return GuessedConfig(given, sizes)
    made: dict[str, Any] = {}
    special = [each.default for each in dataclasses.fields(annotation) if "token_id" in each.name]
    for each in dataclasses.fields(annotation):
        size = size_of(each.name)
        if each.name in given:
            made[each.name] = given[each.name]
        elif size is not None and (
            isinstance(each.default, int | dataclasses._MISSING_TYPE)
            or (each.default is None and size == "num_heads")
        ):
            made[each.name] = sizes[size]
        elif each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
            made[each.name] = guess(each.name, each.type, sizes)
        elif type(each.default) is int and SMALLER.search(each.name):
            # What is checked is the same in a small model.
            smaller = _by_name(each.name)
            fits = not any(type(one) is int and one >= smaller for one in special)
            unset = each.default < 0
            if (unset or smaller < each.default) and ("vocab" not in each.name or fits):
                made[each.name] = smaller
    return annotation(**made)


def nested(args: Mapping[str, Any], cls: type, contract: Contract) -> dict[str, Any]:
    """Arguments of which some are of an object: {"config.n_head": 3} → {"config": an object}."""
    flat = {name: value for name, value in args.items() if "." not in name}
    objects: dict[str, dict[str, Any]] = {}
    for name, value in args.items():
        owner, dot, inner = name.partition(".")
        if dot:
            objects.setdefault(owner, {})[inner] = value
    for owner, values in objects.items():
        annotation = getattr(of_constructor(cls).get(owner), "annotation", None)
        given = {size for name in values if (size := size_of(name))}
        sizes = sizes_for(given, contract)
        flat[owner] = config(annotation, values, sizes)
    return flat


def arguments_again(
    instance: nn.Module, contract: Contract, widths: Mapping[str, int]
) -> dict[str, Any] | None:
    """The arguments that an instance was made with; None where it does not show them.

    Args:
        instance: a module.
        contract: what is declared of it.
        widths: d_in and d_out, as its layers show them.
    """
    found = declared_arguments(type(instance), contract)
    for name, parameter in of_constructor(type(instance)).items():
        shown = getattr(instance, name, getattr(instance, f"_{name}", MISSING))
        if isinstance(shown, nn.Dropout):
            shown = shown.p
        if isinstance(shown, PLAIN):
            found[name] = shown
        elif name not in found and size_of(name) in widths:
            found[name] = widths[size_of(name) or ""]
        elif name not in found and parameter.default is parameter.empty:
            return None
    return found


def check_size(found: Any, name: str) -> None:
    """Refuse a module that is not made yet, or too large to be copied.

    Raises:
        ModelError: codes `check.lazy` and `check.size`.
    """
    parameters = list(found.parameters()) if isinstance(found, nn.Module) else []
    if any(is_lazy(each) for each in parameters):
        raise ModelError(
            "check.lazy",
            f"{name} has parameters without a shape, of a lazy module; call it once, so that they get theirs, "
            "and check the instance.",
        )
    count = sum(each.numel() for each in parameters)
    if count > PARAMETERS:
        raise ModelError(
            "check.size",
            f"{name} has {count / 1e9:.1f} billion parameters, and a copy of it is run in float64; "
            "check a small one of the same class: args=dict(…).",
        )
