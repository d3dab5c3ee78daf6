"""Verdicts on what ranks compute together."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from clearhead.checking import words
from clearhead.checking.hypotheses.recipe import RIGHT
from clearhead.checking.judging.account import BY_CODE, scale_in_words
from clearhead.checking.judging.drawings import drawn_mask, first_bad, first_difference
from clearhead.checking.judging.verdicts import Clear, Found, Unknown, Verdict
from clearhead.checking.ranks import rank_gradients
from clearhead.checking.ranks.launching import Stuck
from clearhead.checking.ranks.ranks_evidence import RanksEvidence
from clearhead.checking.thresholds import FAR, HALF_INSIDE, SAME

SEEN_WRONG = 1e-6
"""An error, of the largest number, beyond rounding."""

DRAWN = 16
"""Tokens of a mask that fits beside another one in a line."""


def stuck(e: RanksEvidence) -> Verdict:
    """A rank that hangs or goes on, that ended, or that raised while another waited for it."""
    if not e.stuck:
        return Clear()
    text = "; ".join(f"rank {rank} {_does(each)}" for rank, each in sorted(e.stuck.items()))
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


def _does(failure: Any) -> str:
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


def modified(e: RanksEvidence) -> Verdict:
    """Inputs that are written to."""
    names = list(dict.fromkeys(name for each in e.main.results for name in each.written))
    if not names:
        return Clear("untouched")
    values = {"names": " and ".join(names), "verb": "is" if len(names) == 1 else "are"}
    return Found("written", values, ("before-after", {}))


def fewer_rows(e: RanksEvidence) -> Verdict | None:
    """Queries that get no output."""
    if e.short is None:
        return None
    made, rank, rows = e.short
    values = {"rank": rank, "count": made.here.counts[rank], "rows": rows}
    return Found("rows", values, ("text", {"text": f"at {made.sizes.name}"}))


def definition(code: str, e: RanksEvidence) -> Verdict | None:
    """The mistake of one code in the outputs."""
    found = e.explained
    if found.right:
        topic = topic_of(code)
        return Clear("ranks", {"ranks": _world(e)}) if topic == "exchange" else Clear(topic)
    if found.mutants:
        mutant = found.mutants[0]
        if mutant.code != code:
            return None
        also = tuple(
            (each.code, each.way, each.values)
            for each in found.mutants[1:]
            if (each.code, each.way) != (mutant.code, mutant.way)
        )
        trials = [each.under(found.contract) for each in e.trials]
        measured = first_difference(trials)
        wrong = [each for each in trials if each.error(RIGHT) > SEEN_WRONG]
        small = min(wrong or trials, key=lambda each: each.setting.kv_len)
        drawable = "visible" in mutant.changes and "arrange" not in mutant.changes
        if drawable and small.setting.kv_len <= DRAWN:
            measured = ("mask", drawn_mask(small, found.recipe))
        return Found(mutant.way, mutant.values, measured, also)
    return _unknown(code, e)


def _unknown(code: str, e: RanksEvidence) -> Verdict | None:
    """A mistake without a recipe: what is not finite, what is right but for 16 bits, and the rest."""
    bad = next((each for each in e.trials if not each.target.isfinite().all()), None)
    if bad is not None:
        if code != "mask.non-finite":
            return None
        return Found("output", {}, ("first-bad", first_bad(bad.target)))
    if e.explained.error < HALF_INSIDE:
        if code != "ranks.precision":
            return None
        values = {"error": f"{e.explained.error:.1g}"}
        return Found("inside", values, first_difference(e.trials))
    if code != "differs":
        return None
    return Found(
        "ranks", {}, first_difference([each.under(e.explained.contract) for each in e.trials])
    )


def _world(e: RanksEvidence) -> str:
    return f"{e.contract.world} ranks, {e.contract.layout or 'contiguous'}"


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


def never_dropped(e: RanksEvidence) -> Verdict | None:
    """Nothing falls, though it is declared."""
    if not e.contract.dropout:
        return None
    if not e.dropped:
        return Unknown("dropout-ranks", {})
    if not any(bool(each.gone.any()) for each in e.dropped):
        text = ("text", {"text": "no weight is 0 in three calls"})
        return Found("equal", {"dropout": e.contract.dropout}, text)
    return Clear()


def unscaled(e: RanksEvidence) -> Verdict | None:
    """Survivors that are not scaled."""
    if not e.contract.dropout:
        return None
    if not e.dropped:
        return Unknown("dropout-ranks", {})
    kept = e.dropped[0].kept
    right = 1 / (1 - e.contract.dropout)
    if abs(kept / right - 1) < 1e-3:
        return Clear()
    values = {"dropout": e.contract.dropout, "kept": f"{kept:.4g}"}
    way = "unscaled" if abs(kept - 1) < 1e-3 else "otherwise"
    return Found(way, values, ("survivors", values))


def alike(e: RanksEvidence) -> Verdict | None:
    """The same weights fall on every rank, though the ranks have seeds of their own."""
    if not e.contract.dropout:
        return None
    if len(e.dropped) < 2:
        return Unknown("dropout-ranks", {})
    if all(each.alike() for each in e.dropped[:2]):
        text = "what falls on rank 0 falls on every rank, in two calls with a seed of its own each"
        return Found("alike", {}, ("text", {"text": text}))
    return Clear("dropout")


def topic_of(code: str) -> str:
    """The topic of a name that the outputs can have."""
    return "exchange" if code.startswith("ranks.") else BY_CODE[code.partition(".")[0]]


def ticks(e: RanksEvidence, clear: Clear) -> Iterator[str]:
    """The words of a clear verdict, in short."""
    key, contract = clear.tick, e.explained.contract
    if key == "mask":
        if contract.causal:
            yield words.filled("tick", "causal", {})
        if contract.window is not None:
            yield words.filled("tick", "window", {"window": contract.window})
    elif key == "scale":
        scale = scale_in_words(e.trials[0].under(contract))
        yield words.filled("tick", "scale", {"scale": scale})
    elif key == "positions":
        yield from ["rope"] * (contract.rope is not None)
    elif key and key not in ("product", "order"):
        yield words.filled("tick", key, clear.values)


def remarks(e: RanksEvidence, codes: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Notes on what was measured and is not declared, and on what was refused."""
    if e.contract.causal is None and e.explained.right:
        yield "causal", {"causal": e.explained.contract.causal}
    refused = next((each for each in e.uneven if each.failures), None) if e.ranks.own else None
    if refused is not None:
        # A process that ended says more than those that wait for it.
        rank, failure = min(
            refused.failures.items(),
            key=lambda each: not isinstance(each[1], Stuck) or not each[1].ended,
        )
        yield (
            "uneven",
            {"tokens": refused.sizes.query_len, "words": f"rank {rank} {_does(failure)}"},
        )
    elif not e.ranks.own:
        yield "uneven-not-run", {}
    if len(e.dropped) == 3 and e.dropped[2].alike() and "ranks.dropout-alike" not in codes:
        yield "dropout-seeds", {}
