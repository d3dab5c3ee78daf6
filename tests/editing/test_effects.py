"""The effects of the heads, held against each ablation alone."""

import re
import sys
from typing import Any

import matplotlib
import pytest
import torch
from matplotlib import pyplot
from torch import Tensor, nn

import clearhead as ch
from clearhead.editing import replaying
from clearhead.errors import ArgumentError, ArgumentTypeError, EditError
from clearhead.reading.logit_shares import LogitShare
from tests.refusals import assert_refused, wrong

WIDTH, HEADS, LEN = 12, 4, 5
effects: Any = ch.effects  # also with arguments that it does not take


def model() -> nn.Module:
    return nn.Sequential(
        *(ch.MultiHeadAttention(WIDTH, num_heads=heads) for heads in (HEADS, 2))
    ).eval()


def metric(output: Tensor) -> Tensor:
    return output.square().mean()


def test_each_row_is_the_ablation_of_that_head_alone() -> None:
    attending, x = model(), torch.randn(2, LEN, WIDTH)
    found = effects(attending, x, metric)
    assert [(row.layer, row.head) for row in found] == [("0", h) for h in range(HEADS)] + [
        ("1", 0),
        ("1", 1),
    ]
    assert found.baseline == float(metric(attending(x)).detach())
    for row in found:
        with ch.edit(attending) as edit:
            edit[row.layer].heads[row.head or 0].ablate()
            alone = float(metric(attending(x)).detach())
        assert (row.metric, row.change) == (alone, alone - found.baseline)
        assert row.change != 0
    best = found.top(2)
    assert len(best) == 2
    assert [abs(row.change) for row in best] == sorted(abs(row.change) for row in found)[:-3:-1]
    assert repr(found[:1]).splitlines()[1].startswith("  0  head 0")


def test_layers_and_inputs_of_every_kind() -> None:
    attending, x = model(), torch.randn(2, LEN, WIDTH)
    whole = effects(attending, {"input": x}, metric, by="layer")
    again = effects(attending, (x,), lambda out: float(metric(out)), by="layer", layers=[1])
    assert [(row.layer, row.head) for row in whole] == [("0", None), ("1", None)]
    assert again[0] == whole[1]


def test_progress_is_reported_run_by_run() -> None:
    done: list[tuple[int, int]] = []
    x = torch.randn(1, LEN, WIDTH)
    effects(model(), x, metric, layers=["1"], progress=lambda *counts: done.append(counts))
    assert done == [(0, 2), (1, 2), (2, 2)]


def test_a_terminal_shows_the_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(1, LEN, WIDTH)
    effects(model(), x, metric, layers=["1"], progress=True)
    assert capsys.readouterr().err == ""  # no terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    effects(model(), x, metric, layers=["1"], progress=True)
    lines = capsys.readouterr().err.split("\r")
    assert lines == [*(f"effects: {done} of 2 runs" for done in range(3)), "\x1b[K"]


def test_a_picture_has_the_changes() -> None:
    matplotlib.use("Agg")
    found = effects(model(), torch.randn(1, LEN, WIDTH), metric)
    axes = found.plot()
    image = axes.images[0].get_array()
    assert image.shape == (2, HEADS)
    assert image[0].tolist() == [row.change for row in found[:HEADS]]
    assert image.mask[1].tolist() == [False, False, True, True]
    assert axes.get_xlabel() == "head ablated"
    layers = effects(model(), torch.randn(1, LEN, WIDTH), metric, by="layer").plot()
    assert layers.images[0].get_array().shape == (2, 1)
    pyplot.close("all")


