"""The bank says what it claims: every entry is held against the definition, without `check`."""

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.checking.words import catalogue, code_of
from tests.checking import bank
from tests.checking.bank import held_out
from tests.checking.bank.entry import Entry
from tests.checking.definition import Case, cases, width_of
from tests.conftest import manual_seed
from tests.environment import SEED

CODES = [
    "mask.inverted",
    "mask.missing",
    "mask.off-by-one",
    "mask.top-left",
    "mask.window-off-by-one",
    "mask.after-softmax",
    "mask.multiplied",
    "mask.added-as-number",
    "mask.non-finite",
    "mask.empty-row",
    "mask.leaks-nan",
    "mask.padding-ignored",
    "mask.batch-mixed",
    "softmax.axis",
    "softmax.missing",
    "scale.missing",
    "scale.wrong",
    "scale.inverse",
    "bias.scaled",
    "bias.after-softmax",
    "softcap.order",
    "heads.split",
    "heads.merge",
    "heads.identical",
    "heads.gqa-tiled",
    "heads.layout",
    "batch.mixed",
    "dropout.in-eval",
    "dropout.never",
    "dropout.on-scores",
    "dropout.unscaled",
    "output.nondeterministic",
    "cache.offset",
    "cache.unmasked",
    "cache.window",
    "cache.stale",
    "rope.offset",
    "rope.layout",
    "grad.wrong",
    "grad.blocked",
    "input.modified",
    "input.strided",
    "dtype.overflow",
    "context.ignored",
    "context.swapped",
    "weights.not-used",
    "shape.square-only",
    "state.global-dim",
    "state.mask-saved",
]

EVERYTHING = [*bank.ENTRIES, *held_out.ENTRIES]
SHOWN = [entry.told() for entry in EVERYTHING if not entry.unproved]
RIGHT = [entry for entry in SHOWN if entry.code is None]
WRONG = [entry for entry in SHOWN if entry.code is not None]


def prepared(entry: Entry) -> Any:
    """The entry's object in float64 and eval mode, with weights large enough to be seen."""
    thing = entry.make()
    if isinstance(thing, type):
        sizes = entry.declared["sizes"]
        thing = thing(sizes["d_in"], sizes["d_out"])
    if isinstance(thing, nn.Module):
        generator = torch.Generator().manual_seed(11)
        thing = thing.double().eval()
        with torch.no_grad():
            for parameter in thing.parameters():
                if parameter.requires_grad:
                    numbers = torch.randn(parameter.shape, generator=generator).to(parameter)
                    parameter.copy_(numbers * (0.4 if parameter.ndim > 1 else 0.3))
    return thing


def legal(entry: Entry, thing: Any) -> list[Case]:
    return list(cases(thing, entry.takes, entry.declared))


def first(out: Any) -> Tensor:
    return out[0] if isinstance(out, tuple) else out


def run(thing: Any, case: Case) -> Tensor:
    """The output, for copies of the inputs; a decoder's is its whole."""
    args = [arg.clone() for arg in case.args]
    if hasattr(thing, "full"):
        thing.reset()
        return first(thing.full(*args))
    return first(thing(*args))


def close(actual: Tensor, wanted: Tensor, rows: Tensor, tolerance: float = 2e-5) -> bool:
    if actual.shape != wanted.shape:
        return False
    actual, wanted = actual[rows].double(), wanted[rows]
    return bool(torch.allclose(actual, wanted, rtol=tolerance, atol=tolerance))


def is_right(thing: Any, case: Case) -> bool:
    with torch.no_grad():
        return close(run(thing, case), case.output(), case.rows())


def is_right_everywhere(entry: Entry, thing: Any) -> bool:
    return all(is_right(thing, case) for case in legal(entry, thing))


def stepped(thing: Any, x: Tensor, chunks: list[int]) -> Tensor:
    return torch.cat([first(thing.step(part)) for part in x.split(chunks, dim=1)], dim=1)


# Its own linear layer asks for contiguous memory; an error is no wrong number.
REFUSES_VIEWS = {"right_modules.gpt2"}
CHUNKS = [[1] * 13, [5, 1, 1, 3, 3], [2, 11], [11, 2], [13], [3] * 4 + [1]]


