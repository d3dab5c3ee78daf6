"""The heads of a model as a page's payload: each to the single token, or of long texts in O(tokens).

Up to LONG tokens every weight is there, rounded to a byte or less. Beyond, a head is a map of some
hundred rows and columns, the strongest links of each query as far as there is room for them, and a
few numbers for each token. In `data`:

    texts   the tokens of each text
    runs    what each run is called
    layers  a Layer each, as `_Packing.layer` writes it; arrays are named "layer/…" or
            "layer/head/…", and rounded as `rounding` has it
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.checks import as_int
from clearhead._common.writing import check_writable
from clearhead.drawing.page.page import write_page
from clearhead.drawing.page.payload import Deflated, Payload, deflated
from clearhead.drawing.page.rounding import BYTE, WORD, Rounded, rounded
from clearhead.drawing.page.texts import Place, Text, places, read_text
from clearhead.errors import ArgumentError, ArgumentTypeError
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.parts import masked_scores
from clearhead.matrix.reductions import bins
from clearhead.matrix.roles import roles
from clearhead.matrix.summary import Summary
from clearhead.watching.recording import real_queries
from clearhead.watching.table import ROLES, rows_of

LONG = 1024
"""Of more queries or keys than this, a head is pooled."""

SHORT_BYTES, LONG_BYTES = 11_600_000, 7_100_000
"""What the weights of short texts, and all numbers of long ones, may take before base64, which makes
4 bytes of 3."""

SMALL = 40
"""Rows and columns of the maps of the overview, at most."""

MAPS = (1024, 512, 256, 128)
"""Rows and columns of the map of a long text: the finest that there is room for."""

LINKS = 8
"""How many of the strongest links of each query are looked for in a long text."""

STEPS = (BYTE, 180, 127, 107, 90, 76, 64, 54, 45)
"""To how many steps weights are rounded: the most that there is room for."""

TITLE_TOKENS = 16
"""So many tokens of a text are the title of its page."""

EVERY = 7
"""Of every so many queries one is looked at, to tell how well weights deflate."""

Attended = AttentionMatrix | Summary
Progress = Callable[[str, float], None]


class Layer(NamedTuple):
    """What a layer attended to.

    Attributes:
        name: its path, and which call it was.
        seen: its matrix or its summary, of any leading dimensions.
    """

    name: str
    seen: Attended


@dataclass(frozen=True, eq=False)
class Run:
    """What a model attended to in one go.

    Attributes:
        name: what to call the run, beside another one.
        layers: in order.
        text, source: the tokens that it read, if they are known; the source in cross-attention.
        sample: which one of a batch.
    """

    name: str
    layers: Sequence[Layer]
    text: Text | None = None
    source: Text | None = None
    sample: int = 0


def heads_payload(
    runs: Sequence[Run],
    title: str,
    note: str = "",
    progress: Progress = lambda doing, done: None,
) -> Payload:
    """The heads of all layers of one or two runs.

    Args:
        runs: what was seen.
        title: what the page is called.
        note: a line under the title.
        progress: told what is being done, and which share of it is done.

    Raises:
        ArgumentError: code `page.empty`, if nothing attended; `page.sample`, for no such sample.
        ArgumentTypeError: code `page.type`, for something else than matrices and summaries.
        ShapeError: code `page.lengths`, for tokens that fit neither queries nor keys.

    Example:
        >>> import torch, clearhead as ch
        >>> matrix = ch.AttentionMatrix(torch.eye(3), torch.eye(3), mask=ch.causal())
        >>> payload = heads_payload([Run("", [Layer("", matrix)])], "three tokens")
        >>> payload.kind, tuple(payload.arrays["0/0/weights"].shape)
        ('heads', (3, 3))
    """
    packing = _Packing()
    given = []
    for number, run in enumerate(runs):
        texts = packing.texts_of(run)
        for layer in run.layers:
            given.append((number, run, layer, *_places(run, layer, texts)))
    if not given:
        raise ArgumentError(
            "page.empty", "a page needs at least one layer that attended; got none."
        )
    shorts = [each for each in given if isinstance(each[2].seen, AttentionMatrix)]
    shorts = [each for each in shorts if max(each[2].seen.shape[-2:]) <= LONG]
    levels = _levels([(run, layer) for _, run, layer, _, _ in shorts])
    room = LONG_BYTES / max(1, len(given) - len(shorts))
    for done, (number, run, layer, query, key) in enumerate(given):
        progress("packing", done / len(given))
        packing.layer(number, run, layer, query, key, levels, room, progress)
    data = {
        "note": note,
        "runs": [run.name for run in runs],
        "texts": packing.texts,
        "layers": packing.layers,
    }
    return Payload("heads", title, data, packing.arrays)


def write_heads(
    path: str | os.PathLike[str],
    layers: Sequence[tuple[str, Attended]],
    *,
    tokens: Any = None,
    source_tokens: Any = None,
    other: Sequence[tuple[str, Attended]] | None = None,
    title: str | None = None,
    note: str | None = None,
    sample: int = 0,
    progress: Progress = lambda doing, done: None,
) -> Path:
    """Write a page of heads, whole or not at all; returns its path.

    Args:
        path: where to.
        layers: the path of each layer, and what it attended to.
        tokens, source_tokens: strings or ids of the text, and of the one that cross-attention
            looks at.
        other: the layers of another run on the same tokens, to compare with.
        title: what the page is called; the beginning of the text, if nothing is said.
        note: a line under it; how many layers, heads and tokens there are, if nothing is said.
        sample: which one of a batch.
        progress: told what is being done, and which share of it is done.

    Raises:
        FileError: code `file.unwritable`, if the place cannot be written to.
        ClearheadError: as `heads_payload` and `read_text` do.

    Example:
        >>> import tempfile, torch, clearhead as ch
        >>> matrix = ch.AttentionMatrix(torch.eye(3), torch.eye(3), mask=ch.causal())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = write_heads(f"{folder}/a.html", [("", matrix)], tokens=["a", "b", "c"])
        ...     file.read_text()[:15]
        '<!doctype html>'
    """
    # Before anything is computed.
    check_writable(path)
    if as_int(sample) is None:
        raise ArgumentTypeError(
            "page.sample-type", f"sample must be a whole number; got {type(sample).__name__}."
        )
    text = None if tokens is None else read_text("tokens", tokens, sample)
    source = None if source_tokens is None else read_text("source_tokens", source_tokens, sample)
    given = [layers] if other is None else [layers, other]
    runs = [
        Run("" if other is None else name, [Layer(*each) for each in every], text, source, sample)
        for name, every in zip("AB", given, strict=False)
    ]
    if title is None:
        title = "Attention" if text is None else _beginning(text.tokens)
    if note is None:
        size = 0 if not layers else _lengths(layers[0][1])[1]
        counted = "1 layer" if len(layers) == 1 else f"{len(layers)} layers"
        unit = "token" if text is not None else "key"
        note = f"{counted} · {size:,} {unit}{'' if size == 1 else 's'}"
    return write_page(path, heads_payload(runs, title, note, progress))


def _beginning(tokens: Sequence[str]) -> str:
    """The first words of a text, from its tokens."""
    few = tokens[:TITLE_TOKENS]
    spaced = any(token.startswith(" ") for token in few)
    text = ("" if spaced else " ").join(few).strip()
    return text + (" …" if len(tokens) > TITLE_TOKENS else "")


@dataclass
class _Packing:
    """A payload that is being made."""

    texts: list[tuple[str, ...]] = field(default_factory=list)
    layers: list[dict[str, Any]] = field(default_factory=list)
    arrays: dict[str, Tensor | Deflated] = field(default_factory=dict)

    def texts_of(self, run: Run) -> tuple[int | None, int | None]:
        """The numbers of a run's texts; two runs of one text share it."""
        found: list[int | None] = []
        for text in (run.text, run.source):
            if text is None:
                found.append(None)
                continue
            if text.tokens not in self.texts:
                self.texts.append(text.tokens)
            found.append(self.texts.index(text.tokens))
        return found[0], found[1]

    def layer(
        self,
        number: int,
        run: Run,
        layer: Layer,
        query: Place,
        key: Place,
        levels: int,
        room: float,
        progress: Progress,
    ) -> None:
        """Take in a layer: a dictionary for the head of the payload, and arrays."""
        place = len(self.layers)
        own = key.text is not None and key.text == query.text
        text = None
        if own and key.text is not None:
            known = (each for each in (run.text, run.source) if each is not None)
            text = next(each for each in known if each.tokens == self.texts[key.text])
        summary = _summary(layer, run.sample, text, progress)
        full = _full(layer.seen)
        heads, kv_heads = summary.entropy.shape[1], summary.received.shape[1]
        about: dict[str, Any] = {
            "name": layer.name,
            "run": number,
            "heads": heads,
            "kv_heads": kv_heads,
            "queries": summary.query_len,
            "keys": summary.kv_len,
            "query": query._asdict(),
            "key": key._asdict(),
            "rows": _rows(layer.name, summary),
        }
        fine = WORD if full else BYTE
        about |= {
            "entropy": self._keep(f"{place}/entropy", summary.entropy[0], fine, power=1),
            "distance": self._keep(f"{place}/distance", summary.distance[0], fine),
            "max": self._keep(f"{place}/max", summary.max[0], fine, power=1),
            "received": self._keep(f"{place}/received", summary.received[0], WORD, power=3),
        }
        if full:
            assert isinstance(layer.seen, AttentionMatrix)
            weights, hidden = _weights(layer.seen, run.sample)
            about["weights"] = self._heads(
                place, "weights", rounded(weights, levels, hidden=hidden)
            )
            about["small"] = self._small(place, weights)
        else:
            about |= self._pooled(place, summary, room - self._deflate(place))
        self.layers.append(about)

    def _deflate(self, place: int) -> int:
        """Deflate what is there of a layer; returns how many bytes it takes."""
        own = {name: each for name, each in self.arrays.items() if name.startswith(f"{place}/")}
        self.arrays |= {name: deflated(each) for name, each in own.items()}
        return sum(len(deflated(self.arrays[name]).content) for name in own)

    def _keep(self, name: str, values: Tensor, levels: int, power: float = 2) -> dict[str, Any]:
        """Numbers of a layer as one array, a row for each head."""
        self.arrays[name], about = rounded(values, levels, power=power)
        return about

    def _heads(self, place: int, name: str, numbers: Rounded) -> dict[str, Any]:
        """Numbers of a layer as an array for each head, which a page reads when it is looked at."""
        for head, codes in enumerate(numbers.codes):
            self.arrays[f"{place}/{head}/{name}"] = codes
        return numbers.about | {"shape": list(numbers.codes.shape[1:])}

    def _small(self, place: int, shares: Tensor) -> dict[str, Any] | None:
        """The maps of the overview, from maps of shares or from weights."""
        if not shares.numel():
            return None
        small = _coarser(shares, min(SMALL, shares.shape[1]), min(SMALL, shares.shape[2]))
        numbers = rounded(small)
        self.arrays[f"{place}/small"] = numbers.codes
        return numbers.about | {"shape": list(small.shape[1:])}

    def _pooled(self, place: int, summary: Summary, room: float) -> dict[str, Any]:
        """Map and links of a long text, as fine and as many as there is room for."""
        about: dict[str, Any] = {}
        if summary.pooled is not None:
            shares = _shares(summary.pooled[0], summary.query_len)
            about["small"] = self._small(place, shares)
            numbers, maps = _finest(shares, room / 2)
            for head, each in enumerate(maps):
                self.arrays[f"{place}/{head}/pooled"] = each
                room -= len(each.content)
            about["pooled"] = numbers.about | {"shape": list(numbers.codes.shape[1:])}
        if summary.top_k is not None:
            about["links"] = self._links(place, summary, room)
        return about

    def _links(self, place: int, summary: Summary, room: float) -> dict[str, Any] | None:
        """The strongest links: ranks from the first on, until the room is used up."""
        assert summary.top_k is not None
        weights, keys = summary.top_k.weights[0], summary.top_k.keys[0]
        where = torch.arange(summary.query_len) + summary.kv_len - summary.query_len
        about: dict[str, Any] | None = None
        for rank in range(weights.shape[-1]):
            numbers = rounded(weights[..., rank], BYTE)
            back = (where - keys[..., rank]).masked_fill(keys[..., rank] < 0, 0)
            planes = _planes(back, summary.kv_len + summary.query_len)
            new = {
                f"{place}/{head}/{name}{rank}": deflated(each)
                for name, every in (("back", planes), ("link", numbers.codes))
                for head, each in enumerate(every)
            }
            room -= sum(len(each.content) for each in new.values())
            if room < 0 and rank:
                break
            self.arrays |= new
            tops = [] if about is None else about["top"]
            about = numbers.about | {
                "count": rank + 1,
                "top": [*tops, numbers.about["top"]],
                "planes": planes.shape[1],
            }
        return about


