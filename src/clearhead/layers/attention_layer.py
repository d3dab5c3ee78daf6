"""The base of the layers: one path from a call to its output."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor, nn

from clearhead._common.hints import with_hints
from clearhead.attention.functional import attend, plan
from clearhead.attention.planning import Plan, kernel_named, plan_for, run
from clearhead.attention.problem import Problem, make_problem, under_autocast
from clearhead.attention.sharded.sharded_call import read_across
from clearhead.errors import ArgumentError, UnsupportedError
from clearhead.layers.caches.bundle import CacheBundle
from clearhead.layers.caches.cache import Cache
from clearhead.layers.caches.layout import check_valid
from clearhead.layers.inputs import (
    CallOptions,
    Form,
    LayerCall,
    Projected,
    Rollback,
    check_cache,
    check_positions,
    check_projected,
    check_widths,
)
from clearhead.layers.parts import Part, options_of
from clearhead.layers.positions import (
    Positions,
    bias_by_position,
    bias_of_positions,
    is_causal,
    mask_by_position,
    positions_from_valid,
)
from clearhead.masks.base import Mask
from clearhead.masks.causal import Causal
from clearhead.masks.dense import and_masks, as_mask
from clearhead.matrix.matrix import AttentionMatrix, matrix_of
from clearhead.sharding.sharding import Sharding


class Heads(NamedTuple):
    """Query, key and value as the heads compare them, (batch, heads, tokens, width).

    Attributes:
        query, key, value: as in `clearhead.attend`.
        scale: of the scores, where it is not that of the query's width; None for 1/√width.
        is_cached: True if key and value are the very numbers that a cache holds; True without a cache too.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float | None = None
    is_cached: bool = True