# Correct code.


# A case, with what the definition gives and the rows of it that are compared.
Held = list[tuple[Case, Tensor, Tensor]]


def is_the_definition(entry: Entry, thing: Any, held: Held) -> None:
    for case, wanted, rows in held:
        before = [arg.clone() for arg in case.args]
        with torch.no_grad():
            assert close(run(thing, case), wanted, rows)
            assert close(run(thing, case), wanted, rows), "the second call differs"
        for arg, copied in zip(case.args, before, strict=True):
            assert torch.equal(arg, copied), "an input was written to"


def is_near_it_in_float32(entry: Entry, thing: Any, held: Held) -> None:
    thing = copy.deepcopy(thing).float() if isinstance(thing, nn.Module) else thing
    for case, wanted, rows in held:
        args = [arg.float() if arg.is_floating_point() else arg for arg in case.args]
        with torch.no_grad():
            actual = run(thing, case.changed(args=tuple(args)))
            assert close(actual, wanted, rows, tolerance=1e-3)


def has_its_gradients(entry: Entry, thing: Any, held: Held) -> None:
    for case, _, _ in held[:2]:
        wanted, actual = gradients(entry, thing, case)
        for a, b in zip(actual, wanted, strict=True):
            assert a is not None
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)


def takes_views(entry: Entry, thing: Any, held: Held) -> None:
    for case, wanted, rows in held:
        with torch.no_grad():
            if entry.name in REFUSES_VIEWS:
                with pytest.raises(RuntimeError, match="view size is not compatible"):
                    thing(*(permuted(arg) for arg in case.args))
                return
            actual = first(thing(*(permuted(arg) for arg in case.args)))
            assert close(actual, wanted, rows)


def steps_as_the_whole(entry: Entry, thing: Any, held: Held) -> None:
    case, wanted, rows = held[-1]
    with torch.no_grad():
        for chunks in CHUNKS:
            thing.reset()
            assert close(stepped(thing, case.args[0], chunks), wanted, rows)


def drops_as_declared(entry: Entry, thing: Any, held: Held) -> None:
    _, evaluated, drops = single_token(entry, thing)
    mean = drops.mean(dim=0)
    assert not torch.equal(drops[0], drops[1]) or not torch.equal(drops[0], drops[2])
    assert torch.allclose(mean, evaluated, atol=0.25, rtol=0.1)


def has_the_declared_empty_rows(entry: Entry, thing: Any, held: Held) -> None:
    output, wanted, finite = empty_row(entry, thing)
    assert finite
    assert torch.allclose(output, wanted)


def lets_no_nan_through(entry: Entry, thing: Any, held: Held) -> None:
    assert not leaks(entry, thing)


LAWS: list[tuple[Callable[[Entry, Any, Held], None], Callable[[Entry], bool]]] = [
    (is_the_definition, lambda entry: True),
    (is_near_it_in_float32, lambda entry: True),
    (has_its_gradients, lambda entry: True),
    (takes_views, lambda entry: entry.takes != "decode"),
    (steps_as_the_whole, lambda entry: entry.takes == "decode"),
    (drops_as_declared, lambda entry: "dropout" in entry.declared),
    (has_the_declared_empty_rows, lambda entry: "empty_row" in entry.declared),
    (lets_no_nan_through, lambda entry: "nan_safe" in entry.declared),
]


@contextmanager
def named(what: str) -> Iterator[None]:
    """Whatever is raised inside says of what."""
    # What an entry draws does not hang on those before it.
    manual_seed(SEED)
    try:
        yield
    except Exception as error:
        error.add_note(what)
        raise


@pytest.mark.parametrize("takes", sorted({entry.takes for entry in RIGHT}))
def test_right_code_is_right(takes: str) -> None:
    for entry in (each for each in RIGHT if each.takes == takes):
        thing = prepared(entry)
        held = [(case, case.output(), case.rows()) for case in legal(entry, thing)]
        for law, holds in LAWS:
            if holds(entry):
                with named(f"{entry.name}: {law.__name__}"):
                    law(entry, prepared(entry), held)