def _places(run: Run, layer: Layer, texts: tuple[int | None, int | None]) -> tuple[Place, Place]:
    """Where queries and keys are in the texts of the page."""
    if not isinstance(layer.seen, AttentionMatrix | Summary):
        raise ArgumentTypeError(
            "page.type",
            f"a page shows an AttentionMatrix or a Summary; got {type(layer.seen).__name__}.",
        )
    samples = _samples(layer.seen)
    if not 0 <= run.sample < samples:
        raise ArgumentError(
            "page.sample", f"sample must be a number from 0 to below {samples}; got {run.sample}."
        )
    query_len, kv_len = _lengths(layer.seen)
    found = places(
        layer.name,
        query_len,
        kv_len,
        None if run.text is None else len(run.text.tokens),
        None if run.source is None else len(run.source.tokens),
    )
    first, second = (
        each._replace(text=None if each.text is None else texts[each.text]) for each in found
    )
    return first, second


def _samples(seen: Attended) -> int:
    if isinstance(seen, Summary):
        return len(seen.entropy) if seen.entropy.ndim == 3 else 1
    return seen.problem.batch


def _lengths(seen: Attended) -> tuple[int, int]:
    if isinstance(seen, Summary):
        return seen.query_len, seen.kv_len
    return seen.shape[-2], seen.shape[-1]


