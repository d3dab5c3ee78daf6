"""The tokens that a watched model reads, as ids or strings, if they are known."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.checks import as_ints, check_has_numbers, check_ids
from clearhead.attention.problem import Problem
from clearhead.errors import ArgumentTypeError, ShapeError, WatchError
from clearhead.matrix.real_queries import read_queries, real_queries
from clearhead.matrix.roles import first_keys
from clearhead.watching.continuing import Continuation

Tokens = Sequence[str] | Sequence[int] | Tensor


class _Ended:
    """The rows of a generation that have ended and read padding, step by step.

    Args:
        model: its configuration has the ids that it ends and pads with.
    """

    def __init__(self, model: nn.Module) -> None:
        configs = [getattr(model, name, None) for name in ("generation_config", "config")]
        ends = [getattr(each, "eos_token_id", None) for each in configs]
        end = next((each for each in ends if each is not None), [])
        self._ends = [end] if isinstance(end, int) else list(end)
        pads = [getattr(each, "pad_token_id", None) for each in configs]
        self._pad = next((each for each in (*pads, *self._ends) if isinstance(each, int)), None)
        self.begin()

    def begin(self) -> None:
        """Reset: no row has ended."""
        self._before: Tensor | None = None
        self.rows: Tensor | None = None
        """(batch, 1), True for those that had ended before the token that was read last; None if no row had ended."""

    def read(self, ids: Tensor) -> None:
        """Set `rows` from the tokens of a step, (batch, 1), None if no row ended; several tokens a row reset it."""
        before, ended = self._before, self.rows
        self.begin()
        if ids.shape[1] != 1 or self._pad is None or ids.is_meta:
            return  # a prompt, whose padding the mask knows
        if before is not None and before.shape == ids.shape:
            over = torch.isin(before, torch.tensor(self._ends, device=ids.device))
            over = over if ended is None else over | ended
            over = over & (ids == self._pad)
            self.rows = over if bool(over.any()) else None
        self._before = ids.clone()


class TokenIds:
    """The ids of the keys of each call, as given to the watch or as read by the embedding.

    Args:
        model: its input embedding is listened to, where ids are not given.
        given: (batch, len) or (len,), of a sequence from its beginning; or None.
        source: the ids that the encoder reads, in a model of an encoder and a decoder.

    Raises:
        ArgumentTypeError: code `tokens.type`, for what is no tensor of ids.
        ShapeError: code `tokens.shape`.

    Example:
        >>> from clearhead.attention.problem import make_problem
        >>> ids = TokenIds(nn.Identity(), torch.tensor([3, 1, 4, 1, 5]))
        >>> ids.of(make_problem(*torch.zeros(3, 1, 1, 3, 2)), "")
        tensor([[3, 1, 4]])
    """

    def __init__(self, model: nn.Module, given: object, source: object = None) -> None:
        self._given, self._source = _read(given), _read(source)
        self._embedding = _embedding(model)
        self._ended = _Ended(model)
        self._of_source = source_paths(path for path, _ in model.named_modules())
        self._last: Tensor | None = None
        self._ids: dict[str, Tensor] = {}
        self._firsts: dict[str, tuple[Tensor, Tensor]] = {}

    def forget(self) -> None:
        """Forget the ids that the embedding read last; those of earlier calls stay."""
        self._last = None

    def read(self, module: nn.Module, inputs: Any) -> None:
        """Store the ids that a module is called with, if it is the input embedding of the model; else a no-op.

        If ids were given, they are not stored, and only the ended rows are noted.
        """
        if module is not self._embedding or not inputs or not isinstance(inputs[0], Tensor):
            return
        ids = inputs[0].detach()
        if ids.ndim != 2 or ids.is_floating_point():
            return
        self._ended.read(ids)
        self._last = ids.clone() if self._given is None else None

    def with_ended(self, problem: Problem) -> Problem:
        """Return the problem of a call without the queries of rows that have ended in a generation.

        Unchanged if no row has ended, and in cross-attention. A prompt resets the ended rows.
        """
        if problem.cross or self._embedding is None:
            return problem
        if problem.kv_len <= problem.query_len:
            self._ended.begin()  # a prompt of one token
            return problem
        ended = self._ended.rows
        if ended is None or ended.shape != (problem.batch, problem.query_len):
            return problem
        real = read_queries("real_queries", real_queries(problem), problem)
        return problem.replace(real_queries=real & ~ended.to(real.device))

    def of(self, problem: Problem, name: str, link: Continuation | None = None) -> Tensor | None:
        """Return the ids of the keys of a call, (batch, kv_len), or None if they are not known, as in cross-attention.

        What is returned is stored for the next call of the module, unless ids were given.

        Args:
            problem: the call.
            name: the path of its module.
            link: its link to the call before; None if it does not continue it.

        Raises:
            WatchError: code `watch.tokens`, if the ids that were given do not reach so far, or are of another batch.
        """
        batch, query_len, kv_len = problem.batch, problem.query_len, problem.kv_len
        if query_len > kv_len or problem.cross:
            return None
        of_source = name in self._of_source
        given = self._source if of_source else self._given
        if given is not None:
            if given.shape[0] not in (1, batch) or kv_len > given.shape[1]:
                raise WatchError(
                    "watch.tokens",
                    f"{'source_' * of_source}tokens has shape (batch, len) = {tuple(given.shape)}; the "
                    f"attention of {name or 'the model'} has batch={batch} and kv_len={kv_len}.",
                )
            return given[:, :kv_len].expand(batch, -1)
        ids, before = self._last, self._ids.pop(name, None)
        if ids is not None and ids.shape != (batch, query_len):
            ids = None
        if ids is not None and query_len < kv_len:
            known = None if link is None or before is None else link.past(before)
            ids = None if known is None else torch.cat([known, ids.to(known.device)], dim=1)
        if ids is not None:
            self._ids[name] = ids
        return ids

    def first_of(self, problem: Problem, name: str, prints: Tensor | None) -> Tensor | None:
        """Return the key of a call that is the first token of each sample, (batch, 1); None if nothing is known.

        It is −1 if a window has dropped that token; None for a first call, whose masks tell. Stores the fingerprints of
        the first tokens for the next call.

        Args:
            problem: the call.
            name: the path of its module.
            prints: the fingerprints of its keys, (batch, kv_len); None if they are not known.
        """
        before, batch = problem.kv_len - problem.query_len, problem.batch
        if problem.cross or prints is None or before < 0 or not problem.query_len:
            return None
        place = first_keys(problem)
        own, has_begun = prints.gather(1, place.clamp(min=0)), place >= 0
        known = self._firsts.get(name)
        if before and known is not None and len(known[1]) == batch:
            of_first, begun = known
            again = torch.isin(prints[:, :before], of_first)
            at = again.to(torch.uint8).argmax(dim=1, keepdim=True)
            at = at.where(again.any(dim=1, keepdim=True), -1)
            place, own = torch.where(begun, at, place), torch.where(begun, of_first, own)
            has_begun = begun | has_begun
        self._firsts[name] = own, has_begun
        return place if before else None


def source_paths(paths: Iterable[str]) -> set[str]:
    """Return the paths that belong to the encoder of a source, of those of a model; none if it has no decoder.

    Example:
        >>> source_paths(["encoder.0"]), source_paths(["encoder.0", "decoder.0"])
        (set(), {'encoder.0'})
    """
    parts = {path: path.split(".") for path in paths}
    named = [each for every in parts.values() for each in every]
    decodes = any("decoder" in each or "cross" in each for each in named)
    return {path for path, every in parts.items() if decodes and "encoder" in every}


def _read(given: object) -> Tensor | None:
    """Return a copy of ids as a tensor (batch, len); None for None.

    Raises ArgumentTypeError if they are no ids, and ShapeError, code `tokens.shape`, for more dimensions than two.
    """
    ids = None if given is None else check_ids(given)
    if ids is not None and ids.ndim not in (1, 2):
        raise ShapeError(
            "tokens.shape",
            f"tokens must have shape (len,) or (batch, len); got {tuple(ids.shape)}.",
        )
    return None if ids is None else torch.atleast_2d(ids).clone()


def _embedding(model: nn.Module) -> nn.Module | None:
    """Return the input embedding that a model names, of an encoder-decoder its decoder's; None if it names none."""
    whole: Any = model
    is_pair = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    try:
        return (whole.get_decoder() if is_pair else whole).get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None


def listed(name: str, tokens: Tokens) -> tuple[str, ...] | tuple[int, ...]:
    """Return tokens as a tuple of strings or of ids.

    Raises:
        ArgumentTypeError: code `save.tokens`, for tokens that are neither.
        DeviceError: code `<name>.meta`, for tokens without numbers.

    Example:
        >>> listed("tokens", torch.tensor([3, 1])), listed("tokens", ["to", " be"])
        ((3, 1), ('to', ' be'))
    """
    found: Any = tokens
    if isinstance(tokens, Tensor):
        check_has_numbers(name, tokens)
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
