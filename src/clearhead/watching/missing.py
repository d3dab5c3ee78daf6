"""The parts of a watched model that attended and were not seen, and how to make each visible."""

import re
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead._common.torch_internals import is_compiled
from clearhead.errors import WatchError

ATTENDS = re.compile("attention|attend|attn", re.IGNORECASE)
"""In the name of a class: it attends, or holds what does."""

OTHERWISE = re.compile(
    "linear|lightning|rwkv|delta|retention|fourier|conv|pool|norm|output|embed|bias|mask|dropout",
    re.IGNORECASE,
)
"""In such a name: another mechanism than a softmax over keys, or a part of one."""

NAMED = re.compile("(.*_)?att(entio)?n[0-9]*", re.IGNORECASE)
"""The name of a module that attends."""

ROUTES = re.compile("router|gate|gating|expert|moe|topk|top_k|quantiz|hyper", re.IGNORECASE)
"""In the name of a class whose softmax chooses something else than tokens."""

RETURNED = "Its weights come with output_attentions=True."

REASONS = {
    "softmax": "it takes a softmax of its own",
    "flex_attention": "it calls FlexAttention itself",
    "kernel": "it attends by a kernel that cannot be seen",
    "compiled": "it was compiled",
}
"""Why a part was not seen."""

WAYS_OUT = {
    "flex_attention": "torch.nn.functional.scaled_dot_product_attention, or clearhead.attend.",
    "compiled": "the model before torch.compile or TorchScript.",
    "timm": "timm.layers.set_fused_attn(True), before the model is made.",
    "diffusers": "model.set_attn_processor(AttnProcessor2_0()).",
    "x_transformers": "attn_flash=True (flash=True of one Attention) when the model is made; none with talking "
    "heads, which have no flash.",
    "transformer_lens": "the model of transformers itself, as it is before it is booted or converted.",
}
"""Advice on how to attend by PyTorch's function, by the reason or the package of a class."""

OWN_CODE = "torch.nn.functional.scaled_dot_product_attention in the place of it."

MOST_LISTED = 8
"""The parts that a message names."""


class Missing(NamedTuple):
    """A part of a watched model that attended and was not seen.

    Attributes:
        path: where it is in the model; "" is the model.
        kind: the name of its class.
        reason: why it was not seen.
        way_out: what makes it seen.

    Example:
        >>> import warnings, torch, clearhead as ch
        >>> class Own(torch.nn.Module):
        ...     def forward(self, x):
        ...         return torch.softmax(x @ x.mT, dim=-1) @ x
        >>> model = torch.nn.Sequential(ch.MultiHeadAttention(8, num_heads=2), Own())
        >>> with warnings.catch_warnings(action="ignore"), ch.watch(model) as seen:
        ...     output = model(torch.randn(1, 5, 8))
        >>> seen.missing[0].path, seen.missing[0].reason
        ('1', 'it takes a softmax of its own')
    """

    path: str
    kind: str
    reason: str
    way_out: str

    def brief(self) -> str:
        """Return its path and the reason."""
        return f"{self.path or '(the model)'}, {self.reason}"

    def __str__(self) -> str:
        return f"{self.path or '(the model)'} ({self.kind}): {self.reason}. Way out: {self.way_out}"


def listed(missing: Sequence[Missing], whole: str = "seen.missing") -> str:
    """Return a new line for each of the first `MOST_LISTED` parts, and where to find all if there are more."""
    lines = [f"\n  - {each}" for each in missing[:MOST_LISTED]]
    more = len(missing) - len(lines)
    return "".join(lines) + (f"\n  - and {more} more, in {whole}" if more else "")


def places_that(missing: Sequence[Missing]) -> str:
    """Return the number of parts as the start of a clause: "1 place that was", "2 places that were".

    Example:
        >>> places_that([Missing("h.0", "Own", "it was compiled", "the model before.")])
        '1 place that was'
    """
    return "1 place that was" if len(missing) == 1 else f"{len(missing)} places that were"


class Paths:
    """The paths of the modules of a model; one that is added later counts as a part of the module that it runs in.

    Args:
        modules: those that are there, by their paths.
    """

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self._known = {id(each): (weakref.ref(each), name) for name, each in modules.items()}

    def of(self, module: nn.Module | None) -> str | None:
        """Return the path of a module, or None for one of another model."""
        reference, name = self._known.get(id(module), (None, None))
        return name if reference is not None and reference() is module else None

    def innermost(self, running: list[nn.Module]) -> tuple[nn.Module, str] | None:
        """Return the innermost module of this model among those that run, and its path; None if none is of it.

        `running` has the innermost last.
        """
        for module in reversed(running):
            name = self.of(module)
            if name is not None:
                return module, name
        return None


