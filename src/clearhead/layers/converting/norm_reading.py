"""Norms of query and key: whether they are root mean square norms, and how they use their weight."""

from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.checks import is_number
from clearhead._common.foreign_names import NORM_NAMES
from clearhead.layers.converting.reader import ModuleReader
from clearhead.layers.converting.tensor_pairs import TensorPair
from clearhead.layers.query_key_norm import QueryKeyNorm

# A norm is run on vectors of both sizes; the small one shows what is added to the mean square.
LARGE, SMALL = 1.0, 1e-3


def add_norms(reader: ModuleReader) -> None:
    """Hand the norms of query and key to the layer, if both are root mean square norms."""
    for names in NORM_NAMES:
        if not all(isinstance(reader.find(name), nn.Identity | None) for name in names):
            _add_pair(reader, *names)
            return
    norm = reader.find("qk_norm")  # in some classes a bool
    if isinstance(norm, nn.Module) and not isinstance(norm, nn.Identity):
        _add_bare(reader, "qk_norm")


def _add_pair(reader: ModuleReader, query: str, key: str) -> None:
    first, second = read_norm(reader, query), read_norm(reader, key)
    if first is None or second is None:
        return
    eps, other_eps = first[2], second[2]
    if eps != other_eps:
        reader.reasons.append(f"{query} adds {eps:g}, {key} {other_eps:g}: not one eps")
        return
    dim, heads, kv_heads = (
        reader.sizes[name] for name in ("head_dim", "num_heads", "num_kv_heads")
    )
    widths = len(first[0]), len(second[0])
    if widths == (dim, dim):
        norm = QueryKeyNorm(dim, eps=eps)
    elif widths == (heads * dim, kv_heads * dim):
        norm = QueryKeyNorm(dim, eps=eps, num_heads=heads, num_kv_heads=kv_heads)
    else:
        reader.reasons.append(
            f"{query}.weight ({widths[0]},) and {key}.weight ({widths[1]},) must have one number for each of "
            f"the {dim} of a head, or of all {heads} and {kv_heads} heads"
        )
        return
    part = reader.add_part(norm, f"{query}, {key}")
    reader.copy(f"{query}.weight", first[0], f"{part}.query_norm.weight", first[1])
    reader.copy(f"{key}.weight", second[0], f"{part}.key_norm.weight", second[1])


def _add_bare(reader: ModuleReader, name: str) -> None:
    """Hand a norm without a weight, the same for query and key, to the layer."""
    norm, dim = reader.find(name), reader.sizes["head_dim"]
    eps: Any = getattr(norm, "eps", None)
    ones = torch.ones(dim, dtype=torch.float64)
    if not is_number(eps) or _use_of_weight(norm, ones, eps) != "copied":
        reader.reasons.append(
            f"{name} must be a root mean square norm; it is {type(norm).__name__}"
        )
        return
    part = reader.add_part(QueryKeyNorm(dim, eps=eps), name)
    for side in ("query_norm", "key_norm"):
        reader.pairs.append(TensorPair("", None, f"{part}.{side}.weight", how="ones"))


def read_norm(reader: ModuleReader, name: str) -> tuple[Tensor, str, float] | None:
    """Weight, use of it and eps of a root mean square norm; None with a reason for another."""
    norm = reader.find(name)
    said: list[Any] = [getattr(norm, eps, None) for eps in ("eps", "variance_epsilon")]
    eps = next((each for each in said if is_number(each) and 0 <= each < 1), None)
    weight = reader.tensor(f"{name}.weight") if reader.has(f"{name}.weight") else None
    if not isinstance(norm, nn.Module) or weight is None or eps is None:
        reason = f"a root mean square norm with a weight and an eps; it is {type(norm).__name__}"
    elif weight.ndim != 1:
        name = f"{name}.weight {tuple(weight.shape)}"
        reason = f"one number for each of the {reader.sizes['head_dim']} of a head"
    else:
        how = _use_of_weight(norm, weight, eps)
        if how is not None:
            return weight, how, eps
        reason = (
            "a root mean square norm times its weight, or times 1 + its weight; "
            f"{type(norm).__name__} is neither"
        )
    reader.reasons.append(f"{name} must be {reason}")
    return None


def _use_of_weight(norm: nn.Module, weight: Tensor, eps: float) -> str | None:
    """The way a norm multiplies by its weight, seen by running it: as it is, or plus 1."""
    if weight.is_meta or not weight.is_floating_point():
        return "copied"  # which is refused for what it is
    # Most norms work in float32 whatever comes in.
    close = 8 * max(torch.finfo(dtype).eps for dtype in (weight.dtype, torch.float32))
    probe = torch.linspace(-1, 2, len(weight), dtype=torch.float64, device=weight.device) + 0.01
    fits = {"copied": True, "plus 1": True}
    for size in (LARGE, SMALL):
        vector = (probe * size).to(weight.dtype)
        with torch.no_grad():
            theirs = norm.forward(vector).double()  # without hooks
        exact = vector.double()
        normed = exact / (exact.square().mean() + eps).sqrt()
        for how, shift in (("copied", 0), ("plus 1", 1)):
            ours = normed * (weight.double() + shift)
            error = (ours - theirs).abs().max()
            fits[how] &= bool(error <= close * ours.abs().max().clamp(min=1e-3))
    return next((how for how, is_so in fits.items() if is_so), None)