def _full(seen: Attended) -> bool:
    """Whether all of its weights are shown."""
    return isinstance(seen, AttentionMatrix) and max(_lengths(seen)) <= LONG


def _levels(layers: Sequence[tuple[Run, Layer]]) -> int:
    """To how many steps the weights of all these layers can be rounded."""
    for levels in STEPS:
        bits = 0.0
        for run, layer in layers:
            assert isinstance(layer.seen, AttentionMatrix)
            few, hidden = _weights(layer.seen, run.sample, EVERY)
            codes = rounded(few, levels, hidden=hidden).codes
            size = math.prod(_lengths(layer.seen))
            bits += sum(_entropy(each) for each in codes) * size
        # What deflate needs beyond the entropy of single codes was measured: a twentieth.
        if bits / 8 * 1.05 <= SHORT_BYTES:
            return levels
    return STEPS[-1]


def _entropy(codes: Tensor) -> float:
    """Bits for each code, where codes are told apart by how frequent they are."""
    counts = torch.bincount(codes.flatten().int())
    shares = counts / max(1, codes.numel())
    return float(torch.special.entr(shares).sum()) / math.log(2)


def _weights(matrix: AttentionMatrix, sample: int, every: int = 1) -> tuple[Tensor, Tensor]:
    """The weights of a sample, and which pairs are hidden, both (heads, queries, keys)."""
    problem = matrix.problem
    with torch.no_grad():
        rows = torch.arange(0, problem.query_len, every, device=matrix.device)
        heads = torch.arange(problem.num_heads, device=matrix.device)
        columns = torch.arange(problem.kv_len, device=matrix.device)
        chosen = torch.tensor([sample], device=matrix.device)
        scores = masked_scores(problem, chosen, heads, rows, columns)
        weights = stages.weights(scores, problem.sinks)
    return weights[0], scores[0] == -torch.inf


