"""The mistakes of the tutorials, shown; `docs/check_findings.md` lists them."""

from typing import Any

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead import stages
from clearhead.errors import ArgumentError, ArgumentTypeError, MaskError
from clearhead.ladder import (
    EXAMPLE_EMBEDDINGS,
    BatchedAttention,
    ConcatenatedHeads,
    CrossAttention,
    MaskedAttention,
    SelfAttention,
    SimpleAttention,
    SplitHeads,
    embed_words,
    from_tutorial,
)
from tests.ladder import tutorials
from tests.ladder.refusal import refused

X = EXAMPLE_EMBEDDINGS


def v1(**names: Any) -> type[nn.Module]:
    """SelfAttention_v1 in a module of its own, which has these names beside it."""
    exec(tutorials.SELF_ATTENTION_V1, names)
    return names["SelfAttention_v1"]


def test_global_d_k_is_missing_elsewhere_and_of_another_size_silently_wrong() -> None:
    with pytest.raises(NameError, match="'d_k' is not defined"):
        v1()(3, 2)(X)
    model = v1(d_k=2)(3, 64)
    rung = from_tutorial(model.state_dict())
    assert isinstance(rung, SelfAttention)
    assert (model(X) - rung(X)).abs().max() > 0.01
    # Its scores are divided by √2, not by √64 = 8.
    query, key, value = rung.project(X)
    torch.testing.assert_close(model(X), ch.attend(query, key, value, scale=2**-0.5))


@pytest.mark.parametrize(("diagonal", "empty"), [(0, 1), (1, 2)])
def test_tril_hides_the_past_and_the_token_itself(diagonal: int, empty: int) -> None:
    wrong = tutorials.CausalAttention(3, 2, 6, 0.0, triangle=torch.tril, diagonal=diagonal)
    out = wrong(X[None])[0]
    assert out[-empty:].isnan().all()
    assert out[:-empty].isfinite().all()
    # The same with our pieces: what the mask shows is the future only, and nothing gives zeros.
    hidden = ch.causal(offset=diagonal)
    rung = MaskedAttention(3, head_dim=2, mask=~hidden).with_weights(
        wrong.W_query.weight.mT, wrong.W_key.weight.mT, wrong.W_value.weight.mT
    )
    assert (rung(X)[-empty:] == 0).all()
    torch.testing.assert_close(rung(X)[:-empty], out[:-empty])
    assert (rung.stages(X).weights.tril(diagonal) == 0).all()
    with refused(MaskError, "tutorial.mask", "1 exactly above the diagonal"):
        from_tutorial(wrong.state_dict())


def test_omega_22_is_read_from_the_third_key() -> None:
    torch.manual_seed(123)
    scores = SelfAttention(3, head_dim=2).stages(X).scores
    assert round(scores[1, 2].item(), 4) == 0.1730  # printed as ω₂₂
    assert round(scores[1, 1].item(), 4) == 0.1376


def test_weights_of_another_attention_are_reused() -> None:
    torch.manual_seed(123)
    rung = SelfAttention(3, head_dim=2)
    value = rung.project(X)[2]
    printed = stages.context(SimpleAttention().stages(X).weights, value)[1]
    assert printed.tolist() == pytest.approx([0.3117, 0.4242], abs=1e-4)
    assert rung(X)[1].tolist() == pytest.approx([0.2854, 0.4081], abs=1e-4)


@pytest.mark.parametrize("third", [6, 0.1])
def test_bias_by_position_takes_any_number_for_true(third: Any) -> None:
    assert nn.Linear(3, 2, third).bias is not None
    with refused(ArgumentTypeError, "bias.type", f"bias must be True or False; got {third}"):
        BatchedAttention(3, head_dim=2, bias=third)
    with pytest.raises(TypeError, match="positional arguments"):
        BatchedAttention(3, 2, third)  # pyright: ignore[reportCallIssue]


def test_order_of_arguments_is_swapped_between_tutorials() -> None:
    as_in_000 = (3, 2, 6, 0.0, 2)  # (d_in, d_out, context_length, dropout, num_heads)
    with pytest.raises(ValueError, match="between 0 and 1, but got 6"):
        tutorials.MultiHeadAttention(*as_in_000)  # pyright: ignore[reportArgumentType]
    with refused(ArgumentError, "dropout.value", "got 6"):
        SplitHeads(3, num_heads=2, head_dim=1, dropout=6)
    with pytest.raises(TypeError, match="positional argument"):
        SplitHeads(*as_in_000)  # pyright: ignore[reportCallIssue]


