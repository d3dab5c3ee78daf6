"""The base of the layers: one path from a call to its output."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead._common.torch_internals import is_tracing
from clearhead.attention.functional import attend, plan
from clearhead.attention.planning import Plan, kernel_named, plan_for, run
from clearhead.attention.problem import Problem, make_problem, under_autocast
from clearhead.attention.sharded.sharded_call import read_across
from clearhead.errors import ArgumentError
from clearhead.layers.caches.base import Cache
from clearhead.layers.caches.bundle import CacheBundle
from clearhead.layers.caches.fixed import FixedCache
from clearhead.layers.caches.layout import check_valid
from clearhead.layers.inputs import (
    Across,
    LayerCall,
    Projected,
    Rollback,
    check_alone,
    check_cache,
    check_positions,
    check_projected,
    check_widths,
)
from clearhead.layers.nested import is_nested, sequences_of
from clearhead.layers.parts import Part, options_of
from clearhead.layers.positions import (
    Memory,
    Positions,
    bias_by_position,
    bias_of_positions,
    is_causal,
    mask_by_position,
    next_positions,
)
from clearhead.masks.base import Mask
from clearhead.masks.causal import Causal
from clearhead.masks.dense import and_masks, as_mask
from clearhead.matrix.matrix import AttentionMatrix, matrix_of
from clearhead.sharding.dtensors import local_tokens


class Heads(NamedTuple):
    """Query, key and value as the heads compare them, (batch, heads, tokens, width).

    Attributes:
        query, key, value: as in `clearhead.attend`.
        scale: of the scores, where it is not that of the query's width.
        is_cached: True if key and value are the very numbers that a cache holds.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float | None = None
    is_cached: bool = True


