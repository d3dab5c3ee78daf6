"""Verdicts by the law of length: attention is the same mechanism at any number of tokens."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from clearhead.checking.evidence import lengths
from clearhead.checking.evidence.attempts import as_trial, attempted
from clearhead.checking.evidence.base import Evidence
from clearhead.checking.evidence.cases import Broken, Case, broken
from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.checking.evidence.decoding import DecodingEvidence
from clearhead.checking.evidence.functions import HeadsEvidence
from clearhead.checking.evidence.padding import PaddedEvidence
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.hypotheses.recipe import RIGHT
from clearhead.checking.judging.dependencies import as_promised
from clearhead.checking.judging.verdicts import Clear, Found, Unknown, Verdict, broken_law
from clearhead.checking.subject.calling import output_of
from clearhead.checking.subject.embedding import Embedded
from clearhead.checking.thresholds import BEYOND, LAW_RECORDED, NARROW

# The tokens and operations of two calls, the heads of a sample, and the numbers of the parameters.
Costs = tuple[list[tuple[int, int]], int, int]


def _verdict(wrong: Broken | None, tokens: int) -> Verdict:
    """Return Clear with the number of tokens if nothing is broken, else the finding of the broken case."""
    return Clear(values={"tokens": tokens}) if wrong is None else broken_law(wrong)


def length(e: Evidence) -> Verdict | None:
    """Return a verdict on whether attention is the same at any length.

    None for a part, and for a function or decoder with a known mistake. Clear has the number of tokens that were
    tested, Unknown the reason that none was.
    """
    if isinstance(e, HeadsEvidence):
        return _of_function(e)
    if isinstance(e, DecodingEvidence):
        if e.wrong is not None:
            return None
        wrong, tokens = lengths.by_decoding(e)
        return _verdict(wrong, tokens) if tokens else Unknown("law-costs", {}, False)
    return _of_tokens(e) if isinstance(e, TokensEvidence) else None


def _of_tokens(e: TokensEvidence) -> Verdict:
    """Return Found if a longer call breaks the law of length, Clear if it holds, Unknown if it cannot be tested.

    Tested are prefixes of ids, the attentions inside, repeated rows of positions, and parts against the whole.
    """
    if isinstance(e.given.run, Embedded) and e.contract.causal:
        wrong = broken("prefix", _by_ids(e, e.given.run))
        if wrong is not None:
            return broken_law(wrong)
    costs = _costs(e)
    asked = lengths.affordable_lengths(*costs, e.feed.longest)
    if not asked:
        return Unknown("law-costs", {}, False)
    short = max(each for each in asked if each <= LAW_RECORDED)
    held = False
    for way, case in lengths.trials_at(e, short) if short > 7 else ():
        held = True
        if not lengths.holds(case):
            return broken_law(Broken(way, case.error(RIGHT), case.name))
    token = None
    if not isinstance(e, CrossEvidence | PaddedEvidence):
        token = lengths.repeated_row(e.subject, (e.feed.draw(short, e.seed),))
    if token is not None and token > 1:
        return Found("repeated", {"token": token})
    verdict = None if isinstance(e, CrossEvidence) else _by_calls(e, asked, costs)
    if isinstance(verdict, Found | Clear):
        return verdict
    return _verdict(None, short) if held else Unknown("law-length", {}, False)


def _by_calls(e: TokensEvidence, asked: Sequence[int], costs: Costs) -> Verdict | None:
    """Return a verdict on parts of a text against the whole: prefixes if causal, doubled texts if nothing is hidden.

    None for another mask, and for padding that is not causal. `asked` is the numbers of tokens to test, ascending;
    `costs` are those of `_costs`.
    """

    def run(x: Tensor) -> Tensor:
        """Return the output of a fresh copy for x (batch, tokens, width)."""
        return e.batching(e.subject.fresh())(x)

    def draw(tokens: int) -> Tensor:
        """Return random x (batch, tokens, width); one sample above `LAW_RECORDED` tokens."""
        x = e.batched(e.feed.draw(tokens, e.seed + 6))
        return x[:1] if tokens > LAW_RECORDED else x

    seen = as_promised(e)
    if seen is not None and seen.causal:
        x = draw(asked[-1])
        wrong = broken("prefix", lengths.by_prefixes(run, x, asked[:-1])) or _in_blocks(e, run, x)
        longer = None if e.feed.longest is None else e.feed.longest + BEYOND
        if wrong is None and longer is not None and lengths.is_affordable(*costs, longer):
            wrong = broken("past-the-mask", lengths.by_the_future(run, draw(longer)))
        return _verdict(wrong, asked[-1])
    if seen is not None and seen.window is None and not isinstance(e, PaddedEvidence):
        halves = [each // 2 + 1 if each > LAW_RECORDED else each for each in asked if each > 2]
        wrong = broken("doubled", lengths.by_doubling(run, draw, halves))
        far = None if wrong is None else lengths.reach(run, draw(halves[-1]))
        if far is not None and lengths.is_window(*far, halves[-1]):
            wrong = None
        return _verdict(wrong, 2 * halves[-1])
    return None


def _in_blocks(e: TokensEvidence, run: Callable[[Tensor], Tensor], x: Tensor) -> Broken | None:
    """Return Broken if the first token changes only outputs up to some place, and no window is declared or seen.

    None otherwise, if ALiBi is declared, and if the code is not run in float64.
    """
    if e.promised.local or e.contract.alibi_slopes is not None:
        return None
    far, tokens = lengths.reach(run, x * NARROW), x.shape[1]
    if far is None or far[0] == tokens - 1 or lengths.is_window(*far, tokens):
        return None
    if e.subject.dtype != torch.float64:
        return None
    return Broken("blocks", 0.0, f"outputs up to {far[0]} move with token 0, of {tokens}")


def _costs(e: TokensEvidence) -> Costs:
    """Return (tokens, operations) of up to two calls, the heads of a sample, and the number of parameters."""
    numbers = sum(each.numel() for each in e.subject.parameters().values())
    made = [lengths.count_operations(e.subject, lengths.drawn(e, each)) for each in (7, 5)]
    steps = [each for each in made if each is not None]
    batch = e.batched(e.inputs[0]).shape[0]
    heads = sum(len(each.weights) for each in e.observed) // batch
    return steps, max(heads, 1), numbers


def _by_ids(e: TokensEvidence, model: Embedded) -> Iterator[Case]:
    """Yield cases that compare the first ids of a text with all of them, calling the whole model."""
    generator = torch.Generator().manual_seed(e.seed)
    tokens = e.inputs[0].shape[-2]
    known = [
        each
        for each in range(1, model.embedding.num_embeddings)
        if each != model.embedding.padding_idx
    ]
    ids = torch.tensor(known)[torch.randint(len(known), (2, tokens), generator=generator)]
    return lengths.by_prefixes(lambda each: output_of(model.model(each))[0], ids, range(1, tokens))


def _of_function(e: HeadsEvidence) -> Verdict | None:
    """Return Found if a right function differs from the definition at other lengths, Clear with the largest one if not.

    Unknown if no length is affordable; None if the function is not right.
    """
    if not e.explained.right:
        return None
    main, other = e.attempts[0], e.attempts[1]
    made = [lengths.count_operations(e.subject, each.inputs) for each in (main, other)]
    steps = [each for each in made if each is not None]
    limit = e.contract.sizes.get("context_length")
    heads = e.contract.heads()[0]
    asked = lengths.affordable_lengths(steps, heads or 1, 0, limit)
    # As many tokens as heads do not tell which axis is which.
    for tokens in (each for each in asked if each != heads):
        sizes = main.sizes._replace(
            name=f"{tokens} tokens", batch=1, query_len=tokens, kv_len=tokens
        )
        if heads is None and tokens > LAW_RECORDED:
            sizes = sizes._replace(num_heads=1, num_kv_heads=1)
        made = attempted(e.subject, sizes, e.seed)
        trial = as_trial(made, e.explained.contract, e.rounded)
        if trial is not None and not lengths.holds(trial, e.explained.recipe):
            return broken_law(Broken("definition", trial.error(e.explained.recipe), trial.name))
    return _verdict(None, asked[-1]) if asked else Unknown("law-costs", {}, False)
