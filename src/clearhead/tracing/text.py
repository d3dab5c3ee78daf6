"""The stages of attention as text: tables of numbers, and the arithmetic of one query."""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from clearhead import stages
from clearhead._text import cell_len, printable
from clearhead.errors import ArgumentError

MOST_ROWS, MOST_COLUMNS = 16, 12
MOST_FACTORS = 8


def table(part: Tensor, labels: list[str], which: str) -> list[str]:
    """Return the lines of a stage (rows, columns), one a row with its label; rows beyond the labels are left out.

    Above 16 rows or 12 columns it is one line, with range and mean of the finite numbers. `which`, such as "head 1",
    comes first, on a line of its own before a table; "" for nothing.
    """
    rows, columns = part.shape
    prefix = f"{which}: " if which else ""
    if rows > MOST_ROWS or columns > MOST_COLUMNS:
        numbers = part.float()[torch.isfinite(part)]
        about = "none finite"
        if numbers.numel():
            low, high, mean = (float(f(numbers)) for f in (torch.min, torch.max, torch.mean))
            about = f"from {number(low)} to {number(high)}, mean {number(mean)}"
        return [f"{prefix}{rows} × {columns} numbers, too many to print: {about}"]
    cells = [[number(value) for value in row] for row in part.tolist()]
    wide = max((len(cell) for row in cells for cell in row), default=0)
    # The labels of the keys are those of the columns too, but numbers say it more briefly.
    label_wide = max((cell_len(label) for label in labels[:rows]), default=0)
    lines = [which] if which else []
    for label, row in zip(labels, cells, strict=False):
        padded = label + " " * (label_wide - cell_len(label))
        lines.append(f"{padded}  " + "  ".join(cell.rjust(wide) for cell in row))
    return lines


def number(value: float) -> str:
    """Return the number to four decimal places; −∞ as a sign, +∞ and NaN as "inf" and "nan".

    Example:
        >>> number(-0.5), number(float("-inf"))
        ('−0.5000', '−∞')
    """
    if value == -math.inf:
        return "−∞"
    return f"{value:.4f}".replace("-", "−") if math.isfinite(value) else str(value)


def _short(value: float) -> str:
    """Return a finite number to at most four decimal places, without trailing zeros, with U+2212 as the minus."""
    text = f"{value:.4f}".rstrip("0").rstrip(".").replace("-", "−")
    return "0" if text == "−0" else text


def _factor(value: float) -> str:
    """Return a number for a product, in brackets if it is negative."""
    text = _short(value)
    return f"({text})" if text.startswith("−") else text


def _sum(left: list[float], right: list[float], got: float) -> str:
    """Return a dot product as text, "a·b + … = got", `got` being the result of the code.

    If the total differs from it by more than 1e-3 of the larger and 1e-4, "… = total; the code gave got". A total that
    is not finite is not compared.
    """
    total = sum(a * b for a, b in zip(left, right, strict=True))
    same = math.isclose(total, got, rel_tol=1e-3, abs_tol=1e-4) or not math.isfinite(total)
    words = f"{_products(left, right)} = {number(got if same else total)}"
    return words if same else f"{words}; the code gave {number(got)}"


def _products(left: list[float], right: list[float]) -> str:
    """Return a sum of products as text.

    Of more than eight terms, seven are written, and the number of the others.
    """
    pairs = [f"{_factor(a)}·{_factor(b)}" for a, b in zip(left, right, strict=True)]
    if len(pairs) > MOST_FACTORS:
        rest = len(pairs) - MOST_FACTORS + 1
        pairs = [*pairs[: MOST_FACTORS - 1], f"… {rest} more"]
    return " + ".join(pairs)


