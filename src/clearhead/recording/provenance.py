"""The token that each row of query, key and value comes from: tokens are changed one after the other.

The same calls tell which output moves with which token, whatever the module is made of.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.recording.observed import ObservedAttention
from clearhead.recording.operations import PRODUCTS, UNCOUNTED, Operations
from clearhead.recording.thresholds import MOVES

NONE, SEVERAL = -1, -2
Operands = Mapping[int, tuple[Tensor, ...]]


class Capture(Operations):
    """Copy the operands of the operations at given places; record nothing else.

    Attributes:
        places: by the number of an operation (from 1, `UNCOUNTED` ones are skipped), the indices of the arguments to
            copy.
        operands: by the same number, the copies; no entry where the operation did not run or such an argument is no
            tensor.
    """

    def __init__(self, places: Mapping[int, tuple[int, ...]]) -> None:
        super().__init__()
        self.places = places
        self.operands: dict[int, tuple[Tensor, ...]] = {}

    def operation(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation and return its result.

        First copy its operands to `operands`, by its number, if that is in `places` and these are tensors.
        """
        which = self.places.get(self.count, ()) if name not in UNCOUNTED else ()
        if which and all(i < len(args) and isinstance(args[i], Tensor) for i in which):
            self.operands[self.count] = tuple(self._operand(args[i]) for i in which)
        return func(*args, **kwargs)

    @staticmethod
    def _operand(taken: Tensor) -> Tensor:
        """Return a detached copy; a vector (n,) becomes a column (n, 1), as in the recorder."""
        copied = taken.detach().clone()
        return copied.unsqueeze(-1) if copied.ndim == 1 else copied


@dataclass(frozen=True)
class Dependency:
    """The outputs that change when a token of the last sample changes.

    Attributes:
        moves: bool (outputs, tokens); moves[i, j] is True if output i changes with token j.
        broken: bool (outputs,), True if output i of the last sample is not finite.
        mixed: True if a token of the last sample changes another sample.
        operands: of the products by their numbers, first unchanged, then with each token changed; {} where a call ran
            another number of operations, () if no attention was observed.
    """

    moves: Tensor
    broken: Tensor
    mixed: bool
    operands: tuple[Operands, ...] = ()

    def cells(self) -> list[list[bool | None]]:
        """Return `moves` as nested lists for a drawing; a row is all None where its output is not finite."""
        return [
            [None] * self.moves.shape[1] if gone else row
            for row, gone in zip(self.moves.tolist(), self.broken.tolist(), strict=True)
        ]


def measure(
    call: Callable[..., Tensor],
    given: Callable[[Tensor], tuple[Tensor, ...]],
    x: Tensor,
    generator: torch.Generator,
    observed: Sequence[ObservedAttention] = (),
    *,
    swapped: bool = False,
) -> Dependency:
    """Change the tokens of the last sample one at a time, call a function, and return which outputs change.

    Each token is changed twice, on x and on 0.2 · x, by noise, or by swapped neighbouring numbers. Calls run without
    gradient, and x is not changed. An error of the function is raised.

    Args:
        call: the function; an output with one axis less than x is taken as a batch of one.
        given: returns the inputs of a call from x.
        x: (batch, tokens, dim), with two samples or more to detect that samples are mixed.
        generator: of the noise; its state advances.
        observed: the attentions whose operands are captured in the calls on x.
        swapped: whether neighbouring numbers are swapped, for an even dim: a norm over tokens does not feel that.
    """
    nodes = {node for each in observed for node in (each.layout.scores, each.layout.context)}
    # A fused attention has query, key and value.
    places = {node.place: PRODUCTS.get(node.name, (0, 1, 2)) for node in nodes}
    moves, broken, mixed = torch.zeros(0), torch.zeros(0), False

    def run(x: Tensor, capture: Capture | None) -> Tensor:
        """Return the output for x without gradient, (batch, tokens, …).

        `capture`, if any, stores operands meanwhile.
        """
        tensors = given(x)
        with torch.no_grad(), capture or nullcontext():
            output = call(*tensors)
        return output.detach() if output.ndim == x.ndim else output.detach()[None]

    operands: list[Operands] = []
    # Small inputs as well: weights of large ones can be too uneven for anything to be felt.
    for factor in (1.0, 0.2):
        scaled = factor * x
        capture = Capture(places) if places and factor == 1.0 else None
        still = run(scaled.clone(), capture)
        count = 0
        if capture is not None:
            count = capture.count
            operands.append(capture.operands)
        finite = still.isfinite()
        size = max(still[finite].abs().max().item() if finite.any() else 1.0, 1e-30)
        if not len(moves):
            broken = ~finite.all(-1)
            moves = torch.zeros(still.shape[1], x.shape[1], dtype=torch.bool)
        for token in range(x.shape[1]):
            changed = scaled.clone()
            if swapped and not x.shape[-1] % 2:
                changed[-1, token] = changed[-1, token].unflatten(-1, (-1, 2)).flip(-1).flatten()
            else:
                noise = torch.randn(x.shape[-1], generator=generator, dtype=x.dtype)
                changed[-1, token] += 2 * scaled.std() * noise
            capture = Capture(places) if places and factor == 1.0 else None
            output = run(changed, capture)
            gap = (output - still).nan_to_num(0.0, 0.0, 0.0).abs().amax(-1)
            moved = gap > MOVES[still.dtype] * size
            moves[:, token] |= moved[-1]
            mixed |= bool(moved[:-1].any())
            if capture is not None:
                operands.append(capture.operands if capture.count == count else {})
    return Dependency(moves, broken[-1], mixed, tuple(operands))


