"""Write bad_input.md: what attention says to input that it is not defined for, beside PyTorch.

`python docs/generate_bad_input.py` runs every input and writes the page. What reads memory that is
not its own runs in a process of its own.
"""

import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clearhead as ch

PAGE = Path(__file__).resolve().parent / "bad_input.md"
LONGEST = 260

HEAD = """# Bad input

What happens to input that attention is not defined for. Every cell was run, with PyTorch {torch}
on a CPU: batch 2, length 5, two heads of width 4. **SILENT** is silently wrong: a result instead
of an error; where that is right the cell says so. Of a message the first sentences are shown; ours go on
with the sizes of all three tensors, by the names of their axes.

| input | `nn.MultiheadAttention` | `F.scaled_dot_product_attention` | `clearhead.attend` |
|---|---|---|---|
"""

FOOT = """
Nothing is computed before an error of ours is raised. Each carries a stable code, and subclasses the
builtin that its name suggests: [errors](stability.md). What cannot be seen from the outside cannot be
refused: heads and tokens that have changed places while all lengths are equal, a mask whose True and
False are swapped, a batch that is read as heads because one dimension was left out. So is a bool tensor of
(batch, tokens) given as `mask=`, where a batch has as many samples as tokens: it reads as (query_len, kv_len), as a
mask of n × n does that a batch of n brings rightly, and refusing both would stop correct code whenever the last
batch of an epoch has that size. At any other size it is refused, with the words that are right at every size:
`padding(valid)`, or `valid=` of a layer.
"""


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


X = numbers(2, 5, 8)
Q, K, V = numbers(3, 2, 2, 5, 4).unbind()
SEEN = torch.ones(5, 5, dtype=torch.bool).tril()
NO_FIRST = SEEN.clone()
NO_FIRST[0] = False


def with_nan(tensor: Tensor) -> Tensor:
    """The tensor with a NaN in its last token, of the first sample and head."""
    spoilt = tensor.clone()
    spoilt[(0,) * (tensor.ndim - 2)][-1, 0] = torch.nan
    return spoilt


def module(
    query: Any = X,
    key: Any = None,
    value: Any = None,
    *,
    num_heads: int = 2,
    dropout: float = 0.0,
    **options: Any,
) -> Tensor:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, num_heads, dropout=dropout, batch_first=True)
    key = query if key is None else key
    return attention(query, key, key if value is None else value, **options)[0]


def function(query: Any = Q, key: Any = K, value: Any = V, **options: Any) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, **options)


def ours(query: Any = Q, key: Any = K, value: Any = V, **options: Any) -> Tensor:
    return ch.attend(query, key, value, **options)


class Row(NamedTuple):
    """An input, and how to give it to each; None where there is no such input.

    `fine` says what a result means where a result is right, for all of them or for ours only, and
    `right` tells such a result from another.
    """

    text: str
    module: Callable[[], Tensor] | None
    function: Callable[[], Tensor] | None
    ours: Callable[[], Tensor]
    fine: str = ""
    ours_fine: str = ""
    right: Callable[[Tensor], bool] = lambda result: not result.isnan().any()
    dangerous: bool = False


