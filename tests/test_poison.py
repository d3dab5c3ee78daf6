import pytest
import torch

from tests.poison import poisoned

OURS = {"__name__": "clearhead.somewhere", "torch": torch, "x": torch.zeros(2)}


@pytest.mark.parametrize(
    "call",
    [
        "torch.empty(2)",
        "torch.empty(2, dtype=torch.bfloat16, requires_grad=True)",
        "torch.empty_like(x)",
        "torch.empty_strided((2,), (1,))",
        "x.new_empty(2)",
    ],
)
def test_every_test_runs_poisoned(call: str) -> None:
    assert eval(call, dict(OURS)).isnan().all()


def test_only_floating_memory_of_ours_is_poisoned() -> None:
    create = poisoned(torch.zeros)
    names = OURS | {"create": create}
    assert eval("create(2)", names).isnan().all()
    assert eval("create(2, dtype=torch.int64)", names).eq(0).all()
    assert create(2).eq(0).all()