def test_what_has_no_effect_to_measure_is_refused() -> None:
    x = torch.randn(1, LEN, WIDTH)
    with pytest.raises(
        ArgumentError, match=re.escape('[by.value] by must be one of "head", "head,')
    ):
        effects(model(), x, metric, by="all")
    with pytest.raises(ArgumentTypeError, match=re.escape("[effects.metric] metric must make one")):
        effects(model(), x, lambda output: output)
    wrong: dict[str, tuple[Any, str]] = {
        "metric": (None, "[effects.metric] metric must make one number of an output; got None."),
        "layers": ("0", "[layers.list] layers must be a list of paths and numbers, or None for all; got '0'."),
        "progress": (3, "[effects.progress] progress must be True, False, or a function of the runs"),
    }  # fmt: skip
    for name, (given, text) in wrong.items():
        options: dict[str, Any] = {"metric": metric, name: given}
        with pytest.raises(ArgumentTypeError, match=re.escape(text)):
            effects(model(), x, **options)
    assert_refused(lambda: effects(nn.Linear(WIDTH, 2), x, metric), "effects.none", "Linear")


def pair() -> tuple[nn.Module, Tensor, Tensor]:
    """A model, and inputs that differ in all but their first two tokens."""
    attending = nn.Sequential(
        *(ch.MultiHeadAttention(WIDTH, num_heads=HEADS, mask=ch.causal()) for _ in "ab")
    )
    clean, corrupt = torch.randn(2, 2, LEN, WIDTH, dtype=torch.float64)
    corrupt[:, :2] = clean[:, :2]
    return attending.double().eval(), clean, corrupt


@pytest.mark.parametrize("patch", ["z", "pattern", "value", "query", "key"])
@torch.no_grad()
def test_a_patched_head_is_that_of_the_clean_run(patch: Any) -> None:
    attending, clean, corrupt = pair()
    found = effects(attending, clean, corrupt, metric=metric, patch=patch)
    assert found.clean == float(metric(attending(clean)))
    assert found.baseline == float(metric(attending(corrupt)))
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
            parts["value"] = theirs.value
        elif patch == "pattern":
            parts["weights"] = theirs.dense()
        else:
            parts["weights"], parts["value"] = theirs.dense(), theirs.value
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
        share = (row.metric - found.baseline) / (found.clean - found.baseline)
        assert row.restored == pytest.approx(share, abs=1e-12)
    assert "metric corrupt: " in repr(found)
    assert "restored +" in repr(found) or "restored -" in repr(found)


@torch.no_grad()
def test_positions_and_layers_are_patched_alone() -> None:
    attending, clean, corrupt = pair()
    last = effects(attending, clean, corrupt, metric=metric, by="layer", layers=[-1])
    assert last[0].restored == pytest.approx(1.0)
    found = effects(attending, clean, corrupt, metric=metric, by="head,position")
    assert len(found) == 2 * HEADS * LEN
    early = [row for row in found if row.layer == "0" and (row.position or 0) < 2]
    assert all(row.restored == 0 for row in early)  # where the texts are alike
    with ch.watch(attending, keep="contexts") as seen:
        attending(clean)
    row = found[HEADS * LEN + 2 * LEN + 3]
    assert (row.layer, row.head, row.position) == ("1", 2, 3)
    with ch.edit(attending) as edit:
        edit[1].heads[2].replace(seen, query=3)
        assert row.metric == pytest.approx(float(metric(attending(corrupt))), abs=1e-12)
    ablated = effects(attending, clean, metric, by="head,position", layers=[0])
    with ch.edit(attending) as edit:
        edit[0].heads[1].ablate(query=4)
        expected = float(metric(attending(clean)))
        assert ablated[LEN + 4].metric == pytest.approx(expected, abs=1e-12)


def one_by_one(monkeypatch: pytest.MonkeyPatch, *args: Any, **options: Any) -> ch.types.Effects:
    with monkeypatch.context() as patched:
        patched.setattr(replaying, "TOKENS", 0)
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
        alone = one_by_one(monkeypatch, attending, *given, **options)
        assert set(batches) == {2}
        for tokens in (20, 30, 256, 10_000):
            monkeypatch.setattr(replaying, "TOKENS", tokens)
            counts.clear()
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