def test_every_law_is_held() -> None:
    for law, holds in LAWS:
        assert sum(map(holds, RIGHT)) > 1, law.__name__


# What the proofs measure.


def permuted(arg: Tensor) -> Tensor:
    """The same numbers, with other strides."""
    if arg.ndim == 4:
        return arg.transpose(1, 2).contiguous().transpose(1, 2)
    if arg.ndim == 3:
        return arg.transpose(0, 1).contiguous().transpose(0, 1)
    return arg.T.contiguous().T


def gradients(entry: Entry, thing: Any, case: Case) -> tuple[list[Any], list[Any]]:
    """Of every floating input, by the definition and by the code."""
    floating = [arg for arg in case.args if arg.is_floating_point()]
    count = len(floating)
    rows = case.rows()
    found: list[list[Any]] = []
    for ours in (True, False):
        leaves = [arg.clone().requires_grad_() for arg in floating]
        args = [*leaves, *case.args[count:]]
        if not ours:
            call = thing.full if hasattr(thing, "full") else thing
            output = first(call(*(arg.clone() for arg in args)))
        elif entry.takes in ("qkv", "qkv,mask"):
            output = case.changed(query=args[0], key=args[1], value=args[2]).output()
        else:
            output = again(entry, thing, case, args).output()
        seed = torch.linspace(-1, 1, output[rows].numel(), dtype=output.dtype)
        total = (output[rows] * seed.view_as(output[rows])).sum()
        if not total.requires_grad:
            found.append([None] * count)
            continue
        found.append(list(torch.autograd.grad(total, leaves, allow_unused=True)))
    return found[0], found[1]


def again(entry: Entry, thing: Any, case: Case, args: list[Tensor]) -> Case:
    """The same case with its projections made anew from these inputs."""
    from tests.checking.definition import project

    context = args[1] if entry.takes == "x,context" else args[0]
    parts = project(thing, args[0], context, entry.declared)
    return case.changed(**{name: parts[name] for name in ("query", "key", "value")})


def single_token(entry: Entry, thing: Any, draws: int = 600) -> tuple[Any, Tensor, Tensor]:
    """One token has the one weight 1, so that a draw shows what dropout made of it."""
    generator = torch.Generator().manual_seed(5)
    if entry.takes == "qkv":
        one = torch.randn(3, 1, 3, 1, 5, generator=generator, dtype=torch.float64)
        args = tuple(t.repeat(draws, 1, 1, 1) for t in one)
    else:
        width = width_of(thing, entry.declared)
        x = torch.randn(1, 1, width, generator=generator, dtype=torch.float64)
        args = (x.repeat(draws, 1, 1),)
        if entry.takes == "x,mask":
            args = (*args, torch.ones(draws, 1, dtype=torch.bool))
    with torch.no_grad():
        evaluated = first(thing.eval()(*args))[0]
        drops = first(thing.train()(*args))
    thing.eval()
    return args, evaluated, drops


def empty_row(entry: Entry, thing: Any) -> tuple[Tensor, Tensor, bool]:
    """The output of a query that sees nothing, what was declared, and whether all is finite."""
    case = legal(entry, thing)[0]
    mask = case.args[3].clone()
    mask[1, :, 2] = False
    leaves = [arg.clone().requires_grad_() for arg in case.args[:3]]
    output = first(thing(*leaves, mask))
    zero = entry.declared["empty_row"] == "zero"
    uniform = case.value.mean(dim=-2)[1]
    grads = torch.autograd.grad(output.sum(), leaves)
    finite = all(bool(t.isfinite().all()) for t in (output, *grads))
    row = output[1, :, 2].detach()
    return row, torch.zeros_like(row) if zero else uniform, finite