ROWS = [
    Row(
        "the query narrower than the key",
        lambda: module(X[..., :6], X, X),
        lambda: function(Q[..., :3]),
        lambda: ours(Q[..., :3]),
    ),
    Row(
        "key of length 7, value of length 5",
        lambda: module(X, numbers(2, 7, 8), X),
        lambda: function(key=numbers(2, 2, 7, 4)),
        lambda: ours(key=numbers(2, 2, 7, 4)),
    ),
    Row(
        "key of length 3, value of length 8",
        lambda: module(X, numbers(2, 3, 8), numbers(2, 8, 8)),
        lambda: function(key=numbers(2, 2, 3, 4), value=numbers(2, 2, 8, 4)),
        lambda: ours(key=numbers(2, 2, 3, 4), value=numbers(2, 2, 8, 4)),
        dangerous=True,
    ),
    Row(
        "key and value of batch 3",
        lambda: module(X, numbers(3, 7, 8)),
        lambda: function(key=numbers(3, 2, 7, 4), value=numbers(3, 2, 7, 4)),
        lambda: ours(key=numbers(3, 2, 7, 4), value=numbers(3, 2, 7, 4)),
    ),
    Row(
        "two dimensions",
        lambda: module(X[0]),
        lambda: function(Q[0, 0], K[0, 0], V[0, 0]),
        lambda: ours(Q[0, 0], K[0, 0], V[0, 0]),
        fine="one sample",
    ),
    Row(
        "one dimension",
        lambda: module(X[0, 0]),
        lambda: function(Q[0, 0, 0], K[0, 0, 0], V[0, 0, 0]),
        lambda: ours(Q[0, 0, 0], K[0, 0, 0], V[0, 0, 0]),
    ),
    Row(
        "three heads for a width of 8; three over two",
        lambda: module(num_heads=3),
        lambda: function(numbers(2, 3, 5, 4), enable_gqa=True),
        lambda: ours(numbers(2, 3, 5, 4)),
    ),
    Row(
        "(batch, len, heads, dim) of 5 queries and 7 keys",
        None,
        lambda: function(Q.mT, numbers(2, 7, 2, 4), numbers(2, 7, 2, 4)),
        lambda: ours(Q.transpose(1, 2), numbers(2, 7, 2, 4), numbers(2, 7, 2, 4)),
    ),
    Row(
        "an integer mask of 0 and 1",
        lambda: module(attn_mask=SEEN.long()),
        lambda: function(attn_mask=SEEN.long()),
        lambda: ours(mask=SEEN.long()),
    ),
    Row(
        "a float mask of 0 and 1",
        lambda: module(attn_mask=SEEN.float()),
        lambda: function(attn_mask=SEEN.float()),
        lambda: ours(mask=SEEN.float()),
    ),
    Row(
        "a float64 mask",
        lambda: module(attn_mask=SEEN.double()),
        lambda: function(attn_mask=SEEN.double()),
        lambda: ours(mask=SEEN.double()),
    ),
    Row(
        "a mask of 4 × 5 for 5 × 5",
        lambda: module(attn_mask=SEEN[:4]),
        lambda: function(attn_mask=SEEN[:4]),
        lambda: ours(mask=SEEN[:4]),
    ),
    Row(
        "a mask of one dimension",
        lambda: module(attn_mask=SEEN[0]),
        lambda: function(attn_mask=SEEN[0]),
        lambda: ours(mask=SEEN[0]),
    ),
    Row(
        "a mask of (batch, query_len, kv_len)",
        lambda: module(attn_mask=SEEN.expand(2, 5, 5)),
        lambda: function(attn_mask=SEEN.expand(2, 5, 5)),
        lambda: ours(mask=SEEN.expand(2, 5, 5)),
    ),
    Row(
        "True at the real tokens",
        lambda: module(key_padding_mask=torch.ones(2, 5, dtype=torch.bool)),
        None,
        lambda: ours(mask=ch.padding(torch.ones(2, 5, dtype=torch.bool))),
        ours_fine="True = may attend",
    ),
    Row(
        "padding of (len, batch)",
        lambda: module(key_padding_mask=torch.zeros(5, 2, dtype=torch.bool)),
        None,
        lambda: ours(mask=ch.padding(torch.ones(5, 2, dtype=torch.bool))),
    ),
    Row(
        "a mask on another device",
        None,
        lambda: function(attn_mask=SEEN.to("meta")),
        lambda: ours(mask=SEEN.to("meta")),
        dangerous=True,
    ),
    Row(
        "`True` as the mask",
        lambda: module(attn_mask=True),
        lambda: function(attn_mask=True),
        lambda: ours(mask=True),
    ),
    Row(
        "causal, and a mask that contradicts it",
        lambda: module(attn_mask=SEEN.T, is_causal=True, need_weights=False),
        lambda: function(attn_mask=SEEN.T, is_causal=True),
        lambda: ours(mask=ch.causal() & ch.dense(SEEN.T)),
        ours_fine="both apply",
    ),
    Row(
        "causal asked for without a mask",
        lambda: module(is_causal=True),
        lambda: function(is_causal=True),
        lambda: ours(mask=ch.causal()),
        fine="causal",
    ),
    Row(
        "a query that may attend to nothing",
        lambda: module(attn_mask=~NO_FIRST),
        lambda: function(attn_mask=NO_FIRST),
        lambda: ours(mask=NO_FIRST),
        fine="zeros",
    ),
    Row(
        "a NaN in a token that is hidden from all",
        lambda: module(with_nan(X), key_padding_mask=torch.arange(5).expand(2, 5) == 4),
        lambda: function(key=with_nan(K), attn_mask=torch.arange(5).expand(5, 5) < 4),
        lambda: ours(key=with_nan(K), mask=ch.padding(4)),
        fine="the NaN stays where it was",
    ),
    Row(
        "a NaN in a key that all may see",
        lambda: module(with_nan(X)),
        lambda: function(key=with_nan(K)),
        lambda: ours(key=with_nan(K)),
        fine="what saw it is NaN",
        right=lambda result: bool(result.isnan().any()),
    ),
    Row(
        "int64",
        lambda: module(X.long()),
        lambda: function(Q.long(), K.long(), V.long()),
        lambda: ours(Q.long(), K.long(), V.long()),
    ),
    Row(
        "a float32 query, float64 key and value",
        lambda: module(X, X.double(), X.double()),
        lambda: function(Q, K.double(), V.double()),
        lambda: ours(Q, K.double(), V.double()),
    ),
    Row(
        "query, and key and value, on different devices",
        lambda: module(X, X.to("meta"), X.to("meta")),
        lambda: function(Q, K.to("meta"), V.to("meta")),
        lambda: ours(Q, K.to("meta"), V.to("meta")),
    ),
    Row(
        "a list",
        lambda: module(X.tolist(), X, X),
        lambda: function(Q.tolist()),
        lambda: ours(Q.tolist()),
    ),
    Row(
        "a numpy array",
        lambda: module(X, X.numpy(), X),
        lambda: function(key=K.numpy()),
        lambda: ours(key=K.numpy()),
    ),
    Row(
        "no keys",
        lambda: module(X, X[:, :0]),
        lambda: function(key=K[:, :, :0], value=V[:, :, :0]),
        lambda: ours(key=K[:, :, :0], value=V[:, :, :0]),
        fine="zeros",
    ),
    Row(
        "an empty batch",
        lambda: module(X[:0]),
        lambda: function(Q[:0], K[:0], V[:0]),
        lambda: ours(Q[:0], K[:0], V[:0]),
        fine="an empty result",
    ),
    Row(
        "dropout −0.1",
        lambda: module(dropout=-0.1),
        lambda: function(dropout_p=-0.1),
        lambda: ours(dropout=-0.1),
    ),
    Row(
        "dropout 1.5",
        lambda: module(dropout=1.5),
        lambda: function(dropout_p=1.5),
        lambda: ours(dropout=1.5),
    ),
    Row(
        "a scale that is NaN",
        None,
        lambda: function(scale=float("nan")),
        lambda: ours(scale=float("nan")),
    ),
    Row(
        "PyTorch's words: attn_mask, dropout_p",
        None,
        lambda: function(attn_mask=SEEN, dropout_p=0.0),
        lambda: ours(attn_mask=SEEN, dropout_p=0.0),
        fine="they are its own",
    ),
    Row(
        "a mask by place",
        None,
        lambda: F.scaled_dot_product_attention(Q, K, V, SEEN),
        lambda: ch.attend(Q, K, V, SEEN),  # type: ignore[arg-type]
        fine="it is the fourth",
    ),
    Row(
        "packed texts that end before the row does",
        None,
        None,
        lambda: ours(mask=ch.documents(lengths=[2, 1])),
    ),
    Row(
        "a misspelt keyword",
        lambda: module(maks=SEEN),
        lambda: function(maks=SEEN),
        lambda: ours(maks=SEEN),
    ),
]