class AttentionLayer(nn.Module, ABC):
    """A base of attention layers, which define how a call is projected and how heads are joined.

    The steps in between are the same for all of them: a call is checked, projected, transformed by the
    parts, appended to the cache, masked, made a problem and run.
    """

    INPUT_PROJECTION = "query_projection"
    """The name of the projection of x, whose dtype and device x has to have."""

    TAKES_CONTEXT = True
    """True if keys and values may be computed from a context."""

    embed_dim: int
    context_dim: int
    num_heads: int
    head_dim: int
    value_head_dim: int
    dropout: float | None
    mask: Mask | None
    parts: Iterable[Part]
    key_projection: nn.Linear
    output_projection: nn.Linear

    @abstractmethod
    def _project(self, call: LayerCall) -> Projected:
        """Return query, key, value and the query's part that is never rotated or None: (batch, heads, tokens, dim)."""

    def _expand(
        self, query: Tensor, key: Tensor, value: Tensor, unrotated: Tensor | None, call: LayerCall
    ) -> Heads:
        """Return the heads of a query and of the key and value that the cache returned.

        By default the three unchanged; `unrotated` is not used.
        """
        return Heads(query, key, value)

    def _absorbs(self, cache: Cache) -> bool:
        """Return True if the heads attend to the latents that the cache holds; by default always False."""
        return False

    @abstractmethod
    def _join(self, context: Tensor, call: LayerCall) -> Tensor:
        """Return the output, (batch, tokens, output_dim), for a context, (batch, num_heads, tokens, dim)."""

    def make_problem(
        self,
        x: Tensor,
        context: Tensor | None = None,
        **options: Unpack[CallOptions],
    ) -> Problem:
        """Return the problem that the layer passes to a kernel: projected, split into heads, masked.

        Arguments and errors are those of `forward`; a cache appends the tokens, unless the call raises.
        """
        call = self._check_call(x, context, **options)
        with Rollback(call.cache, call.source.shape[1]):
            return self._problem(call)

    @with_hints
    def weights(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        across: Sharding | tuple[Sharding, Sharding] | None = None,
        **options: Unpack[CallOptions],
    ) -> AttentionMatrix:
        """Return the attention weights of `forward`, before dropout, without materialising them.

        Arguments and errors are those of `forward`, without `kernel`. A cache is read, and stays as it is.

        Returns:
            An `AttentionMatrix` of shape (batch, num_heads, tokens, keys).

        Example:
            >>> import torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
            >>> layer.weights(torch.randn(1, 1000, 8))[..., -1, :].shape
            torch.Size([1, 2, 1000])
        """
        call = self._check_call(x, context, across=across, **options)
        held = call.form and call.form.held
        if held is not None:
            heads, posed = self._posed(call)
            del posed["dropout"]
            return AttentionMatrix(heads.query, heads.key, across=held, **posed)
        return matrix_of(self._problem(_on_a_copy(call)))

    @with_hints
    def plan(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        kernel: str = "auto",
        across: Sharding | tuple[Sharding, Sharding] | None = None,
        **options: Unpack[CallOptions],
    ) -> Plan:
        """Return the kernel that `forward` would run for these arguments, and why not the others.

        Arguments and errors are those of `forward`. A cache stays as it is.
        """
        call = self._check_call(x, context, across=across, **options)
        held = call.form and call.form.held
        if held is not None:
            heads, posed = self._posed(call)
            return plan(*heads[:3], **posed, kernel=kernel, across=held)
        return plan_for(self._problem(_on_a_copy(call)), kernel)

    def _merge_heads(self, context: Tensor, x: Tensor) -> Tensor:
        """Return the output, (batch, tokens, output_dim): contexts after the parts, heads concatenated, projected."""
        for part in self.parts:
            context = part.transform_context(context, x)
        return self.output_projection(context.transpose(1, 2).flatten(2))

    def _check_call(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        valid: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Cache | CacheBundle | None = None,
        across: Any = None,
    ) -> LayerCall:
        """Return the checked arguments of a call, with a batch axis, all masks, and positions if they are needed.

        A bundle makes the layer's cache if there is none; an empty cache is bound to the layer; nothing is appended.
        Raises as `forward` does.
        """
        if across is not None:
            alone = {"cache": cache, "valid": valid, "positions": positions}
            return self._check_across(x, context, across, alone, mask)
        given, is_cross = x, context is not None
        if is_cross and not self.TAKES_CONTEXT:
            raise UnsupportedError(
                "layer.no-context", f"{type(self).__name__} attends to its own text; got a context."
            )
        cache = cache[self] if isinstance(cache, CacheBundle) else cache
        mask = self.mask if mask is None else and_masks(self.mask, as_mask(mask))
        check_widths(x, context, self.embed_dim, self.context_dim)
        projection = self._modules[self.INPUT_PROJECTION]
        assert projection is not None
        check_projected("x", x, projection)
        if context is not None:
            check_projected("context", context, self.key_projection)
            if is_causal(self.mask):
                raise ArgumentError(
                    "layer.causal-context",
                    "this layer hides what comes later in its own text, mask=causal(), and was given a "
                    "context, whose tokens are not later ones. Make the layer without that mask.",
                )
        if x.ndim == 2:
            x, context = x[None], None if context is None else context[None]
        source = x if context is None else context
        if valid is not None:
            check_valid(valid, source.shape[0], source.shape[1], source.device)
        if cache is not None:
            check_cache(cache, mask, x, source.shape[1] if is_cross else None, self)
            if is_cross and len(cache):
                # All keys are in the cache already.
                source, valid = source[:, :0], None
        positions = None if positions is None else check_positions(positions, x)
        by_position = None
        is_plain = cache is None and valid is None
        if self.parts or not (is_plain or is_cross or mask is None or is_causal(mask)):
            key = torch.arange(source.shape[1], device=x.device)
            if cache is not None:
                key = cache.next_positions(source.shape[1], valid, device=x.device)
            elif valid is not None:
                key = positions_from_valid(valid)
            query = torch.arange(x.shape[1], device=x.device) if is_cross else key
            by_position = Positions(query, key)
            if positions is not None:
                placed = Positions(positions, key if is_cross else positions)
                by_position = by_position._replace(placed=placed)
        absorbs = cache is not None and self._absorbs(cache)
        form = Form(given)
        return LayerCall(x, source, mask, valid, cache, is_cross, absorbs, by_position, form)

    def _check_across(
        self,
        x: Tensor,
        context: Tensor | None,
        across: Any,
        alone: dict[str, object],
        mask: Mask | Tensor | None,
    ) -> LayerCall:
        """Return the checked arguments of a call whose tokens are split over ranks: those of this rank.

        Raises UnsupportedError if an argument in `alone` is not None; if one rank raises, all do.
        """
        pair = read_across(across)

        def check() -> tuple[LayerCall, str]:
            """Return the checked call of this rank, and text that must be equal on all ranks; or raise."""
            also = [name for name, other in alone.items() if other is not None]
            if also:
                raise UnsupportedError(
                    "layer.across",
                    f"across= goes without {', '.join(alone)}; got {', '.join(also)}. Padding of all "
                    "tokens is mask=clearhead.padding(…).",
                )
            call = AttentionLayer._check_call(self, x, context, mask=mask)
            call = call._replace(form=Form(x, pair))
            for tensor, held in ((call.x, pair[0]), (call.source, pair[1])):
                held.check_rows(tensor, -2, held.count, f"rank {held.rank} has")
            if self.parts:
                query, key = (each.positions.to(call.x.device) for each in pair)
                call = call._replace(positions=Positions(query, key))
            return call, f"{type(self).__name__}({self.extra_repr()}), training={self.training}"

        return pair[0].agree(check, x)

    def _posed(
        self, call: LayerCall, projected: Projected | None = None
    ) -> tuple[Heads, dict[str, Any]]:
        """Return the heads of a call, and mask, dropout and options of its parts by name; a cache appends the tokens.

        Args:
            call: the call.
            projected: query, key and value as they were projected and transformed; None to do both here.
        """
        query, key, value, unrotated = projected or self._project(call)
        if call.positions is not None and projected is None:
            query, key = self._transform(query, key, call)
        if call.cache is not None:
            # A norm may have brought the keys back to float32, which a kernel would not.
            key, value = call.cache.append(*under_autocast(key, value), valid=call.valid)
        mask, options = self._mask_and_options(call)
        heads = self._expand(query, key, value, unrotated, call)
        if heads.scale is not None:
            options.setdefault("scale", heads.scale)
        dropout = self.dropout if self.training else None
        return heads, {"mask": mask, "dropout": dropout, **options}

    def _transform(self, query: Tensor, key: Tensor, call: LayerCall) -> tuple[Tensor, Tensor]:
        """Return query and key after each part has transformed them by the call's positions (never None here)."""
        counted, held = call.positions, call.form and call.form.held
        assert counted is not None
        pair = (counted.placed or counted)[:2]
        if held is not None:
            # One token more, the last of the text: some parts go by its length.
            pair = tuple(
                torch.cat([each, each.new_full((1,), max(0, ranks.tokens - 1))])
                for each, ranks in zip(pair, held, strict=True)
            )
            query, key = (nn.functional.pad(each, (0, 0, 0, 1)) for each in (query, key))
        for part in self.parts:
            query, key = part.transform_query_key(query, key, *pair)
        return (query, key) if held is None else (query[:, :, :-1], key[:, :, :-1])

    def _problem(self, call: LayerCall, projected: Projected | None = None) -> Problem:
        """Return the problem of a call to a kernel; the cache, if any, appends the tokens; `projected` as `_posed`."""
        heads, options = self._posed(call, projected)
        real, cache = call.valid, call.cache
        options["keys_finite"] = cache is not None and heads.is_cached and cache.finite
        problem = make_problem(heads.query, heads.key, heads.value, **options)
        if cache is None or call.is_cross or type(problem.mask) is Causal:
            return problem
        # Where rows are padded, their new keys need not be the last columns of a cache.
        if real is None:
            real = torch.ones(call.x.shape[:2], dtype=torch.bool, device=call.x.device)
        return problem.replace(real_queries=real)

    def _mask_and_options(self, call: LayerCall) -> tuple[Mask | None, dict[str, Any]]:
        """Return the mask of a call, or None, and the options that its parts set, or {}; raises as `forward` does.

        Both go by position where columns are not in order.
        """
        mask, visible, cache = call.mask, call.visible(), call.cache
        positions = call.positions
        if positions is None:
            return and_masks(mask, visible), {}
        placed = positions.placed
        if cache is not None:
            positions = Positions(positions.query, cache.positions)
        query, key = positions[:2] if placed is None else placed[:2]
        options = options_of(self.parts, query, positions.key if cache is not None else key)
        bias = options.get("bias")
        if placed is not None and bias is not None:
            options["bias"], bias = (
                bias_of_positions(bias, placed, has_cache=cache is not None),
                None,
            )
        if not call.is_cross and (mask is not None or bias is not None):
            in_order = call.in_order()
            # Positions are (tokens,) where every row counts its columns.
            if mask is not None and (not in_order or positions.key.ndim == 2):
                mask = mask_by_position(mask, positions, in_order=in_order)
            if bias is not None and not in_order:
                options["bias"] = bias_by_position(bias, positions)
        return and_masks(mask, visible), options

    def _run(self, problem: Problem, kernel: str) -> Tensor:
        """Return the context of a problem, (batch, heads, tokens, dim), by the kernel with this name or "auto"."""
        return run(problem, kernel)

    def _attend(
        self, call: LayerCall, kernel: str = "auto", projected: Projected | None = None
    ) -> Tensor:
        """Return the output of a checked call, in the form of its input.

        The cache appends the tokens; it is restored if the kernel fails. `projected` replaces the layer's own
        projections. ArgumentError, `kernel.name`, for an unknown kernel; and what `attend` raises.
        """
        form = call.form
        if form is not None and form.held is not None:
            heads, options = self._posed(call)
            context = attend(*heads[:3], **options, kernel=kernel, across=form.held)
        else:
            kernel_named(kernel)
            with Rollback(call.cache, call.source.shape[1]):
                context = self._run(self._problem(call, projected), kernel)
        output = self._join(context, call)
        return output if form is None else form.restore(output)

    def _describe_options(self) -> str:
        """Return ", name=value" for value_head_dim, mask and dropout where they are set, for `extra_repr`; else ""."""
        text = ""
        if self.value_head_dim != self.head_dim:
            text += f", value_head_dim={self.value_head_dim}"
        if self.mask is not None:
            text += f", mask={self.mask.describe()}"
        return text if self.dropout is None else f"{text}, dropout={self.dropout}"


def _on_a_copy(call: LayerCall) -> LayerCall:
    """Return the call with a deep copy of its cache, if any, so that the cache itself is not changed."""
    return call._replace(cache=copy.deepcopy(call.cache))