def leaks(entry: Entry, thing: Any) -> bool:
    """True if NaN in hidden input reaches an output that is judged."""
    case = legal(entry, thing)[0]
    args = [arg.clone() for arg in case.args]
    rows = case.rows().clone()
    if entry.takes == "x,mask":
        args[0][~args[1]] = math.nan
    elif entry.takes == "qkv,mask":
        args[2][:, :, 3] = math.nan
        rows &= ~case.visible()[..., 3].expand(rows.shape)
    else:
        args[2][:, :, 3] = math.nan
        args[1][:, :, 3] = math.nan
        rows[..., 3:] = False
    with torch.no_grad():
        output = first(thing(*args))
    assert bool(rows.any())
    return not bool(output[rows].isfinite().all())


# Wrong code: what it computes must be the mistake that it is filed under.

Change = dict[str, Any]


def shifted(window: tuple[int, int]) -> list[Change]:
    left, right = window
    tries = [(left - 1, right), (left + 1, right), (left - 1, right - 1), (left + 1, right + 1)]
    return [{"window": new} for new in tries]


def scales(case: Case) -> list[Change]:
    """By the sizes that people take instead, in the same order for every case."""
    heads, width = case.query.shape[1], case.query.shape[-1]
    sizes = [
        width,
        heads,
        heads * width,
        case.key.shape[-2],
        width**2,
        case.key.shape[1],
        16,
        64,
        2,
        4,
        width**0.5,
        0.3**-2,
        0.21**-2,
    ]
    if case.merged:
        sizes.append(case.args[0].shape[-1])
    return [{"scale": size**-0.5} for size in sizes]


def mutants(entry: Entry, case: Case) -> list[Change]:
    """The changes of the definition that make the mistake."""
    n, m = case.query.shape[-2:][0], case.key.shape[-2]
    width = case.query.shape[-1]
    masked = case.mask is not None
    left = entry.declared.get("window", (0, 0))[0]
    table: dict[str, list[Change]] = {
        "mask.inverted": [{"inverted_mask": True}]
        if masked and not entry.declared.get("causal")
        else [{"inverted": True, "offset": m - n + by} for by in (0, 1, -1)],
        "mask.missing": [{"no_causal": True}, {"no_causal": True, "window": (left, left)}],
        "mask.off-by-one": [{"offset": start + by} for start in (m - n, 0) for by in (1, -1)],
        "mask.top-left": [{"offset": 0}],
        "mask.window-off-by-one": shifted(entry.declared.get("window", (0, 0))),
        "mask.after-softmax": [{"after_softmax": True}],
        "mask.multiplied": [{"multiplied": True}],
        "mask.added-as-number": [{"added": by} for by in (1.0, -(width**-0.5))],
        "mask.padding-ignored": [
            {"mask": None if case.mask is None else torch.ones_like(case.mask)}
        ],
        "softmax.axis": [{"axis": axis} for axis in (-2, 0, 1)],
        "scale.missing": [{"scale": 1.0}],
        "scale.wrong": scales(case),
        "scale.inverse": [{"scale": width**0.5}],
        "bias.scaled": [{"bias_scaled": True}],
        "bias.after-softmax": [{"late_bias": "everywhere"}, {"late_bias": "visible"}],
        "softcap.order": [{"late_cap": True}],
        "heads.merge": [{"no_transpose": True}],
        "heads.gqa-tiled": [{"tiled": True}],
        "rope.layout": [{"rope": {"layout": layout}} for layout in ("half", "interleaved")],
        "rope.offset": [{"query_start": 0}],
    }
    return table.get(entry.code or "", [])


def differs(entry: Entry, thing: Any) -> None:
    assert not is_right_everywhere(entry, thing)


def is_a_mutant(entry: Entry, thing: Any) -> None:
    """It equals one changed definition in every case, and the right one not in all."""
    differs(entry, thing)
    everywhere: set[int] | None = None
    for case in legal(entry, thing):
        with torch.no_grad():
            output = run(thing, case)
        agreeing = {
            i
            for i, change in enumerate(mutants(entry, case))
            if close(output, case.output(**change), both_rows(case, change))
        }
        everywhere = agreeing if everywhere is None else everywhere & agreeing
    assert everywhere, "no change of the definition gives this"


def both_rows(case: Case, change: Change) -> Tensor:
    return case.rows(**change) & (case.rows() if "after_softmax" in change else True)


