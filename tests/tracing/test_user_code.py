"""Anybody's code as a trace: what it computed, bit for bit, and what the definition expects."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead import ladder, stages
from clearhead.drawing.element.trace_page import trace_payload
from clearhead.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from clearhead.ladder import EXAMPLE_EMBEDDINGS, EXAMPLE_TOKENS
from tests.refusals import assert_refused
from tests.tracing import user_code

BATCH = torch.stack([EXAMPLE_EMBEDDINGS, EXAMPLE_EMBEDDINGS.flip(0)])
OF_HEADS = (
    "Heads",
    "HeadByHead",
    "Projected",
    "MergedWithoutTranspose",
    "SplitWithoutTranspose",
)
RIGHT = {
    "Own": False,
    "Exponentials": False,
    "Dropped": False,
    "Causal": True,
    "MaskThenScale": True,
    "Renormalised": True,
    "Heads": True,
    "HeadByHead": True,
    "Projected": True,
}
WRONG = [
    ("SmallNegative", None, "masked_scores"),
    ("SmallNegative", True, "masked_scores"),
    ("HalfPower", None, "scaled_scores"),
    ("SoftmaxAgain", None, "changed_weights"),
    ("Columns", None, "weights"),
    ("MaskAfterSoftmax", None, "masked_scores"),
    ("LostMask", True, "masked_scores"),
    ("Own", True, "masked_scores"),
    ("Causal", False, "masked_scores"),
]
UNCOMPARED = {"TrilOnValues": "value", "SplitWithoutTranspose": "query and key and value"}
MASK = ch.causal()
RUNGS: dict[str, tuple[Any, tuple[Tensor, ...]]] = {
    "simple": (ladder.SimpleAttention, ()),
    "parameters": (lambda: ladder.SelfAttention(3, head_dim=2), ()),
    "layers": (lambda: ladder.SelfAttentionWithLayers(3, head_dim=2), ()),
    "cross": (lambda: ladder.CrossAttention(3, head_dim=2), (torch.randn(4, 3),)),
    "renormalised": (lambda: ladder.RenormalisedAttention(3, head_dim=2, mask=MASK), ()),
    "masked": (lambda: ladder.MaskedAttention(3, head_dim=2, mask=MASK), ()),
    "dropout": (lambda: ladder.DropoutAttention(3, head_dim=2, mask=MASK, dropout=0.5), ()),
    "side by side": (
        lambda: ladder.ConcatenatedHeads(
            [ladder.MaskedAttention(3, head_dim=2, mask=MASK) for _ in range(2)]
        ),
        (),
    ),
    "split": (lambda: ladder.SplitHeads(3, num_heads=3, mask=MASK), ()),
}


def made(name: str) -> tuple[nn.Module, Tensor]:
    """A class, and what it is called with."""
    torch.manual_seed(123)
    if name in OF_HEADS:
        return getattr(user_code, name)(3, 4, 2), BATCH
    return getattr(user_code, name)(3, 3 if name == "HalfPower" else 2), EXAMPLE_EMBEDDINGS


def definition(model: Any, x: Tensor, causal: bool) -> stages.Stages:
    """The stages by the definition, of the model's own matrices."""
    query, key, value = (linear(x) for linear in (model.W_query, model.W_key, model.W_value))
    if model.num_heads > 1:
        query, key, value = (
            each.unflatten(-1, (model.num_heads, -1)).transpose(1, 2)
            for each in (query, key, value)
        )
    visible = ch.causal().to_dense(6, 6) if causal else None
    scale = query.shape[-1] ** -0.5
    return stages.compute(query, key, value, scale=scale, visible=visible)


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("name", RIGHT)
def test_right_code(name: str, declared: bool) -> None:
    model, x = made(name)
    options: dict[str, Any] = {"causal": RIGHT[name]} if declared else {}
    torch.manual_seed(7)
    steps = ch.trace(model, x, tokens=EXAMPLE_TOKENS, **options)
    torch.manual_seed(7)
    output = model(x)
    assert (steps.kernel, steps.difference) == (None, 0.0)
    assert torch.equal(steps.get("output", steps["context"]), output)
    assert steps.expected is None
    assert ("the definition, with" in steps.verdict) == (not declared)
    right = definition(model, x, RIGHT[name])
    if name == "Dropped":
        torch.testing.assert_close(steps["weights"], right.weights.detach())
    else:
        torch.testing.assert_close(steps["dropped_weights"], right.weights.detach())
        torch.testing.assert_close(steps["context"], right.context.detach())


