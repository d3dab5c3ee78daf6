import pytest
import torch

import clearhead as ch
from clearhead.errors import ArgumentError, MaskError
from clearhead.ladder import (
    BatchedAttention,
    ConcatenatedHeads,
    SelfAttention,
    SelfAttentionWithLayers,
    SplitHeads,
    from_tutorial,
)
from tests.ladder import tutorials
from tests.ladder.refusal import refused

X = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).double()
BATCH = torch.stack([X, X.flip(0)])


def test_matrices() -> None:
    model = tutorials.SelfAttention(5, 3, 2).double()
    rung = from_tutorial(model.state_dict())
    assert type(rung) is SelfAttention
    torch.testing.assert_close(rung(X), model(X))


@pytest.mark.parametrize("bias", [False, True])
def test_linear_layers(bias: bool) -> None:
    model = tutorials.SelfAttentionV2(5, 3, bias).double()
    rung = from_tutorial(model.state_dict())
    assert type(rung) is SelfAttentionWithLayers
    torch.testing.assert_close(rung(X), model(X))


@pytest.mark.parametrize("context_length", [7, 11])
def test_a_saved_mask_becomes_a_description(context_length: int) -> None:
    model = tutorials.CausalAttention(5, 3, context_length, dropout=0.5, qkv_bias=True).double()
    rung = from_tutorial(model.state_dict(), dropout=0.5)
    assert type(rung) is BatchedAttention
    assert rung.mask is not None
    assert rung.mask.describe() == "causal()"
    torch.testing.assert_close(rung.eval()(BATCH), model.eval()(BATCH))
    torch.manual_seed(5)
    theirs = model.train()(BATCH)
    torch.manual_seed(5)
    torch.testing.assert_close(rung.train()(BATCH), theirs)
    assert rung(torch.randn(2, 4 * context_length, 5).double()).isfinite().all()


def test_a_wrapper_of_heads() -> None:
    model = tutorials.MultiHeadAttentionWrapper(5, 3, 7, 0.0, num_heads=11).double()
    rung = from_tutorial(model.state_dict())
    assert type(rung) is ConcatenatedHeads
    torch.testing.assert_close(rung(BATCH), model(BATCH))


@pytest.mark.parametrize("bias", [False, True])
def test_split_heads_and_from_there_the_layer(bias: bool) -> None:
    model = tutorials.MultiHeadAttention(5, 6, 0.0, 7, 3, bias).double()
    for saved in (model.state_dict(), tutorials.renamed(model)):
        rung = from_tutorial(saved, num_heads=3)
        assert type(rung) is SplitHeads
        torch.testing.assert_close(rung(BATCH), model(BATCH))
    layer = ch.MultiHeadAttention(
        5, num_heads=3, head_dim=2, output_dim=6, bias=bias, mask=ch.causal()
    ).double()
    layer.load_state_dict(rung.state_dict())
    torch.testing.assert_close(layer(BATCH), model(BATCH))


def test_heads_are_in_the_order_of_their_numbers() -> None:
    model = tutorials.MultiHeadAttentionWrapper(5, 3, 7, 0.0, num_heads=11).double()
    saved = dict(sorted(model.state_dict().items()))  # heads.10 before heads.2
    torch.testing.assert_close(from_tutorial(saved)(BATCH), model(BATCH))


def test_weights_are_copies_and_nothing_is_drawn() -> None:
    model = tutorials.SelfAttentionV2(5, 3)
    before = torch.get_rng_state()
    rung = from_tutorial(model.state_dict())
    assert torch.equal(torch.get_rng_state(), before)
    nn_weight = model.W_query.weight.detach()
    nn_weight.zero_()
    assert isinstance(rung, SelfAttentionWithLayers)
    assert rung.query_projection.weight.abs().sum() > 0
    assert all(p.requires_grad and p.device.type == "cpu" for p in rung.parameters())


def test_refused_names() -> None:
    saved = tutorials.SelfAttentionV2(5, 3).state_dict()
    with refused(ArgumentError, "tutorial.names", "got nothing"):
        from_tutorial({})
    with refused(ArgumentError, "tutorial.names", "got W_query.weight, W_key.weight."):
        from_tutorial({name: saved[name] for name in ("W_query.weight", "W_key.weight")})
    with refused(
        ArgumentError, "tutorial.names", "got W_query.weight, W_key.weight, W_value.weight, "
    ):
        from_tutorial({**saved, "W_other.weight": X})
    wrapper = tutorials.MultiHeadAttentionWrapper(5, 3, 7, 0.0, 2).state_dict()
    with refused(
        ArgumentError, "tutorial.names", "state_dict must hold W_query, W_key and W_value"
    ):
        from_tutorial({"out_proj.weight": X, **wrapper})


def test_refused_heads() -> None:
    saved = tutorials.MultiHeadAttention(5, 6, 0.0, 7, 3).state_dict()
    with refused(
        ArgumentError, "tutorial.heads", "num_heads must be given for weights with an out"
    ):
        from_tutorial(saved)
    with refused(RuntimeError, None, "size mismatch for query_projection.weight"):
        from_tutorial(saved, num_heads=4)
    with refused(ArgumentError, "tutorial.heads", "and for no others; got num_heads=3"):
        from_tutorial(tutorials.SelfAttentionV2(5, 3).state_dict(), num_heads=3)


def test_refused_masks_and_shapes() -> None:
    for triangle, diagonal in ((torch.tril, 0), (torch.tril, 1), (torch.triu, 0)):
        model = tutorials.CausalAttention(5, 3, 7, 0.0, triangle=triangle, diagonal=diagonal)
        with refused(MaskError, "tutorial.mask", "of shape (7, 7), hides other tokens"):
            from_tutorial(model.state_dict())
    saved = tutorials.SelfAttention(5, 3, 2).state_dict()
    with refused(RuntimeError, None, "size mismatch for key_weight"):
        from_tutorial({**saved, "W_key": torch.zeros(3)})
