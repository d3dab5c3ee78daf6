"""The contract that `check` holds an attention to."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead._common.checks import check_bool, check_dropout, check_sizes, is_number
from clearhead._common.hints import with_hints
from clearhead._common.layouts import LAYOUTS as ACROSS
from clearhead._text import kind_of, shown
from clearhead.errors import ArgumentError, ArgumentTypeError, ClearheadError, ShapeError

SIZES = (
    "d_in",
    "d_out",
    "d_context",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "value_head_dim",
    "context_length",
    "tokens",
)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _is_rope(value: Any) -> bool:
    """Return True for a mapping with no other keys than "base", which is not checked, and "layout", a known one."""
    known = isinstance(value, Mapping) and set(value) <= {"base", "layout"}
    return known and value.get("layout", "half") in ("half", "interleaved")


def _shape(value: Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor as a tuple."""
    return tuple(value.shape)


class Refusal(NamedTuple):
    """A requirement on fields of a contract that are not None, and the error for a value that does not fit.

    Attributes:
        names: the fields, separated by spaces.
        fits: returns True for a value that fits.
        wanted: what a value must be, in words that follow "must".
        error, code: the class and the code of the error, with {} for the field.
        got: returns what the error says of the value.
    """

    names: str
    fits: Callable[[Any], bool]
    wanted: str
    error: type[ClearheadError] = ArgumentError
    code: str = "{}.value"
    got: Callable[[Any], object] = shown


REFUSALS = (
    Refusal("scale softcap", lambda x: is_number(x) and math.isfinite(x) and x > 0,
            "be a finite number above 0, or None"),
    Refusal("window", lambda x: isinstance(x, tuple) and len(x) == 2,
            "be (left, right), the tokens seen on each side: (W-1, 0) for a window of W tokens that looks back",
            ArgumentTypeError, "{}.type"),
    Refusal("window", lambda x: all(each is None or (isinstance(each, int) and each >= 0) for each in x),
            "hold whole numbers of 0 or more, or None for no limit"),
    Refusal("documents", lambda x: callable(x) or isinstance(x, Tensor),
            "be a tensor of shape (tokens,), or a function of the number of tokens",
            ArgumentTypeError, "{}.type", kind_of),
    Refusal("documents", lambda x: callable(x) or (x.ndim == 1 and len(x) > 0), "have shape (tokens,)",
            ShapeError, "{}.shape", _shape),
    Refusal("alibi_slopes sinks", lambda x: isinstance(x, Tensor), "be a tensor of shape (num_heads,)",
            ArgumentTypeError, "{}.type", kind_of),
    Refusal("alibi_slopes sinks", lambda x: x.ndim == 1, "have shape (num_heads,)", ShapeError, "{}.shape", _shape),
    Refusal("bias", callable, "be a function (query_len, kv_len) → (heads, query_len, kv_len)",
            ArgumentTypeError, "{}.type", kind_of),
    Refusal("rope", _is_rope, 'be dict(base=10000.0, layout="half" or "interleaved")'),
    Refusal("empty_row", lambda x: x in ("zero", "uniform"), 'be "zero", "uniform", or None',
            code="empty-row.value"),
    Refusal("padded_queries", lambda x: x == "zero", 'be "zero", or None', code="padded-queries.value"),
    Refusal("dtypes", lambda x: isinstance(x, tuple) and set(x) <= set(DTYPES),
            "be a tuple of float16, bfloat16, float32 and float64"),
)  # fmt: skip