def _summary(layer: Layer, sample: int, text: Text | None, progress: Progress) -> Summary:
    """The summary of a sample, with roles if they can be known; all with batch and heads."""
    seen = layer.seen
    if isinstance(seen, Summary):
        return _of_sample(seen, sample)
    query_len, kv_len = _lengths(seen)
    if _full(seen) or not min(query_len, kv_len):
        summary = seen.summary()
    else:
        pool = MAPS[0]
        summary = seen.summary(
            top_k=min(LINKS, kv_len),
            pool=(min(pool, query_len), min(pool, kv_len)),
            progress=lambda done: progress(layer.name or "reading the weights", done),
        )
    ids = None if text is None else text.ids[:kv_len]
    real = real_queries(seen.problem)
    found = roles(seen, ids, queries=real)
    return _of_sample(replace(summary, roles=found, real=real), sample)


def _of_sample(summary: Summary, sample: int) -> Summary:
    """One sample of a summary, with axes of batch and heads, whatever it had."""
    missing = 3 - summary.entropy.ndim

    def one(tensor: Any) -> Any:
        if tensor is None:
            return None
        four_dims = tensor.reshape((1,) * missing + tuple(tensor.shape))
        return four_dims[sample : sample + 1].detach().cpu()

    top_k, found = summary.top_k, summary.roles
    return replace(
        summary,
        logsumexp=one(summary.logsumexp),
        entropy=one(summary.entropy),
        max=one(summary.max),
        distance=one(summary.distance),
        first=one(summary.first),
        previous=one(summary.previous),
        received=one(summary.received),
        context=None,
        mass=None,
        pooled=one(summary.pooled),
        top_k=None if top_k is None else type(top_k)(*map(one, top_k)),
        roles=None
        if found is None
        else replace(found, **{name: one(getattr(found, name)) for name in ROLES}),
        real=None
        if summary.real is None
        else torch.atleast_2d(summary.real)[sample : sample + 1].cpu(),
    )


