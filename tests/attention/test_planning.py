"""The choice of a kernel, and the reasons against the others."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.attention import planning
from clearhead.attention.problem import make_problem
from clearhead.errors import ArgumentError, UnsupportedError


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(2, 6, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 4)


def test_a_plan_in_words() -> None:
    lines = str(ch.plan(*tensors(), mask=ch.causal())).splitlines()
    assert lines[0].startswith("fused: one fused call on cpu, with a part of the mask; ")
    assert lines[0].endswith("head_dim 8 and value_head_dim 4 padded to one")
    assert lines[1:5] == [
        "  query  [batch=2, num_heads=6, query_len=5, head_dim=8] float32 cpu",
        "  key    [batch=2, num_kv_heads=3, kv_len=7, head_dim=8] float32 cpu",
        "  value  [batch=2, num_kv_heads=3, kv_len=7, value_head_dim=4] float32 cpu",
        "  mask=causal(), scale=0.353553",
    ]
    assert lines[5] == "not flex: it is compiled for CUDA; the tensors are on cpu"
    assert lines[6] == (
        "not blockwise: it comes after fused; it would run 1 block of up to 5 queries × 7 keys; "
        "the largest part takes 1.7 kB"
    )
    assert lines[7] == (
        "not eager: it comes after fused; it would run the stages one by one; "
        "the scores alone take 1.7 kB"
    )


@pytest.mark.parametrize(
    ("mask", "trained", "kernel"),
    [
        (ch.sliding_window(left=70, right=0), True, "blockwise"),
        (
            ch.causal() & ch.documents(lengths=[130, 190, 60, 244, 150, 250]),
            True,
            "fused",
        ),  # by length
        (ch.sliding_window(left=70, right=0), False, "fused"),
        (ch.sliding_window(left=900, right=0), True, "fused"),
        (ch.causal(), True, "fused"),
        (ch.dense(torch.eye(1024, dtype=torch.bool)), True, "fused"),  # has no runs to count
    ],
    ids=str,
)
def test_gradients_of_a_mask_of_few_pairs_go_by_blocks(
    mask: ch.Mask, trained: bool, kernel: str
) -> None:
    query = torch.zeros(1, 2, 1024, 8, requires_grad=trained)
    plan = ch.plan(query, query.detach(), query.detach(), mask=mask)
    assert plan.kernel == kernel
    if kernel == "blockwise":
        (reason,) = plan.reasons["fused"]
        assert re.fullmatch(
            r"gradients through a mask that shows \d+\.\d% of the pairs: blocks are faster", reason
        )
    with torch.no_grad():
        assert ch.plan(query, query, query, mask=mask).kernel == "fused"
    assert ch.plan(query, query, query, mask=mask, kernel="fused").kernel == "fused"


# PyTorch loads rules of its own for forward mode, in a way that it has itself deprecated.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_forward_mode_goes_to_the_definition() -> None:
    query, key, value = (tensor.double() for tensor in tensors())

    def attended(query: Tensor) -> Tensor:
        plans.append(ch.plan(query, key, value))
        return ch.attend(query, key, value)

    plans: list[ch.types.Plan] = []
    context, tangent = torch.func.jvp(attended, (query,), (query,))[:2]
    assert plans[0].kernel == "eager"
    (reason,) = plans[0].reasons["fused"]
    assert reason == "forward-mode derivatives: PyTorch's fused attention has none"
    step = 1e-6
    ahead = ch.attend(query * (1 + step), key, value)
    torch.testing.assert_close(tangent, (ahead - context) / step, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize(
    "make", [lambda n: ch.alibi(slopes=n[0, :2]), ch.relative], ids=["alibi", "relative"]
)
def test_forward_mode_through_the_numbers_of_a_bias(make: Any) -> None:
    query = torch.randn(1, 2, 5, 4)

    def attended(numbers: Tensor) -> Tensor:
        bias = make(numbers)
        for kernel in ("fused", "blockwise"):
            with pytest.raises(UnsupportedError, match=r"forward-mode derivatives|cannot be read"):
                ch.attend(query, query, query, bias=bias, kernel=kernel)
        return ch.attend(query, query, query, bias=bias)

    numbers = torch.rand(2, 3)
    _, tangent = torch.func.jvp(attended, (numbers,), (torch.ones_like(numbers),))[:2]
    assert tangent.shape == query.shape


def test_a_kernel_by_name_is_that_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    for kernel in planning.KERNELS:
        attend = kernel.attend
        monkeypatch.setattr(
            kernel, "attend", lambda p, name=kernel.NAME, run=attend: ran.append(name) or run(p)
        )
    for name in ("eager", "fused", "auto"):
        ch.attend(*tensors(), kernel=name)
    assert ran == ["eager", "fused", "fused"]
    assert ch.plan(*tensors(), kernel="eager").reasons["fused"] == ('kernel="eager" was asked for',)


def test_a_kernel_by_name_never_falls_back() -> None:
    query, key, value = tensors()
    text = (
        '[kernel.refused] kernel="fused" cannot run this problem.\n'
        "  - softcap: PyTorch's fused attention has none\n"
        "  - dropout: PyTorch's fused attention has none on the CPU\n"
        "  query  [batch=2, num_heads=6, query_len=5, head_dim=8] float32 cpu\n"
        "  key    [batch=2, num_kv_heads=3, kv_len=7, head_dim=8] float32 cpu\n"
        "  value  [batch=2, num_kv_heads=3, kv_len=7, value_head_dim=4] float32 cpu\n"
        "  scale=0.353553, softcap=2, dropout=0.5\n"
        'These kernels can: blockwise, eager; kernel="auto" would take blockwise.'
    )
    with pytest.raises(UnsupportedError, match=f"^{re.escape(text)}$"):
        ch.attend(query, key, value, softcap=2.0, dropout=0.5, kernel="fused")


@pytest.mark.parametrize("name", ["flash", "", None, 3, np.ones(3)])
def test_no_such_kernel(name: Any) -> None:
    expected = re.escape(
        'kernel must be "auto" or one of "fused", "flex", "blockwise", "eager"; got '
    )
    with pytest.raises(ArgumentError, match=expected):
        ch.attend(*tensors(), kernel=name)


def test_observers_are_told_before_and_after() -> None:
    heard = []

    def observer(problem: object) -> Any:
        heard.append("before")
        return lambda: heard.append("after")

    planning.observers.append(observer)
    try:
        problem = make_problem(*tensors())
        planning.run(problem)
    finally:
        planning.observers.remove(observer)
    assert heard == ["before", "after"]
