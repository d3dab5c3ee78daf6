"""A model of ids, called behind its token embedding: vectors go in where ids went."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.foreign_names import CACHES, cache_of
from clearhead._common.undoing import undoing, unhook
from clearhead.checking.subject.calling import of_transformers, output_of
from clearhead.checking.subject.refusals import raised_with_line
from clearhead.checking.subject.signatures import mask_of_tokens, of_call, settings_of
from clearhead.errors import ModelError
from clearhead.recording.attempt import attempt

# Tokens of the call that shows which embedding is handed the ids; few, since positions may be.
LENGTHS = (5, 3, 2)


class Embedded(nn.Module):
    """A model of ids that takes the vectors of its tokens instead.

    The output of its token embedding is replaced; everything after it, that of positions too, runs as for ids. The ids
    are all the same, and no special token.

    Args:
        model: (batch, tokens) → an output for each token.
        masked: whether it takes a mask of real tokens.

    Raises:
        ModelError: codes `check.ids`, `check.call`, for a model that embeds no ids, or takes none.
    """

    def __init__(self, model: nn.Module, *, masked: bool) -> None:
        """Find the token embedding by calling the model with ids, and with a mask if `masked`; raises ModelError."""
        super().__init__()
        self.model = model
        self.place, self.longest = _embedding_of(model, masked)
        self.token = _plain_token(model, self.embedding)

    @property
    def embedding(self) -> nn.Embedding:
        """The embedding of the tokens."""
        found = self.model.get_submodule(self.place)
        assert isinstance(found, nn.Embedding)
        return found

    @property
    def left_out(self) -> tuple[Tensor, ...]:
        """The parameters that a call does not use: the weight of the token embedding."""
        return (self.embedding.weight,)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that are known of it: d_in, and context_length if positions are embedded."""
        known = {"d_in": self.embedding.embedding_dim}
        return known if self.longest is None else {**known, "context_length": self.longest}

    @property
    def cache(self) -> str | None:
        """The parameter for the cache, which is also the attribute of the output; None without `use_cache`."""
        names = of_call(self.model)
        return cache_of(names) if "use_cache" in names else None

    def forward(self, *tensors: Tensor) -> Any:
        """Return what the model returns for vectors x, and a mask of real tokens if one is given.

        TypeError as `_masks`.
        """
        x, *mask = tensors
        return self.run(x, _masks(self.model, *mask))

    def run(self, x: Tensor, more: Mapping[str, Any]) -> Any:
        """Return what the model returns for vectors x (batch, tokens, dim), with more keyword arguments.

        A hook on the embedding is added for the call.
        """
        ids = torch.full(x.shape[:2], self.token, dtype=torch.long)
        hook: Any = lambda module, args, output: x  # noqa: E731
        with undoing() as undo:
            undo.append(partial(unhook, self.embedding, hook))
            self.embedding.register_forward_hook(hook)
            return self.model(ids, **more)


class Steps(nn.Module):
    """A model after its embedding, called token by token with its cache, which it stores in `past`."""

    def __init__(self, embedded: Embedded) -> None:
        """Start without a cache."""
        super().__init__()
        self.embedded = embedded
        self.past: Any = None

    def reset(self) -> None:
        """Drop the stored cache."""
        self.past = None

    def step(self, x: Tensor) -> Tensor:
        """Return the outputs of the next tokens, and store the cache.

        RuntimeError if the model returns no cache; TypeError as `output_of`.
        """
        name = self.embedded.cache or CACHES[0]
        found = self.embedded.run(x, {name: self.past, "use_cache": True})
        self.past = getattr(found, name, None)
        if self.past is None:
            raise RuntimeError("called with use_cache=True, it gives no cache")
        return output_of(found)[0]

    def full(self, x: Tensor) -> Tensor:
        """Return the outputs of all tokens at once, without a cache; the stored one is not changed.

        TypeError as `output_of`.
        """
        return output_of(self.embedded.run(x, {"use_cache": False}))[0]


