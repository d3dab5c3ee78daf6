"""The growth of memory is deterministic, and reported; nothing is asserted of time."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.profiling.report import Cost
from tests.refusals import refusals, run

LENGTHS = (128, 256, 512)


def profiled(subject: Any, takes: str = "qkv", **options: Any) -> ch.Profile:
    # On a busy machine one slow pass would leave out the lengths behind it.
    given: dict[str, Any] = {"lengths": LENGTHS, "rounds": 1, "seconds": 600.0} | options
    return ch.profile(subject, takes=takes, **given)


def plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ value


class Plain(nn.Module):
    """Attention of a tutorial, with or without a place for the context or the padding."""

    def __init__(self, d_in: int = 32, num_heads: int = 2, context_length: int = 512) -> None:
        super().__init__()
        self.num_heads, self.context_length = num_heads, context_length
        self.W_query, self.W_key, self.W_value = (nn.Linear(d_in, d_in) for _ in range(3))

    def forward(self, x: Tensor, beside: Tensor | None = None) -> Tensor:
        padded = beside is not None and beside.dtype == torch.bool
        context = x if beside is None or padded else beside
        query, key, value = self.W_query(x), self.W_key(context), self.W_value(context)
        query, key, value = (
            each.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)
            for each in (query, key, value)
        )
        mask = beside[:, None, None, :] if padded and beside is not None else None
        return plain(query, key, value, mask).transpose(-2, -3).flatten(-2)


@pytest.mark.parametrize(
    ("subject", "takes", "declared"),
    [
        (plain, "qkv", {}),
        (plain, "qkv", {"causal": True, "window": (7, 0), "softcap": 3.0}),
        (plain, "qkv,mask", {"causal": True}),
        (Plain(), "x", {"causal": False}),
        (Plain(), "x2d", {}),
        (Plain(), "x,mask", {}),
        (Plain(), "x,context", {}),
    ],
)
def test_what_is_written_by_hand_grows_with_the_square(
    subject: Any, takes: str, declared: dict[str, Any]
) -> None:
    found = profiled(subject, takes, **declared)
    for backward in (False, True):
        assert found.growth("memory", backward=backward) == "tokens²"
    assert found.kernel.endswith("none of PyTorch's fused kernels")
    assert [(each.length, each.backward) for each in found.costs] == [
        (length, backward) for length in LENGTHS for backward in (False, True)
    ]


@pytest.mark.parametrize("causal", [False, True])
def test_the_fused_call_grows_with_the_tokens(causal: bool) -> None:
    found = profiled(plain, causal=causal)
    for backward in (False, True):
        assert found.growth("memory", backward=backward, fused=True) == "tokens"
    assert found.fused_kernel == "_scaled_dot_product_flash_attention_for_cpu"


def test_both_sides_are_the_same_where_they_are_the_same() -> None:
    for found in (
        profiled(ch.attend),
        profiled(ch.MultiHeadAttention(32, num_heads=2, mask=ch.causal()), "x", causal=True),
        profiled(ch.MultiHeadAttention(32, num_heads=2, context_dim=32), "x,context"),
    ):
        assert found.kernel == found.fused_kernel
        assert [each.memory for each in found.costs] == [each.fused_memory for each in found.costs]


def test_the_declared_is_handed_to_the_fused_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def spy(*given: Tensor, **options: Any) -> Tensor:
        seen.append({"shapes": [tuple(each.shape) for each in given], **options})
        return ch.attend(*given, **options)

    monkeypatch.setattr("clearhead.profiling.sides.attend", spy)
    profiled(
        lambda q, k, v: plain(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1)),
        lengths=(16, 32),
        causal=True,
        window=(3, 0),
        scale=0.5,
        softcap=2.0,
        sinks=torch.zeros(6),
        alibi_slopes=torch.ones(6),
        num_heads=6,
        num_kv_heads=2,
        sizes={"head_dim": 8, "value_head_dim": 4},
    )
    first = seen[0]
    assert first["shapes"] == [(1, 6, 16, 8), (1, 2, 16, 8), (1, 2, 16, 4)]
    assert first["mask"].describe() == "causal() & sliding_window(left=3, right=0)"
    assert (first["scale"], first["softcap"]) == (0.5, 2.0)
    assert torch.equal(first["sinks"], torch.zeros(6))
    assert isinstance(first["bias"], ch.Bias)
    numbers, slopes = torch.randn(2, 16, 16), torch.tensor([0.5, 0.25])
    distances = (torch.arange(8)[:, None] - torch.arange(8)).abs()
    both: dict[str, Any] = {"alibi_slopes": slopes}
    for declared, added in (({}, 0), (both, slopes[:, None, None] * distances)):
        seen.clear()
        profiled(
            plain,
            lengths=(8, 16),
            bias=lambda queries, keys: numbers[:, :queries, :keys],
            **declared,
        )
        block = seen[0]["bias"].block(
            slice(0, 8), slice(0, 8), ch.masks.Extent(1, 6, 8, 8, torch.device("cpu"))
        )
        torch.testing.assert_close(block, (numbers[:, :8, :8] - added)[None])


def test_the_sizes_in_words() -> None:
    count = torch.get_num_threads()
    threads = f"{count} thread{'s' if count > 1 else ''}"
    found = profiled(plain, num_heads=6, lengths=(16, 32))
    assert found.sizes == f"batch 1, 6 heads of width 64, float32, cpu, {threads}"
    found = profiled(Plain, "x", args={"d_in": 24, "num_heads": 3}, lengths=(16, 32))
    assert found.sizes == f"batch 1, width 24, 3 heads of width 8, float32, cpu, {threads}"


def test_it_stops_at_what_a_module_takes() -> None:
    found = profiled(Plain(context_length=256), "x")
    assert {each.length for each in found.costs} == {128, 256}
    assert found.notes == ("not beyond 256 tokens, which is all that it takes",)


def test_it_stops_where_a_pass_would_take_too_long() -> None:
    found = profiled(plain, seconds=1e-9)
    assert {each.length for each in found.costs} == {128}
    (note,) = found.notes
    assert note.startswith("not at 256 tokens, which would take some ")
    assert "grows like" not in str(found)
    with pytest.raises(ch.ArgumentError) as raised:
        found.exponent("memory")
    assert str(raised.value) == (
        "[profile.exponent] a growth needs two lengths; forward there is 1."
    )


def test_what_has_no_backward_pass_is_told() -> None:
    found = profiled(lambda q, k, v: plain(q, k, v).detach())
    assert not any(each.backward for each in found.costs)
    (note,) = set(found.notes)
    assert note.startswith("no backward pass: RuntimeError: ")
    assert "forward and backward" not in str(found)


def test_what_is_profiled_is_left_as_it_was() -> None:
    module = Plain().double().train()
    before = torch.get_rng_state()
    weights = module.W_query.weight.clone()
    profiled(module, "x", lengths=(16, 32))
    assert torch.equal(torch.get_rng_state(), before)
    assert module.training
    assert module.W_query.weight.grad is None
    assert torch.equal(module.W_query.weight, weights)


def test_progress_is_told() -> None:
    told: list[tuple[str, float]] = []
    profiled(plain, lengths=(16, 32), progress=lambda doing, done: told.append((doing, done)))
    assert told == [("profiling", 0.0), ("profiling", 0.5), ("profiling", 1.0)]


PROFILE = ch.Profile(
    "mine<1>",
    "batch 1",
    tuple(
        Cost(length, backward, 2e-6 * length, 1e-6 * length, 16 * length**2, 512 * length)
        for length in (128, 256)
        for backward in (False, True)
    ),
    "bmm + softmax: none of PyTorch's fused kernels",
    "_scaled_dot_product_flash_attention_for_cpu",
    ("not at 512 tokens",),
)


def test_the_text() -> None:
    of_the_call = "that of the fused call"
    remarks = (
        "  memory grows like tokens² (exponent 2.00), of the fused call like tokens (exponent 1.00); at 256 "
        f"tokens it is 8.0 × {of_the_call}\n"
        "  time   grows like tokens (exponent 1.00), of the fused call like tokens (exponent 1.00); at 256 "
        f"tokens it is 2.0 × {of_the_call}\n"
    )
    table = (
        "  tokens     time    fused     memory      fused\n"
        "     128   256 µs   128 µs   262.1 kB    65.5 kB\n"
        "     256   512 µs   256 µs     1.0 MB   131.1 kB\n"
    )
    assert str(PROFILE) == (
        f"mine<1>: batch 1\n\nforward\n{table}{remarks}\nforward and backward\n{table}{remarks}\n"
        "kernel   bmm + softmax: none of PyTorch's fused kernels\n"
        "fused    _scaled_dot_product_flash_attention_for_cpu\n– not at 512 tokens"
    )


def test_what_is_near_no_whole_power_is_said_by_its_exponent() -> None:
    costs = tuple(
        Cost(length, False, 1e-9 * length**2.78, 1e-6 * length**0.77, 16 * length**2, 512 * length)
        for length in (128, 256)
    )
    found = ch.Profile("mine", "batch 1", costs, "none", "flash")
    assert "time   grows like tokens^2.78, of the fused call like tokens^0.77; at 256" in str(found)
    assert (found.growth("time"), found.growth("time", fused=True)) == (
        "tokens^2.78",
        "tokens^0.77",
    )


def test_json() -> None:
    whole = json.loads(PROFILE.to_json())
    assert whole["costs"][0] == {
        "length": 128,
        "backward": False,
        "seconds": 256e-6,
        "fused_seconds": 128e-6,
        "memory": 262144,
        "fused_memory": 65536,
    }
    assert whole["growth"][0] == {
        "of": "memory",
        "backward": False,
        "fused": False,
        "exponent": 2.0,
        "with": "tokens²",
    }
    assert len(whole["growth"]) == 8
    assert (whole["name"], whole["notes"]) == ("mine<1>", ["not at 512 tokens"])


def test_html() -> None:
    page = PROFILE.to_html()
    assert page.startswith("<!doctype html>")
    assert "mine&lt;1&gt;" in page
    assert '<td align="right">262.1 kB</td>' in page
    assert "grows like tokens²" in page
    assert "http" not in page


def fails(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raise RuntimeError("out of registers")


class Nameless(nn.Module):
    """A module whose width nobody can find."""

    def forward(self, x: Tensor) -> Tensor:
        return x


test_what_makes_no_sense_is_refused = refusals(
    run,
    (lambda: profiled(plain, "decode"), "profile.takes"),
    (
        lambda: profiled(fails),
        "profile.call",
        (
            "fails // (1, 4, 128, 64), (1, 4, 128, 64), (1, 4, 128, 64) // RuntimeError // out of "
            "registers // … // …"
        ),
    ),
    (lambda: profiled(Nameless(), "x"), "profile.sizes", "Nameless // …"),
    (lambda: profiled(plain, lengths=(128,)), "profile.lengths", "(128,)"),
    (lambda: profiled(plain, lengths=(128, 64)), "profile.lengths", "(128, 64)"),
    (lambda: profiled(plain, seconds=0), "profile.seconds", "0"),
    (lambda: profiled(plain, rounds=0), "argument.size", "rounds // 0"),
    (lambda: profiled(plain, device="gpu"), "profile.device", "'gpu'"),
    (lambda: profiled(plain, contract=ch.Contract(), causal=True), "check.contract", "causal"),
    (lambda: PROFILE.growth("speed"), "profile.of", "'speed'"),
)


def test_a_declaration_that_is_not_known_is_refused() -> None:
    with pytest.raises(ch.ArgumentTypeError) as raised:
        profiled(plain, casual=True)
    assert str(raised.value).startswith("[profile.declared] profile takes no casual (causal).")


def test_a_way_that_was_not_measured_has_no_table() -> None:
    cost = Cost(128, False, 1.0, 0.5, 2048, 1024)
    forward = ch.Profile("mine", "batch 1", (cost,), "none", "flash")
    both = ch.Profile("mine", "batch 1", (cost, cost._replace(backward=True)), "none", "flash")
    assert forward._repr_html_().count("<table") == 1
    assert both._repr_html_().count("<table") == 2
    assert "backward" not in str(forward)
    assert "backward" in str(both)
