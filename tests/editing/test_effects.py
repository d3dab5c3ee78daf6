"""The effects of the heads, held against each edit alone."""

import re
import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.editing import measuring
from clearhead.reading.logit_shares import LogitShare
from tests.refusals import assert_refused, refusals, run, wrong

WIDTH, HEADS, LEN = 12, 4, 5
effects: Any = ch.effects  # also with arguments that it does not take


def metric(output: Tensor) -> Tensor:
    return output.square().mean()


def total(output: Tensor) -> Tensor:
    """A metric that is linear in the contexts of the last call."""
    return output.sum()


def pair() -> tuple[nn.Module, Tensor, Tensor]:
    """A model, and inputs that differ in all but their first two tokens."""
    attending = nn.Sequential(
        *(ch.MultiHeadAttention(WIDTH, num_heads=HEADS, mask=ch.causal()) for _ in "ab")
    )
    clean, corrupt = torch.randn(2, 2, LEN, WIDTH, dtype=torch.float64)
    corrupt[:, :2] = clean[:, :2]
    return attending.double().eval(), clean, corrupt


class Shared(nn.Module):
    """One attention, three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = ch.MultiHeadAttention(WIDTH, num_heads=HEADS)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x + self.layer(x)
        return x


@pytest.mark.parametrize("by", ["head", "layer", "head,position", "call"])
@pytest.mark.parametrize("how", ["zero", "mean", "total", "clean"])
@pytest.mark.parametrize("shared", [False, True])
@torch.no_grad()
def test_each_row_is_the_edit_of_that_head_alone(by: str, how: str, shared: bool) -> None:
    model, clean, corrupt = pair()
    model = Shared().double() if shared else model
    keep: Any = {"keep": "total", "contexts": True} if how == "total" else {"keep": "contexts"}
    with ch.watch(model, **keep) as seen:
        model(clean if how == "clean" else torch.randn(3, 7, WIDTH).double())
    given = (clean, corrupt) if how == "clean" else (corrupt,)
    mean: dict[str, Any] = {"mean": seen} if how in ("mean", "total") else {}
    found = effects(model, *given, metric=metric, by=by, **mean)
    whole = float(metric(model(corrupt)))
    assert found.baseline == whole
    assert found.clean == (float(metric(model(clean))) if how == "clean" else None)
    paths, heads = (["layer"], range(HEADS)) if shared else (["0", "1"], range(HEADS))
    inner = {"call": range(3 if shared else 1), "head,position": range(LEN)}.get(by, [None])
    every = [
        (path, None if by == "layer" else head, each)
        for path in paths
        for head in heads
        for each in inner
    ]
    column = "call" if by == "call" else "position"
    assert [(row.layer, row.head, getattr(row, column)) for row in found] == list(
        dict.fromkeys(every)
    )
    for row in found:
        with ch.edit(model) as edit:
            edit.expects_changes = False
            layer = edit[row.layer] if row.call is None else edit[row.layer].call(row.call)
            layer = layer if row.head is None else layer.heads[row.head]
            if how == "clean":
                layer.replace(seen, query=row.position)
            else:
                layer.ablate(**mean, query=row.position)
            assert row.metric == pytest.approx(float(metric(model(corrupt))), abs=1e-12)
        assert row.change == row.metric - whole
        if found.clean is not None:
            share = row.change / (found.clean - whole)
            assert row.restored == pytest.approx(share, abs=1e-12)


def test_rows_are_a_table_and_inputs_of_every_kind() -> None:
    attending, x, corrupt = pair()
    found = effects(attending, x, metric)
    best = found.top(2)
    assert [abs(row.change) for row in best] == sorted(abs(row.change) for row in found)[:-3:-1]
    assert repr(found[:1]).splitlines()[1].startswith("  0  head 0")
    assert "  restored " in repr(effects(attending, x, corrupt, metric, by="layer"))
    whole = effects(attending, {"input": x}, metric, by="layer")
    again = effects(attending, (x,), lambda out: float(metric(out)), by="layer", layers=[1])
    assert again[0] == whole[1]
    given: dict[str, Any] = {"clean": x, "corrupt": corrupt, "metric": metric}
    assert list(effects(attending, **given)) == list(effects(attending, x, corrupt, metric))
    assert list(effects(attending, **given, patch="v")) == list(
        effects(attending, **given, patch="value")
    )


def test_progress_is_reported_and_a_terminal_shows_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[int, int]] = []
    x = torch.randn(1, LEN, WIDTH)
    model = nn.Sequential(ch.MultiHeadAttention(WIDTH, num_heads=2))
    effects(model, x, metric, progress=lambda *counts: done.append(counts))
    assert done == [(0, 2), (1, 2), (2, 2)]
    effects(model, x, metric, progress=True)
    assert capsys.readouterr().err == ""  # no terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    effects(model, x, metric, progress=True)
    lines = capsys.readouterr().err.split("\r")
    assert lines == [*(f"effects: {done} of 2 runs" for done in range(3)), "\x1b[K"]


@pytest.mark.parametrize("patch", ["z", "pattern", "value", "query", "key"])
@torch.no_grad()
def test_a_patched_head_is_that_of_the_clean_run(patch: Any) -> None:
    attending, clean, corrupt = pair()
    found = effects(attending, clean, corrupt, metric=metric, patch=patch)
    with ch.watch(attending, values=True) as one:
        attending(clean)
    with ch.watch(attending, values=True) as other:
        attending(corrupt)
    for row in found:
        assert row.head is not None
        mine, theirs = other[row.layer], one[row.layer]
        parts: dict[str, Any] = {
            "query": mine.problem.query, "key": mine.problem.key, "value": mine.value,
            "weights": mine.dense(),
        }  # fmt: skip
        if patch in ("query", "key"):
            parts[patch] = getattr(theirs.problem, patch)
            parts["weights"] = ch.AttentionMatrix(
                parts["query"], parts["key"], mask=ch.causal()
            ).dense()
        elif patch == "value":
            parts |= {"value": theirs.value}
        elif patch == "pattern":
            parts["weights"] = theirs.dense()
        else:
            parts |= {"weights": theirs.dense(), "value": theirs.value}
        context = parts["weights"] @ parts["value"]
        # By a hook on the projection, not by an edit.
        layer: Any = attending.get_submodule(row.layer)

        def put(module: Any, given: Any, head: int = row.head, new: Tensor = context) -> Any:
            z = given[0].clone().unflatten(-1, (HEADS, -1))
            z[:, :, head] = new[:, head]
            return (z.flatten(2),)

        handle = layer.output_projection.register_forward_pre_hook(put)
        expected = float(metric(attending(corrupt)))
        handle.remove()
        assert row.metric == pytest.approx(expected, abs=1e-10)


def one_by_one(*args: Any, **options: Any) -> ch.types.Effects:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(measuring, "TOKENS", 0)
        return effects(*args, **options)


def test_several_edits_in_one_run_are_those_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    attending, clean, corrupt = pair()
    batches: list[int] = []
    counts: list[tuple[int, int]] = []
    options: dict[str, Any] = {"metric": metric, "by": "head,position"}
    first: Any = attending.get_submodule("1")
    forward = first.forward

    def counting(x: Tensor, **more: Any) -> Tensor:
        batches.append(len(x))
        return forward(x, **more)

    monkeypatch.setattr(first, "forward", counting)
    for given in ((clean, corrupt), (clean,)):
        alone = one_by_one(attending, *given, **options)
        assert set(batches) == {2}
        for tokens in (20, 256, 10_000):
            monkeypatch.setattr(measuring, "TOKENS", tokens)
            together = effects(attending, *given, **options, progress=lambda *n: counts.append(n))
            assert max(batches) == 2 * min(tokens // 10, 40)
            assert counts[-1] == (40, 40)
            for one, other in zip(alone, together, strict=True):
                assert one[:2] == other[:2]
                assert one.metric == pytest.approx(other.metric, abs=1e-10)
        batches.clear()


class Loss(nn.Module):
    """A model of one number."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Any:
        return self.layer(x).square().mean()