def _embedding_of(model: nn.Module, masked: bool) -> tuple[str, int | None]:
    """Return the name of the embedding that is called with the ids, and the number of positions that are embedded.

    The number is None without an embedding of positions.

    Raises:
        ModelError: code `check.call`, if the model raises on all ids; `check.ids`, if no embedding gets them.
    """
    tables = {n: each for n, each in model.named_modules() if isinstance(each, nn.Embedding)}
    # Ids must be in the table of tokens, whose size is one of these: the smallest that is.
    limits = sorted({each.num_embeddings for each in tables.values() if each.num_embeddings > 2})
    error: Exception | None = None
    ran = False
    for limit, tokens in ((limit, tokens) for limit in limits for tokens in LENGTHS):
        ids = torch.randint(1, limit, (2, tokens), generator=torch.Generator().manual_seed(tokens))
        mask = torch.ones_like(ids, dtype=torch.bool) if masked else None
        handed, failed = attempt(_handed, model, tables, ids, mask)
        if handed is None:
            error = error or failed
            continue
        ran = True
        place = next((name for name, got in handed.items() if torch.equal(got, ids)), None)
        if place is not None:
            counted = torch.arange(tokens)
            lengths = [
                tables[name].num_embeddings
                for name, got in handed.items()
                if torch.equal(got.reshape(-1)[:tokens], counted)
            ]
            return place, min(lengths, default=None)
    name = type(model).__name__
    if error is not None and not ran:
        raise ModelError(
            "check.call",
            f"{name} was called with takes='ids' and raised {raised_with_line(error)}\n"
            "  ids     [2, 5] int64\nIf it is called in another way, check a module that calls it.",
        ) from error
    raise ModelError(
        "check.ids",
        f"takes='ids' wants a model that embeds its ids by an nn.Embedding; {name} has "
        f"{len(tables) or 'none'}{', none of which is handed them' if tables else ''}. If it takes "
        "vectors, takes='x'.",
    )


def _handed(
    model: nn.Module,
    tables: Mapping[str, nn.Embedding],
    ids: Tensor,
    mask: Tensor | None,
) -> dict[str, Tensor]:
    """Return the input of the first call of each embedding, by its name, from one call of the model.

    The model is called in evaluation mode without gradient; modes are restored. Raises TypeError as `_masks`, and what
    the model raises.
    """
    more = _masks(model, mask)
    handed: dict[str, Tensor] = {}

    def kept(name: str) -> Any:
        """Return a pre-forward hook that stores a copy of a module's first input under this name."""
        return lambda module, args: handed.setdefault(name, args[0].detach().clone())

    modes = {part: part.training for part in model.modules()}

    def restore() -> None:
        """Restore the modes of all modules."""
        for part, mode in modes.items():
            part.training = mode

    with undoing() as undo, torch.no_grad():
        undo.append(restore)
        for name, each in tables.items():
            hook = kept(name)
            undo.append(partial(unhook, each, hook))
            each.register_forward_pre_hook(hook)
        model.eval()
        model(ids, **more)
    return handed


def _plain_token(model: nn.Module, embedding: nn.Embedding) -> int:
    """Return the largest id that is no special token of the config, no padding, and not 0.

    Raises StopIteration if there is none.
    """
    config = settings_of(getattr(model, "config", None))
    special = {value for name, value in config.items() if name.endswith("token_id")}
    special |= {0, embedding.padding_idx}
    return next(i for i in reversed(range(embedding.num_embeddings)) if i not in special)


def _masks(model: nn.Module, mask: Tensor | None = None) -> dict[str, Tensor]:
    """Return the mask of real tokens by the model's name for it, inverted for key_padding_mask; {} if it is None.

    It is int64 for a model of transformers, unless it is inverted.

    Raises TypeError if no parameter is such a mask.
    """
    if mask is None:
        return {}
    names = list(of_call(model))[1:]
    name = mask_of_tokens(names)
    if name is None:
        raise TypeError(f"no parameter of {', '.join(names) or 'the call'} is a mask of tokens")
    if name.endswith("key_padding_mask"):
        return {name: ~mask}
    return {name: mask.long() if of_transformers(model) else mask}
