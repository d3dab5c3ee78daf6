"""A call of the user's own: every attention that ran in it is checked, at its sizes and with its masks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from tests.cli.commands import invoke

TOKENS = 9


class Attention(nn.Module):
    def __init__(self, power: float = 0.5) -> None:
        super().__init__()
        self.power = power
        self.made, self.out = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value = (
            each.unflatten(-1, (3, 4)).transpose(1, 2) for each in self.made(x).chunk(3, -1)
        )
        scores = query @ key.mT / 4**self.power
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


def places(tokens: int) -> tuple[Tensor, Tensor]:
    return torch.arange(tokens)[:, None], torch.arange(tokens)


MASKS: dict[str, Callable[[int], Tensor | None]] = {
    "none": lambda n: None,
    "causal": lambda n: torch.ones(n, n).tril().bool(),
    "inverted": lambda n: torch.ones(n, n).triu().bool(),
    "padding": lambda n: (torch.arange(n) < n - 2).expand(2, 1, 1, n),
    "both": lambda n: (torch.arange(n) < n - 2).expand(2, 1, 1, n) & torch.ones(n, n).tril().bool(),
    "documents": lambda n: places(n)[0] // 4 == places(n)[1] // 4,
}


class Gpt(nn.Module):
    def __init__(self, mask: str = "causal", powers: tuple[float, ...] = (0.5, 0.5)) -> None:
        super().__init__()
        self.mask = MASKS[mask]
        self.embedding = nn.Embedding(17, 12)
        self.blocks = nn.ModuleList(map(Attention, powers))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for each in self.blocks:
            x = x + each(x, self.mask(ids.shape[1]))
        return x @ self.embedding.weight.mT


IDS = torch.arange(2 * TOKENS).view(2, TOKENS) % 17


@pytest.mark.parametrize("inputs", [IDS, (IDS,), {"ids": IDS}])
def test_the_arguments_of_a_call(inputs: Any) -> None:
    model = Gpt()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    assert ch.check(model, inputs=inputs, causal=True).outcome == "right"
    assert model.training
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


@pytest.mark.parametrize("mask", sorted(set(MASKS) - {"inverted"}))
def test_a_mask_of_the_call_is_no_mistake(mask: str) -> None:
    assert ch.check(Gpt(mask), inputs=IDS).outcome == "right"


@pytest.mark.parametrize("mask", ["none", "inverted"])
def test_a_mask_that_is_not_as_declared(mask: str) -> None:
    (found,) = ch.check(Gpt(mask), inputs=IDS, causal=True).findings
    assert found.code.startswith("mask.")


@pytest.mark.parametrize("wrong", range(2))
def test_the_attention_that_is_wrong_is_named(wrong: int) -> None:
    powers = tuple(1.0 if place == wrong else 0.5 for place in range(2))
    (found,) = ch.check(Gpt(powers=powers), inputs=IDS, causal=True).findings
    assert found.code == "scale.wrong"
    assert found.sentence.startswith(f"blocks.{wrong}: ")


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.layers(x, src_key_padding_mask=padding)


class Translating(nn.Module):
    """Tokens come before the batch, and a second attention reads the source."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 8), 1)

    def forward(self, target: Tensor, source: Tensor) -> Tensor:
        return self.layers(target, source)


@pytest.mark.parametrize(
    ("model", "inputs", "tick"),
    [
        (Padded, (torch.ones(2, 6, 8), torch.zeros(2, 6).bool()), "padding"),
        (Padded, (torch.ones(2, 6, 8), torch.arange(6) > torch.tensor([[5], [3]])), "padding"),
        (Translating, (torch.ones(7, 2, 8), torch.ones(5, 2, 8)), "context"),
    ],
)
def test_modules_of_pytorch(model: Any, inputs: Any, tick: str) -> None:
    report = ch.check(model(), inputs=inputs)
    assert report.outcome == "right"
    assert any(each.endswith(tick) for each in report.passed)


class Kept:
    """A cache that each call adds to."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []


class Cached(Attention):
    def forward(self, x: Tensor, past_key_values: Kept | None = None) -> Tensor:  # type: ignore[override]
        if past_key_values is not None:
            past_key_values.rows.append(x)
            x = torch.cat(past_key_values.rows, 1)
        return super().forward(x, torch.ones(x.shape[1], x.shape[1]).tril().bool())


class Decoding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Cached()

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, past_key_values=Kept())


def test_a_cache_of_the_call_is_left_out() -> None:
    assert ch.check(Decoding(), inputs=torch.ones(2, 5, 12), causal=True).outcome == "right"


@pytest.mark.parametrize(
    ("model", "inputs", "more", "code"),
    [
        (Gpt(), IDS, {"takes": "ids"}, "check.inputs"),
        (nn.Linear(3, 3), torch.ones(2, 4, 3), {}, "check.inputs"),
        (len, IDS, {}, "check.inputs"),
    ],
)
def test_what_is_refused(model: Any, inputs: Any, more: Any, code: str) -> None:
    with pytest.raises(ch.errors.ClearheadError) as caught:
        ch.check(model, inputs=inputs, **more)
    assert caught.value.code == code


FILE = """
import torch

def make(heads=2):
    layer = torch.nn.TransformerEncoderLayer(8, heads, 8, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), torch.ones(2, 5, 8)

def model():
    return torch.nn.MultiheadAttention(8, 2, batch_first=True)
"""


@pytest.mark.parametrize(
    ("place", "code"), [("make --args heads=4", 0), ("model", 0), ("make --causal", 1)]
)
def test_a_function_of_a_file_makes_model_and_batch(tmp_path: Path, place: str, code: int) -> None:
    file = tmp_path / "train.py"
    file.write_text(FILE, encoding="utf-8")
    name, *options = place.split()
    assert invoke("check", f"{file}:{name}", *options).exit_code == code


class Windowed(nn.Module):
    """Its bias is for one number of tokens."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.inner = Attention()
        self.tokens = tokens

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != self.tokens:
            raise ValueError("another number of tokens")
        return self.inner(x)


@pytest.mark.parametrize("tokens", [2, 9])
def test_a_module_of_one_number_of_tokens(tokens: int) -> None:
    assert ch.check(Windowed(tokens), takes="x", sizes={"tokens": tokens}).outcome == "right"
    assert ch.check(Windowed(tokens), inputs=torch.ones(3, tokens, 12)).outcome == "right"


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Attention()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).view(1, 1)


def misspelt(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT).softmax(-1) @ values  # type: ignore[name-defined]


@pytest.mark.parametrize(
    ("subject", "given"),
    [(Broken(), {"inputs": torch.ones(2, 3, 12)}), (misspelt, {"takes": "qkv"})],
)
def test_code_that_cannot_run_is_a_finding(subject: Any, given: Any) -> None:
    (found,) = ch.check(subject, **given).findings
    code = getattr(subject, "forward", subject).__code__
    assert found.code == "call.raises"
    assert found.place == (__file__, code.co_firstlineno + 1)


@pytest.mark.parametrize("batch", [1, TOKENS])
def test_a_batch_of_any_size(batch: int) -> None:
    ids = torch.arange(batch * TOKENS).view(batch, TOKENS) % 17
    assert ch.check(Gpt(), inputs=ids, causal=True).outcome == "right"


def test_a_model_that_attends_itself() -> None:
    (found,) = ch.check(Attention(1.0), inputs=torch.ones(2, 5, 12)).findings
    assert found.code == "scale.wrong"
    assert found.sentence.startswith("Attention: ")
