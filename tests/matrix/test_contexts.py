"""The contexts of a call: their sizes and their mean."""

import torch

import clearhead as ch


def test_sizes_are_those_of_the_context() -> None:
    found = ch.types.Contexts(torch.zeros(2, 3, 5, 4), kv_len=7)
    assert (found.batch, found.num_heads, found.query_len, found.kv_len) == (2, 3, 5, 7)
    assert found.shape == (2, 3, 5, 4)
    assert repr(found) == "Contexts [batch=2, num_heads=3, query_len=5, value_head_dim=4]"
    some = ch.types.Contexts(torch.zeros(2, 2, 5, 4), 7, heads=(1, 3))
    assert repr(some).endswith("value_head_dim=4] with heads [1, 3]")


def test_the_mean_leaves_padding_out() -> None:
    context = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    assert torch.equal(ch.types.Contexts(context, 4).mean, context.mean(dim=(0, 2)))
    real = torch.tensor([[True, True, True, False], [True, False, False, False]])
    rows = torch.cat([context[0, :, :3], context[1, :, :1]], dim=1)
    context[1, :, 3] = torch.nan  # as padding may be
    torch.testing.assert_close(ch.types.Contexts(context, 4, real).mean, rows.mean(dim=1))
    alike = ch.types.Contexts(context[:, :, :3], 3, torch.tensor([[True, False, True]]))
    torch.testing.assert_close(alike.mean, context[:, :, [0, 2]].mean(dim=(0, 2)))
    assert bool(ch.types.Contexts(context, 4, real & False).mean.isnan().all())