def outcome(call: Callable[[], Tensor] | None, fine: str, right: Callable[[Tensor], bool]) -> str:
    """What a call says, as a cell of the table."""
    if call is None:
        return "–"
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = call()
    except Exception as error:
        return f"{type(error).__name__}: {said(str(error))}"
    if caught:
        return f"a result, and a warning: {said(str(caught[0].message))}"
    nan = int(result.isnan().sum())
    spoilt = f": {nan} of {result.numel()} numbers are NaN" if nan else ""
    if fine and right(result):
        return f"accepted ({fine}){spoilt}"
    return f"**SILENT**{spoilt}"


def said(message: str) -> str:
    """The first sentences of a message, fit for a cell."""
    text = re.sub(r"\s+", " ", message.split("\n")[0]).strip()
    if len(text) > LONGEST:
        text = text[:LONGEST].rsplit(" ", 1)[0] + " …"
    return text.replace("|", "\\|").replace("<", "&lt;") or "(an empty message)"


def apart(row: int, column: str) -> str:
    """The outcome of a peer in a process of its own, which it may take down."""
    run = subprocess.run(
        [sys.executable, __file__, str(row), column], capture_output=True, encoding="utf-8"
    )
    return run.stdout.strip() if run.returncode == 0 else f"**the process ends** ({run.returncode})"


def peer(number: int, column: str) -> str:
    row = ROWS[number]
    return outcome(row.module if column == "module" else row.function, row.fine, row.right)


def ours_says(row: Row) -> str:
    return outcome(row.ours, row.fine or row.ours_fine, row.right)


def page() -> str:
    lines = []
    for number, row in enumerate(ROWS):
        ask = apart if row.dangerous else peer
        cells = [row.text, ask(number, "module"), ask(number, "function"), ours_says(row)]
        lines.append("| " + " | ".join(cells) + " |")
    return HEAD.format(torch=torch.__version__) + "\n".join(lines) + "\n" + FOOT


if __name__ == "__main__":
    if sys.argv[1:]:
        print(peer(int(sys.argv[1]), sys.argv[2]))
    else:
        PAGE.write_text(page(), encoding="utf-8")
