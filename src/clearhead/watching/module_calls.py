"""The calls of one module, stitched to one matrix where they are its rows."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from typing import Any, Generic, Self, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from clearhead._common.checks import as_place
from clearhead._text import shown
from clearhead.attention.problem import Problem
from clearhead.errors import WatchError
from clearhead.matrix.matrix import AttentionMatrix, matrix_of
from clearhead.matrix.summary import Summary
from clearhead.matrix.totals import Totals
from clearhead.watching.continuing import Continuation, Continuations, Text, pieces_of
from clearhead.watching.stitching import assembled, stitch

_numbers = count()

Kept = TypeVar("Kept")
"""`AttentionMatrix`, `Summary`, `Totals`, or the result of a function."""


class Keys:
    """Keys that grow, as in a KV cache, with their values if those are kept; each call sees a slice of them."""

    def __init__(self, *held: Tensor, copy: bool = True, tokens: Tensor | None = None) -> None:
        """Store the first keys, and their values if kept, as copies unless `copy` is False, and the ids of the keys."""
        self._pieces = [[each.clone() if copy else each for each in held]]
        self._tokens = tokens

    def take_tokens(self, start: int, tokens: Tensor | None) -> None:
        """Add the ids of keys from `start` on, (batch, keys), beyond the known ones; None forgets all for good."""
        known = self._tokens
        if known is None or tokens is None:
            self._tokens = None
        elif start + tokens.shape[1] > known.shape[1]:
            self._tokens = torch.cat([known[:, :start], tokens.to(known.device)], dim=1)

    def tokens(self, start: int, count: int) -> Tensor | None:
        """Return the known ids of `count` keys from `start` on, (batch, up to count); None if none are known."""
        known = self._tokens
        return None if known is None else known[:, start : start + count]

    def part(self, start: int, count: int) -> list[Tensor]:
        """Return views of `count` keys from `start` on, (batch, num_kv_heads, count, dim), and their values if kept."""
        if len(self._pieces) > 1:
            with torch.inference_mode(False):  # what is kept outlives it
                self._pieces = [
                    [torch.cat(each, dim=2) for each in zip(*self._pieces, strict=True)]
                ]
        return [each[:, :, start : start + count] for each in self._pieces[0]]

    def append(self, new: list[Tensor]) -> None:
        """Append copies of new keys, and of their values if kept."""
        self._pieces.append([each.clone() for each in new])


# calls are compared by identity, because a comparison of their tensors has no single truth value
@dataclass(eq=False)
class Call:
    """One call of a module; its keys are a slice of keys that it shares with other calls."""

    problem: Problem
    """The call without its keys: the key in it has no tokens."""
    keys: Keys
    start: int
    kv_len: int
    graph: bool = False
    """Kept with its graph: query, key and value are those of the call itself, not copies."""
    versions: list[tuple[Tensor, int]] = field(default_factory=list)
    heads: tuple[int, ...] | None = None
    """The heads that are kept, where those of the context are all."""
    context: GradientEdge | None = None
    """The place in the graph that made it, if one did: the model may write to the tensor afterwards."""
    no_gradient: Tensor | None = None
    """Zeros of its shape, (batch, all heads, query_len, value_head_dim), in the memory of one."""
    link: Continuation | None = None
    """The link to the call before; None if it does not continue it."""
    handed_on: Tensor | None = None
    """The context of the kept heads as the model used it, where that is kept."""
    made: AttentionMatrix | None = None
    number: int = field(default_factory=lambda: next(_numbers))
    """Higher than that of every call before."""

    def take(self, context: Tensor) -> Tensor:
        """Return the context, or with gradients on and no graph a copy that starts one; store its graph edge if any."""
        if torch.is_grad_enabled() and not context.requires_grad:
            # No leaf, which the model could not write to.
            context = context.detach().requires_grad_().clone()
        if context.requires_grad:
            self.context = get_gradient_edge(context)
            self.no_gradient = context.detach().new_zeros(()).expand(context.shape)
        return context

    def hand_on(self, context: Tensor) -> Tensor:
        """Store a copy of the kept heads of the context, and return the context itself."""
        with torch.inference_mode(False):  # what is kept outlives it
            kept = context.detach() if self.heads is None else context.detach()[:, self.heads]
            self.handed_on = kept.clone(memory_format=torch.contiguous_format)
        return context

    @torch.enable_grad()
    def matrix(self) -> AttentionMatrix:
        """Return the attention matrix of the call, built at the first use and stored, with its graph if that is kept.

        Raises:
            WatchError: code `watch.written`, if the model wrote to query, key or value in place afterwards.
        """
        if any(each._version != version for each, version in self.versions):
            raise WatchError(
                "watch.written",
                'the model wrote to query, key or value after the call, which keep="gradients" does not copy. '
                "Read what was seen before, or let the model run with another KV cache.",
            )
        if self.made is None:
            key, *value = self.keys.part(self.start, self.kv_len)
            tokens = self.keys.tokens(self.start, self.kv_len)
            self.made = matrix_of(self.problem.replace(key=key), *value, tokens=tokens)
            self.made._context = self.handed_on
        return self.made


class Calls(Generic[Kept]):
    """The calls of one module, each kept by itself, such as a summary; subclasses put calls together."""

    def __init__(self) -> None:
        self._calls: list[Any] = []

    def add(self, call: Any) -> Any:
        """Append a call; returns None here, the stored `Call` in `Matrices`."""
        self._calls.append(call)

    def all(self) -> tuple[Kept, ...]:
        """Return every call, in order."""
        return tuple(self._calls)

    def step(self, number: int) -> Self | None:
        """Return a copy with one call alone, by its number, negative from the end; None if there is no such call."""
        place = as_place(number, len(self._calls))
        if place is None:
            return None
        made = copy(self)
        made._calls = [self._calls[place]]
        return made

    def several(self) -> str:
        """Return why the calls are not parts of one object, in words; "" for one call."""
        kind = "summary" if isinstance(self._calls[0], Summary) else "result"
        return f"a {kind} is of one call" if len(self._calls) > 1 else ""

    def whole(self) -> Kept:
        """Return the one object that the calls are parts of; only valid if `several()` is ""."""
        return self._calls[0]

    def graphs(self) -> list["Call"]:
        """Return the calls that are kept with their graphs, in order; [] unless they are matrices."""
        return []

    def returned(self, sequences: Tensor) -> "Calls[Kept] | str | None":
        """Return the calls of the sequences that a generation returned; None here, as these are no matrices."""

    def close(self) -> None:
        """Forget what is needed only while calls are added; here a no-op."""

    def describe(self) -> str:
        """Return the one object in a line; or the first call, and why there is no such object."""
        reason, calls = self.several(), self.all()
        if reason:
            return f"{_line(calls[0])}  and {len(calls) - 1} more ({reason})"
        return _line(self.whole()) + (f", {len(calls)} calls" if len(calls) > 1 else "")

    def parts(self) -> tuple[Kept, ...]:
        """Return the one object alone, or every call if there is none."""
        return self.all() if self.several() else (self.whole(),)

    def layers(self, runs: int) -> list[list[Any]]:
        """Return the parts of the module as a list for each layer that it is; one list unless it repeats.

        A module that attends n times in each of `runs` runs of the model, with the same number of queries and keys
        each time, is n layers.
        """
        parts: list[Any] = list(self.parts())
        each, rest = divmod(len(parts), runs) if runs else (1, 0)
        sizes = {(call.query_len, call.kv_len) for call in parts[:each]} if each > 1 else ()
        if rest or len(sizes) != 1 or not self.several():
            return [parts]
        return [parts[at::each] for at in range(each)]


class Matrices(Calls[Kept]):
    """The calls of one module, as matrices. A call whose key begins with that of the one before shares its memory."""

    def __init__(self, others: Sequence["Matrices[Any]"] = ()) -> None:
        super().__init__()
        self._others, self._links = others, Continuations()
        self._stitched: tuple[list[Call], AttentionMatrix | str] = ([], "")

    def add(
        self,
        call: Problem | AttentionMatrix,
        value: Tensor | None = None,
        *,
        graph: bool = False,
        tokens: Tensor | None = None,
        link: Continuation | None = None,
    ) -> Call:
        """Append a call, or a matrix, which is stored as it is, and return it as stored; mask and bias must be copies.

        Query, key and value are copied and detached, or shared if `graph`; by `link` keys follow those before.
        """
        if isinstance(call, AttentionMatrix):
            made = call if call.ndim == 4 else matrix_of(call.problem, call._value)
            made._context = call._context
            keys = Keys(made.problem.key, copy=False)
            link = self._links.of("", made.problem, made.value)
            self._calls.append(Call(made.problem, keys, 0, made.kv_len, link=link, made=made))
            return self._calls[-1]
        given = [call.query, call.key] if value is None else [call.query, call.key, value]
        query, *held = given if graph else [each.detach() for each in given]
        key = held[0]
        shared = graph and not key.is_inference()
        query = query if shared else query.clone()
        versions = [(each, each._version) for each in (query, *held)] if shared else []
        if link is not None and not shared and self._is_same(link, call):
            keys, start = self._calls[-1].keys, self._calls[-1].start + link.start
            keys.append([each[:, :, link.shared :] for each in held])
            keys.take_tokens(start, tokens)
        else:
            keys, start = Keys(*held, copy=not shared, tokens=tokens), 0
        none = key.detach()[:, :, :0].clone()
        kept = call.replace(query=query, key=none, value=none)
        self._calls.append(Call(kept, keys, start, key.shape[2], graph, versions, link=link))
        return self._calls[-1]

    def _is_same(self, link: Continuation, call: Problem) -> bool:
        """Return True if a call continues the end of the call before, row by row, with the same dtype."""
        own = torch.arange(call.batch, device=call.device)
        before = self._calls[-1].problem.key
        alike = before.shape[0] == call.batch and before.dtype == call.key.dtype
        return alike and link.is_last and torch.equal(link.rows, own)

    def graphs(self) -> list[Call]:
        """Return the calls that are kept with their graphs, in order; [] if none is."""
        return [call for call in self._calls if call.graph]

    def close(self) -> None:
        """Drop the other modules that are not needed for stitching."""
        self._others = self._of_the_text()

    def _of_the_text(self) -> list["Matrices[Any]"]:
        """Return, for cross-attention, a list of the last module with self-attention of the same queries; or []."""
        every = [[each.problem for each in other._calls] for other in (self, *self._others)]
        sizes = [[(each.cross, *each.query.shape[::2]) for each in calls] for calls in every]
        text = [(False, *size) for cross, *size in sizes[0] if cross]
        same = [at for at, each in enumerate(sizes[1:]) if each == text]
        return [self._others[at] for at in same[-1:] if text]

    def shown(self, matrix: AttentionMatrix) -> Kept:
        """Return what is kept of a call, from its matrix: the matrix itself."""
        return cast(Kept, matrix)

    def all(self) -> tuple[Kept, ...]:
        """Return what is kept of every call, in order; WatchError if the model wrote to a call's tensors."""
        return tuple(self.shown(call.matrix()) for call in self._calls)

    def several(self) -> str:
        """Return why the calls cannot be stitched to one matrix; "" if they can. WatchError as `Call.matrix`."""
        stitched = self._stitch()
        return stitched if isinstance(stitched, str) else ""

    def whole(self) -> Kept:
        """Return what is kept of the matrix that the calls are rows of; only valid if `several()` is ""."""
        stitched = self._stitch()
        assert not isinstance(stitched, str)
        return self.shown(stitched)

    @torch.enable_grad()
    def _stitch(self) -> AttentionMatrix | str:
        """Return the one matrix that the calls are rows of, or why there is none, in words.

        Stored until a call is added.
        """
        # More calls may have come since.
        if self._stitched[0] != self._calls:
            every = [call.matrix() for call in self._calls]
            text = next(iter(self._of_the_text()), self)._calls
            links = [call.link for call in text]
            of_text = None if text is self._calls else [call.matrix() for call in text]
            found = every[0] if len(every) == 1 else stitch(every, links, of_text)
            if isinstance(found, AttentionMatrix) and len(every) > 1:
                tokens = self._calls[-1].keys.tokens(0, found.kv_len)
                if tokens is not None and tokens.shape == (found.batch, found.kv_len):
                    found._tokens = tokens
            self._stitched = list(self._calls), found
        return self._stitched[1]

    def returned(self, sequences: Tensor) -> "Matrices[Kept] | str | None":
        """Return the one matrix of the sequences that a generation returned, as calls; or why there is none, as text.

        None if the ids that the calls read are not known.

        Args:
            sequences: token ids, (batch, len); the model did not read the last one.
        """
        text = next(iter(self._of_the_text()), self)._calls
        texts = read_texts(text)
        if texts is None:
            return None
        pieces = pieces_of(sequences, texts)
        if isinstance(pieces, str):
            return pieces
        found = assembled([call.matrix() for call in self._calls], pieces)
        if isinstance(found, str):
            return found
        if not found.problem.cross:
            found._tokens = sequences[:, : found.kv_len]
        made = type(self)()
        made._calls = [
            Call(found.problem, Keys(found.problem.key, copy=False), 0, found.kv_len, made=found)
        ]
        return made


