"""Lessons 1 to 3: scores, weights and context, each a function of its own."""

# ruff: noqa: E501
from tests.checking.bank.course import right, wrong

LOOPS = """
def scores(query, key):
    table = torch.zeros(len(query), len(key))
    for i in range(len(query)):
        for j in range(len(key)):
            total = 0.0
            for k in range(query.shape[1]):
                total = total + query[i, k] * key[j, k]
            table[i, j] = total
    return table
"""
PAIRS = """
def scores(query, key):
    rows = []
    for q in query:
        rows.append(torch.stack([(q * k).sum() for k in key]))
    return torch.stack(rows)
"""
PRODUCT = """
def scores(query, key):
    return query @ key.T
"""
LISTS = """
def scores(query, key):
    return torch.tensor([[sum(a * b for a, b in zip(q, k)).item() for k in key] for q in query])
"""
NEVER_FILLED = """
def scores(query, key):
    found = query @ key.T
    shape = found.shape
    del found
    return torch.empty(shape)
"""
EINSUM = """
def scores(query, key):
    return torch.einsum("qd,kd->qk", query, key)
"""
COLUMNS = """
def scores(query, key):
    result = torch.empty(query.shape[0], key.shape[0])
    for j, k in enumerate(key):
        result[:, j] = query @ k
    return result
"""
SET_BACK = "            total = 0.0\n"
FIRST = [
    *right(1, loops=LOOPS, pairs=PAIRS, product=PRODUCT, lists=LISTS, einsum=EINSUM, columns=COLUMNS),
    # The gallery.
    wrong(1, "sum.carried", LOOPS, (SET_BACK, ""), ("    for i in", "    total = 0.0\n    for i in")),
    wrong(1, "sum.left-out", LOOPS, ("range(len(key))", "range(len(key) - 1)")),
    wrong(1, "law.pairs", LOOPS, ("query[i, k]", "query[0, k]")),
    # Further ones.
    wrong(1, "sum.carried", LOOPS, (SET_BACK, ""), ("        for j in", "        total = 0.0\n        for j in")),
    wrong(1, "sum.overwritten", LOOPS, ("total = total + query", "total = query")),
    wrong(1, "sum.left-out", LOOPS, ("range(query.shape[1])", "range(query.shape[1] - 1)")),
    wrong(1, "sum.left-out", LOOPS, ("range(len(key))", "range(1, len(key))")),
    wrong(1, "output.nondeterministic", NEVER_FILLED, label="never filled"),
    wrong(1, "sum.left-out", COLUMNS, ("enumerate(key)", "enumerate(key[:-1])")),
    wrong(1, "law.pairs", LOOPS, ("key[j, k]", "key[0, k]")),
    wrong(1, "law.pairs shape.square-only", LOOPS, ("key[j, k]", "key[i, k]")),
    wrong(1, "law.pairs", LOOPS, ("table[i, j] = total", "table[j, i] = total"), label="turned, square"),
    wrong(1, "shape.square-only", LOOPS, ("len(query), len(key)", "len(query), len(query)"), ("range(len(key))", "range(len(query))")),
    wrong(1, "law.scores", LOOPS, ("query[i, k] * key", "query[i, k] + key")),
    wrong(1, "law.scores", PRODUCT, ("query @ key.T", "query @ key.T / query.shape[-1] ** 0.5")),
    wrong(1, "law.scores", PRODUCT, ("query @ key.T", "torch.softmax(query @ key.T, dim=-1)")),
    wrong(1, "law.pairs", PRODUCT, ("key.T", "query.T")),
    wrong(1, "law.pairs", PRODUCT, ("query @ key.T", "(query @ key.T).T")),
    wrong(1, "sum.overwritten", PAIRS, ("(q * k).sum()", "(q * k)[-1]")),
]  # fmt: skip

