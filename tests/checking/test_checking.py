"""`check`: how a subject is found, what is refused, and that nothing of it is changed."""

import copy
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.checking.checking import found_with_takes
from tests.checking.bank import defined

plain = defined("functions.plain")
ARGS = {"d_in": 3, "d_out": 2, "context_length": 6, "dropout": 0.0}
WIDE = {"d_in": 24, "d_out": 12, "context_length": 9, "dropout": 0.0, "num_heads": 3}
CausalAttention = defined("modules.CausalAttention")
CausalAttention004 = defined("modules.CausalAttention004")
MultiHeadAttention = defined("modules.MultiHeadAttention")


def inverted(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.mT / key.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:]).bool().triu(1 + scores.shape[-1] - scores.shape[-2])
    return scores.masked_fill(~future, -torch.inf).softmax(-1) @ value


SOURCE = """
import torch, typing; Width = typing.TypeVar("Width")  # a name that is no class and no function

class Attention(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).mT
        return scores.softmax(-1) @ self.value(x)

def attend(query, key, value):
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    place = tmp_path / "mine.py"
    place.write_text(SOURCE, encoding="utf-8")
    return str(place)


def test_a_file_and_a_name(file: str) -> None:
    assert ch.check(f"{file}:attend", takes="qkv").ok
    report = ch.check(f"{file}:Attention", takes="x", args={"width": 64})
    assert [each.code for each in report.findings] == ["scale.missing"]


def test_a_file_alone_is_answered_with_its_names(file: str) -> None:
    with pytest.raises(ch.errors.ModelError) as caught:
        ch.check(file, takes="x")
    assert str(caught.value) == (
        f"[check.name] say what to check, as {file}:Name; it has Attention, attend."
    )


@pytest.mark.parametrize("before", ["", "class Attention:\n    pass\n\n"])
def test_its_place_is_the_line_where_it_is_written(tmp_path: Path, before: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(before + SOURCE, encoding="utf-8")
    reports = (
        ch.check(f"{file}:Attention", takes="x", args={"width": 64}),
        ch.check(f"{file}:attend", takes="qkv"),
    )
    starts = "class Attention(torch.nn.Module):", "def attend(query, key, value):"
    lines = (before + SOURCE).splitlines()
    assert [report.place for report in reports] == [
        (str(file), lines.index(each) + 1) for each in starts
    ]


def test_a_file_of_a_package_is_a_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its relative imports are followed, also where the package cannot be imported, or is none."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    beside = "from .helping import scale\n\ndef attend(q, k, v):\n    return scale(q, k).softmax(-1) @ v\n"
    helping = "def scale(q, k):\n    return q @ k.mT / q.shape[-1] ** 0.5\n"
    for name, start in (
        ("whole", ""),
        ("wanting", "import no_such_module_here\n"),
        ("plain", None),
    ):
        folder = tmp_path / name / f"{name}_inner"
        folder.mkdir(parents=True)
        if start is not None:
            for each in (folder, folder / "deep"):
                each.mkdir(exist_ok=True)
                (each / "__init__.py").write_text(start, encoding="utf-8")
            folder /= "deep"
        (folder / "helping.py").write_text(helping, encoding="utf-8")
        (folder / "mine.py").write_text(beside, encoding="utf-8")
        (folder / "failing.py").write_text("import no_such_module_here\n", encoding="utf-8")
        assert ch.check(f"{folder}/mine.py:attend", takes="qkv").ok
        with pytest.raises(ch.errors.ModelError, match="No module named 'no_such_module_here'"):
            ch.check(f"{folder}/failing.py:attend", takes="qkv")
    for name in [each for each in sys.modules if each.startswith(("whole_", "wanting_", "plain_"))]:
        del sys.modules[name]


def test_a_dotted_path() -> None:
    assert ch.check("torch.nn.functional.scaled_dot_product_attention", takes="qkv").ok
    assert ch.check("torch.nn.functional:scaled_dot_product_attention", takes="qkv").ok


def refused(**arguments: Any) -> Callable[[], object]:
    return lambda: ch.check(**arguments)


def two_numbers(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return query[..., :2, :2]


def never(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raise ValueError("not today")


def ends_the_program(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    sys.exit(0)


def without_numbers() -> None:
    with torch.device("meta"):
        ch.check(plain, takes="qkv")


class Widthless(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("never")


REFUSED: list[tuple[Callable[[], object], type[ch.errors.ClearheadError], str, str]] = [
    (
        refused(subject=plain, takes="kqv"),
        ch.errors.ArgumentError,
        "check.takes",
        "takes must be one of qkv, qkv,mask, x, x2d, x,mask, x,context, decode, ids, "
        "ids,mask, query,key, scores, weights,value; got 'kqv'.",
    ),
    (
        refused(subject=plain, takes="qkv", args={"d_in": 3}),
        ch.errors.ArgumentError,
        "check.args",
        "args are for a class; what is checked is none.",
    ),
    (
        refused(subject=3, takes="qkv"),
        ch.errors.ArgumentTypeError,
        "check.subject",
        "what is checked must be a class, an instance, a function, or where one is found; got int.",
    ),
    (
        refused(subject=CausalAttention, takes="x", args={"d_inn": 3}),
        ch.errors.ModelError,
        "check.made",
        "CausalAttention(d_in=22, d_out=12, context_length=16, dropout=0.0, d_inn=3) could not be "
        "made: TypeError: CausalAttention.__init__() got an unexpected keyword argument 'd_inn'\n"
        "  args=dict(…) are passed to it, and sizes=dict(…) by the names of its parameters. Or give an "
        "instance: attention = Attention(Config()) in a file is file.py:attention.",
    ),
    (
        refused(subject="attend", takes="qkv"),
        ch.errors.ArgumentError,
        "check.place",
        "a place is \"file.py:Name\" or a dotted import path; got 'attend'.",
    ),
    (
        refused(subject="no_such_module_here.attend", takes="qkv"),
        ch.errors.ModelError,
        "check.import",
        "no_such_module_here could not be imported: ModuleNotFoundError: No module named "
        "'no_such_module_here'",
    ),
    (
        refused(subject=ends_the_program, takes="qkv"),
        ch.errors.ModelError,
        "check.exit",
        "what is checked ended the program, by sys.exit(0).",
    ),
    (
        refused(subject="clearhead.testing:attend", takes="qkv"),
        ch.errors.ModelError,
        "check.name",
        "clearhead.testing has no attend; it has ConformanceCase, assert_attention, "
        "assert_no_worse, assert_trains, check_training, conformance.",
    ),
    (
        refused(subject=plain, takes="qkv", casual=True),
        ch.errors.ArgumentTypeError,
        "check.declared",
        "check takes no casual (causal).",
    ),
    (
        refused(subject=plain, takes="qkv", colour="red"),
        ch.errors.ArgumentTypeError,
        "check.declared",
        "check takes no colour; it takes causal, window, documents, scale, softcap, bias, alibi_slopes, "
        "sinks, rope, num_heads, num_kv_heads, dropout, empty_row, nan_safe, padded_queries, dtypes, world, "
        "layout, sizes.",
    ),
    (
        refused(subject=plain, takes="qkv", contract=ch.Contract(), causal=True),
        ch.errors.ArgumentError,
        "check.contract",
        "declare in the contract or as keywords, not both; got a contract and causal.",
    ),
    (
        refused(subject=plain, takes="qkv", contract={"causal": True}),
        ch.errors.ArgumentTypeError,
        "check.contract",
        "contract must be a clearhead.Contract, or None; got dict.",
    ),
    (
        refused(subject=plain, takes="qkv", sizes=[("d_in", 3)]),
        ch.errors.ArgumentTypeError,
        "sizes.type",
        "sizes must be a mapping of names to numbers; got list.",
    ),
    (
        refused(subject=plain, takes="qkv", seed=-1.5),
        ch.errors.ArgumentError,
        "check.seed",
        "seed must be a whole number, of size below 2⁶²; got -1.5.",
    ),
    (
        refused(subject=never, takes="qkv"),
        ch.errors.ModelError,
        "check.call",
        "never was called with takes='qkv' and raised ValueError: not today\n"
        "  query   [2, 3, 7, 5] float64\n"
        "  key     [2, 3, 7, 5] float64\n"
        "  value   [2, 3, 7, 5] float64\n"
        "If it projects its inputs itself, it takes tokens: takes='x'.\n"
        "If it needs other sizes, give them: sizes=dict(num_heads=…, head_dim=…). If it is called in "
        "another way, check a function that calls it: lambda query, key, value: attention(query, "
        "key, value, …).",
    ),
    (
        refused(subject=two_numbers, takes="qkv"),
        ch.errors.ModelError,
        "check.output",
        "two_numbers must give (batch, num_heads, query_len, value_head_dim), or heads side by "
        "side; from query [2, 3, 7, 5] it gave [2, 3, 2, 2].",
    ),
    (
        refused(subject=Widthless(), takes="x"),
        ch.errors.ModelError,
        "check.width",
        "Widthless does not say how wide a token is; give it: sizes=dict(d_in=…).",
    ),
    (
        refused(subject=Widthless(), takes="x", sizes={"d_in": 3}),
        ch.errors.ModelError,
        "check.call",
        "Widthless was called with takes='x' and raised ValueError: never\n"
        "  x       [2, 7, 3] float64\n"
        "If it needs other sizes, give them: sizes=dict(d_in=…, context_length=…). If it is called "
        "in another way, check a function that calls it: lambda x: attention(x, …).",
    ),
    (
        refused(subject=nn.Linear(40000, 40000, device="meta"), takes="x"),
        ch.errors.ModelError,
        "check.size",
        "Linear has 1.6 billion parameters, and a copy of it is run in float64; check a small one of "
        "the same class: args=dict(…).",
    ),
    (
        refused(subject=nn.LazyLinear(3), takes="x"),
        ch.errors.ModelError,
        "check.lazy",
        "LazyLinear has parameters without a shape, of a lazy module; call it once, so that they get "
        "theirs, and check the instance.",
    ),
    (
        without_numbers,
        ch.errors.ArgumentError,
        "check.device",
        "the default device is meta, on which nothing is computed; set another one: "
        'torch.set_default_device("cpu").',
    ),
    (
        refused(subject=nn.Linear(3, 3), takes="decode"),
        ch.errors.ArgumentTypeError,
        "check.decode",
        "takes='decode' wants an object with reset(), step(x) and full(x); Linear has no reset.",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "code", "message"), REFUSED, ids=[each[2] for each in REFUSED]
)
def test_what_cannot_be_checked_is_refused(
    call: Callable[[], object], error: type[ch.errors.ClearheadError], code: str, message: str
) -> None:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert (caught.value.code, caught.value.message) == (code, message)


def test_sizes_that_a_class_wants_are_guessed_and_told() -> None:
    report = ch.check(CausalAttention, takes="x", causal=True)
    assert report.ok
    assert "made with d_in=22, d_out=12, context_length=16" in report.told


class WithContext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = ch.MultiHeadAttention(8, num_heads=2)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.inner(x, context)


def of_one(x: Tensor) -> Tensor:
    return plain(x, x, x)


@pytest.mark.parametrize(
    ("subject", "takes"),
    [
        (plain, "qkv"),
        (ch.attend, "qkv"),
        (of_one, "x"),
        (ch.MultiHeadAttention(8, num_heads=2), "x"),
        (WithContext, "x,context"),
        (WithContext(), "x,context"),
    ],
    ids=range(6),
)
def test_how_it_is_called_is_seen_and_told(subject: Any, takes: str) -> None:
    report = ch.check(subject)
    assert report.outcome == "right"
    assert report.told[0] == f"called with takes='{takes}', as its parameters suggest"
    assert ch.check(subject, takes=takes).told == report.told[1:]


def test_on_ranks_it_is_called_with_query_key_and_value() -> None:
    of_ranks = ch.Contract(world=2)
    assert found_with_takes(of_one, None, of_ranks) == (of_one, "qkv")


@pytest.mark.parametrize("training", [True, False])
def test_nothing_of_a_module_is_changed(training: bool) -> None:
    module = MultiHeadAttention(**{**WIDE, "dropout": 0.3}).train(training)
    module.W_query.requires_grad_(False)
    module(torch.ones(1, 2, 24)).sum().backward()
    before = copy.deepcopy(module.state_dict())
    gradients = {name: each.grad for name, each in module.named_parameters()}
    kept = {name: None if each is None else each.clone() for name, each in gradients.items()}
    torch.manual_seed(3)
    random.seed(3)
    states = torch.get_rng_state(), random.getstate()
    ch.check(module, takes="x", causal=True, dropout=0.3)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert all(part.training is training for part in module.modules())
    assert not module.W_query.weight.requires_grad
    for name, value in module.state_dict().items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name])
    for name, each in module.named_parameters():
        assert each.grad is gradients[name]
        now, then = each.grad, kept[name]
        assert (now is None) == (then is None)
        assert now is None or then is None or torch.equal(now, then)
    assert not module._forward_hooks
    assert "forward" not in vars(module)


class Uncopied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))
        self.register_buffer("calls", torch.zeros(()))

    def __deepcopy__(self, memo: object) -> "Uncopied":
        raise TypeError("there is one of me")

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        query, key, value = self.query(x), self.key(x), self.value(x)
        return (query @ key.mT / 6**0.5).softmax(-1) @ value


def test_what_cannot_be_copied_is_put_back() -> None:
    module = Uncopied().train()
    before = copy.copy({name: value.clone() for name, value in module.state_dict().items()})
    assert ch.check(module, takes="x").ok
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(each.grad is None for each in module.parameters())


def test_what_is_global_is_put_back(tmp_path: Path) -> None:
    def attends(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float16)
        torch.set_num_threads(before[1] + 1)
        torch.use_deterministic_algorithms(True)
        os.chdir(tmp_path)
        os.environ["LEFT_BEHIND"] = "1"
        sys.path.append("left/behind")
        return ch.attend(query, key, value)

    def found() -> tuple[Any, ...]:
        strict = torch.are_deterministic_algorithms_enabled()
        state = torch.get_rng_state().tolist(), dict(os.environ), list(sys.path), os.getcwd()
        return torch.get_default_dtype(), torch.get_num_threads(), strict, *state

    before = found()
    ch.check(attends, takes="qkv")
    assert found() == before


def test_the_same_seed_gives_the_same_report() -> None:
    one, two = (str(ch.check(inverted, takes="qkv", causal=True, seed=5)) for _ in range(2))
    assert one == two


def test_a_contract_and_keywords_say_the_same() -> None:
    contract = ch.Contract(causal=True)
    assert str(ch.check(inverted, takes="qkv", contract=contract)) == str(
        ch.check(inverted, takes="qkv", causal=True)
    )


def test_what_is_not_declared_is_told() -> None:
    report = ch.check(CausalAttention, takes="x", args=ARGS)
    assert report.ok
    assert "causal=True" in report.told


def test_what_follows_from_a_mistake_is_none() -> None:
    report = ch.check(CausalAttention004, takes="x", args=ARGS, causal=True)
    assert [each.code for each in report.findings] == ["mask.inverted"]


def test_two_mistakes_at_once() -> None:
    def both(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT
        hidden = torch.ones_like(scores).tril(scores.shape[-1] - scores.shape[-2]).bool()
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value

    codes = [each.code for each in ch.check(both, takes="qkv", causal=True).findings]
    assert codes[:2] == ["mask.inverted", "scale.missing"]


def test_three_mistakes_at_once() -> None:
    def three(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = (query @ key.mT).softmax(-2)
        return (weights @ value).flip(1)

    report = ch.check(three, takes="qkv")
    assert not report.ok


def test_an_assertion_shows_the_report() -> None:
    ch.testing.assert_attention(plain, takes="qkv")
    with pytest.raises(AssertionError, match=r"✗ mask\.inverted") as caught:
        ch.testing.assert_attention(inverted, takes="qkv", causal=True)
    assert str(caught.value).startswith("inverted, seed 0\n")


def test_json() -> None:
    found = json.loads(ch.check(inverted, takes="qkv", causal=True).to_json())
    assert found["ok"] is False
    assert found["findings"][0]["code"] == "mask.inverted"
    assert found["findings"][0]["see"] == "clearhead explain mask.inverted"
    assert found["sizes"]["num_heads"] == 3


def test_a_page_escapes_what_others_wrote() -> None:
    def evil(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if query.shape[-2] != key.shape[-2]:
            raise ValueError("<script>alert(1)</script>")
        return plain(query, key, value)

    evil.__name__ = "<b>evil</b>"
    report = ch.check(evil, takes="qkv")
    assert any("<script>" in each for each in report.told)
    page = report.to_html()
    assert "<script" not in page
    assert "<b>evil" not in page
    assert "&lt;script&gt;" in page
    assert "http" not in page
    assert report._repr_html_() in page


def test_the_text() -> None:
    report = ch.check(inverted, takes="qkv", causal=True)
    text, whole = str(report), report.text(everything=True)
    assert text.splitlines()[0].startswith("✗ mask.inverted   ")
    assert "\n    measured   7 × 7" in text
    assert "\n    likely     " in text
    assert "\n    see        clearhead explain mask.inverted" in text
    assert "✓ softmax over the keys   ✓ scale 1/√5" in text
    assert "dropout" not in text
    assert "– dropout not declared" in whole


class TokensFirst(nn.Module):
    """Projections of (len, batch, width), and padding that is read the wrong way round."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, width // num_heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        tokens, batch, width = x.shape
        query, key, value = (
            each(x).reshape(tokens, batch * self.num_heads, -1).transpose(0, 1)
            for each in (self.query, self.key, self.value)
        )
        scores = (query @ key.mT * self.head_dim**-0.5).unflatten(0, (batch, -1))
        scores = scores.masked_fill(padding[:, None, None], -torch.inf)
        context = scores.flatten(0, 1).softmax(-1) @ value
        return self.out(context.transpose(0, 1).reshape(tokens, batch, width)).transpose(0, 1)