def _rows(name: str, summary: Summary) -> list[dict[str, Any]]:
    """What each head does, averaged over its queries; without roles only what is known."""
    if summary.roles is not None:
        rows = [row._asdict() for row in rows_of(name, [summary])]
        return [
            {key: _plain(row[key]) for key in ("entropy", "distance", "role", *ROLES)}
            for row in rows
        ]
    averages = zip(summary.entropy[0].mean(-1), summary.distance[0].mean(-1), strict=True)
    return [
        {"entropy": _plain(float(entropy)), "distance": _plain(float(distance)), "role": ""}
        for entropy, distance in averages
    ]


def _plain(value: Any) -> Any:
    """A number as JSON has it: none that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shares(pooled: Tensor, query_len: int) -> Tensor:
    """Sums over rectangles, (heads, rows, columns), as what a query of the row gives on average."""
    rows = pooled.shape[1]
    counts = torch.bincount(bins(query_len, rows, pooled.device), minlength=rows)
    return pooled / counts[:, None]


def _coarser(shares: Tensor, rows: int, columns: int) -> Tensor:
    """A map with fewer cells: the average of its rows, the sum of its columns."""
    if tuple(shares.shape[1:]) == (rows, columns):
        return shares
    row, column = (
        bins(size, count, shares.device)
        for size, count in zip(shares.shape[1:], (rows, columns), strict=True)
    )
    sums = shares.new_zeros(len(shares), rows, shares.shape[2]).index_add_(1, row, shares)
    sums = sums / torch.bincount(row, minlength=rows)[:, None]
    return sums.new_zeros(len(shares), rows, columns).index_add_(2, column, sums)


def _finest(shares: Tensor, room: float) -> tuple[Rounded, list[Deflated]]:
    """The finest map of each head for which there is room; the coarsest of MAPS in any case."""
    rows, columns = shares.shape[1:]
    sizes = [max(rows, columns), *(size for size in MAPS if size < max(rows, columns))]
    for size in sizes:
        numbers = rounded(_coarser(shares, min(size, rows), min(size, columns)))
        maps = [deflated(codes) for codes in numbers.codes]
        if size == sizes[-1] or sum(len(each.content) for each in maps) <= room:
            return numbers, maps
    raise AssertionError("there is always a coarsest map")


def _planes(back: Tensor, most: int) -> Tensor:
    """Whole numbers of any sign, (heads, queries), as planes of bytes, (heads, planes, queries).

    −1, 1, −2 … become 1, 2, 3 …; the planes begin with the lowest byte. The high bytes of
    neighbours are mostly the same, which deflates well.
    """
    zigzag = torch.where(back < 0, -2 * back - 1, 2 * back)
    count = max(1, math.ceil(math.log2(2 * most + 1) / 8))
    return torch.stack([(zigzag >> 8 * n & 255).to(torch.uint8) for n in range(count)], dim=1)
