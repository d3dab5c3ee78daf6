"""The steps to the weight of one pair, as lines for a terminal."""

from math import inf, isfinite

from clearhead.drawing.labels import label
from clearhead.drawing.live.pairs import PairStages
from clearhead.drawing.terminal.shading import Text

DIMENSIONS = 8
"""Those that add most to the score are printed."""

BAR = 24


def why_lines(stages: PairStages, query: str, key: str) -> list[Text]:
    """The product of query and key by dimension, then each stage up to the weight.

    Args:
        stages: of the pair.
        query, key: its tokens.

    Example:
        >>> stages = PairStages((1.0, 2.0), (3.0, -1.0), 1.0, 0.5, 0.5, None, None, 0.5, 1.5, 0.3679)
        >>> for line in why_lines(stages, "it", "animal"):
        ...     print(line.plain.rstrip())
        Why 0.3679? it → animal
        dimension      query        key       adds
                0     1.0000     3.0000     3.0000  ████████████████████████
                1     2.0000    -1.0000    -2.0000  ----------------
        query · key                         1.0000
        × scale 0.5000                      0.5000
        exp(0.5000 - 1.5000)                0.3679
        1.5000 is the logsumexp: the logarithm of the sum of exp(score) over all keys
    """
    parts = [one * other for one, other in zip(stages.query, stages.key, strict=True)]
    # What is no number comes first, and has no bar.
    sizes = [abs(part) if isfinite(part) else inf for part in parts]
    order = sorted(range(len(parts)), key=lambda at: -sizes[at])
    most = max((size for size in sizes if size < inf), default=0.0) or 1.0
    lines = [
        Text.assemble((f"Why {stages.weight:.4f}?", "bold"), f" {label(query)} → {label(key)}"),
        Text(f"{'dimension':9} {'query':>10} {'key':>10} {'adds':>10}", "dim"),
    ]
    for at in order[:DIMENSIONS]:
        bar = ""
        if isfinite(parts[at]):
            bar = ("-" if parts[at] < 0 else "█") * round(BAR * sizes[at] / most)
        one, other = stages.query[at], stages.key[at]
        lines.append(Text(f"{at:9} {one:10.4f} {other:10.4f} {parts[at]:10.4f}  {bar}"))
    rest = order[DIMENSIONS:]
    if rest:
        lines.append(_stage(f"the other {len(rest)} dimensions", sum(parts[at] for at in rest)))
    lines.append(_stage("query · key", stages.score))
    lines.append(_stage(f"× scale {stages.scale:.4f}", stages.scaled))
    if stages.capped is not None:
        lines.append(_stage("after the softcap", stages.capped))
    if stages.masked == float("-inf"):
        return [*lines, _stage("the mask hides the key", 0.0)]
    if stages.bias is not None:
        lines.append(_stage(f"+ bias {stages.bias:.4f}", stages.masked))
    lines.append(_stage(f"exp({stages.masked:.4f} - {stages.logsumexp:.4f})", stages.weight))
    total = f"{stages.logsumexp:.4f} is the logsumexp: the logarithm of the sum of exp(score)"
    return [*lines, Text(f"{total} over all keys", "dim")]


def _stage(name: str, value: float) -> Text:
    return Text(f"{name:31} {value:10.4f}")