@pytest.mark.parametrize(
    ("kind", "score"),
    [(Loss, lambda loss: loss), (Leaking, metric), (Counted, lambda output: output[1])],
)
def test_copies_that_do_not_stay_apart_are_run_alone(
    kind: type[Loss], score: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, clean, corrupt = pair()
    model = kind(layers).eval()
    options: dict[str, Any] = {"metric": score, "by": "head,position"}
    for given in ((clean[:1], corrupt[:1]), (clean[:1],)):
        found = effects(model, *given, **options)
        assert list(found) == list(one_by_one(monkeypatch, model, *given, **options))


def test_inputs_without_a_batch_are_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, clean, _ = pair()
    options: dict[str, Any] = {"metric": metric, "by": "head,position"}
    for given in (clean[0, :, :], {"input": clean[0]}):
        found = effects(layers, given, **options)
        assert list(found) == list(one_by_one(monkeypatch, layers, given, **options))
    masked = ch.MultiHeadAttention(WIDTH, num_heads=HEADS).double()
    given = {"x": clean, "mask": torch.ones(LEN, LEN, dtype=torch.bool)}
    found = effects(masked, given, **options)
    assert list(found) == list(one_by_one(monkeypatch, masked, given, **options))


class Shared(nn.Module):
    """One attention, three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = ch.MultiHeadAttention(WIDTH, num_heads=HEADS)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x + self.layer(x)
        return x


def test_a_head_that_layers_share_is_edited_in_all_of_its_calls_or_in_one() -> None:
    model, (clean, corrupt) = Shared().double(), torch.randn(2, 1, LEN, WIDTH).double()
    for given in ((clean, metric), (clean, corrupt, metric)):
        every, calls = effects(model, *given), effects(model, *given, by="call")
        assert [(row.head, row.call) for row in calls] == [
            (head, call) for head in range(HEADS) for call in range(3)
        ]
        with torch.no_grad(), ch.watch(model, keep="contexts") as seen:
            model(clean)
        for row in (*every, *calls):
            with torch.no_grad(), ch.edit(model) as edit:
                layer = edit["layer"] if row.call is None else edit["layer"].call(row.call)
                head = layer.heads[row.head or 0]
                head.ablate() if len(given) == 2 else head.replace(seen)
                assert row.metric == float(metric(model(given[-2])))
            assert edit.report[0].calls == (3 if row.call is None else 1)
    near = effects(model, clean, linear, approximate=True, by="call")
    last = [row.call == 2 for row in near]
    exact = effects(model, clean, linear, by="call")["metric"]
    torch.testing.assert_close(near["metric"][last], exact[last])


def linear(output: Tensor) -> Tensor:
    """A metric that is linear in the contexts of the last call."""
    return output.sum()


def test_clean_and_corrupt_are_the_words_of_both() -> None:
    attending, clean, corrupt = pair()
    given: dict[str, Any] = {"clean": clean, "corrupt": corrupt, "metric": metric}
    assert list(effects(attending, **given)) == list(effects(attending, clean, corrupt, metric))
    ablated = effects(attending, clean=clean, metric=metric)
    assert list(ablated) == list(effects(attending, clean, metric))
    assert len(ch.paths(attending, **given)) == 2 * HEADS
    assert list(effects(attending, **given, patch="v")) == list(
        effects(attending, **given, patch="value")
    )


class Named(nn.Module):
    """An output with names, as in transformers."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.layers(x)}


def test_a_metric_that_raises_is_told_what_it_gets() -> None:
    layers, clean, corrupt = pair()
    text = (
        "[effects.metric] metric gets the output of the model, here dict with logits, and must make one number of it, "
        "such as output.logits[0, -1, 3]; it raised "
    )
    calls: dict[str, Any] = {
        "TypeError: ": lambda logits: logits + 1,
        "KeyError: ": lambda logits: logits[0, -1, 3],
        "AttributeError: ": lambda output: output.logits,
    }
    for raised, mistaken in calls.items():
        for call in (effects, ch.paths):
            with pytest.raises(ArgumentTypeError, match=re.escape(text + raised)):
                call(Named(layers), clean, corrupt, metric=mistaken)

    def refused(output: Any) -> Any:
        raise EditError("edit.batch", "as it is")

    with pytest.raises(EditError, match=re.escape("[edit.batch] as it is")):
        effects(Named(layers), clean, corrupt, metric=refused)


@pytest.mark.parametrize("given", ["a text", [[1, 2, 3]], 3, None])
def test_what_is_no_input_is_refused(given: Any) -> None:
    layers, clean, _ = pair()
    text = "[inputs.type] inputs must be a tensor, a tuple of arguments, or a mapping of named arguments; got "
    calls: list[Any] = [
        lambda: effects(layers, given, metric),
        lambda: ch.paths(layers, clean, given, metric=metric),
        lambda: ch.reading.lens(layers, given, top=1),
        lambda: ch.reading.logits_of(layers, given, 0),
    ]
    for call in calls:
        with pytest.raises(ArgumentTypeError, match=re.escape(text + type(given).__name__)):
            call()


@pytest.mark.parametrize("by", ["head", "layer", "head,position"])
def test_heads_are_ablated_to_means_as_in_an_edit(by: str) -> None:
    attending = model().double()
    texts, x = torch.randn(3, 7, WIDTH).double(), torch.randn(2, LEN, WIDTH).double()
    with torch.no_grad(), ch.watch(attending, keep="contexts") as seen:
        attending(texts)
    with torch.no_grad(), ch.watch(attending, keep="total", contexts=True) as totals:
        attending(texts)
    ways: list[dict[str, Any]] = [{"mean": seen}, {"mean": totals}]
    for to in ways:
        found = effects(attending, x, metric, by=by, **to)
        for row in found:
            with torch.no_grad(), ch.edit(attending) as edit:
                layer = edit[row.layer]
                chosen = layer if row.head is None else layer.heads[row.head]
                chosen.ablate(**to, query=row.position)
                assert row.metric == pytest.approx(float(metric(attending(x))), abs=1e-12)
        assert len({row.metric for row in found}) == len(found)
    assert_refused(lambda: effects(attending, x, x, metric=metric, mean=seen), "effects.ablate")
    # The mean is that of all queries, also by hand.
    with torch.no_grad(), ch.edit(attending) as edit:
        edit["0"].heads[1].ablate(mean=seen["0"].context.mean(dim=(0, 2))[1])
        by_hand = float(metric(attending(x)))
    (row,) = (row for row in effects(attending, x, metric, mean=seen) if row[:2] == ("0", 1))
    assert row.metric == pytest.approx(by_hand, abs=1e-12)


def test_heads_that_are_named_alone_are_measured() -> None:
    attending, clean, corrupt = pair()
    options: dict[str, Any] = {"metric": metric, "progress": False}
    every = {row[:2]: row for row in effects(attending, clean, corrupt, **options)}
    near = effects(attending, clean, corrupt, **options, approximate=True)
    best = near.top(3)
    pairs = [(row.layer, row.head) for row in best]
    runs: list[tuple[int, int]] = []
    found = effects(
        attending, clean, corrupt, metric=metric, heads=best, progress=lambda *at: runs.append(at)
    )
    assert runs[-1] == (3, 3)
    assert list(found) == [every[pair] for pair in sorted(pairs)]  # in the order of the layers
    assert list(effects(attending, clean, corrupt, **options, heads=pairs)) == list(found)
    assert list(effects(attending, clean, corrupt, **options, heads=list(best))) == list(found)
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
    wrong: list[tuple[Any, type[Exception], str]] = [
        (3, ArgumentTypeError, "[effects.heads] heads must be (layer, head), a list of such, rows that name them, or"),
        ([], ArgumentTypeError, "[effects.heads] heads must be (layer, head)"),
        ("0", ArgumentTypeError, "[effects.heads] heads must be (layer, head)"),
        (effects(attending, clean, metric, by="layer"), ArgumentTypeError, "[effects.heads] heads must be"),
        ([(0, 99)], EditError, "[edit.heads] heads[99] are edited; 0 has num_heads="),
        ([(9, 0)], EditError, "[edit.layers] a layer must be the number"),
    ]  # fmt: skip
    for given, kind, text in wrong:
        with pytest.raises(kind, match=re.escape(text)):
            effects(attending, clean, corrupt, **options, heads=given)
    text = '[effects.heads] heads= chooses heads, and by="layer" has none of them by itself.'
    with pytest.raises(ArgumentError, match=re.escape(text)):
        effects(attending, clean, corrupt, **options, heads=best, by="layer")


def test_estimates_are_exact_where_the_metric_is_linear() -> None:
    attending, clean, corrupt = pair()
    linear = lambda output: (output * torch.arange(WIDTH)).sum()  # noqa: E731
    with torch.no_grad(), ch.watch(attending, keep="contexts") as seen:
        attending(corrupt)
    for given, to in (((clean, corrupt), {}), ((clean,), {}), ((clean,), {"mean": seen})):
        for by in ("head", "head,position", "layer"):
            options: dict[str, Any] = {"metric": linear, "by": by, "layers": [1], **to}
            exact = effects(attending, *given, **options)
            with torch.no_grad():  # gradients are taken all the same
                near = effects(attending, *given, **options, approximate=True)
            assert [row[:2] for row in near] == [row[:2] for row in exact]
            assert near["change"].tolist() == pytest.approx(exact["change"].tolist(), abs=1e-9)
    # Elsewhere to first order: the gradient by hand.
    found = effects(attending, clean, corrupt, metric=metric, layers=[0], approximate=True)
    z: list[Tensor] = []

    def take(module: Any, given: Any) -> None:
        given[0].retain_grad()
        z.append(given[0])

    first: Any = attending.get_submodule("0")
    handle = first.output_projection.register_forward_pre_hook(take)
    attending(clean)
    metric(attending(corrupt)).backward()
    handle.remove()
    grad = z[1].grad
    assert grad is not None
    by_hand = ((z[0] - z[1]) * grad).unflatten(-1, (HEADS, -1)).sum(dim=(0, 1, 3))
    assert found["change"].tolist() == pytest.approx(by_hand.tolist(), abs=1e-10)


def test_an_interrupt_gives_what_there_is() -> None:
    attending, clean, corrupt = pair()

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    found = effects(attending, clean, corrupt, metric=metric, progress=stop)
    assert (len(found), found.runs) == (3, 8)
    assert found.caption.endswith("interrupted, 3 of 8")
    with pytest.raises(KeyboardInterrupt):
        effects(attending, clean, metric, progress=lambda done, total: stop(3, 8))


def test_a_picture_of_what_is_restored() -> None:
    matplotlib.use("Agg")
    attending, clean, corrupt = pair()
    heads = effects(attending, clean, corrupt, metric=metric)
    axes = heads.plot()
    assert axes.images[0].get_array()[1].tolist() == [row.restored for row in heads[HEADS:]]
    assert axes.get_xlabel() == "head patched"
    found = effects(attending, clean, corrupt, metric=metric, by="head,position")
    axes = found.plot()
    shown = axes.images[0].get_array()
    assert shown.shape == (2, LEN)
    last = [row.restored or 0 for row in found if (row.layer, row.position) == ("1", 4)]
    assert shown[1, 4] == max(last, key=abs)
    assert axes.get_xlabel() == "position, its largest head patched"
    pyplot.close("all")


def test_inputs_that_do_not_fit_are_refused() -> None:
    attending, clean, corrupt = pair()
    for patch in ("z", "value"):
        text = "[effects.inputs] the clean and the corrupt run must have the same numbers of"
        with pytest.raises(EditError, match=re.escape(text)):
            effects(attending, clean[:, :3], corrupt, metric=metric, patch=patch)
    with pytest.raises(ArgumentError, match=re.escape('[patch.value] patch must be one of "z", ')):
        effects(attending, clean, corrupt, metric=metric, patch="x")
    assert_refused(
        lambda: effects(attending, clean, metric, approximate=wrong(0)),
        "approximate.type",
        "approximate // 0",
    )
    with pytest.raises(EditError, match=re.escape("[effects.gradients] gradients need a metric")):
        effects(attending, clean, lambda out: out.sum().item(), approximate=True)