def is_identical(entry: Entry, thing: Any) -> None:
    """It is right where the first head's query, key and value, or some of them, are every head's."""
    differs(entry, thing)
    some = [("query", "key", "value"), ("key", "value"), ("query",), ("key",), ("value",)]
    fitting = set(some)
    for case in legal(entry, thing):
        for names in some:
            first_heads = {name: getattr(case, name)[:, :1] for name in names}
            same = {name: h.expand_as(getattr(case, name)) for name, h in first_heads.items()}
            if not is_right(thing, case.changed(**same)):
                fitting.discard(names)
    assert fitting


def mixes_heads_for_tokens(entry: Entry, thing: Any) -> None:
    """It is right where heads are read as tokens and tokens as heads."""
    differs(entry, thing)
    for case in legal(entry, thing):
        if case.query.shape[-2] != case.key.shape[-2]:
            continue
        turned = [t.transpose(1, 2) for t in (case.query, case.key, case.value)]
        scores = turned[0] @ turned[1].mT * case.query.shape[-1] ** -0.5
        context = (scores.softmax(-1) @ turned[2]).transpose(1, 2)
        with torch.no_grad():
            assert close(run(thing, case), case.finish(context), case.rows())


def splits_without_transpose(entry: Entry, thing: Any) -> None:
    differs(entry, thing)
    for case in legal(entry, thing):
        cut = {
            name: (t := getattr(case, name)).transpose(1, 2).reshape(t.shape)
            for name in ("query", "key", "value")
        }
        changed = case.changed(**cut)
        context = changed.weights() @ changed.value
        options = [changed.finish(context), changed.finish(context, no_transpose=True)]
        with torch.no_grad():
            output = run(thing, case)
        assert any(close(output, option, case.rows()) for option in options)


def mixes_samples(entry: Entry, thing: Any) -> None:
    """Another sample, or its mask, moves the first one."""
    differs(entry, thing)
    moved = False
    for case in legal(entry, thing):
        args = [arg.clone() for arg in case.args]
        other = [arg.clone() for arg in args]
        if entry.code == "mask.batch-mixed":
            for sample in range(len(args[-1])):
                trial = [arg.clone() for arg in args]
                trial[-1][sample] = ~trial[-1][sample]
                trial[-1][sample, ..., -1] = True
                with torch.no_grad():
                    a, b = first(thing(*args)), first(thing(*trial))
                rows = case.rows().clone()
                rows[sample] = False
                moved |= not torch.allclose(a[rows], b[rows])
            continue
        for arg in other:
            if arg.is_floating_point():
                arg[1:] += torch.randn_like(arg[1:])
        with torch.no_grad():
            a, b = first(thing(*args)), first(thing(*other))
        moved |= not torch.allclose(a[0], b[0])
    assert moved


def gives_non_finite(entry: Entry, thing: Any) -> None:
    with torch.no_grad():
        outputs = [(run(thing, case), case.rows()) for case in legal(entry, thing)]
    assert any(not bool(output[rows].isfinite().all()) for output, rows in outputs)


def misses_empty_rows(entry: Entry, thing: Any) -> None:
    assert is_right_everywhere(entry, thing)
    output, wanted, finite = empty_row(entry, thing)
    assert not finite or not torch.allclose(output, wanted)


def lets_nan_through(entry: Entry, thing: Any) -> None:
    assert is_right_everywhere(entry, thing)
    assert leaks(entry, thing)


def is_not_normalised(entry: Entry, thing: Any) -> None:
    """With all values 1, a weighted mean is 1; where there are weights, their sum is read."""
    differs(entry, thing)
    case = legal(entry, thing)[0]
    if entry.takes in ("qkv", "qkv,mask"):
        args = [arg.clone() for arg in case.args]
        args[2] = torch.ones_like(args[2])
        with torch.no_grad():
            output = first(thing(*args))
        assert not torch.allclose(output, torch.ones_like(output), atol=0.05)


def drops_in_eval(entry: Entry, thing: Any) -> None:
    case = legal(entry, thing)[0]
    with torch.no_grad():
        assert not torch.equal(run(thing, case), run(thing, case))


