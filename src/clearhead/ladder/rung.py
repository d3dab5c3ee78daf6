"""A rung: called like a layer, with every stage by name.

`project` makes query, key and value; `stages` is one call of `clearhead.stages`, which computes
everything from them; calling the rung gives the last stage, the context.
"""

from abc import ABC, abstractmethod
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from clearhead._shapes import Float
from clearhead._text import shown
from clearhead.errors import ArgumentError
from clearhead.masks import Mask
from clearhead.stages import Stages

Tokens = Float[Tensor, "tokens embed_dim"]
Context = Float[Tensor, "context_tokens context_dim"]

AnyRung = TypeVar("AnyRung", bound="Rung")
Init = Literal["linear", "normal", "uniform"]


def drawn(init: Init, embed_dim: int, width: int) -> Tensor:
    """Return a random matrix, (embed_dim, width), drawn from PyTorch's generator, without gradients.

    Args:
        init: "normal" as torch.randn, "uniform" as torch.rand, or "linear" as nn.Linear: between ±1/√embed_dim.
        embed_dim: the number of rows.
        width: the number of columns.

    Raises:
        ArgumentError: code `init.value`, for any other init.
    """
    if init == "linear":
        return nn.Linear(embed_dim, width, bias=False).weight.detach().mT.contiguous()
    if init not in ("normal", "uniform"):
        raise ArgumentError(
            "init.value", f'init must be "linear", "normal" or "uniform"; got {shown(init)}.'
        )
    return (torch.randn if init == "normal" else torch.rand)(embed_dim, width)


class Rung(nn.Module, ABC):
    """A module with every stage by name: a subclass defines `project` and `stages`.

    Mask and dropout are None by default.
    """

    mask: Mask | None = None
    dropout: float | None = None

    @abstractmethod
    def project(self, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value of each token: (tokens, head_dim) twice, (tokens, value_head_dim)."""

    @abstractmethod
    def stages(self, *inputs: Any, **options: Any) -> Stages:
        """Return every stage from the tokens to their contexts."""

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Return the context of each token, (tokens, value_head_dim)."""
        return self.stages(*inputs, **options).context

    def load(self: AnyRung, **weights: Tensor) -> AnyRung:
        """Return this rung, with copies of the tensors as its parameters, in place.

        RuntimeError for other names or shapes.
        """
        layout = torch.contiguous_format
        copies = {name: each.detach().clone(memory_format=layout) for name, each in weights.items()}
        self.load_state_dict(copies, assign=True)
        return self

    def sizes(self) -> dict[str, int]:
        """Return the widths by the names of the constructor's arguments, without defaults.

        {} for a rung without widths.
        """
        return {}

    def extra_repr(self) -> str:
        """Return the sizes, heads, mask and dropout that are set, as text for the repr of the module."""
        sizes = self.sizes()
        num_heads = getattr(self, "num_heads", None)
        mask = None if self.mask is None else self.mask.describe()
        shown = {**sizes, "num_heads": num_heads, "mask": mask, "dropout": self.dropout}
        words = [f"{name}={value}" for name, value in shown.items() if value is not None]
        return ", ".join(words).removeprefix("embed_dim=")


def widths(
    query: tuple[int, int], key: tuple[int, int], value: tuple[int, int], num_heads: int = 1
) -> dict[str, int]:
    """Return the constructor's arguments for matrices of these sizes, (in, out), without those equal to their default.

    The widths of query, key and value are those of all heads together.
    """
    head_dim, value_head_dim = query[1] // num_heads, value[1] // num_heads
    found = {"embed_dim": query[0], "head_dim": head_dim}
    found |= {"value_head_dim": value_head_dim} if value_head_dim != head_dim else {}
    return found | ({"context_dim": key[0]} if key[0] != query[0] else {})
