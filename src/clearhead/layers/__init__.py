"""Attention as a layer, its variants as parts, and KV caches."""

from typing import TYPE_CHECKING, Any

from clearhead._common import lazy
from clearhead.layers.caches import (
    Cache,
    CacheBundle,
    FixedCache,
    GrowingCache,
    SlidingCache,
    StaticCache,
)
from clearhead.layers.latent_attention import LatentAttention
from clearhead.layers.multi_head_attention import MultiHeadAttention
from clearhead.layers.parts import (
    OutputGate,
    Part,
    Scale,
    ScoreBias,
    Sinks,
    Softcap,
)
from clearhead.layers.query_key_norm import QueryKeyNorm
from clearhead.layers.rotary import Rotary
from clearhead.layers.scalings import Dynamic, Linear, Llama3, LongRope, Ntk, Scaling, Yarn
from clearhead.layers.score_parts import Differential, RelativeBias, Temperature

__all__ = [
    "Cache",
    "CacheBundle",
    "Differential",
    "Dynamic",
    "FixedCache",
    "GrowingCache",
    "LatentAttention",
    "Linear",
    "Llama3",
    "LongRope",
    "MultiHeadAttention",
    "Ntk",
    "OutputGate",
    "Part",
    "QueryKeyNorm",
    "RelativeBias",
    "Rotary",
    "Scale",
    "Scaling",
    "ScoreBias",
    "Sinks",
    "SlidingCache",
    "Softcap",
    "StaticCache",
    "Temperature",
    "Yarn",
]

if not TYPE_CHECKING:  # a type checker knows what is not there

    def __getattr__(name: str) -> Any:
        """Raise AttributeError for a name that the package lacks, with its equivalent here if there is one."""
        raise lazy.no_name(__name__, name)
