"""Layers whose queries, keys and values come from one linear layer: Phi-3, and GPT-NeoX, where those of
a head are neighbours.

Sources: Abdin et al., 2024, https://arxiv.org/abs/2404.14219; Black et al., 2022,
https://arxiv.org/abs/2204.06745; and the layers of transformers.
"""

from collections.abc import Callable
from itertools import pairwise

from torch import nn

from clearhead._common.checks import as_int
from clearhead.layers.converting.reading import Reading
from clearhead.layers.converting.separate import read_what_projections_share

PHI = ("phi3",)
NEOX = ("gpt_neox",)


def recogniser(packed: str, output: str) -> Callable[[nn.Module], bool]:
    """What tells whether a module has linear layers of these names."""

    def recognises(module: nn.Module) -> bool:
        found = (getattr(module, name, None) for name in (packed, output))
        return all(isinstance(each, nn.Module) for each in found)

    return recognises


def read_phi(reading: Reading) -> None:
    """Phi-3: all queries, then all keys, then all values."""
    reading.check_model_type(PHI)
    packed, output = reading.matrix("qkv_proj"), reading.matrix("o_proj")
    if packed is None or output is None:
        return
    heads, dim = reading.num_heads, reading.head_dim
    kv_heads = as_int(getattr(reading.module, "num_key_value_heads", heads))
    if not heads or not dim or not kv_heads or (heads + 2 * kv_heads) * dim != len(packed.weight):
        reading.reasons.append(
            f"qkv_proj gives width {len(packed.weight)}, which must be (num_heads + 2 × "
            f"num_key_value_heads) × head_dim; the module says {heads}, {kv_heads} and {dim}"
        )
        return
    edges = [0, heads * dim, (heads + kv_heads) * dim, len(packed.weight)]
    query, key, value = (packed.part(*edge) for edge in pairwise(edges))
    reading.project(query, key, value, output, num_heads=heads, head_dim=dim)
    if reading.sizes:
        read_what_projections_share(reading, None if reading.is_probed else "half")


def read_neox(reading: Reading) -> None:
    """GPT-NeoX, Pythia: query, key and value of the first head, then of the second, and so on."""
    reading.check_model_type(NEOX)
    packed, output = reading.matrix("query_key_value"), reading.matrix("dense")
    if packed is None or output is None:
        return
    heads, width = reading.num_heads, len(packed.weight)
    if not heads or width % (3 * heads):
        reading.reasons.append(
            f"query_key_value gives width {width}, which must be 3 × num_heads × head_dim; the "
            f"module says num_heads={heads}"
        )
        return
    dim = width // (3 * heads)
    parts = [packed.part(first, first + dim) for first in range(0, width, dim)]
    reading.project_heads([parts[first : first + 3] for first in range(0, len(parts), 3)], output)
    if reading.sizes:
        read_what_projections_share(reading, None if reading.is_probed else "half")
