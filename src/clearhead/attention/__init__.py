"""Attention calls: the validated problem, the kernels, the choice between them, and `attend`."""
