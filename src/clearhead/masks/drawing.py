"""A mask as characters."""

from torch import Tensor

VISIBLE, HIDDEN = "●", "·"


def draw_dense(dense: Tensor) -> str:
    """Rows of `●` and `·`; samples and heads that differ are drawn one after the other."""
    if dense.ndim == 2:
        rows = dense.tolist()
        return "\n".join(" ".join(VISIBLE if seen else HIDDEN for seen in row) for row in rows)
    parts = []
    batch, heads = dense.shape[:2]
    for sample in range(batch):
        for head in range(heads):
            title = f"batch {sample}" + (f", head {head}" if heads > 1 else "")
            parts.append(f"{title}\n{draw_dense(dense[sample, head])}")
    return "\n".join(parts)
