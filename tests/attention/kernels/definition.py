"""The result that a kernel must give: the stages on whole tensors, in float64, and in the kernel's own dtype."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import stages
from clearhead.attention.kernels import _by_scores, _lowering, blockwise, eager, fused
from clearhead.attention.planning import KERNELS
from clearhead.masks import tiles
from clearhead.testing.tolerances import difference, measured

RUNNABLE = [kernel.NAME for kernel in KERNELS if kernel.NAME != "flex"]
"""The kernels that run on every device; flex has tests of its own."""

# Tensors by the names of the arguments that they are for; Any, as they are handed on with `**`.
Tensors = dict[str, Any]

Computed = TypeVar("Computed")


def take_apart(patch: pytest.MonkeyPatch) -> None:
    """Take small problems apart as only large ones are."""
    patch.setattr(_lowering, "MASK_PORTION", 1)
    patch.setattr(_lowering, "WORTH_SPANS", 0)
    patch.setattr(_lowering, "WORTH_SLICING", 0)
    patch.setattr(tiles, "TILE", 2)
    patch.setattr(_lowering, "STRIP", 2)
    patch.setattr(tiles, "LEAST_TILES", 2)
    patch.setattr(eager, "PORTION", 1)
    patch.setattr(blockwise, "SMALL", 0)
    patch.setattr(fused, "SMALL", 0)
    patch.setattr(_by_scores, "SMALL", 0)
    patch.setattr(_by_scores, "LEAST_CHECKED", 0)


def draw(
    batch: int = 3,
    num_heads: int = 6,
    num_kv_heads: int | None = None,
    query_len: int = 19,
    kv_len: int | None = None,
    head_dim: int = 5,
    value_head_dim: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensors:
    """Query, key and value. Sizes that are left out are those of their neighbours."""
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    kv_len = query_len if kv_len is None else kv_len
    value_head_dim = head_dim if value_head_dim is None else value_head_dim
    return {
        "query": torch.randn(batch, num_heads, query_len, head_dim).to(dtype),
        "key": torch.randn(batch, num_kv_heads, kv_len, head_dim).to(dtype),
        "value": torch.randn(batch, num_kv_heads, kv_len, value_head_dim).to(dtype),
    }


def defined(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: ch.Mask | Tensor | None = None,
    bias: ch.Bias | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> stages.Stages:
    """The stages for tensors of four dimensions, with mask and bias as tensors."""
    lengths = query.shape[2], key.shape[2]
    return stages.compute(
        query,
        stages.repeat_kv_heads(key, query.shape[1]),
        stages.repeat_kv_heads(value, query.shape[1]),
        scale=query.shape[3] ** -0.5 if scale is None else scale,
        softcap=softcap,
        bias=bias.within(query.dtype).to_dense(*lengths) if isinstance(bias, ch.Bias) else bias,
        visible=mask.to_dense(*lengths) if isinstance(mask, ch.Mask) else mask,
        sinks=sinks,
    )


def context(**given: Any) -> Tensor:
    return defined(**given).context


def in_orders(
    compute: Callable[..., Computed], head_dim: int, count: int
) -> list[Callable[..., Computed]]:
    """A computation with the sums over the width of query and key in several orders.

    Where scores are large their rounding is all of the error, and one order may lose little by chance.
    """
    generator = torch.Generator().manual_seed(0)

    def ordered(order: Tensor, query: Tensor, key: Tensor, **given: Any) -> Computed:
        return compute(query=query[..., order], key=key[..., order], **given)

    orders = [torch.randperm(head_dim, generator=generator) for _ in range(count - 1)]
    return [compute, *(partial(ordered, order) for order in orders)]


def lossiest(truth: Tensor, plain: Sequence[Tensor]) -> Tensor:
    """The plain computation that is farthest from the truth."""
    return max(plain, key=lambda each: measured(truth, each, each.dtype).plain_error)


def outcome(compute: Callable[..., Tensor], tensors: Tensors, grad: Tensor) -> Tensors:
    """The results of a computation, and the gradient of each tensor; their strides stay."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
    result = compute(**leaves)
    grads = torch.autograd.grad(result, list(leaves.values()), grad.to(result.dtype))
    return {"context": result.detach()} | dict(zip(leaves, grads, strict=True))


