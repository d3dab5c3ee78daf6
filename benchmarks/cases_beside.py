"""Cost of calls while other processes keep the cores busy: each parallel region ends when its last thread
does, which waits for a core. Started as a user starts Python, without OMP_WAIT_POLICY."""

import torch
import torch.nn.functional as F
from torch import Tensor

import clearhead as ch
from benchmarks.cases_masked import documents_backward, near, window
from benchmarks.harness import Sides, case


@case(
    "beside-window-8192",
    reach=("<= 0.2x", "<= 3x alone"),
    work="a causal window of 256, (1, 8, 8192, 64), forward, beside a busy process on each core",
    memory=False,
    rounds=3,
    beside=True,
)
def beside_window() -> Sides:
    return window()


@case(
    "beside-documents-8192-backward",
    reach=("<= 0.2x", "<= 3x alone"),
    work="16 causal documents of 512, (1, 8, 8192, 64), forward and backward, beside a busy process on each "
    "core",
    compare=near,
    memory=False,
    rounds=3,
    beside=True,
)
def beside_documents() -> Sides:
    return documents_backward()


def _only_the_context(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@case(
    "beside-statistics-8192",
    reach="<= 4x",
    work="every statistic and the context, causal, (1, 4, 8192, 64), against the fused forward, beside a busy "
    "process on each core",
    compare=_only_the_context,
    memory=False,
    rounds=3,
    beside=True,
)
def beside_statistics() -> Sides:
    query, key, value = torch.randn(3, 1, 4, 8192, 64).unbind()
    matrix = ch.AttentionMatrix(query, key, mask=ch.causal())

    def statistics() -> Tensor:
        context = matrix.summary(value=value).context
        assert context is not None
        return context

    return {
        "summary(value=)": statistics,
        "scaled_dot_product_attention(is_causal=True)": lambda: F.scaled_dot_product_attention(
            query, key, value, is_causal=True
        ),
    }