class Leaking(Loss):
    """Samples that read each other where they differ."""

    def forward(self, x: Tensor) -> Any:
        made = self.layer(x)
        return made + (made - made.roll(1, 0)).square().mean()


class Counted(Loss):
    """A number beside the rows."""

    def forward(self, x: Tensor) -> Any:
        made = self.layer(x)
        return made, float(made.detach().square().mean())


class OfOne(Loss):
    """Takes no more samples than one."""

    def forward(self, x: Tensor) -> Any:
        return self.layer(x.view(1, LEN, WIDTH))


@pytest.mark.parametrize(
    ("kind", "score"),
    [
        (Loss, lambda loss: loss),
        (Leaking, metric),
        (Counted, lambda output: output[1]),
        (OfOne, metric),
    ],
)
def test_copies_that_do_not_stay_apart_are_run_alone(kind: type[Loss], score: Any) -> None:
    layers, clean, corrupt = pair()
    model = kind(layers).eval()
    options: dict[str, Any] = {"metric": score, "by": "head,position"}
    for given in ((clean[:1], corrupt[:1]), (clean[:1],)):
        assert list(effects(model, *given, **options)) == list(one_by_one(model, *given, **options))


def test_inputs_without_a_batch_are_run_alone() -> None:
    layers, clean, _ = pair()
    options: dict[str, Any] = {"metric": metric, "by": "head,position"}
    masked = {"x": clean, "mask": torch.ones(LEN, LEN, dtype=torch.bool)}
    first: Any = layers.get_submodule("0")
    for model, given in ((layers, clean[0]), (layers, {"input": clean[0]}), (first, masked)):
        assert list(effects(model, given, **options)) == list(one_by_one(model, given, **options))


