"""Mutants of the mask that the contract declares, and of one that is handed in."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.recipes import Setting, right_visible, visible
from clearhead.checking.references.base import Mutant, is_masked


def moved(left: int = 0, right: int = 0) -> Any:
    """A mask with its edges moved outwards."""
    return lambda at: visible(at, at.offset, left, right)


def _uncaused(at: Setting) -> Tensor:
    return right_visible(at._replace(contract=replace(at.contract, causal=None)))


def _unwindowed(at: Setting) -> Tensor:
    return right_visible(at._replace(contract=replace(at.contract, window=None)))


def _ungiven(at: Setting) -> Tensor:
    return right_visible(at._replace(mask=None))


def _only_given(at: Setting) -> Tensor:
    return right_visible(at._replace(contract=Contract()))


def _inverted(at: Setting) -> Tensor:
    return ~right_visible(at)


def _inverted_beside_given(at: Setting) -> Tensor:
    seen = ~right_visible(at._replace(mask=None))
    return seen if at.mask is None else seen & at.mask


def _inverted_given(at: Setting) -> Tensor:
    assert at.mask is not None
    return right_visible(at._replace(mask=~at.mask))


def _inverted_beside(right: int) -> Callable[[Setting], Tensor]:
    """Causal the wrong way round, and the diagonal beside where it belongs."""

    def seen(at: Setting) -> Tensor:
        past = visible(at._replace(contract=Contract(causal=True), mask=None), at.offset, 0, right)
        return ~past & _uncaused(at)

    return seen


def _other_sample(pick: Callable[[Tensor], Tensor]) -> Callable[[Setting], Tensor]:
    def seen(at: Setting) -> Tensor:
        assert at.mask is not None
        return right_visible(at._replace(mask=pick(at.mask)))

    return seen


def _tiled_over_heads(at: Setting) -> Tensor:
    # mask.repeat(heads, 1, 1) beside scores.view(batch * heads, …): sample and head are swapped.
    assert at.mask is not None
    mask = at.mask.expand(at.batch, 1, at.query_len, at.kv_len)
    rows = mask.repeat(at.num_heads, 1, 1, 1).view(at.batch, at.num_heads, at.query_len, at.kv_len)
    return rows & right_visible(at._replace(mask=None))


MASKS = [
    *(
        Mutant(
            "mask.inverted",
            detail,
            "masked_fill fills where its mask is True, and torch.tril is True on what must stay "
            "visible: use torch.triu(…, diagonal=1), or ~mask",
            {"visible": _inverted},
            needs,
        )
        for detail, needs in (
            (
                "the future is visible and the past is hidden",
                lambda contract: contract.causal and contract.window is None,
            ),
            (
                "what must be hidden is visible, and what must be visible is hidden",
                lambda contract: contract.window is not None,
            ),
        )
    ),
    Mutant(
        "mask.inverted",
        "the future is visible and the past hidden, the token itself visible",
        "torch.triu where torch.tril is meant, or the mask transposed: the mask to keep is "
        "torch.tril(torch.ones(n, n))",
        {"visible": _inverted_beside(-1)},
        lambda contract: contract.causal,
    ),
    Mutant(
        "mask.inverted",
        "the future is visible and the past hidden, and the next token with it",
        "masked_fill fills where its mask is True, and torch.tril(…, diagonal=1) is True on what "
        "must stay visible: use torch.triu(…, diagonal=1)",
        {"visible": _inverted_beside(1)},
        lambda contract: contract.causal,
    ),
    Mutant(
        "mask.missing",
        "no mask is in force: every token sees every other",
        "nothing hides the future: scores.masked_fill(torch.triu(ones, diagonal=1).bool(), "
        "-torch.inf) before the softmax, or is_causal=True. masked_fill returns a new tensor, "
        "masked_fill_ writes in place",
        {"visible": _uncaused},
        lambda contract: contract.causal,
    ),
    Mutant(
        "mask.missing",
        "the window is not in force",
        "hide what is farther than the window as well: (query_position - key_position) > left",
        {"visible": _unwindowed},
        lambda contract: contract.window is not None,
    ),
    Mutant(
        "mask.missing",
        "neither causal nor the window is in force",
        "no mask reaches the scores before the softmax",
        {"visible": _only_given},
        lambda contract: contract.window is not None and contract.causal,
    ),
    Mutant(
        "mask.off-by-one",
        "each token also sees the next one",
        "the diagonal is moved by one: torch.triu(…, diagonal=1) hides what comes after the "
        "token, diagonal=2 leaves the next one visible",
        {"visible": moved(right=1)},
        lambda contract: contract.causal,
    ),
    Mutant(
        "mask.off-by-one",
        "a token does not see itself",
        "the diagonal is moved by one: torch.triu(…, diagonal=1) hides what comes after the "
        "token, diagonal=0 hides the token itself too",
        {"visible": moved(right=-1)},
        lambda contract: contract.causal,
    ),
    *(
        Mutant(
            "mask.window-off-by-one",
            f"the window reaches {'one token more' if by > 0 else 'one token less'} "
            f"{' and '.join(sides)}",
            "W counts the token itself in one place and not in another: left=W sees W + 1 tokens",
            {"visible": moved(by if "back" in sides else 0, by if "ahead" in sides else 0)},
            lambda contract: contract.window is not None,
        )
        for by in (1, -1)
        for sides in (("back",), ("ahead",), ("back", "ahead"))
    ),
]

ALIGNMENT = [
    Mutant(
        "mask.top-left",
        "with more keys than queries, the first query sees the first key only",
        "the mask counts from the first key. With kv_len > query_len shift it: "
        "torch.triu(ones, diagonal=1 + kv_len - query_len); PyTorch has causal_lower_right",
        {"start": lambda at: 0},
        lambda contract: contract.causal or contract.window is not None,
    ),
]

GIVEN = [
    Mutant(
        "mask.inverted",
        "the mask handed in is read the other way round: True is hidden",
        "here True means that the key may be attended to; masked_fill wants the hidden ones: "
        "scores.masked_fill(~mask, -torch.inf)",
        {"visible": _inverted_given},
    ),
    Mutant(
        "mask.inverted",
        "the future is visible and the past is hidden; the mask handed in is right",
        "masked_fill fills where its mask is True, and torch.tril is True on what must stay "
        "visible: use torch.triu(…, diagonal=1), or ~mask",
        {"visible": _inverted_beside_given},
        is_masked,
    ),
    Mutant(
        "mask.missing",
        "the mask handed in has no effect",
        "the mask is taken and not used, or masked_fill's result is thrown away: "
        "scores = scores.masked_fill(~mask, -torch.inf)",
        {"visible": _ungiven},
    ),
    Mutant(
        "mask.missing",
        "causal is dropped as soon as a mask is handed in",
        "combine both: visible = mask & causal",
        {"visible": _only_given},
        is_masked,
    ),
    Mutant(
        "mask.batch-mixed",
        "every sample gets the mask of the first",
        "mask[0] is spread over the batch; keep the batch axis: (batch, 1, query_len, kv_len)",
        {"visible": _other_sample(lambda mask: mask[:1])},
    ),
    Mutant(
        "mask.batch-mixed",
        "every sample gets the mask of the last",
        "mask[-1] is spread over the batch; keep the batch axis: (batch, 1, query_len, kv_len)",
        {"visible": _other_sample(lambda mask: mask[-1:])},
    ),
    Mutant(
        "mask.batch-mixed",
        "samples get each other's masks",
        "the batch axis of the mask is turned around; index it as the query's",
        {"visible": _other_sample(lambda mask: mask.flip(0))},
    ),
    Mutant(
        "mask.batch-mixed",
        "samples get each other's masks",
        "the batch axis of the mask is rolled; index it as the query's",
        {"visible": _other_sample(lambda mask: mask.roll(1, 0))},
    ),
    Mutant(
        "mask.batch-mixed",
        "samples get each other's masks",
        "the batch axis of the mask is rolled; index it as the query's",
        {"visible": _other_sample(lambda mask: mask.roll(-1, 0))},
    ),
    Mutant(
        "mask.batch-mixed",
        "only what all samples hide is hidden",
        "the masks of the samples are merged with any(); keep the batch axis",
        {"visible": _other_sample(lambda mask: mask.any(0, keepdim=True))},
    ),
    Mutant(
        "mask.batch-mixed",
        "what one sample hides is hidden for all",
        "the masks of the samples are merged with all(); keep the batch axis",
        {"visible": _other_sample(lambda mask: mask.all(0, keepdim=True))},
    ),
    Mutant(
        "mask.batch-mixed",
        "with heads and samples in one axis, the mask is tiled where it must be repeated",
        "mask.repeat(heads, 1, 1) goes sample by sample; beside scores.view(batch · heads, …) "
        "it must be mask.repeat_interleave(heads, dim=0)",
        {"visible": _tiled_over_heads},
    ),
]
