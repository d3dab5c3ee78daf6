"""The payload of a page of heads: exact weights of short texts, and O(tokens) numbers of long ones.

Up to LONG tokens every weight is in it, rounded to a byte or less. Beyond, a head is a map of some
hundred rows and columns, the strongest links of each query as far as there is room for them, and a
few numbers for each token. In `data`:

    note      a line under the title
    roles     the names of the roles, and those that find an earlier token (`matching`)
    runs      the name of each run
    texts     the tokens of each text
    writes    the words of what heads write, as `written` has it
    layers    one entry each, as `_Packing.add` writes it; arrays are named "layer/…" or
              "layer/head/…", and rounded as `rounding` has it
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from clearhead._common.checks import as_int
from clearhead._common.writing import check_writable
from clearhead._text import count
from clearhead.drawing.page.head_arrays import (
    EXACT_BYTES,
    LINKS,
    LONG_BYTES,
    MAPS,
    Arrays,
    check_why,
    choose_levels,
    exact_weights,
    finest_map,
    per_head,
    query_and_key,
    rounded_maps,
    runs_of_keys,
    size_of,
    small_maps,
    strongest_links,
)
from clearhead.drawing.page.page import write_page
from clearhead.drawing.page.payload import BYTE, WORD, Deflated, Payload, deflated, rounded
from clearhead.drawing.page.photo import of_pictures, read_pictures, with_photos
from clearhead.drawing.page.runs import (
    ANYWHERE,
    NAMES,
    Layer,
    Located,
    Run,
    Start,
    names_of,
    read_run,
    rows_of_heads,
    start_of,
)
from clearhead.drawing.page.texts import PageText, beginning, offsets
from clearhead.drawing.page.written import Written
from clearhead.errors import ArgumentError, ArgumentTypeError
from clearhead.matrix.head_numbers import MATCHING, ROLES, numbers_of_heads
from clearhead.matrix.head_view import HeadView, mask_of_summary
from clearhead.matrix.links import TellingLink, are_words, telling_links, telling_of_top
from clearhead.matrix.matrix import AttentionMatrix, FileOptions
from clearhead.matrix.roles import summary_with_roles
from clearhead.matrix.summary import Summary


def heads_payload(
    runs: Sequence[Run],
    title: str,
    note: str = "",
    start: Start = ANYWHERE,
    *,
    why: bool = False,
    writes: Written | None = None,
) -> Payload:
    """Return the payload for the heads of all layers of one or two runs.

    Args:
        runs: one, or two to compare.
        title: the title of the page.
        note: a line under the title.
        start: where the page opens, instead of at the link between words that stands out most.
        why: True to pack the query and key of short texts too, from which each weight follows.
        writes: the tokens that heads of the first run raise and lower; None leaves them out.

    Raises:
        ArgumentError: code `page.empty`, if nothing attended; `page.sample`, for no such sample;
            `page.start` and `page.pin`, for a head or token that is not there; `page.why` and `page.writes`, for what
            is too large for a page, or not there.
        ArgumentTypeError: code `page.type`, for anything but matrices and summaries.
        ShapeError: code `page.lengths`, for tokens that fit neither queries nor keys.
        UnsupportedError: code `across.whole`, for a matrix of one rank of several.

    Example:
        >>> matrix = ch.AttentionMatrix(torch.eye(3), torch.eye(3), mask=ch.causal())
        >>> payload = heads_payload([Run("", [Layer("", matrix)])], "three tokens")
        >>> payload.kind, tuple(payload.arrays["0/0/weights"].shape)
        ('heads', (3, 3))
    """
    packing = _Packing()
    shown = [
        packing.locate(
            number, run, layer._replace(number=place if layer.number is None else layer.number)
        )
        for number, run in enumerate(runs)
        for place, layer in enumerate(run.layers)
    ]
    if not shown:
        raise ArgumentError(
            "page.empty", "a page needs at least one layer that attended; got none."
        )
    shorts = [(each.short, each.run.sample) for each in shown if each.short is not None]
    size = sum(each.num_heads * each.query_len * each.kv_len for each, _ in shorts)
    views = [HeadView(each, sample) for each, sample in shorts]
    packing.levels = None if 4 * size <= EXACT_BYTES else choose_levels(views)
    packing.room = LONG_BYTES / max(1, len(shown) - len(shorts))
    if why:
        check_why(shorts)
    for place, each in enumerate(shown):
        packing.add(place, each)
        if why and each.short is not None:
            vectors = query_and_key(place, each.short, each.run.sample)
            packing.layers[place]["why"] = packing.take(vectors)
    texts = [text.tokens for text in packing.texts]
    data: dict[str, Any] = {
        "note": note,
        "roles": {"all": ROLES, "matching": MATCHING},
        "runs": [run.name for run in runs],
        "texts": texts,
        "layers": packing.layers,
        "start": start_of(start, packing.layers, texts, packing.start),
    }
    if writes is not None:
        data["writes"] = packing.write(writes, shown)
    return Payload("heads", title, data, packing.arrays)


def write_heads(
    path: str | os.PathLike[str],
    runs: Sequence[Sequence[tuple[str, AttentionMatrix | Summary] | Layer]],
    *,
    other_tokens: Any = None,
    names: Sequence[str] = NAMES,
    note: str | None = None,
    unseen: Sequence[str] = (),
    writes: tuple[Any, Any] = (None, None),
    **options: Unpack[FileOptions],
) -> Path:
    """Write a page of heads, completely or not at all, and return its path.

    Args:
        path: the file.
        runs: the path of each layer and its attention, of one run, or of two.
        other_tokens: those of the second run; None takes the same.
        names: what two runs are called.
        note: a line under the title; None counts layers and tokens.
        unseen: what attended and is not on the page, named after the note.
        writes: the tokens that heads of the first run raise and lower, and their words, as `Written.of` takes them.
        options: as `Seen.to_html` takes them.

    Raises:
        FileError: code `file.unwritable`, if the file cannot be written.
        ArgumentError: code `page.one-run`, for names and tokens of a second run that there is not.
        ClearheadError: as `heads_payload`, `read_run`, `names_of` and `with_photos` do; code `page.sample-type`.

    Example:
        >>> import tempfile
        >>> matrix = ch.AttentionMatrix(torch.eye(3), torch.eye(3), mask=ch.causal())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = write_heads(f"{folder}/a.html", [[("", matrix)]], tokens=["a", "b", "c"])
        ...     file.read_text()[:15]
        '<!doctype html>'
    """
    # Before anything is computed.
    check_writable(path)
    sample, title = options.get("sample", 0), options.get("title")
    if as_int(sample) is None:
        raise ArgumentTypeError(
            "page.sample-type", f"sample must be a whole number; got {type(sample).__name__}."
        )
    called = names_of(len(runs), names)
    if other_tokens is not None and len(runs) < 2:
        raise ArgumentError(
            "page.one-run", "other_tokens are those of a second run, other=; got none."
        )
    written = Written.of(*writes)
    pictured = read_pictures(options)
    tokens = pictured.tokens
    texts = (tokens, tokens if other_tokens is None else other_tokens)
    shown = [
        read_run(layers, text, pictured.source_tokens, sample, name=name)
        for name, text, layers in zip(called, texts, runs, strict=False)
    ]
    shown, pictured = of_pictures(shown, pictured)
    text, layers = shown[0].text, shown[0].layers
    if title is None:
        words = () if text is None or options.get("tokens") is None else text.tokens
        patches = {photo.text[at] for photo in pictured.photos for at in photo.places}
        title = beginning([word for word in words if word not in patches]) or "Attention"
    if note is None:
        size = max((each.weights.kv_len for each in layers if each.picture is None), default=0)
        number = sum(each.picture is None or not each.call for each in layers)
        note = f"{count(number, 'layer')} · {count(size, 'key' if text is None else 'token')}"
    if pictured.left_out:
        note += f" · without {count(pictured.left_out, 'layer')} of other tokens"
    if unseen:
        note += f" · not seen: {'; '.join(unseen[:8])}" + " and more" * (len(unseen) > 8)
    start, why = Start(options.get("start"), options.get("pin")), options.get("why", False)
    payload = heads_payload(shown, title, note, start=start, why=why, writes=written)
    return write_page(path, with_photos(payload, pictured))


@dataclass
class _Packing:
    """A payload under construction, to which layers are added in order.

    Attributes:
        levels: the steps that weights are rounded to; None to write them as they are.
        room: bytes for each long layer.
        texts, layers, arrays: of the page so far.
        start: the link at which the page opens; None without one.
        telling: how much that link stands out.
    """

    levels: int | None = BYTE
    room: float = 0.0
    texts: list[PageText] = field(default_factory=list)
    layers: list[dict[str, Any]] = field(default_factory=list)
    arrays: dict[str, Tensor | Deflated] = field(default_factory=dict)
    start: dict[str, Any] | None = None
    telling: tuple[bool, float] = (False, 0.0)

    def locate(self, number: int, run: Run, layer: Layer) -> Located:
        """Return a layer with its place in the texts, which new texts are added to.

        Two runs of one text share the text.

        Raises:
            ClearheadError: as `heads_payload` does.
        """
        run, weights = layer.picture or run, layer.weights
        if not isinstance(weights, AttentionMatrix | Summary):
            raise ArgumentTypeError(
                "page.type",
                f"a page shows an AttentionMatrix or a Summary; got {type(weights).__name__}.",
            )
        if isinstance(weights, AttentionMatrix):
            weights.check_whole("a page")
        if not 0 <= run.sample < weights.batch:
            raise ArgumentError(
                "page.sample",
                f"sample must be a number from 0 to below {weights.batch}; got {run.sample}.",
            )
        lengths = (None if text is None else len(text.tokens) for text in (run.text, run.source))
        sizes = weights.query_len, weights.kv_len
        found = offsets(layer.name, *sizes, *lengths, cross=weights.cross)
        own = [None if text is None else self._text(text) for text in (run.text, run.source)]
        query, key = (e._replace(text=None if e.text is None else own[e.text]) for e in found)
        return Located(number, run, layer, query, key)

    def add(self, place: int, shown: Located) -> None:
        """Append the entry of a layer, and add its arrays; `start` becomes a link of it if that stands out more.

        Only layers of the first run can set `start`. `place` is the layer's index in the page.
        """
        query, key, weights = shown.query, shown.key, shown.layer.weights
        own = None if key.text is None or key.text != query.text else self.texts[key.text]
        summary = self._summary(shown, own)
        short, sample = shown.short, shown.run.sample
        fine = BYTE if short is None else WORD
        entry: dict[str, Any] = {
            "name": shown.layer.name,
            "number": shown.layer.number,
            "call": shown.layer.call,
            "run": shown.number,
            "cross": shown.crosses,
            "heads": summary.num_heads,
            "head_numbers": None if weights.heads is None else numbers_of_heads(weights),
            "kv_heads": summary.num_kv_heads,
            "queries": summary.query_len,
            "keys": summary.kv_len,
            "query": query._asdict(),
            "key": key._asdict(),
            "rows": rows_of_heads(shown.layer.name, summary, crosses=shown.crosses),
        }
        per_token: dict[str, Tensor | Deflated] = {}
        for name, levels, power in (
            ("entropy", fine, 1),
            ("distance", fine, 2),
            ("max", fine, 2),
            ("received", WORD, 3),
        ):
            numbers = rounded(summary._statistic(name)[0], levels, power=power)
            per_token[f"{place}/{name}"], entry[name] = numbers
        words = None
        if own is not None and shown.number == 0:
            queries = own.tokens[query.first : query.first + summary.query_len]
            words = are_words(queries), are_words(own.tokens[: summary.kv_len])
        elif short is None and shown.number == 0 and not shown.crosses:
            sizes = summary.query_len, summary.kv_len
            words = torch.ones(sizes[0], dtype=torch.bool), torch.ones(sizes[1], dtype=torch.bool)
        if short is not None:
            self.arrays |= per_token
            maps = HeadView(short, sample).exact()
            if self.levels is None:
                every = exact_weights(place, maps)
            else:
                every = per_head(place, "weights", rounded_maps(maps, self.levels))
            entry["weights"] = self.take(every)
            entry["small"] = self.take(small_maps(place, maps))
            if words is not None:
                between = (words[0][:, None] & words[1]).to(maps.shares.device)
                self._open_at(place, telling_links(maps.shares, between, maps.visible))
        else:
            self.arrays |= {name: deflated(each) for name, each in per_token.items()}
            self._add_pooled(place, shown, summary, entry, self.room - size_of(per_token))
            if words is not None and summary.top_k is not None:
                keys, weights = summary.top_k.keys[0], summary.top_k.weights[0]
                self._open_at(place, telling_of_top(keys.cpu(), weights.cpu(), *words))
        self.layers.append(entry)

    def _open_at(self, place: int, links: Sequence[TellingLink | None]) -> None:
        """Set `start` to a head of this layer if its link stands out more than those so far; None is no link."""
        for head, link in enumerate(links):
            if link is not None and link[:2] > self.telling:
                self.telling = link[:2]
                self.start = {"layer": place, "head": head, "query": link.query, "key": link.key}

    def _add_pooled(
        self, place: int, shown: Located, summary: Summary, entry: dict[str, Any], room: float
    ) -> None:
        """Add map, visible keys and links of a long text to `entry` and the arrays, as many as fit into `room` bytes.

        Those that the summary does not have are left out.
        """
        if summary.pooled is not None:
            weights = shown.layer.weights
            matrix = weights if isinstance(weights, AttentionMatrix) else None
            problem = mask_of_summary(summary) if matrix is None else matrix.problem
            maps = HeadView(summary).pooled_maps(problem, shown.run.sample)
            if problem is not None:
                may_hide = problem.bias is not None and problem.bias.may_hide
                spans = None if may_hide else problem.spans
                entry["spans"] = self.take(runs_of_keys(place, spans, shown.run.sample))
            entry["small"] = self.take(small_maps(place, maps))
            finest = finest_map(place, maps, room / 2)
            entry["pooled"] = self.take(finest)
            room -= size_of(finest.arrays)
        if summary.top_k is not None:
            entry["links"] = self.take(strongest_links(place, summary, room))

    def write(self, writes: Written, shown: Sequence[Located]) -> dict[str, Any]:
        """Add the tokens that heads raise and lower to the layers, and return the entry of the page.

        Raises as `Written.packed`.
        """
        entry, found = writes.packed(shown)
        for place, arrays in found.items():
            self.layers[place]["writes"] = self.take(arrays)
        return entry

    def take(self, found: Arrays | None) -> dict[str, Any] | None:
        """Add arrays, and return the entry that says how to read them; None, and nothing added, for None."""
        if found is None:
            return None
        self.arrays |= found.arrays
        return found.about

    def _text(self, text: PageText) -> int:
        """Return the index of a text in the list of texts of the page, to which a new text is added."""
        known = [each.tokens for each in self.texts]
        if text.tokens not in known:
            self.texts.append(text)
        return known.index(text.tokens) if text.tokens in known else len(known)

    def _summary(self, shown: Located, text: PageText | None) -> Summary:
        """Return the summary of the sample, with batch and heads, and with roles if they are known.

        Made of a matrix, with links and a map if it is long; a summary is cut to the sample.
        """
        weights = shown.layer.weights
        if isinstance(weights, Summary):
            return weights.sample(shown.run.sample)
        options: dict[str, Any] = {}
        if shown.short is None and min(weights.query_len, weights.kv_len):
            options = {
                "top_k": min(LINKS, weights.kv_len),
                "pool": (min(MAPS[0], weights.query_len), min(MAPS[0], weights.kv_len)),
            }
        ids = None if text is None else text.ids[: weights.kv_len]
        return summary_with_roles(weights, ids, **options).sample(shown.run.sample)