def test_an_error_of_the_metric_has_a_note() -> None:
    layers, clean, corrupt = pair()
    for call in (effects, ch.paths):
        with pytest.raises(AttributeError) as raised:
            call(layers, clean, corrupt, metric=lambda output: output.logits)
        assert raised.value.__notes__ == ["The metric gets the output of the model, a Tensor."]


def test_heads_that_are_named_alone_are_measured() -> None:
    attending, clean, corrupt = pair()
    options: dict[str, Any] = {"metric": metric, "progress": False}
    every = {row[:2]: row for row in effects(attending, clean, corrupt, **options)}
    best = effects(attending, clean, corrupt, **options, approximate=True).top(3)
    pairs = [(row.layer, row.head) for row in best]
    expected = [every[pair] for pair in sorted(pairs)]  # in the order of the layers
    for heads in (best, pairs, list(best)):
        assert list(effects(attending, clean, corrupt, **options, heads=heads)) == expected
    for one in (best[0], pairs[0]):
        assert list(effects(attending, clean, corrupt, **options, heads=one)) == [every[pairs[0]]]
    assert effects(attending, clean, metric=metric, heads=[(-1, -1)])[0][:2] == ("1", 3)
    # Rows of other tables name heads too, and those with a position that position alone.
    shares = ch.types.LogitShares([LogitShare("1", 0, 4, 0.5)], torch.zeros(1), torch.ones(1, 1))
    (row,) = effects(attending, clean, corrupt, **options, heads=shares)
    assert row == every["1", 0]
    at = {"by": "head,position", **options}
    places = effects(attending, clean, corrupt, **at, approximate=True)
    (row,) = effects(attending, clean, corrupt, **at, heads=places.top(1))
    assert (row.layer, row.head, row.position) == (*places.top(1)[0][:2], places.top(1)[0].position)
    assert len(effects(attending, clean, corrupt, **at, heads=[("1", 0), ("0", 1)])) == 2 * LEN