def never_drops(entry: Entry, thing: Any) -> None:
    assert is_right_everywhere(entry, thing)
    _, evaluated, drops = single_token(entry, thing)
    assert torch.allclose(drops, evaluated.expand_as(drops))
    thing.train()
    assert is_right_everywhere(entry, thing)


def drops_scores(entry: Entry, thing: Any) -> None:
    """The one weight of a single token is 1 whatever became of its score."""
    assert is_right_everywhere(entry, thing)
    _, evaluated, drops = single_token(entry, thing)
    assert torch.allclose(drops, evaluated.expand_as(drops))
    case = legal(entry, thing.train())[0]
    with torch.no_grad():
        assert not torch.equal(run(thing, case), run(thing, case))


def drops_without_scaling(entry: Entry, thing: Any) -> None:
    """Nothing that is kept is larger than in eval, so that the mean is that share of it."""
    assert is_right_everywhere(entry, thing)
    _, evaluated, drops = single_token(entry, thing)
    nothing = first_of_nothing(entry, thing, evaluated)
    share = (drops.mean(dim=0) - nothing) / (evaluated - nothing)
    assert abs(share.median().item() - (1 - entry.declared["dropout"])) < 0.1


def first_of_nothing(entry: Entry, thing: Any, evaluated: Tensor) -> Tensor:
    """The output when every weight is dropped: the bias of the last projection."""
    if entry.takes == "qkv":
        return torch.zeros_like(evaluated)
    out = legal(entry, thing)[0].out
    if out is None or out[1] is None:
        return torch.zeros_like(evaluated)
    return out[1].detach().expand_as(evaluated)


def steps_differ(entry: Entry, thing: Any) -> None:
    assert is_right_everywhere(entry, thing)
    case = legal(entry, thing)[-1]
    results = []
    with torch.no_grad():
        for chunks in CHUNKS:
            thing.reset()
            try:
                output = stepped(thing, case.args[0], chunks)
            except RuntimeError:
                results.append(False)
                continue
            results.append(close(output, case.output(), case.rows()))
    assert not all(results)


def sees_its_own_chunk(entry: Entry, thing: Any) -> None:
    """Token by token it is the whole; in a chunk outputs move with tokens behind them, and in no other."""
    steps_differ(entry, thing)
    case = legal(entry, thing)[-1]
    x, tokens, ahead = case.args[0], case.args[0].shape[1], 0
    other = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=x.dtype)
    with torch.no_grad():
        thing.reset()
        assert close(stepped(thing, x, [1] * tokens), case.output(), case.rows())
        for chunks in CHUNKS:
            thing.reset()
            still = stepped(thing, x, chunks)
            for chunk in torch.arange(tokens).split(chunks):
                for token in chunk.tolist():
                    moved = torch.where(torch.arange(tokens)[:, None] == token, other, x)
                    thing.reset()
                    gap = (stepped(thing, moved, chunks) - still).abs().amax((0, 2))
                    first = int(gap.gt(1e-9).nonzero()[0])
                    assert int(chunk[0]) <= first <= token
                    ahead += first < token
    assert ahead


def rotates_elsewhere(entry: Entry, thing: Any) -> None:
    (steps_differ if entry.takes == "decode" else is_a_mutant)(entry, thing)


def forgets_beyond_the_window(entry: Entry, thing: Any) -> None:
    steps_differ(entry, thing)
    case = legal(entry, thing)[-1]
    within = entry.declared["window"][0]
    x = case.args[0][:, :within]
    with torch.no_grad():
        for chunks in ([1] * within, [within], [2, *[1] * (within - 2)]):
            thing.reset()
            assert torch.allclose(stepped(thing, x, chunks), first(thing.full(x)))
            thing.reset()


def remembers_after_reset(entry: Entry, thing: Any) -> None:
    assert is_right_everywhere(entry, thing)
    case = legal(entry, thing)[-1]
    stale = False
    with torch.no_grad():
        for chunks in CHUNKS:
            fresh = copy.deepcopy(prepared(entry))
            fresh.reset()
            once = stepped(fresh, case.args[0], chunks)
            assert close(once, case.output(), case.rows()), "the first run is wrong already"
            fresh.reset()
            stale |= not torch.allclose(once, stepped(fresh, case.args[0], chunks))
    assert stale


