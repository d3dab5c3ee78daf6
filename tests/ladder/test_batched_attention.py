import torch

import clearhead as ch
from clearhead.errors import MaskError
from clearhead.ladder import BatchedAttention, DropoutAttention
from tests.ladder.refusal import refused


def rungs(mask: ch.Mask | None = None) -> tuple[DropoutAttention, BatchedAttention]:
    before = DropoutAttention(5, head_dim=3, value_head_dim=2, context_dim=13, mask=mask)
    rung = BatchedAttention(5, head_dim=3, value_head_dim=2, context_dim=13, mask=mask)
    rung.load_state_dict(before.state_dict())
    return before.double(), rung.double()


def test_equals_the_rung_before_for_each_sequence() -> None:
    before, rung = rungs(ch.causal())
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    context = torch.randn(2, 11, 13, dtype=torch.float64)
    one_by_one = torch.stack([before(*pair) for pair in zip(x, context, strict=True)])
    torch.testing.assert_close(rung(x, context), one_by_one)
    torch.testing.assert_close(rung(x[0], context[0]), one_by_one[0])


def test_mask_of_the_call_and_of_the_rung_both_hide() -> None:
    rung = BatchedAttention(5, head_dim=3, mask=ch.causal()).double()
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    lengths = [4, 7]
    padded = rung(x, mask=ch.padding(lengths))
    for sample, length in enumerate(lengths):
        alone = rung(x[sample, :length])
        torch.testing.assert_close(padded[sample, :length], alone)
    both = (ch.causal() & ch.padding(lengths)).to_dense(7, 7)
    assert torch.equal(rung.stages(x, mask=ch.padding(lengths)).weights != 0, both[:, 0])


def test_every_leading_axis_is_a_batch() -> None:
    rung = BatchedAttention(5, head_dim=3, mask=ch.padding([2, 7, 1, 4, 3, 5]))
    x = torch.randn(2, 3, 7, 5)
    torch.testing.assert_close(rung(x), rung(x.flatten(0, 1)).unflatten(0, (2, 3)))


def test_refusals() -> None:
    _, rung = rungs()
    x, context = torch.zeros(2, 7, 5).double(), torch.zeros(2, 11, 13).double()
    with refused(MaskError, "mask.batch", "describes a batch of 3; the query has a batch of 2"):
        rung(x, context, mask=ch.padding([1, 2, 3]))
    with refused(MaskError, "mask.heads", "describes 4 heads; the query has num_heads=1"):
        rung(x, context, mask=torch.ones(1, 4, 7, 11).bool())
    with refused(MaskError, "mask.dtype", "mask must be bool, True = may attend"):
        rung(x, context, mask=torch.ones(7, 11))
