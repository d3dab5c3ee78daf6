"""`check_training` and `assert_trains`: what they refuse, what they leave alone, what they say."""

import copy
import random
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import clearhead as ch
from clearhead.testing.training.script import LossCall, same
from clearhead.testing.training.script_calls import targets
from clearhead.testing.trains import CODES
from tests.refusals import refusals
from tests.surface import ROOT
from tests.testing.training.bank import Made, decoder, next_token, warmed


def codes(made: Made) -> list[str]:
    return [each.code for each in ch.testing.check_training(**made).findings]


def test_everything_is_left_as_it_was() -> None:
    drawn = torch.Generator().manual_seed(5)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return next_token(model, ids) + 0.0 * torch.rand((), generator=drawn)

    made = warmed(decoder(loss, dropout=0.1))
    model, optimizer = made["model"], made["optimizer"]
    model.blocks[0].eval()
    loss(model, made["batch"]).backward()
    optimizer.step()

    def kept() -> list[Any]:
        return copy.deepcopy(
            [
                model.state_dict(),
                [each.grad for each in model.parameters()],
                [each.training for each in model.modules()],
                optimizer.state_dict(),
                made["state"]["scheduler"].state_dict(),
                made["batch"],
                drawn.get_state(),
                torch.get_rng_state(),
                list(random.getstate()[1]),
            ]
        )

    before = kept()
    parameters = [id(each) for each in model.parameters()]
    ch.testing.check_training(**made)
    for one, other in zip(before, kept(), strict=True):
        assert same(one, other)
    assert [id(each) for each in model.parameters()] == parameters


def test_the_same_answer_twice() -> None:
    made = decoder(dropout=0.1)
    assert ch.testing.check_training(**made) == ch.testing.check_training(**made)


def test_an_assertion_says_what_is_broken_or_not_judged() -> None:
    def squared(model: nn.Module, ids: Tensor) -> Tensor:
        return (model(ids) - 1).square().mean()

    ch.testing.assert_trains(**decoder())
    with pytest.raises(
        AssertionError, match=r"(?s)^Decoder\n.*✗ train.moved   parameters have not"
    ):
        ch.testing.assert_trains(**decoder(rate=0.0))
    other = decoder(squared)
    with pytest.raises(AssertionError, match=r"\? not judged  train.target: the loss is no cross"):
        ch.testing.assert_trains(**other)
    ch.testing.assert_trains(**other, allow_unverified=True)
    uncalled = decoder(lambda model, ids: model.head.weight.square().sum())
    reasons = "".join(ch.testing.check_training(**uncalled).unverified)
    assert "train.eval: the loss does not call model(…)" in reasons


@pytest.mark.parametrize("scale", [0.5, 0.02])
def test_a_right_script_passes_however_it_starts_and_learns(scale: float) -> None:
    """The first loss depends on the initialisation, and what some steps change on their size: no laws."""
    made = decoder(rate=1e-3)
    for each in made["model"].parameters():
        if each.ndim == 2:
            nn.init.normal_(each, std=scale)
    ch.testing.assert_trains(**made)


def test_a_law_is_left_out_with_its_reason() -> None:
    made = decoder(rate=0.0)
    assert codes(made) == ["train.moved"]
    report = ch.testing.check_training(**made, skip={"train.moved": "a rate of 0"})
    assert report.ok
    assert "train.moved: a rate of 0" in report.skipped


def test_losses_of_other_kinds_that_are_right() -> None:
    def smoothed(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids)[:, :-1].mT, ids[:, 1:], label_smoothing=0.1)

    def summed(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids)[:, :-1].mT, ids[:, 1:], reduction="sum")

    def weighted(model: nn.Module, ids: Tensor) -> Tensor:
        weight = torch.linspace(0.5, 2.0, 13)
        return F.cross_entropy(model(ids)[:, :-1].mT, ids[:, 1:], weight=weight)

    def picked(model: nn.Module, ids: Tensor) -> Tensor:
        return F.nll_loss(model(ids)[:, :-1].mT, ids[:, 1:])

    for loss in (smoothed, summed, weighted):
        report = ch.testing.check_training(**decoder(loss))
        assert report.ok, f"{loss.__name__}: {report}"
    made = decoder(picked)
    made["model"] = nn.Sequential(made["model"], nn.LogSoftmax(-1))
    assert ch.testing.check_training(**made).ok


