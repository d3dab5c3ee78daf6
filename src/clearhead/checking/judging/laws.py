"""Verdicts by the laws of attention, asked where no mistake has a name yet."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from clearhead.checking.evidence import function_laws, laws
from clearhead.checking.evidence.attempts import as_trial, attempted, heads_first
from clearhead.checking.evidence.base import Evidence
from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.checking.evidence.functions import HeadsEvidence
from clearhead.checking.evidence.padding import PaddedEvidence
from clearhead.checking.evidence.state import with_zeros_drawn
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.evidence.weighing import Weighing, weigh
from clearhead.checking.hypotheses.matching import fits, follows
from clearhead.checking.judging.dependencies import as_promised
from clearhead.checking.judging.verdicts import Claim, Clear, Found, Unknown, Verdict
from clearhead.checking.subject.calling import output_of
from clearhead.checking.subject.embedding import Embedded
from clearhead.checking.thresholds import LAW_LENGTHS, LAW_NUMBERS, LAW_STEPS


def _found(broken: laws.Broken | None) -> Verdict:
    if broken is None:
        return Clear()
    return Found(broken.way, {}, ("law", {"gap": f"{broken.gap:.3g}", "at": broken.at}))


def again(e: Evidence) -> Verdict | None:
    """The same call gives the same again, whatever was called before, and draws anew in training."""
    if isinstance(e, HeadsEvidence):
        calls = [each.inputs for each in e.attempts if each.output is not None][:3]
        calls = [*calls, *calls[:1]]
    elif isinstance(e, CrossEvidence) or not isinstance(e, TokensEvidence):
        calls = [e.inputs, e.inputs]
    else:
        short = e.feed.draw(min(e.feed.lengths), e.seed + 5)
        calls = [(short,), e.inputs, (short,)]
    broken = laws.again(e.subject, calls)
    if broken is not None:
        return _found(broken)
    if laws.reseeded(e.subject, e.inputs):
        return Found("seeded")
    return Found("redrawn") if e.training.possible and e.training.repeats else Clear()


def samples(e: Evidence) -> Verdict | None:
    """Each sample gives alone what it gives in its batch."""
    if isinstance(e, TokensEvidence) and e.feed.plain:
        return None
    return _found(laws.by_samples(e.subject, e.inputs, e.output))


def length(e: Evidence) -> Verdict | None:
    """Attention is the same mechanism at any length."""
    if isinstance(e, HeadsEvidence):
        return _longer(e)
    if not isinstance(e, TokensEvidence) or isinstance(e, CrossEvidence):
        return None
    if isinstance(e.given.run, Embedded) and e.contract.causal:
        broken = _by_ids(e, e.given.run)
        if broken is not None:
            return _found(broken)

    def run(x: Tensor) -> Tensor:
        return e.batching(e.subject.fresh())(x)

    lengths = _lengths(e)
    if not lengths:
        return None
    seen = as_promised(e)
    if seen is not None and seen.causal:
        x = e.batched(e.feed.draw(lengths[-1], e.seed + 6))
        broken = laws.by_prefixes(run, x, [1, 2, *lengths[:-1]])
        return _found(broken or _in_blocks(e, run, x))
    if seen is not None and seen.window is None and not isinstance(e, PaddedEvidence):
        draw = partial(e.feed.draw, seed=e.seed + 6)
        broken = laws.by_doubling(run, lambda n: e.batched(draw(n)), lengths)
        far = None if broken is None else laws.reach(run, e.batched(draw(lengths[-1])))
        return Clear() if far is not None and far.window else _found(broken)
    return Unknown("law-length", {}, False)


def _in_blocks(e: TokensEvidence, run: Callable[[Tensor], Tensor], x: Tensor) -> laws.Broken | None:
    """Tokens that nothing behind some place moves with, though no window is declared or shown."""
    if e.promised.window is not None or e.contract.alibi_slopes is not None:
        return None
    far = laws.reach(run, x)
    if far is None or far.whole or far.window or e.subject.dtype != torch.float64:
        return None
    return laws.Broken(
        "blocks", 0.0, f"outputs up to {far.first} move with token 0, of {far.tokens}"
    )


def _lengths(e: TokensEvidence) -> list[int]:
    """The lengths to ask at: across the edges of blocks, as long as that costs little."""
    numbers = sum(each.numel() for each in e.subject.parameters().values())
    limit = e.feed.longest or max(LAW_LENGTHS)
    first, *more = LAW_LENGTHS
    steps = e.recorded.recorder.count if e.recorded is not None else 0
    other = next((each for _, each in e.others if each is not None), None)
    # A loop over tokens, whose operations grow with them, is asked at few, one in a loop at none.
    loops = other is not None and other.recorder.count != steps
    if loops and steps > LAW_STEPS:
        return []
    most = 17 if loops else LAW_NUMBERS // max(numbers, 1)
    found = [first, *(each for each in more if each <= most)]
    return [each for each in found if each <= limit]


def _by_ids(e: TokensEvidence, model: Embedded) -> laws.Broken | None:
    """The prefixes of ids, which go through everything that stands before the embedding too."""
    generator = torch.Generator().manual_seed(e.seed)
    tokens = e.inputs[0].shape[-2]
    known = [
        each
        for each in range(1, model.embedding.num_embeddings)
        if each != model.embedding.padding_idx
    ]
    ids = torch.tensor(known)[torch.randint(len(known), (2, tokens), generator=generator)]
    return laws.by_prefixes(lambda each: output_of(model.model(each))[0], ids, range(1, tokens))


def unnamed(e: HeadsEvidence) -> Claim | None:
    """The law that a function breaks which follows no recipe."""

    def run(*tensors: Tensor) -> Tensor:
        return heads_first(e.subject(*tensors), *tensors[0].shape[1:3]).detach().double()

    if e.trials[0].target.ndim != 4:
        return None
    short = [
        each for each in e.trials if each.setting.kv_len < max(t.setting.kv_len for t in e.trials)
    ]
    if short and follows(short, e.promised) is not None:
        return Claim("product", "law.length", Found("definition"))
    moved = function_laws.by_queries(run, e.inputs)
    if moved is not None:
        token, others = moved
        way = "elsewhere" if len(others) == 1 else "queries"
        values = {"token": token, "other": ", ".join(map(str, others))}
        return Claim("product", "law.pairs", Found(way, values))
    broken = function_laws.by_value(run, e.inputs)
    if broken is not None:
        values = {"factor": f"{broken.gap:.4g}", "by": broken.at}
        return Claim("product", "law.value", Found(broken.way, values))
    way = None if e.measured is None else function_laws.by_scores(e.measured)
    return None if way is None else Claim("product", "law.scores", Found(way))


def _longer(e: HeadsEvidence) -> Verdict | None:
    """A function that is the definition at the planned sizes is so at longer ones."""
    tokens = min(max(LAW_LENGTHS), e.contract.sizes.get("context_length", max(LAW_LENGTHS)))
    steps = e.recorded.recorder.count if e.recorded is not None else 0
    if not e.explained.right or steps > LAW_STEPS:
        return None
    main = e.attempts[0].sizes
    sizes = replace(main, name=f"{tokens} tokens", batch=1, query_len=tokens, kv_len=tokens)
    trial = as_trial(attempted(e.subject, sizes, e.seed), e.explained.contract, e.rounded)
    if trial is None or fits([trial], e.explained.recipe) is not None:
        return Clear()
    return _found(laws.Broken("definition", trial.error(e.explained.recipe), sizes.name))


def value(e: TokensEvidence) -> Verdict | None:
    """The context is linear in the value, with weights that sum to one, and it is used."""
    if e.recorded is None or not e.groups:
        return None
    recorder, output = e.recorded.recorder, e.recorded.output
    if all(laws.unused(e.subject, e.inputs, output, each.attentions) for each in e.groups):
        # What is 0 before it is trained hides everything behind it.
        drawn = with_zeros_drawn(e.subject)
        other = drawn.spare()(*e.inputs).detach()
        if all(laws.unused(drawn, e.inputs, other, each.attentions) for each in e.groups):
            return Found("unused")
        return Clear()
    broken = laws.by_value(e.subject, e.inputs, recorder, output, e.groups[0].attentions)
    if broken is None:
        return Clear()
    return Found(broken.way, {"factor": f"{broken.gap:.4g}"})


def centred(e: TokensEvidence) -> Verdict | None:
    """Values of several tokens each, out of which what all share is taken."""
    if e.recorded is None:
        return None
    for each, source in zip(e.observed, e.sources, strict=True):
        several = source is not None and source.known and bool((source.value.token < -1).any())
        if several and laws.centred(e.subject, e.inputs, e.recorded.recorder, each):
            return Found("centred")
    return Clear()


def scores(e: TokensEvidence) -> Verdict | None:
    """The scores alone make the weights: nothing is rounded, and which keys are seen does not hang on them."""
    if e.recorded is None or not e.groups:
        return None
    if e.recorded.recorder.halves and e.subject.dtype == torch.float64:
        return Found("halves")
    visible = _visible(e.weighings, e.groups[0].indices)
    if visible.all() or as_promised(e) is not None or isinstance(e, CrossEvidence):
        return Clear()
    other = e.record(e.feed.draw(e.inputs[0].shape[-2], e.seed + 7))
    if other is None or len(other.attentions) != len(e.observed):
        return None
    seen = _visible([weigh(each) for each in other.attentions], e.groups[0].indices)
    return Clear() if torch.equal(seen, visible) else Found("chosen")


def _visible(read: Sequence[Weighing], indices: Sequence[int]) -> Tensor:
    """The pairs that are not hidden, of some attentions."""
    return torch.cat([read[index].visible for index in indices])


def pairs(e: TokensEvidence) -> Verdict | None:
    """A token sees itself where a causal mask lets it, and stands where it stands."""
    if laws.one_row(e.subject, e.inputs):
        return Found("one-position")
    if not e.contract.causal or not e.groups or isinstance(e, CrossEvidence):
        return None
    own = _sees_itself(e)
    return Clear() if own is None or bool(own.any()) else Found("itself")


def no_query(e: CrossEvidence) -> Verdict:
    """Outputs that do not move with x."""
    return Clear() if e.dependency.moves.any() else Found("no-query")


def _sees_itself(e: TokensEvidence) -> Tensor | None:
    """True for the tokens that have a weight on themselves; None where rows are not known."""
    tokens = e.inputs[0].shape[-2]
    own = torch.zeros(tokens, dtype=torch.bool)
    for each, source in zip(e.observed, e.sources, strict=True):
        if source is None or not source.known:
            return None
        same = source.query.token[..., :, None] == source.key.token[..., None, :]
        felt = same & (source.query.token >= 0)[..., None] & (each.weights != 0)
        own[source.query.token[felt.any(-1)].unique()] = True
    return own


def lost_mask(e: HeadsEvidence | TokensEvidence) -> Verdict | None:
    """Scores that are hidden, and thrown away."""
    if e.recorded is None:
        return None
    return Found("lost") if laws.lost(e.recorded.recorder, e.recorded.output) else Clear()
