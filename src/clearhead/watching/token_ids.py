"""The tokens that a watched model reads: their ids, as far as they are known, or their strings."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.checks import as_ints, check_ids
from clearhead.attention.problem import Problem
from clearhead.errors import ArgumentTypeError, ShapeError, WatchError

Tokens = Sequence[str] | Sequence[int] | Tensor


class TokenIds:
    """The ids of the keys of each call: those that were given, or those that the embedding read.

    Args:
        model: its input embedding is listened to, where ids are not given.
        given: (batch, len) or (len,), of a sequence from its beginning; or None.

    Raises:
        ArgumentTypeError: code `tokens.type`, for what is no tensor of ids.
        ShapeError: code `tokens.shape`.

    Example:
        >>> from clearhead.attention.problem import make_problem
        >>> ids = TokenIds(nn.Identity(), torch.tensor([3, 1, 4, 1, 5]))
        >>> ids.of(make_problem(*torch.zeros(3, 1, 1, 3, 2)), "")
        tensor([[3, 1, 4]])
    """

    def __init__(self, model: nn.Module, given: object) -> None:
        self._given = None if given is None else check_ids(given)
        if self._given is not None and self._given.ndim not in (1, 2):
            raise ShapeError(
                "tokens.shape",
                f"tokens must have shape (len,) or (batch, len); got {tuple(self._given.shape)}.",
            )
        if self._given is not None:
            self._given = torch.atleast_2d(self._given).clone()
        self._embedding = _embedding(model) if self._given is None else None
        self._last: Tensor | None = None
        self._past: Tensor | None = None

    def forget(self) -> None:
        """Forget the ids that were read last: the next are known when the embedding runs."""
        self._last = None

    def read(self, module: nn.Module, inputs: Any) -> None:
        """Take the ids that a module is called with, if it is the embedding of the model."""
        if module is not self._embedding or not inputs or not isinstance(inputs[0], Tensor):
            return
        ids = inputs[0].detach()
        if ids.ndim != 2 or ids.is_floating_point():
            return
        past = self._past
        goes_on = past is not None and (past.shape[0], past.device) == (ids.shape[0], ids.device)
        self._past = torch.cat([past, ids], dim=1) if past is not None and goes_on else ids.clone()
        self._last = ids.clone()

    def of(self, problem: Problem, name: str) -> Tensor | None:
        """Return the ids of the keys of a call, (batch, kv_len), or None if they are not known.

        With a KV cache, the keys are the tokens that were read last.

        Raises:
            WatchError: code `watch.tokens`, if the ids that were given do not reach so far.
        """
        batch, query_len, kv_len = problem.batch, problem.query_len, problem.kv_len
        if query_len > kv_len:
            return None
        if self._given is not None:
            if self._given.shape[0] not in (1, batch) or kv_len > self._given.shape[1]:
                raise WatchError(
                    "watch.tokens",
                    f"tokens has shape (batch, len) = {tuple(self._given.shape)}; the attention of "
                    f"{name or 'the model'} has batch={batch} and kv_len={kv_len}.",
                )
            return self._given[:, :kv_len].expand(batch, -1)
        last, past = self._last, self._past
        if last is None or past is None or last.shape != (batch, query_len):
            return None
        if query_len == kv_len:
            self._past = last  # a sequence begins
            return last
        return past[:, -kv_len:] if kv_len <= past.shape[1] else None


def _embedding(model: nn.Module) -> nn.Module | None:
    """The input embedding, if the model names it and reads one sequence only."""
    find = getattr(model, "get_input_embeddings", None)
    if find is None or getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return None
    try:
        return find()
    except (AttributeError, NotImplementedError):
        return None


def listed(name: str, tokens: Tokens) -> tuple[str, ...] | tuple[int, ...]:
    """Return tokens as a tuple of strings or of ids.

    Raises:
        ArgumentTypeError: code `save.tokens`, for tokens that are neither.

    Example:
        >>> listed("tokens", torch.tensor([3, 1])), listed("tokens", ["to", " be"])
        ((3, 1), ('to', ' be'))
    """
    found: Any = tokens
    if isinstance(tokens, Tensor):
        # A tensor that is no row of ids, such as one of floats, is refused below.
        found = tokens.tolist() if tokens.ndim == 1 else None
    if isinstance(found, Sequence) and not isinstance(found, str | bytes):
        if all(isinstance(each, str) for each in found):
            return tuple(found)
        ids = as_ints(found)
        if ids is not None:
            return ids
    got = f"shape {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
    raise ArgumentTypeError(
        "save.tokens",
        f"{name} must be strings, or ids as whole numbers, one for each token; got {got}.",
    )
