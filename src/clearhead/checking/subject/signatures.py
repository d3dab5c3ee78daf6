"""The parameters of foreign code: what each is for, by its name, its type and its default.

Whoever makes a class, calls what is checked, or tries what a package holds reads signatures here.
"""

import inspect
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from clearhead._common.foreign_names import (
    CONTEXTS,
    DROPOUTS,
    MASKS,
    OTHER_MASKS,
    PADDING,
    side_of,
    size_of,
)

Parameters = Mapping[str, inspect.Parameter]
PLAIN = (int, float, bool, str, types.NoneType)

IDS = ("input_ids", "ids", "idx", "token_ids", "tokens", "src_ids", "indices")
CONFIGS = re.compile(
    r"^_*(config|cfg|conf|args|hparams|opt|options|params|settings)_*$|_(config|cfg|args)$"
)
FLAGS = re.compile(
    r"^(is|use|return|need|needs|enable|with|output|do|average|add|average_attn)_|^(training|verbose|train|causal|deterministic)$"
)
# What a call could do without: of earlier calls, of other layers, or added to the scores.
OPTIONAL = re.compile(r"alibi|cache|past|prev|incremental|bias|^ve$|state$")
# Positions, as a number or as one for each token.
START = re.compile(r"^(start|input|cache|seq)_(pos|position|offset|idx|index)$|^(pos|offset)$")
PLACES = re.compile(r"^(position_ids|positions|pos_ids|input_positions)$")
POSITIONS = re.compile(
    r"^pos(ition)?(al)?_?(ids|emb|enc)|^positions$|^freqs|^cos_?sin$|^rel_pos|rope|rotary|alibi"
)


class SideNames(NamedTuple):
    """The parameters that query, key and value come by."""

    query: str
    key: str
    value: str


def of_call(run: Any) -> Parameters:
    """Return the parameters of a call that can be passed by name; {} if it shows no signature.

    For a class they are those of calling an instance, without self.
    """
    if inspect.isclass(run):
        called: Any = run.forward if issubclass(run, nn.Module) else run.__call__
        return dict([*_plain(called).items()][1:])
    return _plain(run.forward if isinstance(run, nn.Module) else run)


def _plain(call: Any) -> Parameters:
    """Return the parameters of a callable that can be passed by name; cached for a plain function."""
    written = getattr(call, "__func__", call)
    if not isinstance(written, types.FunctionType) or vars(written):
        return _read(call)  # what stands in its place may change
    code, found = _known.get(written, (None, {}))
    if code != (written.__code__, call is written):
        found = _read(call)
        _known[written] = (written.__code__, call is written), found
    return found


# Reading them takes longer than most calls.
_known: WeakKeyDictionary[types.FunctionType, Any] = WeakKeyDictionary()


def _read(call: Any) -> Parameters:
    """Return the parameters of a callable that can be passed by name; {} if it shows no signature."""
    try:
        found = inspect.signature(call).parameters
    except (TypeError, ValueError):
        return {}
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: each for name, each in found.items() if each.kind in plain}


def of_constructor(cls: type) -> dict[str, inspect.Parameter]:
    """Return the named parameters of a constructor; those of the parents too, as long as it takes **others."""
    found: dict[str, inspect.Parameter] = {}
    for kind in cls.__mro__:
        own = kind.__dict__.get("__init__")
        if not isinstance(own, types.FunctionType):
            continue
        _, *mine = inspect.signature(own).parameters.values()
        for each in mine:
            if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
                found.setdefault(each.name, each)
        if not any(each.kind is each.VAR_KEYWORD for each in mine):
            break
    return found


def needed(names: Parameters) -> list[str]:
    """Return the names of the parameters without a default, in order."""
    return [name for name, each in names.items() if each.default is each.empty]


