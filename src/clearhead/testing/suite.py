"""`conformance`: the cases that an attention has to pass, for its author's test file."""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from clearhead._common.hints import with_hints
from clearhead._text import shown
from clearhead.attention.problem import DTYPES
from clearhead.errors import ArgumentError
from clearhead.testing.conformance_cases import ConformanceCase
from clearhead.testing.posing import FEATURES, LEFT, MASKS, Sizes, apart
from clearhead.testing.tolerances import chosen

# Of no size that another axis has.
HEAD_DIMS = (19, 5, 16)
# Of the plain attention: next to the edges of blocks, on them, and as short as can be.
PLAIN = ((7, 11), (1, 13), (13, 1), (1, 1), (31, 32), (61, 67), (64, 128), (65, 63), (129, 127))
EDGE, SQUARE = (61, 131), (67, 67)
# What a variant changes in the sizes.
CHANGES = {"one-key-head": {"num_kv_heads": 1}, "no-batch": {"batch": 0}}


class Asked(NamedTuple):
    """The parameters of a case: features, (query_len, kv_len), variant and head dim; None for the default head dim."""

    features: tuple[str, ...]
    lengths: tuple[int, int]
    variant: str = ""
    head_dim: int | None = None


@with_hints
def conformance(
    fn: Callable[..., Any],
    *,
    features: Collection[str],
    dtypes: Sequence[torch.dtype] = (torch.float32,),
    device: torch.device | str = "cpu",
    head_dims: Sequence[int] = HEAD_DIMS,
    seed: int | None = None,
) -> list[ConformanceCase]:
    """Return the cases that an attention has to pass, for `pytest.mark.parametrize`.

    The attention is called as fn(query, key, value), each (batch, num_heads, len, dim), with a
    keyword for each feature that the case asks for, and none else. It gives the context, (batch,
    num_heads, query_len, value_head_dim), in the query's dtype. A feature that is not declared is
    never asked for. The plain attention always is: lengths of 1 and around the edges of blocks,
    large scores, strided views, inputs left alone. Features are asked for alone, in pairs, and all
    at once; where fn refuses several at once with NotImplementedError, the case is skipped.

    Features, and the arguments of a case that has one:

    - `"mask"`: mask=, bool (batch, 1, query_len, kv_len), True = may attend
    - `"head_mask"`: mask=, bool (batch, num_heads, query_len, kv_len)
    - `"padding"`: mask=, bool (batch, 1, 1, kv_len), with real keys at one end
    - `"causal"`: causal=True; the last query sits on the last key, also if their numbers differ
    - `"window"`: window=(left, right), tokens seen on each side of a query, which is placed as above
    - `"grouped"`: key and value have fewer heads; query head h reads h // (num_heads / num_kv_heads)
    - `"value_width"`: value_head_dim ≠ head_dim
    - `"scale"`: scale=, a float that the scores are multiplied by; else it is 1/√head_dim
    - `"softcap"`: softcap=, a float: softcap · tanh(score / softcap), after the scale
    - `"bias"`: bias=, (batch, num_heads, query_len, kv_len), added after the softcap
    - `"sinks"`: sinks=, (num_heads,): one more score per head, which takes a share and has no value
    - `"empty_rows"`: no keyword; a query that may attend to nothing gets 0, and its logsumexp is −inf
    - `"nan_behind_mask"`: no keyword; a NaN in a hidden key or value stays there
    - `"logsumexp"`: return_logsumexp=True; the result is (context, logsumexp (batch, num_heads, query_len))
    - `"chunks"`: no keyword; causal queries chunk by chunk, each with the keys so far, give the whole
    - `"empty_axes"`: no keyword; batch, query_len or kv_len is 0
    - `"fewer_dims"`: (num_heads, len, dim) and (len, dim)
    - `"gradients"`: of query, key and value
    - `"bias_gradients", "sinks_gradients"`: of bias, of sinks as well

    A module as fn is called in its mode; one that drops weights needs `fn.eval()`.

    The answer is held against the definition in float64. It may be wrong by three times (gradients
    by ten times) what the definition itself loses in the same dtype, and by rounding.

    Args:
        fn: the attention, a function or a module.
        features: names from the table.
        dtypes: all cases run in the first one; in the others each feature once.
        device: where the tensors are; the definition is computed on the CPU.
        head_dims: widths of query and key, the first of most cases.
        seed: of everything that is drawn; None is that of `pytest --clearhead-seed`, or 0.

    Raises:
        ArgumentError: a dtype that is not supported, or a feature that is not known, or that needs another one.
        ArgumentTypeError: code `seed.type`, for a seed that is no whole number.

    Example:
        >>> import pytest
        >>> def mine(query, key, value, *, causal=False):
        ...     mask = ch.causal() if causal else None
        ...     return ch.attend(query, key, value, mask=mask)
        >>> @pytest.mark.parametrize("case", ch.testing.conformance(mine, features={"causal"}))
        ... def test_mine(case):
        ...     case.run()
        >>> [case.name for case in ch.testing.conformance(mine, features={"causal"})][:2]
        ['plain-7x11-float32', 'plain-1x13-float32']
    """
    declared = _checked(features)
    if not dtypes or not set(dtypes) <= set(DTYPES):
        raise ArgumentError(
            "conformance.dtypes",
            "dtypes must be one or more of float16, bfloat16, float32 and float64; got "
            f"{shown(dtypes)}.",
        )
    place, seed = torch.device(device), chosen(seed)
    return [
        ConformanceCase(
            fn, each.features, each.variant, _sizes(each, head_dims), dtype, place, seed
        )
        for position, dtype in enumerate(dtypes)
        for each in _asked(declared, head_dims, whole=position == 0)
    ]


