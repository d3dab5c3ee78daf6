"""Layouts of tokens and heads over ranks, and collectives with gradients."""
