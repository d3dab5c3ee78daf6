"""Verdicts on what ranks compute together."""

from typing import Any

import torch

from clearhead.checking.judging.verdicts import Clear, Found, Unknown, Verdict
from clearhead.checking.ranks import rank_gradients
from clearhead.checking.ranks.launching import Stuck
from clearhead.checking.ranks.ranks_evidence import RanksEvidence
from clearhead.checking.thresholds import FAR, SAME


def stuck(e: RanksEvidence) -> Verdict:
    """A rank that hangs or goes on, that ended, or that raised while another waited for it."""
    if not e.stuck:
        return Clear()
    text = "; ".join(f"rank {rank} {does(each)}" for rank, each in sorted(e.stuck.items()))
    done = sorted(set(range(e.contract.world or 1)) - set(e.stuck))
    if done:
        text += f"; {_ranks(done)} done"
    kinds = list(e.stuck.values())
    if any(isinstance(each, Stuck) and each.ended for each in kinds):
        way = "ended"
    elif any(not isinstance(each, Stuck) for each in kinds):
        way = "raises"
    elif all(each.waits for each in kinds if isinstance(each, Stuck)):
        way = "hangs"
    else:
        way = "runs"
    first = {
        "ended": lambda each: isinstance(each, Stuck) and each.ended,
        "raises": lambda each: not isinstance(each, Stuck),
        "hangs": lambda each: True,
        "runs": lambda each: isinstance(each, Stuck) and not each.waits,
    }[way]
    ranks = [rank for rank, each in sorted(e.stuck.items()) if first(each)]
    return Found(way, {"ranks": _ranks(ranks, bare=True)}, ("text", {"text": text}))


def does(failure: Any) -> str:
    """The failure of a rank, in words."""
    return str(failure) if isinstance(failure, Stuck) else f"raises {failure}"


def _ranks(ranks: list[int], *, bare: bool = False) -> str:
    names = " and ".join(map(str, ranks))
    words = f"rank{'s' if len(ranks) > 1 else ''} {names}"
    return words if bare else f"{words} {'are' if len(ranks) > 1 else 'is'}"


def nondeterministic(e: RanksEvidence) -> Verdict:
    """Equal calls that differ."""
    if e.repetition > SAME[e.subject.dtype]:
        return Found("drawn", {}, ("repeated", {"gap": f"{e.repetition:.3g}"}))
    return Clear("same-again")


def fewer_rows(e: RanksEvidence) -> Verdict | None:
    """Queries that get no output."""
    if e.short is None:
        return None
    made, rank, rows = e.short
    values = {"rank": rank, "count": made.here.counts[rank], "rows": rows}
    return Found("rows", values, ("text", {"text": f"at {made.sizes.name}"}))


def overflow(e: RanksEvidence) -> Verdict | None:
    """Partial results merged by exponentials of their own size."""
    if not e.explained.right:
        return None
    outcomes = []
    for each in e.large:
        if each.context is None:
            return Unknown("large-refused", {}, False)
        rows = (each.context - each.expected).abs().nan_to_num(torch.inf).amax((0, 1, 3))
        # Scores as large magnify the rounding of what is computed in float32 by as much.
        wrong = rows > FAR * each.expected.abs().max()
        outcomes.append((wrong, each.beyond, each.context))
    if not any(bool(wrong.any()) for wrong, _, _ in outcomes):
        return Clear("large")
    # Those beyond the exponential are wrong, those within it are right.
    if any(bool((wrong & ~beyond).any()) for wrong, beyond, _ in outcomes):
        return Found("otherwise", {}, ("text", {"text": _rows_of(outcomes)}))
    return Found("exponential", {}, ("text", {"text": _rows_of(outcomes)}))


def _rows_of(outcomes: list[Any]) -> str:
    wrong, beyond, context = outcomes[0]
    bad = int((~context.isfinite()).sum())
    return (
        f"of {int(beyond.sum())} queries with scores of ±1000 {int((wrong & beyond).sum())} are wrong, of "
        f"{int((~beyond).sum())} with ±300 {int((wrong & ~beyond).sum())}; {bad} numbers are not finite"
    )


def blocked(e: RanksEvidence) -> Verdict:
    """Gradients that do not arrive."""
    why = _no_gradients(e)
    if why is not None:
        return why
    if not any(each.attached for made in e.usable for each in made.results):
        return Found("detached", {}, ("text", {"text": "the output does not require a gradient"}))
    names = rank_gradients.blocked(e.gradients)
    if not names:
        return Clear()
    text = f"no rank gets a gradient of the {' and '.join(names)}"
    return Found("ranks", {"names": " and ".join(names)}, ("text", {"text": text}))


def _no_gradients(e: RanksEvidence) -> Unknown | None:
    if not e.explained.known:
        return Unknown("gradients-before", {}, False)
    if not all(each.target.isfinite().all() for each in e.trials):
        return Unknown("gradients-finite", {}, False)
    return None


def summed(code: str, e: RanksEvidence) -> Verdict | None:
    """The gradients as ranks sum them."""
    why = _no_gradients(e)
    if why is not None:
        return why
    wrong = e.gradients_explained
    if not wrong:
        return Clear("gradients")
    names = [name for name, each in wrong.items() if each and each[0][0] == code]
    if names:
        values = {"names": " and ".join(names), "world": e.contract.world}
        (_, way), *others = wrong[names[0]]
        also = tuple((*each, values) for each in others if each[0] != code)
        return Found(way, values, ("text", {"text": _errors(e, names)}), also)
    unknown = [name for name, each in wrong.items() if not each]
    if code == "grad.wrong" and unknown:
        rounded = all(rank_gradients.rounded(e.gradients, each) for each in unknown)
        way = "rounded" if rounded else "ranks"
        text = ("text", {"text": _errors(e, unknown)})
        return Found(way, {"names": " and ".join(unknown)}, text)
    return None


def _errors(e: RanksEvidence, names: list[str]) -> str:
    return "; ".join(
        f"that of the {name} is off by {rank_gradients.error(e.gradients, name):.2g} of its largest number"
        for name in names
    )


def alike(e: RanksEvidence) -> Verdict | None:
    """The same weights fall on every rank, though the ranks have seeds of their own."""
    if len(e.dropped) < 2:
        return Unknown("dropout-ranks", {})
    if all(each.alike() for each in e.dropped[:2]):
        text = "what falls on rank 0 falls on every rank, in two calls with a seed of its own each"
        return Found("alike", {}, ("text", {"text": text}))
    return Clear("dropout")