@pytest.mark.parametrize(("name", "causal", "stage"), WRONG)
def test_wrong_code(name: str, causal: bool | None, stage: str) -> None:
    model, x = made(name)
    steps = ch.trace(model, x, tokens=EXAMPLE_TOKENS, causal=causal)
    assert torch.equal(steps.get("output", steps["context"]), model(x))
    assert steps.expected is not None
    assert steps.expected.stage == stage
    assert f"not the definition: {stage} is the first" in str(steps)
    assert f"expected_{stage}  [" in str(steps)
    should = steps.expected.tensor
    assert should.shape == steps[stage].shape
    assert not torch.allclose(should, steps[stage].float())
    hides = (
        causal if causal is not None else name in ("SmallNegative", "LostMask", "MaskAfterSoftmax")
    )
    right = definition(model, x, hides)
    if stage in right._fields:
        torch.testing.assert_close(should, getattr(right, stage).detach())


@pytest.mark.parametrize("name", UNCOMPARED)
def test_rows_of_several_tokens_are_not_compared(name: str) -> None:
    model, x = made(name)
    steps = ch.trace(model, x)
    assert steps.expected is None
    assert steps.verdict.endswith(f"rows of {UNCOMPARED[name]} mix several tokens")


@pytest.mark.parametrize("name", RUNGS)
def test_rungs(name: str) -> None:
    make, others = RUNGS[name]
    rung = make().eval()
    steps = ch.trace(rung, EXAMPLE_EMBEDDINGS, *others)
    assert set(stages.NAMES) <= set(steps)
    result = steps.get("output", steps["context"])
    torch.testing.assert_close(result, rung(EXAMPLE_EMBEDDINGS, *others).detach())
    assert steps.expected is None
    assert all(step.line == "" for step in steps.steps.values())


def test_a_mask_of_the_call_is_traced() -> None:
    rung = ladder.BatchedAttention(3, head_dim=2, mask=MASK)
    steps = ch.trace(rung, BATCH, mask=ch.padding([3, 6]))
    assert bool((steps["weights"][0, :, 3:] == 0).all())
    assert bool((steps["weights"][1, -1] > 0).all())


def test_numbers_are_bit_for_bit_those_of_the_code() -> None:
    """Everything between the input and the output, in one precision, with dropout."""
    kept: dict[str, Tensor] = {}

    class Keeps(user_code.Own):
        def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            kept["scores"] = query @ key.mT
            kept["scaled_scores"] = kept["scores"] / 2**0.5
            masked = kept["scaled_scores"] + 0
            masked[user_code.future(masked)] = -torch.inf
            kept["masked_scores"] = masked
            kept["weights"] = masked.softmax(-1)
            kept["dropped_weights"] = torch.dropout(kept["weights"], 0.5, True)
            kept["context"] = kept["dropped_weights"] @ value
            return kept["context"]

    steps = ch.trace(Keeps(), EXAMPLE_EMBEDDINGS)
    for name, tensor in kept.items():
        assert torch.equal(steps[name], tensor), name


def test_each_stage_has_its_line() -> None:
    model, x = made("Causal")
    steps = ch.trace(model, x).steps
    source = Path(user_code.__file__).read_text().splitlines()
    for stage, code in [
        ("query", "return self.attend(self.W_query(x), self.W_key(x), self.W_value(x))"),
        ("scaled_scores", "return query @ key.mT / key.shape[-1] ** 0.5"),
        ("masked_scores", "scores = scores.masked_fill(future(scores), -torch.inf)"),
        ("context", "return torch.softmax(scores, dim=-1) @ value"),
    ]:
        number = int(steps[stage].line.removeprefix("line "))
        assert source[number - 1].strip() == code
    assert steps["query"].formula == "x times W_query.weight"
    assert "masked_scores  [query_len=6, kv_len=6]  line " in str(ch.trace(model, x))


@pytest.mark.parametrize("name", ["Causal", "Heads", "Projected", "HeadByHead"])
def test_projections_give_the_numbers(name: str) -> None:
    model, x = made(name)
    steps = ch.trace(model, x)
    for stage in ("query", "key", "value"):
        found = steps.projections[stage]
        source = found.input if found.weight.ndim == 2 else found.input.unsqueeze(-3)
        torch.testing.assert_close(source @ found.weight, steps[stage])
    if name == "Projected":
        found = steps.projections["output"]
        assert found.bias is not None
        torch.testing.assert_close(found.input @ found.weight + found.bias, steps["output"])