def test_projections_with_len_before_batch() -> None:
    found = ch.check(TokensFirst(15, 3), takes="x,mask", num_heads=3)
    assert [each.code for each in found.findings] == ["mask.inverted"]


class OneLength(nn.Module):
    """As in Swin and CLIP: the bias is of one length, and no other is taken."""

    def __init__(self, spread: float) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))
        self.relative = nn.Parameter(spread * torch.randn(7, 7))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).mT / 6**0.5 + self.relative
        return scores.softmax(-1) @ self.value(x)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_a_module_of_one_length_is_checked_at_that_length(spread: float) -> None:
    torch.manual_seed(0)
    report = ch.check(OneLength(spread), takes="x")
    assert report.ok, report
    assert "gradients" in report.passed


class Refusing(nn.Module):
    """A decoder whose steps all fail, and so are not known to be right."""

    def reset(self) -> None:
        pass

    def step(self, x: Tensor) -> Tensor:
        raise RuntimeError("no cache yet")

    def full(self, x: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


def test_steps_that_are_all_refused_are_not_judged() -> None:
    report = ch.check(Refusing(), takes="decode", causal=True, sizes={"d_in": 4})
    assert report.outcome == "not judged"
    assert report.unverified[0] == (
        "decoding: every way to pass tokens is refused: RuntimeError: no cache yet; let step(x) "
        "take any number of tokens"
    )


divisor, room, tiny = 6, 40, 1e-30


class Reading(nn.Module):
    """One head, whose code reads numbers from around it: a size, a limit, and next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))
        self.seen = torch.ones(40, 40).triu(1).bool()

    def hidden(self, x: Tensor) -> Tensor:
        assert x.shape[-1] % divisor == 0
        return self.seen[: x.shape[1], : x.shape[1]].to(x.device)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] <= room
        scores = self.query(x) @ self.key(x).mT / 6**0.5 + tiny
        return scores.masked_fill(self.hidden(x), -torch.inf).softmax(-1) @ self.value(x)


class ReadingAgain(Reading):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


@pytest.mark.parametrize("kind", [Reading, ReadingAgain])
def test_what_is_read_around_a_module_and_changes_nothing_is_no_mistake(kind: type) -> None:
    """Nor is a mask that is a plain attribute, and is taken to the device of the input."""
    torch.manual_seed(0)
    report = ch.check(kind(), takes="x", causal=True)
    assert report.ok, report


class Backward(torch.autograd.Function):
    """The identity, whose backward pass is another one's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fails: bool) -> Tensor:
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        if ctx.fails:
            raise RuntimeError("no way back")
        return grads[0] * torch.nan, None


class WithBackward(nn.Module):
    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))
        self.fails = fails

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.query(x) @ self.key(x).mT / 6**0.5).softmax(-1)
        return Backward.apply(weights, self.fails) @ self.value(x)