def backward_differs(entry: Entry, thing: Any) -> None:
    assert is_right_everywhere(entry, thing)
    wanted, actual = gradients(entry, thing, legal(entry, thing)[0])
    pairs = list(zip(actual, wanted, strict=True))
    assert any(a is None or not torch.allclose(a, b, atol=1e-3) for a, b in pairs)
    blocked = any(a is None or not bool(a.any()) for a in actual)
    if entry.takes == "qkv":
        assert blocked == (entry.code == "grad.blocked")


def writes_to_its_input(entry: Entry, thing: Any) -> None:
    assert is_right_everywhere(entry, thing)
    case = legal(entry, thing)[0]
    args = [arg.clone() for arg in case.args]
    with torch.no_grad():
        thing(*args)
    assert any(not torch.equal(a, b) for a, b in zip(args, case.args, strict=True))


def misreads_views(entry: Entry, thing: Any) -> None:
    assert is_right_everywhere(entry, thing)
    case = legal(entry, thing)[0]
    with torch.no_grad():
        output = first(thing(*(permuted(arg) for arg in case.args)))
    assert not close(output, case.output(), case.rows())


def overflows(entry: Entry, thing: Any) -> None:
    """Numbers that float16 holds, with an answer that it holds too, give none or nonsense."""
    assert is_right_everywhere(entry, thing)
    args = [
        (arg * 4).half() if arg.is_floating_point() else arg for arg in legal(entry, thing)[0].args
    ]
    low = copy.deepcopy(thing).half() if isinstance(thing, nn.Module) else thing
    with torch.no_grad():
        try:
            actual = first(low(*args))
        except RuntimeError:  # a number that float16 does not hold is refused
            return
        wanted = first(thing(*(a.double() if a.is_floating_point() else a for a in args)))
    size = float(wanted.abs().max())
    assert size < 1e4
    off = float((actual.double() - wanted).abs().max())
    assert not math.isfinite(off) or off > size / 2


def does_not_read_context(entry: Entry, thing: Any) -> None:
    differs(entry, thing)
    for case in legal(entry, thing):
        with torch.no_grad():
            a = first(thing(*case.args))
            b = first(thing(case.args[0], case.args[1] + 1.0))
        if entry.code == "context.ignored":
            assert torch.equal(a, b)
            itself = again(
                Entry("", lambda: None, "x", entry.declared, None), thing, case, [case.args[0]]
            )
            assert close(a, itself.output(), itself.rows())
        else:
            assert a.shape[1] == case.args[1].shape[1]
            swapped = again(entry, thing, case, [case.args[1], case.args[0]])
            swapped = swapped.changed(args=(case.args[1], case.args[0]))
            assert close(a, swapped.output(), swapped.rows())


def returns_other_weights(entry: Entry, thing: Any) -> None:
    assert is_right_everywhere(entry, thing)
    found = False
    for case in legal(entry, thing):
        with torch.no_grad():
            _, weights = thing(*case.args)
            found |= not torch.allclose(weights, case.weights().expand_as(weights))
    assert found


def fails_unless_square(entry: Entry, thing: Any) -> None:
    outcomes = []
    for case in legal(entry, thing):
        try:
            outcomes.append(is_right(thing, case))
        except RuntimeError:
            outcomes.append(False)
    assert not all(outcomes)
    if entry.takes == "qkv":
        assert any(outcomes), "wrong for equal widths too"
    else:
        square = type(thing)(15, 15, entry.declared["num_heads"]).double()
        declared = {**entry.declared, "sizes": {"d_in": 15, "d_out": 15}}
        for case in cases(square, entry.takes, declared):
            assert is_right(square, case)