def assert_agrees(kernel: str, tensors: Tensors, orders: int = 1, **options: Any) -> None:
    """Hold a kernel to the definition, forward and backward.

    With several orders, as for `in_orders`, the long sums of the gradients may be in any order too.
    """
    query, value = tensors["query"], tensors["value"]
    grad = torch.randn(*query.shape[:3], value.shape[3]).to(query.dtype)
    actual = outcome(lambda **given: ch.attend(**given, **options, kernel=kernel), tensors, grad)
    plain = [
        outcome(partial(compute, **options), tensors, grad)
        for compute in in_orders(context, query.shape[3], orders)
    ]
    doubled = {name: tensor.double() for name, tensor in tensors.items()}
    truth = outcome(lambda **given: context(**given, **options), doubled, grad)
    for name in truth:
        assert actual[name].shape == truth[name].shape, name
        assert actual[name].dtype == plain[0][name].dtype, name
    expected, every = truth.pop("context"), [each.pop("context") for each in plain]
    close(actual.pop("context"), expected, lossiest(expected, every), "the context")
    dtype, what = query.dtype, f"a gradient of {', '.join(truth)}"
    terms = gradient_terms(doubled, grad, **options)
    if orders > 1 and dtype == torch.float32:  # 16 bits are summed in float32
        # Each addition rounds a partial sum that is no larger than the terms; their signs are random.
        count = query.shape[2] * query.shape[1] // tensors["key"].shape[1]
        # And a kernel that keeps the logsumexp in one float32 rounds all weights of a row by its size.
        total = stages.logsumexp(defined(**doubled, **options).masked_scores)
        total = total[total.isfinite()].abs()
        terms *= 1 + count**0.5 / 4 + (float(total.max()) / 4 if total.numel() else 0.0)
    flattened = lossiest(flat(truth), [flat(each, dtype) for each in plain])
    close(flat(actual, dtype), flat(truth), flattened, what, terms)


def gradient_terms(tensors: Tensors, grad: Tensor, **options: Any) -> float:
    """The largest entry of the gradients of float64 tensors if every term in them counts by its
    magnitude: what their rounding is in proportion to.

    The gradient of the scores is P · (dP − D), where D = Σ P · dP. A kernel that never held the
    weights takes D = Σ dO · O instead (Dao et al., 2022), which rounds differently. Where one weight
    is 1, dP − D is 0 in truth and in the plain computation, but two roundings of dP in the kernel.
    """
    done = defined(**tensors, **options)
    query, key, value = (tensors[name].abs() for name in ("query", "key", "value"))
    grad, num_heads, num_kv_heads = grad.double().abs(), query.shape[1], key.shape[1]
    key, value = (stages.repeat_kv_heads(each, num_heads) for each in (key, value))
    products = grad @ value.mT + (grad * done.context.abs()).sum(dim=-1, keepdim=True)
    scale = abs(options.get("scale") or query.shape[3] ** -0.5)
    scores = done.weights * products * scale
    of_key, of_value = scores.mT @ query, done.weights.mT @ grad
    terms = [scores @ key]
    terms += [each.unflatten(1, (num_kv_heads, -1)).sum(dim=2) for each in (of_key, of_value)]
    return max((each.max().item() for each in terms if each.numel()), default=0.0)


def flat(tensors: Tensors, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.cat([tensor.flatten().to(dtype) for tensor in tensors.values()])


def close(actual: Tensor, truth: Tensor, plain: Tensor, what: str, terms: float = 0.0) -> None:
    """As `assert_no_worse`; for float64, where no better truth is at hand, by rounding alone.

    Args:
        actual, truth, plain, what: as there.
        terms: the magnitude of what is summed, where it is larger than the sums.
    """
    if actual.dtype != torch.float64:
        tolerance = measured(truth, plain, actual.dtype)
        tolerance = replace(tolerance, largest=max(tolerance.largest, terms))
        assert actual.shape == truth.shape
        found = difference(what, actual, truth, tolerance)
        assert found is None, found
        return
    # Sums of fewer than 100 numbers of about 1, each rounded a few times.
    largest = max([1.0, *truth[truth.isfinite()].abs().flatten().tolist()])
    bound = 300 * torch.finfo(torch.float64).eps * largest
    torch.testing.assert_close(
        actual, truth, rtol=0, atol=bound, equal_nan=True, msg=lambda text: f"{what}: {text}"
    )