def _asked(declared: Sequence[str], head_dims: Sequence[int], *, whole: bool) -> Iterator[Asked]:
    """Yield every case for the declared features, and each again with gradients if these are declared and defined.

    `whole` is False for the further dtypes, which get fewer lengths and no pairs.
    """
    trained = [name for name in declared if name.endswith("gradients")]
    others = [name for name in declared if name not in trained]
    every = (_plain(head_dims, whole), _alone(others, whole), _together(others, whole))
    # A pair is also a case of a feature that needs the other one.
    for each in dict.fromkeys(itertools.chain(*every)):
        yield each
        if "gradients" in trained and _has_gradients(each):
            known = {"gradients", *(f"{name}_gradients" for name in each.features)}
            of = (name for name in trained if name in known)
            yield each._replace(features=(*each.features, *of))


def _plain(head_dims: Sequence[int], whole: bool) -> Iterator[Asked]:
    """Yield the cases of plain attention: lengths, then head dims, large scores and strides.

    If not `whole`, there are three lengths only.
    """
    for lengths in PLAIN if whole else (*PLAIN[:2], EDGE):
        yield Asked((), lengths)
    for dim in head_dims[1:]:
        yield Asked((), EDGE, f"head-dim-{dim}", dim)
    for variant in ("large-scores", "strided"):
        yield Asked((), EDGE, variant)


def _alone(declared: Sequence[str], whole: bool) -> Iterator[Asked]:
    """Yield the cases of each feature by itself, with the features that it needs, and their variants.

    `whole` asks for all lengths of a feature, else for its last.
    """
    for name in declared:
        lengths = FEATURES[name].lengths if whole else FEATURES[name].lengths[-1:]
        for features in _closed((name,), declared):
            variants = [variant for each in features for variant in FEATURES[each].variants]
            for pair, variant in itertools.product(lengths, ("", *variants)):
                yield Asked(features, _fitting(features, pair), variant)


def _together(declared: Sequence[str], whole: bool) -> Iterator[Asked]:
    """Yield the cases of pairs of features (if `whole`), and of all that are compatible, with and without "chunks".

    "All" needs at least three.
    """
    others = [name for name in declared if FEATURES[name].with_others]
    for pair in itertools.combinations(others, 2) if whole else ():
        for features in itertools.islice(_closed(pair, declared), 1):
            yield Asked(features, _fitting(features, EDGE))
    everything: list[str] = []
    for name in others:
        if not any(apart(name, other) for other in everything):
            everything.append(name)
    if len(everything) > 2:
        for features in (tuple(everything), tuple(n for n in everything if n != "chunks")):
            yield Asked(features, _fitting(features, EDGE), "all")


def _closed(features: Sequence[str], declared: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the features with each declared choice of the features that they need, in the declared order.

    Nothing is yielded if two of them exclude each other, or a need has no declared feature that is compatible.
    """
    if any(apart(*pair) for pair in itertools.combinations(features, 2)):
        return
    open_needs = [
        need for name in features for need in FEATURES[name].needs if not set(need) & set(features)
    ]
    if not open_needs:
        yield tuple(name for name in declared if name in features)
        return
    for name in open_needs[0]:
        if name in declared:
            yield from _closed((*features, name), declared)


def _fitting(features: Sequence[str], lengths: tuple[int, int]) -> tuple[int, int]:
    """Return lengths that the features allow: equal ones for "chunks", more queries than keys for "empty_rows" alone.

    "empty_rows" is alone if no mask is among the features. Other lengths are returned unchanged.
    """
    query_len, kv_len = lengths
    if "chunks" in features:
        return lengths if query_len == kv_len else SQUARE
    if "empty_rows" in features and not set(features) & set(MASKS):
        return max(lengths), min(lengths)
    return query_len, kv_len


def _has_gradients(asked: Asked) -> bool:
    """Return True if the gradients of a case are defined: no empty axis, and no query that sees a NaN."""
    features = set(asked.features)
    query_len, kv_len = asked.lengths
    # Where some query sees a NaN, gradients are what they are.
    hidden = features & set(MASKS) or ("window" in features and kv_len - query_len > LEFT)
    return "empty_axes" not in features and bool("nan_behind_mask" not in features or hidden)


def _sizes(asked: Asked, head_dims: Sequence[int]) -> Sizes:
    """Return the sizes of a case: 3 heads, or 6 query heads and 2 (or 1) key heads for "grouped"."""
    heads, kv_heads = (6, 2) if "grouped" in asked.features else (3, 3)
    dim = asked.head_dim or head_dims[0]
    other = next(iter(head_dims[1:]), 2 * dim)
    value_dim = other if "value_width" in asked.features else dim
    sizes = Sizes(2, heads, kv_heads, *asked.lengths, dim, value_dim)
    return sizes._replace(**CHANGES.get(asked.variant, {}))


def _checked(features: Collection[str]) -> tuple[str, ...]:
    """Return the declared features in the order of `FEATURES`.

    Raises ArgumentError for an unknown feature or one without a feature that it needs.
    """
    unknown = sorted(str(name) for name in features if name not in FEATURES)
    if unknown:
        raise ArgumentError(
            "conformance.feature",
            f"features are {', '.join(FEATURES)}; got {', '.join(unknown)}.",
        )
    declared = tuple(name for name in FEATURES if name in features)
    for name in declared:
        for need in FEATURES[name].needs:
            if not set(need) & set(declared):
                raise ArgumentError(
                    "conformance.needs",
                    f"the feature {name} needs {' or '.join(need)}, which "
                    f"{'is' if len(need) == 1 else 'are'} not declared.",
                )
    return declared