def test_a_model_that_fails_in_a_law_is_not_judged_by_it() -> None:
    def accumulate(model: nn.Module, batches: list[Tensor]) -> None:
        raise ValueError("one batch only")

    report = ch.testing.check_training(**decoder(), accumulate=accumulate)
    assert report.findings == ()
    assert report.unverified == ("train.accumulation: ValueError: one batch only",)


def test_parameters_that_do_not_move() -> None:
    made = decoder()
    made["model"] = model = made["model"].bfloat16()
    made["optimizer"] = torch.optim.SGD(model.parameters(), lr=1e-6)
    assert "train.moved" in codes(made)


def test_an_optimizer_with_a_parameter_twice_or_of_another_model() -> None:
    made = decoder()
    weight = made["model"].norm.weight
    made["optimizer"].add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    made["optimizer"].param_groups[0]["params"].append(weight)
    report = ch.testing.check_training(**made)
    (found,) = [each for each in report.findings if each.code == "train.optimizer"]
    assert found.measured == "2: norm.weight (2 times), 1 that are not the model's"


def test_the_state_that_was_lost_is_named() -> None:
    made = warmed(decoder(dropout=0.1))
    made |= {
        "save": lambda model, optimizer, scheduler: model.state_dict(),
        "load": lambda saved, model, optimizer, scheduler: model.load_state_dict(saved),
    }
    (found,) = ch.testing.check_training(**made).findings
    assert found.measured == "not loaded: optimizer, scheduler"


def test_a_gradient_scaler_steps() -> None:
    made: Made = decoder() | {"state": {"scaler": torch.amp.GradScaler("cpu", init_scale=8.0)}}
    assert ch.testing.check_training(**made).ok


def test_a_row_that_weighs_a_millionth_has_no_target() -> None:
    logits, rows = torch.zeros(3, 5, requires_grad=True), torch.arange(3)
    weights = torch.tensor([1.0, 1.5e-6, 0.5e-6])
    loss = (weights * F.cross_entropy(logits, rows, reduction="none")).sum()
    found = targets(LossCall(loss, logits, ((), {})))
    assert found is not None
    assert found.used.tolist() == [True, True, False]


def test_what_a_model_of_pairs_returns() -> None:
    """Logits beside the loss, of a model that computes both."""

    class Both(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.inner(ids)
            return logits, F.cross_entropy(logits.mT, labels)

    made = decoder(lambda model, batch: model(batch["ids"], batch["labels"])[1])
    made["model"] = Both(made["model"])
    text = torch.randint(1, 13, (4, 13))
    made["batch"] = {"ids": text[:, :-1], "labels": text[:, 1:]}
    assert ch.testing.check_training(**made).ok


def locked() -> Made:
    """A script whose model cannot be copied."""
    made = decoder()
    made["model"].lock = threading.Lock()
    return made


ONES = torch.ones(2, 3).long()

test_what_is_refused = refusals(
    lambda changed: ch.testing.check_training(**decoder() | changed),
    ({"model": 3}, "trains.part", "model // an nn.Module // 3"),
    ({"optimizer": 3}, "trains.part", "optimizer // a torch.optim.Optimizer // 3"),
    ({"loss": 3}, "trains.part", "loss // a function // 3"),
    ({"accumulate": 3}, "trains.part", "accumulate // a function or None // 3"),
    ({"loss": lambda model, ids: model(ids)}, "trains.loss", "(4, 12, 13)"),
    (
        {"loss": lambda model, ids: model(ids, 1, 2).mean()},
        "trains.call",
        "TypeError: Decoder.forward() takes from 2 to 3 positional arguments but 4 were given",
    ),
    ({"batch": (1, 2)}, "trains.batch", "'tuple'"),
    ({"batch": torch.zeros(2, 3)}, "trains.ids", "None // none"),
    ({"batch": {"a": ONES, "b": ONES}}, "trains.ids", "None // 'a', 'b'"),
    ({"padding": "mask"}, "trains.entry", "padding // 'mask' // 'ids'"),
    ({"documents": True}, "trains.entry", "documents // True // 'ids'"),
    ({"save": next_token}, "trains.load"),
    ({"skip": {"leak": "why"}}, "trains.skip", f"{', '.join(CODES)} // 'leak'"),
    (locked(), "trains.copy", "TypeError: cannot pickle '_thread.lock' object"),
)


def test_each_code_is_explained_on_the_page() -> None:
    laws = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").partition("## The laws")[2]
    page = (ROOT / "src" / "clearhead" / "testing" / "mistakes.md").read_text(encoding="utf-8")
    for code in CODES:
        assert page.count(f"\n## {code}\n") == 1, code
        assert laws.count(f"`{code}`") == 1, code
