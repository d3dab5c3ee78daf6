"""Feed a subject of tokens: the width of a token, the lengths, and a run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.foreign_names import KEPT_MASK, SIZE_NAMES, role
from clearhead._text import shown
from clearhead.checking.contract import Contract
from clearhead.checking.evidence.cases import called
from clearhead.checking.subject.refusals import first_line, named_tensors
from clearhead.checking.subject.signatures import settings_of
from clearhead.checking.subject.subject import Subject
from clearhead.checking.thresholds import SPREAD_TOKENS
from clearhead.errors import ModelError

# What takes any width gets the first, at which a scale shows.
WIDTHS = (6, *range(1, 17), 32, 64, 128, 256, 512, 768)


@dataclass(frozen=True)
class Feed:
    """The sizes of calls of a subject of tokens.

    Attributes:
        width: of a token.
        context_width: of a token of the context.
        lengths: the numbers of tokens of calls, the main one first.
        num_heads: None if unknown.
        longest: the most tokens that it accepts; None if unknown.
        plain: True for a subject without a batch.
    """

    width: int
    context_width: int
    lengths: tuple[int, ...]
    num_heads: int | None
    longest: int | None
    plain: bool

    def draw(self, tokens: int, seed: int, batch: int = 2, width: int | None = None) -> Tensor:
        """Return random tokens, (batch, tokens, width), or (tokens, width) if calls have no batch."""
        generator = torch.Generator().manual_seed(seed)
        shape: tuple[int, ...] = (tokens, width or self.width)
        shape = shape if self.plain else (batch, *shape)
        return SPREAD_TOKENS * torch.randn(shape, generator=generator, dtype=torch.float64)

    @staticmethod
    def as_wide_as_long(subject: Subject, main: Tensor, output: Tensor) -> bool:
        """Return True if the output's last axis is as long as the text, at two lengths, as of weights.

        False if a text that is one token shorter raises.
        """
        if output.shape[-1] != main.shape[-2]:
            return False
        short = shortened(subject, main, main.shape[-2] - 1)
        return short is not main and subject(short).shape[-1] == short.shape[-2]


def feed(subject: Subject, contract: Contract) -> Feed:
    """Return the sizes of the calls.

    Raises:
        ModelError: code `check.width`, if the width of a token cannot be found.
    """
    limit = longest(subject, contract)
    if limit is None:
        lengths = (7, 5, 11, 1)
    elif "tokens" in contract.sizes:
        lengths = (limit,)
    else:
        lengths = tuple(sorted({min(each, limit) for each in (7, 5, 2)}, key=lambda n: abs(n - 7)))
    heads = size_named("num_heads", subject, contract)
    plain = subject.takes == "x2d"
    made = Feed(1, 1, lengths, heads, limit, plain)
    widths = list(dict.fromkeys(_widths(subject, contract)))
    fed = replace(made, width=widths[0] if widths else 0)
    if subject.takes in ("x", "x2d", "x,mask"):
        for width in widths if len(widths) > 1 else ():
            if runs(subject, replace(made, width=width).draw(lengths[0], 0)):
                fed = replace(made, width=width)
                break
    if not fed.width:
        tried = (width for width in WIDTHS if runs(subject, replace(made, width=width).draw(3, 0)))
        fed = replace(made, width=next(tried, 0))
    if not fed.width:
        raise ModelError(
            "check.width",
            f"{subject.name} does not say how wide a token is; give it: sizes=dict(d_in=…).",
        )
    fed = replace(fed, context_width=_context_width(subject, contract, fed.width))
    if subject.takes in ("x", "x2d", "x,mask") and not runs(subject, fed.draw(lengths[0], 0)):
        # Learned positions may be fewer, or one length may be all that it takes.
        others = [each for each in (6, 5, 4, 3, 16, 49, 64, limit) if each is not None]
        fitting = [each for each in others if runs(subject, fed.draw(each, 0))]
        fed = replace(fed, lengths=tuple(fitting) or lengths)
    return fed


def runs(subject: Subject, *tensors: Tensor) -> bool:
    """Return True if a call with these inputs raises no error and returns a tensor."""
    return isinstance(called(subject, tensors), Tensor)


def has_group_norm(subject: Subject) -> bool:
    """Return True if a part of a subject is a GroupNorm, which goes over tokens."""
    return any(isinstance(part, nn.GroupNorm) for part in subject.parts())


def shortened(subject: Subject, main: Tensor, tokens: int) -> Tensor:
    """Return the first `tokens` tokens of an input, or all of it if the subject does not take fewer."""
    short = main[..., :tokens, :]
    return short if runs(subject, short) else main


def size_named(name: str, subject: Subject, contract: Contract) -> int | None:
    """Return a size by its name, of `SIZE_NAMES`: declared, in the arguments of the class, or in attributes.

    The first that is a positive whole number; None if none is.
    """
    declared = contract.sizes.get(name)
    if declared is None and name in ("num_heads", "num_kv_heads"):
        declared = contract.heads()[name == "num_kv_heads"]
    if declared is not None:
        return declared
    for place in _places(subject):
        for other in SIZE_NAMES[name]:
            value = place.get(other)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _places(subject: Subject) -> Iterator[Mapping[str, Any]]:
    """Yield the mappings to search for a size: constructor arguments, then attributes and configs of the parts."""
    yield subject.args or {}
    if subject.module is None:
        yield getattr(subject.run, "__dict__", {})
    for part in subject.parts():
        yield vars(part)
        yield settings_of(getattr(part, "config", None))


def _widths(subject: Subject, contract: Contract) -> Iterator[int]:
    """Yield candidates for d_in, likeliest first: a declared one alone, else of layers, names, one parameter.

    A candidate may recur.
    """
    declared = contract.sizes.get("d_in") or (subject.args or {}).get("d_in")
    if isinstance(declared, int):
        yield declared
        return
    layers = list(_layer_widths(subject))
    by_name = size_named("d_in", subject, contract)
    yield from layers[:1]
    if by_name is not None:
        yield by_name
    yield from layers[1:]
    for part in subject.parts():
        for parameter in part.parameters():
            if parameter.ndim >= 2:
                yield from (parameter.shape[-2], parameter.shape[-1])
                return


def _layer_widths(subject: Subject) -> Iterator[int]:
    """Yield the input width of each linear, attention, norm and convolution layer, in the order of the parts."""
    for part in subject.parts():
        if isinstance(part, nn.Linear):
            yield part.in_features
        elif isinstance(part, nn.MultiheadAttention):
            yield part.embed_dim
        elif isinstance(part, nn.LayerNorm):
            yield part.normalized_shape[-1]
        elif isinstance(part, nn.GroupNorm):
            yield part.num_channels
        elif isinstance(part, nn.Conv1d | nn.Conv2d):
            yield part.in_channels


def _context_width(subject: Subject, contract: Contract, width: int) -> int:
    """Return the width of a context token: a known size, else the key projection's input width, else `width`."""
    known = size_named("d_context", subject, contract)
    if known is not None:
        return known
    for name, part in subject.module.named_modules() if subject.module is not None else ():
        if role(name) in ("k", "kv") and isinstance(part, nn.Linear):
            return part.in_features
    return width