def test_estimates_are_exact_where_the_metric_is_linear() -> None:
    attending, clean, corrupt = pair()
    with torch.no_grad(), ch.watch(attending, keep="contexts") as seen:
        attending(corrupt)
    for given, to in (((clean, corrupt), {}), ((clean,), {}), ((clean,), {"mean": seen})):
        for by in ("head", "head,position", "layer"):
            options: dict[str, Any] = {"metric": total, "by": by, "layers": [1], **to}
            exact = effects(attending, *given, **options)
            with torch.no_grad():  # gradients are taken all the same
                near = effects(attending, *given, **options, approximate=True)
            assert [row[:2] for row in near] == [row[:2] for row in exact]
            assert near["change"].tolist() == pytest.approx(exact["change"].tolist(), abs=1e-9)
    shared = Shared().double()
    near = effects(shared, clean, total, approximate=True, by="call")
    last = [row.call == 2 for row in near]
    exact = effects(shared, clean, total, by="call")["metric"]
    torch.testing.assert_close(near["metric"][last], exact[last])


@pytest.mark.parametrize("call", [effects, ch.paths])
def test_an_interrupt_gives_what_there_is(call: Any) -> None:
    attending, clean, corrupt = pair()

    def stop(done: int, total: int, last: int = 3) -> None:
        if done == last:
            raise KeyboardInterrupt

    text = re.escape("[edit.interrupted] 3 of 8 runs are done")
    with pytest.warns(ch.errors.EditWarning, match=text) as said:
        assert len(call(attending, clean, corrupt, metric=metric, progress=stop)) == 3
    assert said[0].filename == __file__
    with pytest.raises(KeyboardInterrupt):
        call(attending, clean, corrupt, metric=metric, progress=partial(stop, last=0))
    assert not any(each._forward_hooks for each in attending.modules())


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"by": "all"}, "by.value", 'by // "head", "head,position", "call", "layer" // \'all\''),
    ({"patch": "x"}, "patch.value", 'patch // "z", "pattern", "value", "query", "key" // \'x\''),
    ({"metric": None}, "effects.metric", "None"),
    ({"metric": lambda output: output}, "effects.metric", "(2, 5, 12)"),
    ({"layers": "0"}, "layers.list", "'0'"),
    ({"progress": 3}, "effects.progress", "3"),
    ({"mean": torch.zeros(3)}, "effects.ablate", ""),
    ({"approximate": 0}, "approximate.type", "approximate // 0"),
    ({"heads": 3}, "effects.heads", "heads // 3"),
    ({"heads": []}, "effects.heads", "heads // []"),
    ({"heads": "0"}, "effects.heads", "heads // '0'"),
    ({"heads": [("0", None)]}, "effects.heads", "heads // [('0', None)]"),
    ({"heads": [(0, 0)], "by": "layer"}, "effects.heads", ""),
    ({"heads": [(0, 99)]}, "edit.heads", "heads[99] // 0 // 4"),
    ({"heads": [(9, 0)]}, "edit.layers", "9 // '0', '1'"),
    ({"metric": lambda output: 3, "approximate": True}, "effects.gradients", "3"),
]


test_what_effects_refuses = refusals(
    lambda options: effects(*pair(), **({"metric": metric} | options)),
    *((options, code, *filter(None, [values])) for options, code, values in REFUSED),
)


test_models_and_inputs_that_do_not_fit = refusals(
    run,
    (lambda: effects(nn.Linear(WIDTH, 2), torch.randn(2, WIDTH), metric), "effects.none", "Linear"),
    *(
        (lambda call=call, given=given: call(given), "inputs.type", type(given).__name__)
        for given in ("a text", [[1, 2, 3]], 3)
        for call in (
            lambda given: effects(pair()[0], given, metric),
            lambda given: ch.paths(*pair()[:2], given, metric=metric),
            lambda given: ch.reading.lens(pair()[0], given, top=1),
            lambda given: ch.reading.logits_of(pair()[0], given, 0),
        )
    ),
)


@pytest.mark.parametrize("patch", ["z", "value"])
def test_runs_of_other_sizes_are_refused(patch: str) -> None:
    attending, clean, corrupt = pair()
    text = re.escape("[effects.inputs] the clean and the corrupt run must have the same numbers of")
    with pytest.raises(ch.errors.EditError, match=text):
        effects(attending, clean[:, :3], corrupt, metric=metric, patch=patch)
    assert_refused(lambda: ch.effects(wrong(3), clean, metric), "edit.model", "int")