class Ran:
    """The modules of a model that ran.

    Args:
        model: the model.
        modules: those of the model, by their paths.
    """

    def __init__(self, model: nn.Module, modules: dict[str, nn.Module]) -> None:
        self._model = model
        self._modules = modules
        self._ran: dict[str, type] = {}
        self._given: dict[str, list[weakref.ref[Tensor]]] = {}
        self._worked: set[str] = set()
        self._own: dict[str, tuple[type, str]] = {}
        compiled = [root for root, module in modules.items() if _is_compiled(module)]
        self.holding = {
            outer
            for root in compiled
            if _attentions_in(root, modules[root])
            for outer in (root, *_outer(root))
        }
        """The compiled parts that attend, and what they are in: a call reported of one of these may be of any part."""

    def enter(self, path: str, module: nn.Module, inputs: Iterable[object] = ()) -> None:
        """Note a module that starts to run, and its arguments if it may attend."""
        self._ran[path] = type(module)
        if _attends(module):
            self._given[path] = [weakref.ref(each) for each in inputs if isinstance(each, Tensor)]

    def left(self, path: str | None, output: Any) -> None:
        """Note that a module has run; one that returned its input did not attend.

        No-op for modules not noted at `enter`, and for a path of None.
        """
        if path not in self._given:
            return
        made = output[0] if isinstance(output, tuple | list) and output else output
        if not any(each() is made for each in self._given.pop(path)):
            self._worked.add(path)

    def witness(self, path: str, module: nn.Module, kind: str, shape: tuple[int, ...]) -> None:
        """Note that a module called softmax or FlexAttention itself, if that may be attention.

        A softmax counts if the module is named as an attention or its scores are square, and not for routers and gates.
        """
        if type(module).__module__.startswith("torch.nn.") and "." in path:
            # nn.Softmax as a part of the module in question.
            path = path.rpartition(".")[0]
            module = self._model.get_submodule(path)
        name = type(module).__name__
        if kind == "softmax":
            square = len(shape) > 2 and shape[-1] == shape[-2] > 1
            named = ATTENDS.search(name) or NAMED.fullmatch(path.rpartition(".")[2])
            if ROUTES.search(name) or not (named or square) or len(shape) < 2:
                return
        self._own[path] = type(module), kind

    def missing(self, seen: Collection[str]) -> list[Missing]:
        """Return the parts that attended and are not among the modules that were seen; [] if none.

        Args:
            seen: the paths of those that were.
        """
        found = dict(self._own)
        known = {*seen, *found}
        for path, kind, what in [*self._compiled(seen), *self._silent(known)]:
            if not any(other and is_within(path, other) for other in found):
                found[path] = kind, what
        return [
            Missing(path, kind.__name__, REASONS[what], self._way_out(kind, what))
            for path, (kind, what) in found.items()
        ]

    def _silent(self, known: Collection[str]) -> Iterator[tuple[str, type, str]]:
        """Yield path, class and "kernel" for each module with the name of an attention that reported no call.

        `known` are the paths of those that did; modules around or inside one are passed over.
        """
        named = {path: kind for path, kind in self._ran.items() if path in self._worked}
        above = {outer for path in (*known, *named) for outer in _outer(path)}
        for path, kind in named.items():
            inside = any(outer in named and outer in known for outer in _outer(path))
            if path not in known and path not in above and not inside:
                yield path, kind, "kernel"

    def _compiled(self, seen: Collection[str]) -> Iterator[tuple[str, type, str]]:
        """Yield path, class and "compiled" for each attention, with none inside, in a compiled part that ran.

        Those that were seen are left out.
        """
        for root, module in self._modules.items():
            if not _is_compiled(module) or self._ran.keys().isdisjoint([root, *_outer(root)]):
                continue
            parts = _attentions_in(root, module)
            for path, kind in parts.items():
                inner = any(is_within(other, path) for other in parts if other != path)
                if not inner and not any(is_within(other, path) for other in seen):
                    yield path, kind, "compiled"

    def _way_out(self, kind: type, what: str) -> str:
        """Return advice on how to make modules of a class visible to a watch; `what` is a key of `REASONS`."""
        if what in WAYS_OUT:
            return WAYS_OUT[what]
        package = kind.__module__.partition(".")[0]
        if package != "transformers":
            return WAYS_OUT.get(package, OWN_CODE)
        now = getattr(getattr(self._model, "config", None), "_attn_implementation", None)
        if getattr(self._model, "_supports_sdpa", False) and now != "sdpa":
            return 'model.set_attn_implementation("sdpa").'
        return f"none in transformers, where this type has code of its own only. {RETURNED}"


def nothing_seen(name: str, missing: Sequence[Missing], *, ran: bool) -> WatchError:
    """Return the WatchError for a model without a recorded call: `watch.not-run`, or `watch.nothing-seen` if it ran."""
    if not ran:
        return WatchError(
            "watch.not-run",
            f"{name} was not called while it was watched, so nothing was seen. A call in another thread is seen "
            'with watch(…, threads="all"); code that torch.compile has compiled is not seen.',
        )
    return WatchError(
        "watch.nothing-seen",
        f"{name} ran without a call of attention that can be seen: of\n"
        "torch.nn.functional.scaled_dot_product_attention, nn.MultiheadAttention, clearhead, or the\n"
        f"attention interface of transformers; or torch.compile has compiled it.{listed(missing)}",
    )


def _attends(module: nn.Module) -> bool:
    """Return True if the class of a module has the name of an attention, other than linear attention."""
    if not names_attend(type(module).__name__):
        return False
    # One class of diffusers does what its processor does.
    return "linear" not in type(getattr(module, "processor", None)).__name__.lower()


@lru_cache(maxsize=1024)
def names_attend(kind: str) -> bool:
    """Return True if a class has the name of an attention, or of a module that has one; cached."""
    return bool(ATTENDS.search(kind)) and not OTHERWISE.search(kind)


def _attentions_in(root: str, module: nn.Module) -> dict[str, type]:
    """Return the classes of the attentions in a module, itself included, by path; `root` is its own path."""
    return {
        f"{root}.{path}".strip("."): type(each)
        for path, each in module.named_modules()
        if _attends(each)
    }


def _outer(path: str) -> list[str]:
    """Return the paths of the modules that contain a module, from "" for the model on; [] for the model."""
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(len(parts))]


def is_within(path: str, outer: str) -> bool:
    """Return True if a path is the other one, or below it."""
    return path == outer or outer == "" or path.startswith(f"{outer}.")


def _is_compiled(module: nn.Module) -> bool:
    """Return True if a module runs compiled code, by torch.compile or TorchScript."""
    return is_compiled(module) or isinstance(module, torch.jit.ScriptModule)