class AttentionLayer(nn.Module, ABC):
    """A layer of attention, which says how a call is projected, and how its heads are joined.

    In between the way is the same for all of them: a call is checked, projected, transformed by the
    parts, appended to the cache, masked, made a problem and run.
    """

    INPUT_PROJECTION = "query_projection"
    """The name of the projection that x goes into, which tells dtype and device."""

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
        """Project a call, to what the parts transform and a cache holds."""

    def _expand(
        self, query: Tensor, key: Tensor, value: Tensor, unrotated: Tensor | None, call: LayerCall
    ) -> Heads:
        """The heads of what was projected, and of what the cache returned."""
        return Heads(query, key, value)

    def _absorbs(self, cache: Cache) -> bool:
        """True if the heads attend to the latents that the cache holds."""
        return False

    @abstractmethod
    def _join(self, context: Tensor, call: LayerCall) -> Tensor:
        """The output, (batch, tokens, output_dim), of the context of each head."""

    def _merge_heads(self, context: Tensor, x: Tensor) -> Tensor:
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
        kernel: str = "auto",
        across: Any = None,
    ) -> LayerCall:
        """Check the arguments of a call; the cache stays as it is."""
        if across is not None:
            alone = {"cache": cache, "valid": valid, "positions": positions}
            return self._check_across(x, context, across, alone, mask=mask, kernel=kernel)
        kernel_named(kernel)
        cache = cache[self] if isinstance(cache, CacheBundle) else cache
        mask = self.mask if mask is None else and_masks(self.mask, as_mask(mask))
        sequences = sequences_of(x, valid=valid if context is None else None, positions=positions)
        others = None if context is None else sequences_of(context, valid=valid)
        if sequences is not None and (context is not None or cache is not None):
            sequences = sequences.padded()
            valid = sequences.valid if context is None else valid
        if others is not None:
            others = others.padded()
            context, valid = others.tokens, others.valid
        x = x if sequences is None else sequences.tokens
        check_widths(x, context, self.embed_dim, self.context_dim)
        projection = self._modules[self.INPUT_PROJECTION]
        assert projection is not None
        check_projected("x", x, projection)
        if context is not None:
            check_projected("context", context, self.key_projection)
        dims, is_cross = x.ndim, context is not None
        if dims == 2:
            x, context = x[None], None if context is None else context[None]
        source = x if context is None else context
        if is_cross and is_causal(self.mask):
            raise ArgumentError(
                "layer.causal-context",
                "this layer hides what comes later in its own text, mask=causal(), and was given a "
                "context, whose tokens are not later ones. Make the layer without that mask.",
            )
        if valid is not None:
            check_valid(valid, source.shape[0], source.shape[1], source.device)
        if cache is not None:
            context_len = source.shape[1] if is_cross else None
            check_cache(cache, mask, x, context_len, self)
            if is_cross and len(cache):
                # All keys are there already: none is appended, and all come back.
                source, valid = source[:, :0], None
        if positions is not None:
            several = max([1, *[part.position_axes for part in self.parts]])
            positions = check_positions(positions, x, several)
        counted, placed, axes = None, None, None
        is_plain = cache is None and valid is None and sequences is None
        if self.parts or not (is_plain or is_cross or mask is None or is_causal(mask)):
            if sequences is not None and sequences.mask is not None:
                key = sequences.positions
            else:
                key = next_positions(source.shape[1], valid, cache, x.device)
            query = torch.arange(x.shape[1], device=x.device) if is_cross else key
            counted = Positions(query, key)
            if positions is not None:
                if positions.ndim == 3:
                    axes = Positions(positions, key if is_cross else positions)
                    positions = positions[0]
                placed = Positions(positions, key if is_cross else positions)
        absorbs = cache is not None and self._absorbs(cache)
        return LayerCall(
            x=x,
            source=source,
            is_cross=is_cross,
            mask=mask,
            valid=valid,
            cache=cache,
            absorbs=absorbs,
            sequences=sequences,
            positions=counted,
            kernel=kernel,
            dims=dims,
            placed=placed,
            axes=axes,
        )

    def _check_across(
        self,
        x: Tensor,
        context: Tensor | None,
        across: Any,
        alone: dict[str, object],
        **options: Any,
    ) -> LayerCall:
        """The same where ranks share the tokens, which goes without the arguments `alone`."""
        pair = read_across(across)

        def check() -> tuple[LayerCall, str]:
            here = local_tokens("x", x, pair[0])
            beside = local_tokens("context", context, pair[1])
            check_alone(**alone, nested=True if is_nested(here) or is_nested(beside) else None)
            call = AttentionLayer._check_call(self, here, beside, **options)
            call = call._replace(across=Across(pair, x))
            for tensor, held in ((call.x, pair[0]), (call.source, pair[1])):
                held.check_rows(tensor, -2, held.count, f"rank {held.rank} has")
            if self.parts:
                query, key = (each.positions.to(call.x.device) for each in pair)
                call = call._replace(positions=Positions(query, key))
            return call, f"{type(self).__name__}({self.extra_repr()}), training={self.training}"

        return pair[0].agree(check, x)

    def _posed(self, call: LayerCall) -> tuple[Heads, dict[str, Any]]:
        """The heads of a call, and the options of `attend`; its cache takes the tokens."""
        query, key, value, unrotated = call.projected or self._project(call)
        if call.positions is not None and call.projected is None:
            query, key = self._transform(query, key, call)
        value = key if value is None else value
        cache = call.cache
        if cache is not None:
            # A norm may have brought the keys back to float32, which a kernel would not.
            key, value = cache.append(*under_autocast(key, value), valid=call.valid)
        mask, options = self._mask_and_options(call)
        heads = self._expand(query, key, value, unrotated, call)
        if heads.scale is not None:
            options.setdefault("scale", heads.scale)
        dropout = self.dropout if self.training else None
        return heads, {"mask": mask, "dropout": dropout, **options}

    def _transform(self, query: Tensor, key: Tensor, call: LayerCall) -> tuple[Tensor, Tensor]:
        """Query and key as the parts transform them."""
        positions = call.positions if call.placed is None else call.placed
        assert positions is not None
        if call.across is not None:
            # One token more, the last of the text: some parts go by its length.
            last = [
                each.new_full((1,), max(0, held.tokens - 1))
                for each, held in zip(positions, call.across.held, strict=True)
            ]
            positions = Positions(*(torch.cat(pair) for pair in zip(positions, last, strict=True)))
            query, key = (nn.functional.pad(each, (0, 0, 0, 1)) for each in (query, key))
        for part in self.parts:
            given = positions if call.axes is None or part.position_axes == 1 else call.axes
            query, key = part.transform_query_key(query, key, *given)
        return (query, key) if call.across is None else (query[:, :, :-1], key[:, :, :-1])

    def _problem(self, call: LayerCall) -> Problem:
        """The problem that a call poses to a kernel; its cache takes the tokens."""
        heads, options = self._posed(call)
        options["keys_finite"] = call.cache is not None and heads.is_cached and call.cache.finite
        problem = make_problem(heads.query, heads.key, heads.value, **options)
        if call.cache is None or call.is_cross or type(problem.mask) is Causal:
            return problem
        # Where rows are padded, their new keys need not be the last columns of a cache.
        real = call.valid
        if real is None:
            real = torch.ones(call.x.shape[:2], dtype=torch.bool, device=call.x.device)
        return problem.replace(real_queries=real)

    def _mask_and_options(self, call: LayerCall) -> tuple[Mask | None, dict[str, Any]]:
        """The mask of a call and the options of its parts; by position where columns are not in
        order."""
        mask, visible = call.mask, call.visible()
        positions = call.positions
        if positions is None:
            return and_masks(mask, visible), {}
        if call.cache is not None:
            positions = Positions(positions.query, call.cache.positions)
        placed = call.placed
        query = positions.query if placed is None else placed.query
        key = positions.key if placed is None or call.cache is not None else placed.key
        options = options_of(self.parts, query, key)
        bias = options.get("bias")
        if placed is not None and bias is not None:
            options["bias"], bias = bias_of_positions(bias, placed, call.cache), None
        if not call.is_cross and (mask is not None or bias is not None):
            in_order = call.in_order()
            # Positions are (tokens,) where every row counts its columns.
            if mask is not None and (not in_order or positions.key.ndim == 2):
                memory, cache = None, call.cache
                if isinstance(cache, FixedCache) and positions.key.ndim == 1:
                    memory = Memory(cache.max_len, None if is_tracing() else len(cache))
                mask = mask_by_position(mask, positions, in_order=in_order, memory=memory)
            if bias is not None and not in_order:
                options["bias"] = bias_by_position(bias, positions)
        return and_masks(mask, visible), options

    def _run(self, problem: Problem, kernel: str) -> Tensor:
        return run(problem, kernel)

    def _attend(self, call: LayerCall) -> Tensor:
        if call.across is not None:
            heads, options = self._posed(call)
            options |= {"kernel": call.kernel, "across": call.across.held}
            context = attend(heads.query, heads.key, heads.value, **options)
            return call.restore(self._join(context, call))
        with Rollback(call.cache, call.source.shape[1]):
            context = self._run(self._problem(call), call.kernel)
        return call.restore(self._join(context, call))

    def _matrix(self, call: LayerCall) -> AttentionMatrix:
        if call.across is not None:
            heads, options = self._posed(call)
            del options["dropout"]
            return AttentionMatrix(heads.query, heads.key, across=call.across.held, **options)
        # A cache takes values as well.
        call = call._replace(cache=copy.deepcopy(call.cache), values=call.cache is not None)
        return matrix_of(self._problem(call))

    def _plan(self, call: LayerCall) -> Plan:
        if call.across is not None:
            heads, options = self._posed(call)
            options |= {"kernel": call.kernel, "across": call.across.held}
            return plan(heads.query, heads.key, heads.value, **options)
        call = call._replace(cache=copy.deepcopy(call.cache))
        return plan_for(self._problem(call), call.kernel)

    def _describe_options(self) -> str:
        """The end of `extra_repr`: the options that are not the default ones."""
        text = ""
        if self.value_head_dim != self.head_dim:
            text += f", value_head_dim={self.value_head_dim}"
        if self.mask is not None:
            text += f", mask={self.mask.describe()}"
        return text if self.dropout is None else f"{text}, dropout={self.dropout}"