@with_hints
@dataclass(frozen=True, kw_only=True)
class Contract:
    """The promises of an attention. What is None is not declared: it is measured and noted, not judged.

    Args:
        causal: whether no query sees a later key; with query_len ≠ kv_len the last query sees the
            last key.
        window: (left, right), tokens on each side that a query sees, the query itself always;
            None for one of them is no limit.
        documents: the document of each token, (tokens,), or a function of the number of tokens that
            returns it: no query sees a key of another document.
        scale: of the scores; None is 1/√head_dim.
        softcap: the scores are bent into (−softcap, softcap).
        bias: a function (query_len, kv_len) → (heads, query_len, kv_len), added to the scores.
        alibi_slopes: (num_heads,), the bias −slope · distance.
        sinks: (num_heads,), one more score for each head, that gives no value.
        rope: dict(base=10000.0, layout="half" or "interleaved"): query and key are rotated.
        num_heads, num_kv_heads: heads, and heads of keys and values.
        dropout: the probability with which weights are dropped while training.
        empty_row: what a query that may attend to nothing gives: "zero" or "uniform".
        nan_safe: whether a NaN behind the mask stays there.
        padded_queries: "zero" if the outputs of padding tokens are zero.
        dtypes: 16-bit dtypes that it works in.
        world: how many ranks share the tokens: it is called on each of them, with its own.
        layout: of those tokens: "contiguous" (if None), "zigzag" or "balanced", as `across`
            has them.
        sizes: d_in, d_out, d_context, num_heads, num_kv_heads, head_dim, value_head_dim,
            context_length, as far as they are known; tokens, where it takes one number of them.

    Raises:
        ArgumentError, ArgumentTypeError, ShapeError: a field that makes no sense.

    Example:
        >>> ch.Contract(causal=True, window=(4, 0), num_heads=6, num_kv_heads=2).window
        (4, 0)
    """

    causal: bool | None = None
    window: tuple[int | None, int | None] | None = None
    documents: Tensor | Callable[[int], Tensor] | None = None
    scale: float | None = None
    softcap: float | None = None
    bias: Callable[[int, int], Tensor] | None = None
    alibi_slopes: Tensor | None = None
    sinks: Tensor | None = None
    rope: Mapping[str, Any] | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    dropout: float | None = None
    empty_row: str | None = None
    nan_safe: bool | None = None
    padded_queries: str | None = None
    dtypes: tuple[torch.dtype, ...] = ()
    world: int | None = None
    layout: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every field, and take the number of tokens from a tensor of documents; raises a ClearheadError."""
        for name in ("causal", "nan_safe"):
            if getattr(self, name) is not None:
                check_bool(name, getattr(self, name))
        check_dropout(self.dropout)
        for each in REFUSALS:
            for name in each.names.split():
                value = getattr(self, name)
                if value is not None and not each.fits(value):
                    message = f"{name} must {each.wanted}; got {each.got(value)}."
                    raise each.error(each.code.format(name), message)
        if isinstance(self.documents, Tensor):
            # What is made for these documents takes as many tokens.
            object.__setattr__(self, "sizes", {"tokens": len(self.documents), **self.sizes})
        self._check_sizes()

    def _check_sizes(self) -> None:
        """Raise ArgumentError or ArgumentTypeError for a bad size or layout, ShapeError if heads do not divide."""
        unknown = sorted(set(self.sizes) - set(SIZES))
        if unknown:
            raise ArgumentError(
                "sizes.name", f"sizes knows {', '.join(SIZES)}; got {', '.join(unknown)}."
            )
        given = {name: getattr(self, name) for name in ("num_heads", "num_kv_heads", "world")}
        check_sizes(**self.sizes)
        check_sizes(**{name: size for name, size in given.items() if size is not None})
        num_heads, num_kv_heads = self.heads()
        if num_heads is not None and num_kv_heads is not None and num_heads % num_kv_heads:
            raise ShapeError(
                "shape.kv-heads",
                f"num_heads must be a multiple of num_kv_heads; got {num_heads} and {num_kv_heads}.",
            )
        if self.layout is not None and (self.world is None or self.layout not in ACROSS):
            names = ", ".join(f'"{each}"' for each in ACROSS)
            raise ArgumentError(
                "layout.value",
                f"layout must be one of {names}, with world=…; got {shown(self.layout)} and "
                f"world={shown(self.world)}.",
            )

    @property
    def masked(self) -> bool:
        """True if anything about the mask is declared."""
        return self.causal is not None or self.local

    @property
    def local(self) -> bool:
        """True if a window or documents are declared, by which a query may not see all earlier keys."""
        return self.window is not None or self.documents is not None

    def documents_of(self, tokens: int) -> Tensor | None:
        """Return the document of each token, (tokens,), or None if no documents are declared.

        A declared tensor is cut to the first tokens, and may be shorter; a declared function is called.
        """
        if self.documents is None or isinstance(self.documents, Tensor):
            return None if self.documents is None else self.documents[:tokens]
        return self.documents(tokens)

    def heads(self) -> tuple[int | None, int | None]:
        """Return num_heads and num_kv_heads, each None if unknown.

        They are from the fields, else from the sizes; num_heads is also read off the slopes, the sinks or the bias.
        """
        num_heads = self.num_heads or self.sizes.get("num_heads")
        if num_heads is None:
            slopes = self.alibi_slopes if self.alibi_slopes is not None else self.sinks
            num_heads = None if slopes is None else slopes.shape[0]
        if num_heads is None and self.bias is not None:
            num_heads = self.bias(2, 2).shape[0]
        return num_heads, self.num_kv_heads or self.sizes.get("num_kv_heads")


FIELDS = tuple(each.name for each in fields(Contract))