def longest(subject: Subject, contract: Contract) -> int | None:
    """Return the most tokens of a call: declared, an attribute, or the size of a stored mask; None if unknown."""
    by_name = contract.sizes.get("tokens") or size_named("context_length", subject, contract)
    if by_name is not None or subject.module is None:
        return by_name
    for mask in kept_masks(subject.module).values():
        return mask.shape[-1]
    return None


def kept_masks(module: nn.Module) -> dict[str, Tensor]:
    """Return by name the tensors of a module for which `is_mask` is True.

    They are buffers, plain attributes, and parameters with the name of a mask.
    """
    named = list(module.named_buffers())
    named += [(name, each) for name, each in module.named_parameters() if KEPT_MASK.search(name)]
    named += plain_tensors(module)
    return {name: each for name, each in named if is_mask(each)}


def plain_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the name and value of each tensor attribute that is neither a parameter nor a buffer."""
    return [
        (f"{prefix}.{name}" if prefix else name, each)
        for prefix, part in module.named_modules()
        for name, each in vars(part).items()
        if isinstance(each, Tensor)
    ]


def is_mask(tensor: Tensor) -> bool:
    """Return True if a tensor's last two axes are square, above 1, and it has exactly two distinct values."""
    square = tensor.ndim >= 2 and tensor.shape[-1] == tensor.shape[-2] > 1
    return square and tensor.detach().unique().numel() == 2


def shapes_of(given: Mapping[str, Tensor]) -> str:
    """Return one line for each input, with its name, shape and dtype."""
    return "\n".join(
        f"  {name:<7} {list(each.shape)} {str(each.dtype).removeprefix('torch.')}"
        + (", True = a real token" if name == "mask" and each.ndim == 2 else "")
        for name, each in given.items()
    )


def call_error(subject: Subject, given: Mapping[str, Tensor], error: Exception) -> ModelError:
    """Return the error for a subject that accepts none of the inputs, with suggestions."""
    shapes = shapes_of(given)
    known = (
        "num_heads=…, head_dim=…" if subject.takes.startswith("qkv") else "d_in=…, context_length=…"
    )
    hint = ""
    if subject.takes == "x" and not isinstance(error, NameError):
        x = next(iter(given.values()))
        if runs(replace(subject, takes="x2d"), x[0]):
            hint = "It takes x without a batch: takes='x2d'.\n"
    if subject.takes.startswith("qkv"):
        hint = "If it projects its inputs itself, it takes tokens: takes='x'.\n"
    words = ", ".join(given)
    return ModelError(
        "check.call",
        f"{subject.name} was called with takes={shown(subject.takes)} and raised "
        f"{first_line(error)}{named_tensors(error)}\n{shapes}\n{hint}If it needs other sizes, give them: "
        f"sizes=dict({known}). If it is called in another way, check a function that calls it: "
        f"lambda {words}: attention({words}, …).",
    )