def test_a_function_of_query_key_and_value() -> None:
    def mine(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = user_code.scaled(query, key)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return torch.softmax(scores, dim=-1) @ value

    query, key, value = (torch.randn(2, 3, n, 4) for n in (5, 7, 7))
    steps = ch.trace(mine, query, key, value)
    assert list(steps)[:3] == ["query", "key", "value"]
    assert steps.steps["weights"].axes == ("batch", "num_heads", "query_len", "kv_len")
    torch.testing.assert_close(steps["context"], ch.attend(query, key, value))
    flat = ch.trace(mine, query[0], key[0], value[0])
    assert flat.steps["weights"].axes == ("num_heads", "query_len", "kv_len")
    single = ch.trace(mine, query[0, 0], key[0, 0], value[0, 0])
    assert single["weights"].shape == (5, 7)
    mask = ch.causal().to_dense(5, 7)
    hidden = ch.trace(mine, query, key, value, mask=mask, causal=True)
    assert hidden.expected is None
    assert torch.equal(hidden["weights"] == 0, ~mask.expand(2, 3, 5, 7))


def test_two_sequences() -> None:
    class Cross(user_code.Own):
        def forward(self, x: Tensor, context: Tensor) -> Tensor:  # type: ignore[override]
            return self.attend(self.W_query(x), self.W_key(context), self.W_value(context))

    source = torch.randn(4, 3)
    steps = ch.trace(Cross(), EXAMPLE_EMBEDDINGS, source, tokens=EXAMPLE_TOKENS)
    assert list(steps)[:2] == ["x", "source"]
    assert steps["weights"].shape == (6, 4)
    assert steps.steps["key"].formula == "source times W_key.weight"
    assert steps.expected is None


def test_a_batch_as_one_long_text() -> None:
    class Flattened(user_code.Own):
        def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            query, key, value = (each.flatten(0, 1) for each in (query, key, value))
            return super().attend(query, key, value).view(2, 6, -1)

    steps = ch.trace(Flattened(), BATCH)
    assert steps["weights"].shape == (12, 12)
    assert "the samples are attended to as one long text" in str(steps)


def test_the_model_is_left_as_it_was() -> None:
    class Counts(user_code.Own):
        def forward(self, x: Tensor) -> Tensor:
            self.calls = getattr(self, "calls", 0) + 1
            return super().forward(x)

    model = Counts()
    ch.trace(model, EXAMPLE_EMBEDDINGS)
    assert not hasattr(model, "calls")
    assert model.training
    assert all(each.grad is None for each in model.parameters())


def test_a_class_and_a_file(tmp_path: Path) -> None:
    place = tmp_path / "mine.py"
    place.write_text(Path(user_code.__file__).read_text())
    path = list(sys.path)
    for thing in (user_code.SmallNegative, f"{place}:SmallNegative"):
        steps = ch.trace(thing, EXAMPLE_EMBEDDINGS)
        assert repr(steps).startswith("Trace of SmallNegative: x, query")
        assert steps.expected is not None
        assert steps.expected.stage == "masked_scores"
    assert sys.path == path


def test_it_draws_itself() -> None:
    model, x = made("SoftmaxAgain")
    steps = ch.trace(model, x, tokens=EXAMPLE_TOKENS)
    text = steps.explain(query=1)
    assert "changed_weights: softmax(weights): a softmax of weights" in text
    row = [f"{float(steps[name][1, 0]):.4f}" for name in ("weights", "changed_weights")]
    assert " → ".join(row) in text
    assert "expected_changed_weights" in steps._repr_html_()
    told = {each["name"]: each for each in trace_payload(steps).data["stages"]}
    assert told["changed_weights"]["of"] == "weights"
    assert told["expected_changed_weights"]["of"] == "changed_weights"
    assert "of" not in told["weights"]
    with pytest.raises(UnsupportedError, match=r"\[figure.stages\].* stages that are not those"):
        ch.figure(steps)


def test_unreadable_code_is_refused() -> None:
    def by_numbers(x: Tensor) -> Tensor:
        scores = (x[:, None] * x).sum(-1)
        return torch.softmax(scores, dim=-1) @ x

    def half(x: Tensor) -> Tensor:
        return torch.softmax(x @ x.T, dim=-1)

    def loop(x: Tensor) -> Tensor:
        return torch.stack([torch.softmax(row @ x.T, dim=-1) @ x for row in x])

    for code in (by_numbers, half, loop, nn.Linear(3, 3)):
        name = getattr(code, "__name__", "Linear")
        assert_refused(lambda code=code: ch.trace(code, EXAMPLE_EMBEDDINGS), "trace.unread", name)


def test_what_is_declared() -> None:
    def mine(x: Tensor, scale: float) -> Tensor:
        return torch.softmax(x @ x.T * scale, dim=-1) @ x

    steps = ch.trace(mine, EXAMPLE_EMBEDDINGS, scale=0.5)
    assert steps.scale == pytest.approx(0.5)
    assert steps.expected is not None  # 0.5 was handed over, and 1/√3 is the definition's
    with pytest.raises(ArgumentTypeError, match=r"\[causal.type\]"):
        ch.trace(user_code.Causal, EXAMPLE_EMBEDDINGS, causal="yes")
    with pytest.raises(ArgumentError, match="window must hold"):
        ch.trace(user_code.Causal, EXAMPLE_EMBEDDINGS, window=(-1, 0))
    contract = ch.Contract(causal=True)
    assert ch.trace(user_code.Causal, EXAMPLE_EMBEDDINGS, contract=contract).expected is None
    slopes = ch.trace(user_code.Own, EXAMPLE_EMBEDDINGS, alibi_slopes=torch.ones(1))
    assert re.search(r"not compared with the definition: alibi_slopes", str(slopes))