def test_rand_was_run_where_randn_is_printed() -> None:
    first = embed_words("Life is short, eat dessert first").embeddings
    printed = [0.4231, 0.8665, 0.6503, 1.0042]
    for init, agrees in (("uniform", True), ("normal", False)):
        torch.manual_seed(123)
        drawn = SelfAttention(3, head_dim=2, value_head_dim=4, init=init)  # pyright: ignore[reportArgumentType]
        second = torch.rand(8, 3)
        rung = CrossAttention(3, head_dim=2, value_head_dim=4).with_weights(*drawn.parameters())
        row = rung(first, second)[0].tolist()
        assert (row == pytest.approx(printed, abs=1e-4)) is agrees


def test_a_mask_of_length_one_hides_nothing() -> None:
    model = tutorials.CausalAttention(3, 2, context_length=1, dropout=0.0)
    changed = X[None].clone()
    changed[0, -1] += 1
    assert not torch.equal(model(X[None])[0, 0], model(changed)[0, 0]), "token 0 sees the last one"
    rung = from_tutorial(model.state_dict())
    torch.testing.assert_close(rung(X[None])[0, 0], rung(changed)[0, 0])


@pytest.mark.filterwarnings("ignore:The use of `x.T` on tensors of dimension other than 2")
def test_transposing_everything_mixes_a_batch_up() -> None:
    model = v1(d_k=2)(3, 2)
    rung = from_tutorial(model.state_dict(), dropout=0.0)
    x = torch.randn(5, 2, 3)
    with pytest.raises(RuntimeError, match="size of tensor a"):
        model(x)
    # With two sequences of two tokens and head_dim 2 everything fits, and the sequences meet.
    pair = x[:2]
    one_by_one = torch.stack([model(sequence) for sequence in pair])
    assert (model(pair) - one_by_one).abs().max() > 0.01
    torch.testing.assert_close(rung(pair), one_by_one)


def test_a_saved_mask_ties_the_weights_to_a_length() -> None:
    short = tutorials.CausalAttention(3, 2, context_length=6, dropout=0.0)
    longer = tutorials.CausalAttention(3, 2, context_length=8, dropout=0.0)
    assert "mask" in short.state_dict()
    with pytest.raises(RuntimeError, match="size mismatch for mask"):
        longer.load_state_dict(short.state_dict())
    rung = BatchedAttention(3, head_dim=2, mask=ch.causal())
    assert not any("mask" in name for name in rung.state_dict())


def test_a_length_from_the_notebook_is_missing_elsewhere() -> None:
    """The heads of the first `MultiHeadAttention` take `context_length` from outside."""
    names: dict[str, Any] = {"CausalAttention": tutorials.CausalAttention}
    source = "head = CausalAttention(3, 2, context_length, 0.0)"
    with pytest.raises(NameError, match="'context_length' is not defined"):
        exec(source, names)
    for context_length in (6, 4):  # the mask follows whichever cell ran last
        exec(source, left := names | {"context_length": context_length})
        assert left["head"].mask.shape == (context_length, context_length)


def test_axis_one_of_a_sentence_is_its_width() -> None:
    sentence = embed_words("Life is short, eat dessert first").embeddings
    block_size = sentence.shape[1]
    assert (block_size, sentence.shape[-2]) == (3, 6)
    model = tutorials.CausalAttention(3, 2, block_size, 0.0)
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        model(sentence[None])


def test_the_width_of_a_head_is_not_reduced_by_a_comment() -> None:
    heads, width = 4, 4
    for head_width, total in ((width // heads, 4), (width, 16)):
        rungs = [SelfAttention(3, head_dim=2, value_head_dim=head_width) for _ in range(heads)]
        assert ConcatenatedHeads(rungs)(X).shape[-1] == total


def test_the_scale_holds_the_scores_and_not_the_weights() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(64, 128), torch.randn(64, 128)
    scores = query @ key.mT
    assert scores.std() > 8, "a sum of 128 products spreads like √128"
    assert (scores / 128**0.5).std() < 2
    for scaled in (scores, scores / 128**0.5):  # the weights add up to 1 with any scale
        torch.testing.assert_close(stages.weights(scaled).sum(-1), torch.ones(64))


def test_results_of_train_mode_differ_from_call_to_call() -> None:
    torch.manual_seed(123)
    model = tutorials.CausalAttention(3, 2, 6, 0.5)
    batch = torch.stack([X, X])
    assert not torch.equal(model(batch), model(batch))
    model.eval()
    assert torch.equal(model(batch), model(batch))


def test_a_forward_without_return_gives_none() -> None:
    class Unfinished(nn.Module):
        def forward(self, x: torch.Tensor) -> None:
            nn.functional.linear(x, torch.eye(3))

    assert Unfinished()(X) is None
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute"):
        torch.nn.Sequential(Unfinished(), nn.Flatten())(X)
