"""A rung: called like a layer, with every stage on the way by name.

`project` makes query, key and value; `stages` is one call of `clearhead.stages`, which computes
everything from them; calling the rung gives the last stage, the context.
"""

from abc import ABC, abstractmethod
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.masks import Mask
from clearhead.stages import Stages

Tokens = Float[Tensor, "tokens embed_dim"]
Context = Float[Tensor, "context_tokens context_dim"]

AnyRung = TypeVar("AnyRung", bound="Rung")


class Rung(nn.Module, ABC):
    """The methods that every rung has, and the settings that it lacks unless it says otherwise."""

    mask: Mask | None = None
    dropout: float | None = None

    @abstractmethod
    def project(self, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of each token: (tokens, head_dim), twice, (tokens, value_head_dim)."""

    @abstractmethod
    def stages(self, *inputs: Any, **options: Any) -> Stages:
        """Every stage between the tokens and their contexts."""

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """The context of each token, (tokens, value_head_dim)."""
        return self.stages(*inputs, **options).context

    def load(self: AnyRung, **weights: Tensor) -> AnyRung:
        """This rung with copies of the tensors as its parameters; other names or shapes raise."""
        layout = torch.contiguous_format
        copies = {name: each.detach().clone(memory_format=layout) for name, each in weights.items()}
        self.load_state_dict(copies, assign=True)
        return self

    def extra_repr(self) -> str:
        num_heads = getattr(self, "num_heads", None)
        mask = None if self.mask is None else self.mask.describe()
        shown = {"num_heads": num_heads, "mask": mask, "dropout": self.dropout}
        return ", ".join(f"{name}={value}" for name, value in shown.items() if value is not None)
