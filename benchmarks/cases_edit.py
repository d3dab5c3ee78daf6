"""The cost of edits of SmolLM2 beside runs of the model as it is, in CPU time of one thread, which other processes
change least."""

import time
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import clearhead as ch
from benchmarks.harness import Side, Sides, case
from clearhead.editing import measuring

HEADS = 9
SIXTEEN = [*range(0, 15, 2), *range(15, 30, 2)]


def _smollm2() -> Any:
    return ch.samples.smollm2().model


def _ids(tokens: int) -> Tensor:
    return torch.randint(1000, 40_000, (1, tokens))


def _on_one_thread(side: Side) -> Side:
    def run() -> Any:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.no_grad():
                return side()
        finally:
            torch.set_num_threads(threads)

    return run


def _last(output: Any) -> Tensor:
    """The difference of two logits."""
    return output.logits[:, -1, 2000].mean() - output.logits[:, -1, 3000].mean()


def _same_metric(ours: Any, theirs: Any) -> None:
    # A product of one row rounds otherwise than one of many.
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def _effects() -> Sides:
    """Effects by runs that make the last logits alone, beside plain runs that make all, or the last alone."""
    model, ids = _smollm2(), _ids(128)
    last = {"input_ids": ids, "logits_to_keep": 1}

    def measured(given: Any) -> Any:
        found = ch.effects(model, given, _last, layers=SIXTEEN, progress=False)
        assert len(found) == len(SIXTEEN) * HEADS
        return found.baseline

    def plain(given: Any) -> Any:
        return [float(_last(model(**given))) for _ in SIXTEEN][-1]

    sides = {
        "effects, last logits": lambda: measured(last),
        "16 plain runs": lambda: plain({"input_ids": ids}),
        "16 plain runs, last logits": lambda: plain(last),
        "effects": lambda: measured({"input_ids": ids}),
    }
    return {name: _on_one_thread(side) for name, side in sides.items()}


@case(
    "edit-effects-128",
    reach="<= 4.5x",
    work="SmolLM2, 128 tokens: effects of the 144 heads of 16 layers, whose mean is that of all, on a "
    "metric of the last position, with logits_to_keep=1, against 16 plain runs, a ninth of as many, so that 4.5x is "
    "half; CPU time of one thread",
    compare=_same_metric,
    memory=False,
    rounds=1,
    clock=time.process_time,
)
def effects_one_by_one() -> Sides:
    return _effects()


def _together(tokens: int, layers: list[int]) -> Sides:
    """Effects one by one and several in a run, beside a plain run for each layer; all make the last logits alone."""
    model = _smollm2()
    last = {"input_ids": _ids(tokens), "logits_to_keep": 1}

    def measured(edits: int) -> Any:
        with patch.object(measuring, "TOKENS", edits * tokens):
            return ch.effects(model, last, _last, layers=layers, progress=False).baseline

    sides: dict[str, Side] = {
        "one by one": lambda: measured(1),
        **{f"{each} in a run": lambda each=each: measured(each) for each in (3, 9, 18)},
        f"{len(layers)} plain runs": lambda: [float(_last(model(**last))) for _ in layers][-1],
    }
    return {name: _on_one_thread(side) for name, side in sides.items()}


together = partial(case, compare=_same_metric, memory=False, rounds=3, clock=time.process_time)


@together(
    "edit-effects-14-parallel",
    work="SmolLM2, 14 tokens: effects of the 144 heads of 16 layers one by one, on a metric of the last position, with "
    "logits_to_keep=1, against several in one run, and against 16 plain runs, a ninth of as many; CPU "
    "time of one thread",
)
def short_effects_at_once() -> Sides:
    return _together(14, SIXTEEN)


@together(
    "edit-effects-128-parallel-few",
    work="the same with 128 tokens and the 36 heads of 4 layers, against 4 plain runs; CPU time of one thread",
)
def few_effects_at_once() -> Sides:
    return _together(128, SIXTEEN[::5])


def _same_before_the_other_half(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours[:, :256], theirs[:, :256], rtol=1e-3, atol=1e-3)
    assert not torch.allclose(ours[:, 256:], theirs[:, 256:], rtol=1e-3, atol=1e-3)


@case(
    "edit-one-head-512",
    reach="<= 1.05x",
    work="SmolLM2, 512 tokens: a run in which one head is given the context of another run, of a text with another "
    "second half, against a plain run; CPU time of one thread",
    compare=_same_before_the_other_half,
    memory=False,
    rounds=9,
    clock=time.process_time,
)
def one_head() -> Sides:
    model, ids = _smollm2(), _ids(512)
    with ch.watch(model, keep="contexts") as seen, torch.no_grad():
        model(torch.cat([ids[:, :256], _ids(256)], dim=1))

    def edited() -> Any:
        with ch.edit(model) as edit:
            edit[15].heads[3].replace(seen)
            return model(ids).logits

    return {
        "edited": _on_one_thread(edited),
        "plain": _on_one_thread(lambda: model(ids).logits),
    }