def read_texts(calls: Sequence[Call]) -> list[Text] | None:
    """Return the text that each call of self-attention read so far; None if ids are not known, or one is cross."""
    texts: list[Text] = []
    for call in calls:
        before, link = texts[-1:], call.link
        ids = call.keys.tokens(call.start, call.kv_len)
        if ids is None or ids.shape[1] < call.kv_len or call.problem.cross:
            return None
        if link is not None and before:
            # Keys that a window has dropped are those of the call before.
            earlier = before[0].ids[link.rows.to(ids.device)]
            ids = torch.cat([earlier[:, : before[0].start + link.start], ids], dim=1)
        texts.append(Text(ids, ids.shape[1] - call.kv_len, call.problem.query_len))
    return texts


class Accumulated(Calls[Totals]):
    """The calls of one module, merged as they come: each with those of the same place in other runs of the model."""

    def add(self, call: Totals, place: int = 0) -> None:
        """Merge the totals of a call into those at `place`, its number in the run; append them if there are none."""
        if place < len(self._calls):
            self._calls[place] = self._calls[place].merge(call)
        else:
            self._calls.append(call)

    def several(self) -> str:
        """Return "", because totals of any calls can be merged."""
        return ""

    def whole(self) -> Totals:
        """Return the totals of all calls, merged; TypeError if there is none."""
        return reduce(Totals.merge, self._calls)

    def layers(self, runs: int) -> list[list[Totals]]:
        """Return one list for each call of a run, which holds its totals; `runs` is ignored."""
        return [[each] for each in self._calls]


def _line(kept: object) -> str:
    """Return a matrix, a summary or a result in one line; a tensor as its type and shape."""
    if isinstance(kept, Tensor):
        return f"{type(kept).__name__} {list(kept.shape)}"
    whole = isinstance(kept, AttentionMatrix | Summary | Totals)
    return repr(kept) if whole else " ".join(shown(kept).split())
