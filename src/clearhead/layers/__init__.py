"""Attention as layers, and their parts."""

from clearhead.layers.multi_head_attention import MultiHeadAttention

__all__ = ["MultiHeadAttention"]