def test_a_backward_pass_that_fails_is_told_and_one_that_gives_nan_is_wrong() -> None:
    torch.manual_seed(0)
    report = ch.check(WithBackward(True), takes="x")
    assert report.ok, report
    assert "the backward pass raises: no way back" in report.told
    (finding,) = ch.check(WithBackward(False), takes="x").findings
    assert finding.code == "grad.wrong"
    assert finding.measured.endswith("autograd says nan")


class Short(nn.Module):
    """Its positions end where its settings say."""

    def __init__(self) -> None:
        super().__init__()
        self.config = {"block_size": 5}
        self.positions, self.query = nn.Embedding(5, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.positions(torch.arange(x.shape[1]))
        return (self.query(x) @ x.mT / 6**0.5).softmax(-1) @ x


def test_settings_that_a_module_keeps_as_a_dictionary_say_its_length() -> None:
    torch.manual_seed(0)
    assert ch.check(Short(), takes="x").ok


class Padded(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))
        self.way = way

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.way == "refuses":
            assert mask.any(-1).all(), "nothing but padding"
        mixed = x.cumsum(1) if self.way == "mixes" else x
        query, key, value = self.query(mixed), self.key(mixed), self.value(x)
        if self.way == "mixes" or mask.all():
            return (query @ key.mT / 6**0.5).softmax(-1) @ value
        hidden = ~mask[:, None] & (self.way == "refuses")
        parts = query.split(4, 1) if self.way == "in chunks" else [query]
        scores = [(each @ key.mT / 6**0.5).masked_fill(hidden, -torch.inf) for each in parts]
        return torch.cat([each.softmax(-1) @ value for each in scores], 1)