def arithmetic(
    parts: Mapping[str, Tensor],
    query: int,
    name: str,
    words: Sequence[str],
    formulas: Mapping[str, str],
    standard: bool,
    sink: float | None,
) -> Iterator[str]:
    """Yield the arithmetic of one query, line by line, for at most 16 keys and 8 numbers of the context.

    Args:
        parts: each stage for one sample and head, with two dimensions.
        query: its index.
        name: the label of the query.
        words: the labels of the keys; keys without one are only counted.
        formulas: of the stages that differ from the one before.
        standard: False if the code differs from the definition, so that each stage is printed as it is.
        sink: the sink of the head; None without one.
    """
    tables = [name for name in parts if name in stages.NAMES or name.startswith("changed_")]
    rows = {name: parts[name][query].tolist() for name in tables}
    shown = range(min(len(rows["scores"]), MOST_ROWS, len(words)))
    wide = max((cell_len(words[j]) for j in shown), default=0)
    label = [words[j] + " " * (wide - cell_len(words[j])) for j in shown]
    rest = len(rows["scores"]) - len(shown)
    more = [f"  … and {rest} more keys"] if rest else []
    vector, keys = parts["query"][query].tolist(), parts["key"].tolist()
    start = ", ".join(_short(v) for v in vector[:MOST_FACTORS])
    dots = ", …" if len(vector) > MOST_FACTORS else ""
    yield f"query {name}: [{start}{dots}]"
    yield ""
    yield "scores: the query times each key"
    for j in shown:
        yield f"  {label[j]}  {_sum(vector, keys[j], rows['scores'][j])}"
    yield from more
    yield ""
    if standard:
        yield from _softmax(rows, label, formulas, sink)
    else:
        yield from _as_computed(rows, label, formulas)
    yield from more
    values, mixing = parts["value"].tolist(), rows["dropped_weights"]
    yield ""
    yield "context: the weighted sum of the values"
    used = [j for j, weight in enumerate(mixing) if weight != 0]
    if not used:
        yield "  nothing to attend to: 0"
        return
    for column, total in enumerate(rows["context"][:MOST_FACTORS]):
        yield f"  {_sum([mixing[j] for j in used], [values[j][column] for j in used], total)}"
    if len(rows["context"]) > MOST_FACTORS:
        yield f"  … and {len(rows['context']) - MOST_FACTORS} more numbers"


def _as_computed(
    rows: Mapping[str, list[float]], label: Sequence[str], formulas: Mapping[str, str]
) -> Iterator[str]:
    """Yield the formulas of the stages that the code changes, then its numbers from scores to weights, by key.

    `label` holds the labels of the printed keys. The last line has the sum of the dropped weights.
    """
    names = [name for name in rows if name in formulas and name not in ("scores", "context")]
    yield "weights, as the code makes them"
    for name in names:
        yield f"  {name}: {formulas[name]}"
    for j, word in enumerate(label):
        chain = " → ".join(number(rows[name][j]) for name in ("scores", *names))
        yield f"  {word}  {chain}"
    mixing = rows["dropped_weights"]
    yield f"  the weights add up to {number(sum(mixing))}"


def _softmax(
    rows: dict[str, list[float]],
    label: list[str],
    formulas: Mapping[str, str],
    sink: float | None,
) -> Iterator[str]:
    """Yield the softmax, from scores to weights, one line per key, a line for a sink, and the sums.

    `rows` holds the stages of one query, `label` the labels of the printed keys, `formulas` those of the stages that
    differ from the one before, for the heading; the last line has the sums of exps and weights.
    """
    before = ("scaled_scores", "capped_scores", "masked_scores")
    changes = [formulas[stage] for stage in before if stage in formulas]
    masked, weights = rows["masked_scores"], rows["weights"]
    scores = masked if sink is None else [*masked, sink]
    top = max((score for score in scores if math.isfinite(score)), default=0.0)
    share = f"softmax: exp(score − {_factor(top)}, the largest), divided by their sum"
    if all(score == -math.inf for score in masked):
        share = "no key is visible, so that every weight is 0"
    yield "weights: " + "; ".join([*changes, share])
    exps = [math.exp(score - top) for score in masked]
    dropped = rows["dropped_weights"] if "dropped_weights" in formulas else None
    for j, word in enumerate(label):
        power = f"exp({number(masked[j] - top)})"
        line = f"  {word}  {number(masked[j]):>9}  {power:>12} = {exps[j]:.4f}"
        if masked[j] == -math.inf:
            line = f"  {word}  {number(masked[j]):>9}  hidden".ljust(len(line))
        line += f"   weight {number(weights[j])}"
        if dropped is not None:
            line += f"   after dropout {number(dropped[j])}"
        yield line
    if sink is not None:
        exps.append(math.exp(sink - top))
        yield f"  and the sink of this head: exp({number(sink - top)}) = {exps[-1]:.4f}"
    yield f"  the exps add up to {sum(exps):.4f}, the weights to {sum(weights):.4f}"


def labels(words: Sequence[str] | None, count: int, name: str) -> list[str]:
    """Return a label for each token: its number and its word, or only the number if `words` is None.

    Raises:
        ArgumentError: code `trace.tokens`, for more or fewer words than tokens.
    """
    if words is None:
        return [str(place) for place in range(count)]
    if len(words) != count:
        raise ArgumentError(
            "trace.tokens", f"{name} must hold a word for each of {count} tokens; got {len(words)}."
        )
    return [f"{place} {printable(word)}" for place, word in enumerate(words)]