@dataclass(frozen=True)
class Provenance:
    """The tokens of the rows of query, key and value, each (blocks, len).

    A token is `NONE` if none changes a row, and `SEVERAL` if several do; tokens of a context are numbered after x.
    `linear` is True if columns are tokens and rows are features, as where keys and values are multiplied first.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    linear: bool = False

    @property
    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """The rows of query, key and value."""
        return self.query, self.key, self.value

    @property
    def blocks(self) -> Tensor:
        """The blocks of the changed sample: bool (blocks,), True if a token changes some row of query or key."""
        return (self.query != NONE).any(-1) | (self.key != NONE).any(-1)

    @property
    def single(self) -> bool:
        """True if some query row is of one token, and no row of query or key of the changed sample is of several."""
        rows = [each[self.blocks] for each in (self.query, self.key)]
        return bool((rows[0] >= 0).any()) and all(bool((each != SEVERAL).all()) for each in rows)

    @property
    def known(self) -> bool:
        """True if each query row of the changed sample is of one token, and each key row of one or of none."""
        blocks = self.blocks
        query, key = self.query[blocks], self.key[blocks]
        return bool(blocks.any()) and bool((query >= 0).all()) and bool((key != SEVERAL).all())


def provenance(observed: ObservedAttention, measured: Sequence[Dependency]) -> Provenance | None:
    """Return the tokens of the rows of one attention.

    None if no token was changed, or if a call with a changed token ran other operations or had operands of other
    shapes.

    Args:
        observed: the attention.
        measured: one dependency for each input whose tokens were changed: x, then the context.
    """
    changed: list[Operands] = [taken for each in measured for taken in each.operands[1:]]
    places = (observed.layout.scores.place, observed.layout.context.place)
    if not changed or any(place not in taken for taken in changed for place in places):
        return None
    try:
        still = observed.layout.operands(measured[0].operands[0])
        moved = [observed.layout.operands(taken) for taken in changed]
    except (RuntimeError, IndexError):
        return None
    found, linear = [], False
    for which, plain in enumerate(still):
        size = MOVES[torch.float64] * max(plain.abs().max().item(), 1e-30)
        if any(each[which].shape != plain.shape for each in moved):
            return None
        # (tokens, blocks, rows, dim)
        felt = torch.stack([(each[which] - plain).abs() > size for each in moved])
        linear |= _by_columns(felt)
        by_row = felt.any(-1)
        count, others = by_row.sum(0), torch.where(by_row.sum(0) > 1, SEVERAL, NONE)
        found.append(torch.where(count == 1, by_row.int().argmax(0), others))
    query, key, value = found
    # Where tokens were mixed before, by a convolution, the sizes tell: as many columns as tokens, and other rows.
    across = (len(changed) == each.shape[-1] != each.shape[-2] for each in still[:2])
    mixed = all(bool((each[each != NONE] == SEVERAL).all()) for each in (query, key))
    return Provenance(query, key, value, linear or (mixed and all(across)))


def _by_columns(felt: Tensor) -> bool:
    """Return True if token i changes column i and no other, in every row of every block that changes.

    False if none changes or there are not as many columns as tokens. `felt`: bool (tokens, blocks, rows, columns),
    where a token changes an operand.
    """
    mine = felt[:, felt.any(0).any(-1).any(-1)]
    own = torch.eye(len(felt), dtype=torch.bool)[:, None, None]
    return (
        felt.shape[-1] == len(felt) and mine.shape[1] > 0 and torch.equal(mine, own.expand_as(mine))
    )