BY_HAND = """
def weights(scores):
    shifted = scores - scores.amax(dim=-1, keepdim=True)
    powers = torch.exp(shifted)
    return powers / powers.sum(dim=-1, keepdim=True)
"""
SOFTMAX = """
def weights(scores):
    return torch.softmax(scores, dim=-1)
"""
ROWS = """
def weights(scores):
    result = torch.zeros(scores.shape)
    for i, row in enumerate(scores):
        powers = torch.exp(row - max(row))
        total = 0.0
        for power in powers:
            total += power
        result[i] = powers / total
    return result
"""
UNSQUEEZED = """
def weights(scores):
    powers = (scores - scores.amax(1)[:, None]).exp()
    return powers / powers.sum(1)[:, None]
"""
SECOND = [
    *right(2, by_hand=BY_HAND, softmax=SOFTMAX, rows=ROWS, unsqueezed=UNSQUEEZED),
    wrong(2, "softmax.axis", SOFTMAX, ("dim=-1", "dim=0")),
    wrong(2, "differs", UNSQUEEZED, ("scores.amax(1)[:, None]", "scores.max()"), label="the largest of the whole table"),
    wrong(2, "softmax.keepdim", BY_HAND, ("powers.sum(dim=-1, keepdim=True)", "powers.sum(dim=-1)")),
    wrong(2, "softmax.missing", BY_HAND, ("    powers = torch.exp(shifted)\n", ""), ("powers / powers.sum", "scores / scores.sum")),
    wrong(2, "softmax.axis", BY_HAND, ("powers.sum(dim=-1", "powers.sum(dim=0")),
    wrong(2, "softmax.keepdim", BY_HAND, ("scores.amax(dim=-1, keepdim=True)", "scores.amax(dim=-1)")),
    wrong(2, "softmax.keepdim", UNSQUEEZED, ("powers.sum(1)[:, None]", "powers.sum(1)")),
    wrong(2, "softmax.axis", UNSQUEEZED, ("powers.sum(1)[:, None]", "powers.sum()")),
    wrong(2, "softmax.missing", BY_HAND, ("return powers / powers.sum(dim=-1, keepdim=True)", "return powers")),
    wrong(2, "dtype.overflow", BY_HAND, ("scores - scores.amax(dim=-1, keepdim=True)", "scores")),
    wrong(2, "softmax.twice", SOFTMAX, ("(scores, dim=-1)", "(torch.softmax(scores, dim=-1), dim=-1)")),
    wrong(2, "softmax.missing", SOFTMAX, ("torch.softmax", "torch.log_softmax")),
    wrong(2, "softmax.missing", SOFTMAX, ("torch.softmax(scores, dim=-1)", "torch.sigmoid(scores)")),
    wrong(2, "law.scores", SOFTMAX, ("(scores, dim", "(scores / 2, dim")),
    wrong(2, "sum.carried", ROWS, ("        total = 0.0\n", ""), ("    for i, row", "    total = 0.0\n    for i, row")),
    wrong(2, "sum.overwritten", ROWS, ("total += power", "total = power")),
    wrong(2, "sum.left-out", ROWS, ("for power in powers:", "for power in powers[:-1]:")),
    wrong(2, "sum.left-out", ROWS, ("enumerate(scores)", "enumerate(scores[:-1])")),
    wrong(2, "softmax.missing", BY_HAND, ("powers.sum(dim=-1, keepdim=True)", "scores.sum(dim=-1, keepdim=True)")),
    wrong(2, "input.modified", SOFTMAX, ("    return torch.softmax(scores, dim=-1)", "    scores -= scores.amax(-1, keepdim=True)\n    return torch.softmax(scores, dim=-1)")),
]  # fmt: skip

TAKEN = """
def context(weights, value):
    result = torch.zeros(len(weights), value.shape[1])
    for i in range(len(weights)):
        for j in range(len(value)):
            result[i] += weights[i, j] * value[j]
    return result
"""
MATRIX = """
def context(weights, value):
    return weights @ value
"""
NUMBERS = """
def context(weights, value):
    result = torch.zeros(weights.shape[0], value.shape[1])
    for i in range(weights.shape[0]):
        for d in range(value.shape[1]):
            total = 0.0
            for j in range(value.shape[0]):
                total += weights[i, j] * value[j, d]
            result[i, d] = total
    return result
"""
SUMMED = """
def context(weights, value):
    return (weights[:, :, None] * value[None]).sum(dim=1)
"""
THIRD = [
    *right(3, taken=TAKEN, matrix=MATRIX, numbers=NUMBERS, summed=SUMMED),
    wrong(3, "sum.overwritten", TAKEN, ("result[i] += ", "result[i] = ")),
    wrong(3, "law.value", MATRIX, ("weights @", "weights.T @")),
    wrong(3, "weights.scaled", MATRIX, ("weights @ value", "weights @ value / len(value)")),
    wrong(3, "law.value", TAKEN, ("weights[i, j]", "weights[j, i]")),
    wrong(3, "weights.scaled", SUMMED, (".sum(dim=1)", ".mean(dim=1)")),
    wrong(3, "sum.left-out", TAKEN, ("range(len(value))", "range(len(value) - 1)")),
    wrong(3, "sum.left-out", TAKEN, ("range(len(value))", "range(1, len(value))")),
    wrong(3, "sum.left-out", TAKEN, ("range(len(weights))", "range(len(weights) - 1)")),
    wrong(3, "law.value", TAKEN, ("* value[j]", "* value[i]")),
    wrong(3, "law.value", TAKEN, ("* value[j]", "* value[0]")),
    wrong(3, "law.pairs", TAKEN, ("weights[i, j]", "weights[0, j]")),
    wrong(3, "law.value", MATRIX, ("weights @ value", "value.mean(dim=0).expand(len(weights), -1)")),
    wrong(3, "softmax.twice", MATRIX, ("weights @", "torch.softmax(weights, dim=-1) @")),
    wrong(3, "sum.carried", NUMBERS, ("            total = 0.0\n", ""), ("        for d in", "        total = 0.0\n        for d in")),
    wrong(3, "sum.carried", NUMBERS, ("            total = 0.0\n", ""), ("    for i in", "    total = 0.0\n    for i in")),
    wrong(3, "law.value", SUMMED, (".sum(dim=1)", ".amax(dim=1)")),
    wrong(3, "law.value differs", SUMMED, (".sum(dim=1)", "")),
]  # fmt: skip
CASES = [*FIRST, *SECOND, *THIRD]
