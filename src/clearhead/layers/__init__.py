"""Attention as a layer, and the parts that make its variants."""

from clearhead.layers.multi_head_attention import MultiHeadAttention
from clearhead.layers.parts import (
    Differential,
    OutputGate,
    Part,
    QueryKeyNorm,
    Scale,
    ScoreBias,
    Sinks,
    Softcap,
)

__all__ = [
    "Differential",
    "MultiHeadAttention",
    "OutputGate",
    "Part",
    "QueryKeyNorm",
    "Scale",
    "ScoreBias",
    "Sinks",
    "Softcap",
]