def kind_of(parameter: inspect.Parameter) -> str:
    """Return what an argument of a call is.

    Returns:
        "mask", "flag", "dropout", "config", "start", "places", "optional", "size", or "tensor" for any other.
    """
    name = parameter.name
    if MASKS.search(name):
        return "mask"
    if parameter.annotation is bool or FLAGS.search(name):
        return "flag"
    patterns = {
        "start": START,
        "places": PLACES,
        "optional": OPTIONAL,
        "config": CONFIGS,
        "dropout": DROPOUTS,
    }
    for kind, pattern in patterns.items():
        if pattern.search(name):
            return kind
    return "tensor" if size_of(name) is None or name in CONTEXTS else "size"


def settings_of(config: Any) -> Mapping[str, Any]:
    """Return the settings of a config by their names: of a mapping, a class, or an object, with slots or without.

    A mapping is returned itself.
    """
    if isinstance(config, Mapping):
        return config
    cls = config if inspect.isclass(config) else type(config)
    found = {
        name: getattr(config, name, None)
        for kind in reversed(cls.__mro__[:-1])
        for name, value in vars(kind).items()
        if name[:2] != "__" and (isinstance(value, PLAIN) or inspect.ismemberdescriptor(value))
    }
    return found if config is cls else found | getattr(config, "__dict__", {})


def tensors_of(names: Parameters) -> list[str]:
    """Return the names of the required parameters that take tensors: not masks, flags, sizes, caches or configs."""
    return [name for name in needed(names) if kind_of(names[name]) == "tensor"]


def masks_of(names: Parameters) -> list[str]:
    """Return the names of the parameters that take masks."""
    return [name for name in names if MASKS.search(name)]


def sides_of(names: Parameters) -> SideNames | None:
    """Return the parameters of query, key and value, in any order.

    None if there are not all three, or if another tensor is required.
    """
    found: dict[str, str] = {}
    for name in names:
        side = side_of(name)
        if side is not None and kind_of(names[name]) == "tensor":
            found.setdefault(side, name)
    others = [name for name in tensors_of(names) if side_of(name) is None]
    return SideNames(**found) if len(found) == 3 and not others else None


def context_of(names: Sequence[str]) -> str | None:
    """Return the first name that is usual for the sequence that is attended to; None if there is none."""
    return next((each for each in names if each in CONTEXTS), None)


def mask_of_tokens(names: Sequence[str]) -> str | None:
    """Return the name that is usual for a mask of tokens, one of padding first; None if there is none."""
    fitting = [each for each in names if MASKS.search(each) and not OTHER_MASKS.search(each)]
    return next(iter(sorted(fitting, key=lambda each: not PADDING.search(each))), None)


def filled(
    names: Parameters, named: Mapping[str, Any], x: Tensor, causal: bool
) -> dict[str, Any] | None:
    """Return values for the required parameters that are not in `named`; None if nothing can stand for one.

    Masks, caches and biases are None, flags False, dropout 0.0; sizes are those of x, and positions those of its
    tokens. Nothing can stand for a tensor, a config, or a mask if `causal`.
    """
    found: dict[str, Any] = {}
    for name in needed(names):
        if name in named:
            continue
        kind = kind_of(names[name])
        if kind in ("tensor", "config") or (kind == "mask" and causal):
            return None
        found[name] = _filling(kind, name, x)
    return found


def _filling(kind: str, name: str, x: Tensor) -> Any:
    """Return a value for a parameter of this kind: a size of x, positions, False, 0.0 or 0; None for others."""
    tokens, width = x.shape[-2], x.shape[-1]
    if kind == "size":
        of_heads = x.shape[1] if x.ndim > 3 else None
        sizes = {"num_heads": of_heads, "num_kv_heads": of_heads, "context_length": tokens}
        return sizes.get(size_of(name) or "", width)
    fixed = {"flag": False, "dropout": 0.0, "start": 0}
    if kind == "places":
        return torch.arange(tokens)[None].expand(x.shape[0], -1)
    return fixed.get(kind)