def depends_on_a_global(entry: Entry, thing: Any) -> None:
    if isinstance(entry.make(), type):
        assert is_right_everywhere(entry, thing)
        other = type(thing)(7, 5).double()
        declared = {**entry.declared, "sizes": {"d_in": 7, "d_out": 5}}
        results = [is_right(other, case) for case in cases(other, entry.takes, declared)]
        assert not all(results)
    else:
        differs(entry, thing)
        for case in legal(entry, thing):
            tries = scales(case)
            with torch.no_grad():
                output = run(thing, case)
            assert any(close(output, case.output(**t), case.rows()) for t in tries)


def saves_its_mask(entry: Entry, thing: Any) -> None:
    longest = entry.declared["sizes"]["context_length"]
    saved = [t for t in thing.state_dict().values() if t.shape[-2:] == (longest, longest)]
    if saved:
        assert is_right_everywhere(entry, thing)
        return
    outcomes = []
    for case in legal(entry, thing):
        try:
            outcomes.append(is_right(thing, case))
        except RuntimeError:
            outcomes.append(False)
    assert outcomes == [True, True, False]


PROOFS: dict[str, Callable[[Entry, Any], None]] = {
    "mask.non-finite": gives_non_finite,
    "mask.empty-row": misses_empty_rows,
    "mask.leaks-nan": lets_nan_through,
    "mask.batch-mixed": mixes_samples,
    "batch.mixed": mixes_samples,
    "softmax.missing": is_not_normalised,
    "heads.identical": is_identical,
    "heads.layout": mixes_heads_for_tokens,
    "heads.split": splits_without_transpose,
    "dropout.in-eval": drops_in_eval,
    "output.nondeterministic": drops_in_eval,
    "dropout.never": never_drops,
    "dropout.on-scores": drops_scores,
    "dropout.unscaled": drops_without_scaling,
    "cache.offset": steps_differ,
    "cache.unmasked": sees_its_own_chunk,
    "rope.offset": rotates_elsewhere,
    "cache.window": forgets_beyond_the_window,
    "cache.stale": remembers_after_reset,
    "grad.wrong": backward_differs,
    "grad.blocked": backward_differs,
    "input.modified": writes_to_its_input,
    "input.strided": misreads_views,
    "dtype.overflow": overflows,
    "context.ignored": does_not_read_context,
    "context.swapped": does_not_read_context,
    "weights.not-used": returns_other_weights,
    "shape.square-only": fails_unless_square,
    "state.global-dim": depends_on_a_global,
    "state.mask-saved": saves_its_mask,
}


@pytest.mark.parametrize("topic", sorted({code.partition(".")[0] for code in CODES}))
def test_wrong_code_makes_its_mistake(topic: str) -> None:
    entries = [each for each in WRONG if f"{each.code}".startswith(f"{topic}.")]
    assert entries
    for entry in entries:
        with named(f"{entry.name}: {entry.code}"):
            PROOFS.get(f"{entry.code}", is_a_mutant)(entry, prepared(entry))


# The bank as a whole.


def test_the_bank_is_large_enough() -> None:
    codes = Counter(entry.code for entry in bank.ENTRIES)
    assert set(codes) - {None} == set(CODES)
    assert all(codes[code] >= 2 for code in CODES)
    assert sum(codes[code] for code in CODES) >= 130
    assert codes[None] >= 65
    later = Counter(entry.code for entry in held_out.ENTRIES)
    assert set(later) - {None} == set(CODES)
    assert later[None] >= 25
    assert sum(later[code] for code in CODES) >= 60


def test_names_are_unique() -> None:
    repeated = [name for name, n in Counter(e.name for e in EVERYTHING).items() if n > 1]
    assert not repeated


def test_other_names_are_names() -> None:
    for entry in EVERYTHING:
        assert set(map(code_of, entry.also)) <= catalogue()["mistake"].keys()


def test_entries_are_made_anew_and_the_same() -> None:
    for entry in EVERYTHING:
        state = torch.get_rng_state()
        one, two = entry.make(), entry.make()
        assert torch.equal(torch.get_rng_state(), state), entry.name
        if isinstance(one, nn.Module):
            assert one is not two, entry.name
            assert isinstance(two, nn.Module), entry.name
            for a, b in zip(one.parameters(), two.parameters(), strict=True):
                assert torch.equal(a, b), entry.name