@pytest.mark.parametrize(
    ("way", "codes"),
    [
        ("refuses", []),
        # Seen by what moves what: other products with padding than without, and none of single tokens.
        ("in chunks", ["mask.padding-ignored"]),
        ("mixes", ["mask.padding-ignored"]),
    ],
)
def test_padding_is_looked_at_whatever_is_done_where_there_is_some(
    way: str, codes: list[str]
) -> None:
    torch.manual_seed(0)
    report = ch.check(Padded(way), takes="x,mask", empty_row="zero")
    assert [each.code for each in report.findings] == codes


def softmax_of(x: Tensor) -> Tensor:
    powers = (x - x.amax()).exp()
    return powers / powers.sum(0, keepdim=True)


def by_sums(x: Tensor) -> Tensor:
    scores = (x[:, :, None] * x[:, None]).sum(-1) / x.shape[-1] ** 0.5
    return (scores.softmax(-1)[..., None] * x[:, None]).sum(-2)


@pytest.mark.parametrize("takes", [None, "x"])
@pytest.mark.parametrize("part", [softmax_of, torch.tanh, lambda x: x.softmax(-1)])
def test_a_part_of_an_attention_is_refused_by_its_name(part: Any, takes: str | None) -> None:
    with pytest.raises(ch.errors.ModelError) as caught:
        ch.check(part, takes=takes)
    assert str(caught.value) == (
        f"[check.part] {part.__name__} takes one tensor, and multiplies none of its numbers with each "
        "other: it is a part of an attention, and none. Check what calls it."
    )


def test_what_multiplies_in_another_way_is_no_part() -> None:
    assert ch.check(by_sums).outcome == "not judged"
