"""The contract that `check` holds an attention to."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from clearhead._common.checks import check_bool, check_dropout, check_sizes, is_number
from clearhead._common.hints import with_hints
from clearhead._common.layouts import LAYOUTS as ACROSS
from clearhead._text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError, ShapeError

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
EMPTY_ROWS = ("zero", "uniform")
LAYOUTS = ("half", "interleaved")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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
        for name in ("causal", "nan_safe"):
            if getattr(self, name) is not None:
                check_bool(name, getattr(self, name))
        check_dropout(self.dropout)
        self._check_numbers()
        self._check_window()
        self._check_documents()
        self._check_tensors()
        self._check_rope()
        self._check_choices()
        self._check_sizes()
        self._check_ranks()

    def _check_numbers(self) -> None:
        """Raise ArgumentError if scale or softcap is not None and not a finite number above 0."""
        for name in ("scale", "softcap"):
            value = getattr(self, name)
            if value is None:
                continue
            if not is_number(value) or not math.isfinite(value) or value <= 0:
                raise ArgumentError(
                    f"{name}.value",
                    f"{name} must be a finite number above 0, or None; got {shown(value)}.",
                )

    def _check_window(self) -> None:
        """Raise ArgumentTypeError unless window is None or a pair, ArgumentError unless sides are None or ≥ 0."""
        if self.window is None:
            return
        window = self.window
        if not isinstance(window, tuple) or len(window) != 2:
            raise ArgumentTypeError(
                "window.type",
                f"window must be (left, right), the tokens seen on each side; got {shown(window)}. "
                "A window of W tokens that looks back is (W-1, 0).",
            )
        for side in window:
            if side is not None and (not isinstance(side, int) or side < 0):
                raise ArgumentError(
                    "window.value",
                    f"window must hold whole numbers of 0 or more, or None for no limit; got {window}.",
                )

    def _check_documents(self) -> None:
        """Raise ArgumentTypeError or ShapeError unless None, callable or (tokens,); add their number to `sizes`."""
        if self.documents is None or callable(self.documents):
            return
        if not isinstance(self.documents, Tensor):
            raise ArgumentTypeError(
                "documents.type",
                "documents must be a tensor of shape (tokens,), or a function of the number of tokens; got "
                f"{type(self.documents).__name__}.",
            )
        if self.documents.ndim != 1 or not len(self.documents):
            raise ShapeError(
                "documents.shape",
                f"documents must have shape (tokens,); got {tuple(self.documents.shape)}.",
            )
        # What is made for these documents takes as many tokens.
        object.__setattr__(self, "sizes", {"tokens": len(self.documents), **self.sizes})

    def _check_tensors(self) -> None:
        """Raise ArgumentTypeError or ShapeError if slopes or sinks is not (num_heads,), or bias not callable."""
        for name in ("alibi_slopes", "sinks"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, Tensor):
                raise ArgumentTypeError(
                    f"{name}.type",
                    f"{name} must be a tensor of shape (num_heads,); got {type(value).__name__}.",
                )
            if value.ndim != 1:
                raise ShapeError(
                    f"{name}.shape",
                    f"{name} must have shape (num_heads,); got {tuple(value.shape)}.",
                )
        if self.bias is not None and not callable(self.bias):
            raise ArgumentTypeError(
                "bias.type",
                "bias must be a function (query_len, kv_len) → (heads, query_len, kv_len); got "
                f"{type(self.bias).__name__}.",
            )

    def _check_rope(self) -> None:
        """Raise ArgumentError unless rope is None or a mapping of base and a known layout at most.

        Base is unchecked.
        """
        if self.rope is None:
            return
        known = isinstance(self.rope, Mapping) and set(self.rope) <= {"base", "layout"}
        if not known or self.rope.get("layout", "half") not in LAYOUTS:
            raise ArgumentError(
                "rope.value",
                'rope must be dict(base=10000.0, layout="half" or "interleaved"); got '
                f"{shown(self.rope)}.",
            )

    def _check_choices(self) -> None:
        """Raise ArgumentError if empty_row or padded_queries is unknown, or dtypes is no tuple of floating dtypes."""
        if self.empty_row is not None and self.empty_row not in EMPTY_ROWS:
            raise ArgumentError(
                "empty-row.value",
                f'empty_row must be "zero", "uniform", or None; got {shown(self.empty_row)}.',
            )
        if self.padded_queries not in (None, "zero"):
            raise ArgumentError(
                "padded-queries.value",
                f'padded_queries must be "zero", or None; got {shown(self.padded_queries)}.',
            )
        if not isinstance(self.dtypes, tuple) or not set(self.dtypes) <= set(DTYPES):
            raise ArgumentError(
                "dtypes.value",
                "dtypes must be a tuple of float16, bfloat16, float32 and float64; got "
                f"{shown(self.dtypes)}.",
            )

    def _check_ranks(self) -> None:
        """Raise ArgumentTypeError or ArgumentError if world is invalid, or if layout is unknown or has no world."""
        if self.world is not None:
            check_sizes(world=self.world)
        if self.layout is not None and (self.world is None or self.layout not in ACROSS):
            names = ", ".join(f'"{each}"' for each in ACROSS)
            raise ArgumentError(
                "layout.value",
                f"layout must be one of {names}, with world=…; got {shown(self.layout)} and "
                f"world={shown(self.world)}.",
            )

    def _check_sizes(self) -> None:
        """Raise ArgumentError or ArgumentTypeError for a bad size, ShapeError if num_heads % num_kv_heads ≠ 0."""
        unknown = sorted(set(self.sizes) - set(SIZES))
        if unknown:
            raise ArgumentError(
                "sizes.name", f"sizes knows {', '.join(SIZES)}; got {', '.join(unknown)}."
            )
        check_sizes(**self.sizes)
        given = {"num_heads": self.num_heads, "num_kv_heads": self.num_kv_heads}
        check_sizes(**{name: size for name, size in given.items() if size is not None})
        num_heads, num_kv_heads = self.heads()
        if num_heads is not None and num_kv_heads is not None and num_heads % num_kv_heads:
            raise ShapeError(
                "shape.kv-heads",
                f"num_heads must be a multiple of num_kv_heads; got {num_heads} and {num_kv_heads}.",
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
