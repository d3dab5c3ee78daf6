"""Norms of query and key. Whether they are root mean square norms, the run of a copy shows."""

from typing import Any

from torch import Tensor, nn

from clearhead._common.checks import is_number
from clearhead._common.foreign_names import NORM_NAMES
from clearhead.layers.converting.reader import ModuleReader
from clearhead.layers.converting.tensor_pairs import TensorPair
from clearhead.layers.query_key_norm import QueryKeyNorm


def add_norms(reader: ModuleReader) -> None:
    """Add the norms of query and key to the reader, if the module has any; a reason instead if they cannot be read."""
    for query, key in NORM_NAMES:
        if not all(isinstance(reader.find(name), nn.Identity | None) for name in (query, key)):
            _add_pair(reader, query, key)
            return
    norm: Any = reader.find("qk_norm")  # in some classes a bool
    if not isinstance(norm, nn.Module) or isinstance(norm, nn.Identity):
        return
    # A norm without a weight, the same for query and key.
    eps = _eps_of(norm)
    if eps is None:
        kind = type(norm).__name__
        reader.reasons.append(f"qk_norm must be a root mean square norm with an eps; it is {kind}")
        return
    part = reader.add_part(QueryKeyNorm(reader.sizes["head_dim"], eps=eps), "qk_norm")
    for side in ("query_norm", "key_norm"):
        reader.pairs.append(TensorPair("", None, f"{part}.{side}.weight", how="ones"))


def _add_pair(reader: ModuleReader, query: str, key: str) -> None:
    """Add the norms with these two names to the reader as a part, by head or over all heads.

    A reason instead if one cannot be read, or they differ in eps or do not have a weight for each number of a head, or
    of all heads.
    """
    first, second = read_norm(reader, query), read_norm(reader, key)
    if first is None or second is None:
        return
    if first[1] != second[1]:
        reader.reasons.append(f"{query} adds {first[1]:g}, {key} {second[1]:g}: not one eps")
        return
    dim, heads, kv_heads = (
        reader.sizes[name] for name in ("head_dim", "num_heads", "num_kv_heads")
    )
    widths = len(first[0]), len(second[0])
    if widths not in ((dim, dim), (heads * dim, kv_heads * dim)):
        reader.reasons.append(
            f"{query}.weight ({widths[0]},) and {key}.weight ({widths[1]},) must have one number for each of "
            f"the {dim} of a head, or of all {heads} and {kv_heads} heads"
        )
        return
    together = {} if widths == (dim, dim) else {"num_heads": heads, "num_kv_heads": kv_heads}
    part = reader.add_part(QueryKeyNorm(dim, eps=first[1], **together), f"{query}, {key}")
    reader.copy(f"{query}.weight", first[0], f"{part}.query_norm.weight", reader.guess.norms)
    reader.copy(f"{key}.weight", second[0], f"{part}.key_norm.weight", reader.guess.norms)


def read_norm(reader: ModuleReader, name: str) -> tuple[Tensor, float] | None:
    """Return the weight, (width,), and the eps of a norm; None, with a reason added, if it does not have both."""
    norm = reader.find(name)
    weight = reader.tensor(f"{name}.weight") if reader.has(f"{name}.weight") else None
    eps = _eps_of(norm)
    if weight is None or weight.ndim != 1 or eps is None:
        reader.reasons.append(
            f"{name} must be a root mean square norm with a weight of one dimension and an eps; it is "
            f"{type(norm).__name__}"
        )
        return None
    return weight, eps


def _eps_of(norm: object) -> float | None:
    """Return the eps of a norm, 0 to below 1; None if it is not stored in `eps` or `variance_epsilon`."""
    given: list[Any] = [getattr(norm, name, None) for name in ("eps", "variance_epsilon")]
    return next((eps for eps in given if is_number(eps) and 0 <= eps < 1), None)
