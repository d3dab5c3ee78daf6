"""What a mistake does to the dependencies alone, for modules whose projections cannot be read.

Each mutant is run on random projections; which outputs move with which tokens does not depend on
their numbers.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.probes.dependency import Dependency
from clearhead.checking.recipes import RIGHT, Recipe, Setting
from clearhead.checking.references.base import Mutant

HEAD_DIM = 3
THRESHOLD = 1e-8


def predicted(recipe: Recipe, at: Setting, seed: int) -> Dependency | None:
    """The dependencies of self-attention by this recipe; None where it does not fit the sizes."""
    generator = torch.Generator().manual_seed(seed)
    tokens, width = at.query_len, at.num_heads * HEAD_DIM

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x = drawn(1, tokens, width).expand(tokens + 1, -1, -1).clone()
    for token in range(tokens):
        x[token + 1, token] += drawn(width)
    query, key, value = (x @ drawn(width, width) / width**0.5 for _ in range(3))
    at = at._replace(batch=tokens + 1, head_dim=HEAD_DIM, value_head_dim=HEAD_DIM)
    at = at._replace(num_kv_heads=at.num_heads, mask=None)
    try:
        output = recipe.flat(query, key, value, at)
    except (RuntimeError, IndexError):
        return None
    broken = ~output[0].isfinite().all(-1)
    gap = (output[1:] - output[0]).nan_to_num(0.0, 0.0, 0.0).abs().amax(-1)
    return Dependency((gap > THRESHOLD).mT, broken, False)


def alike(measured: Dependency, expected: Dependency) -> bool:
    """Whether they agree; a residual makes every output move with its own token."""
    if measured.moves.shape != expected.moves.shape:
        return False
    if not torch.equal(measured.broken, expected.broken):
        return False
    kept = ~measured.broken
    own = torch.eye(measured.moves.shape[0], dtype=torch.bool)
    if torch.equal(measured.moves[kept], expected.moves[kept]):
        return True
    whole = bool((measured.moves | ~own)[kept].all())
    return whole and torch.equal(measured.moves[kept], (expected.moves | own)[kept])


def right(measured: Dependency, at: Setting, contract: Contract, seed: int) -> bool:
    """Whether the dependencies are those of the contract."""
    expected = predicted(RIGHT.styled("zero"), at._replace(contract=contract), seed)
    return expected is not None and alike(measured, expected)


def mutants(
    measured: Dependency,
    at: Setting,
    contract: Contract,
    bank: Callable[[Contract], list[Mutant]],
    seed: int,
) -> list[Mutant]:
    """Every mutant that has these dependencies; where that is no mask, those masks behind it that
    have them but for what an output does with its own token: a learned key, which everybody sees,
    makes every query matter."""
    at = at._replace(contract=contract)
    found, nearly = [], []
    for mutant in bank(contract):
        recipe = mutant.applied(RIGHT)
        seen = torch.ones(at.query_len, at.kv_len, dtype=torch.bool)
        try:
            seen = recipe.seen(at)
        except (RuntimeError, AssertionError):
            continue
        kinds = ("nan",) if seen.any(-1).all() else ("nan", "fill", "add", "zero")
        for kind in kinds:
            expected = predicted(recipe.styled(kind), at, seed)
            if expected is None:
                continue
            if alike(measured, expected):
                found.append(mutant)
                break
            if mutant.code.startswith("mask.") and _alike_between(measured, expected):
                nearly.append(mutant)
                break
    masks = any(mutant.code.startswith("mask.") for mutant in found)
    return found if masks else [*found, *nearly]


def _alike_between(measured: Dependency, expected: Dependency) -> bool:
    """Whether they agree about different tokens, and every output moves that could."""
    if measured.moves.shape != expected.moves.shape or measured.broken.any():
        return False
    own = torch.eye(*measured.moves.shape, dtype=torch.bool)
    more = measured.moves & ~expected.moves
    return torch.equal(measured.moves & ~own, expected.moves & ~own) and bool(more.any())


def sums(mutant: Mutant, at: Setting, contract: Contract) -> Tensor | None:
    """What the weights of each query sum to where all tokens are equal."""
    width = at.num_heads * HEAD_DIM
    zeros = torch.zeros(1, at.query_len, width, dtype=torch.float64)
    at = at._replace(contract=contract, batch=1, head_dim=HEAD_DIM, value_head_dim=HEAD_DIM)
    try:
        output = mutant.applied(RIGHT).flat(zeros, zeros, zeros + 1, at)
    except (RuntimeError, IndexError):
        return None
    return output[0].mean(-1)


def proportional(profile: Tensor, expected: Tensor) -> bool:
    """Whether two lists of numbers that begin with 0 are multiples of each other."""
    if expected.abs().max() < 1e-9 or profile.abs().max() < 1e-9:
        return bool(expected.abs().max() < 1e-9) and bool(profile.abs().max() < 1e-6)
    one, other = profile / profile.norm(), expected / expected.norm()
    return bool(min((one - other).abs().max(), (one + other).abs().max()) < 1e-4)
