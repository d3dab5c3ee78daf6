"""The record of a watched model, module by module."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast

from torch import Tensor

from clearhead._common.elements import element
from clearhead._common.foreign_names import Answering
from clearhead._common.hints import with_hints
from clearhead._common.lazy import drawing
from clearhead._text import readable
from clearhead.errors import ArgumentError, ArgumentTypeError
from clearhead.matrix.matrix import FileOptions, PageOptions
from clearhead.watching.encoding import Record
from clearhead.watching.files import read_seen, write
from clearhead.watching.finding import HeadLinks, links_of_heads, place_of_token
from clearhead.watching.module_calls import Kept
from clearhead.watching.table import Table, rows_of, summary_of
from clearhead.watching.token_ids import Tokens, listed, source_paths
from clearhead.watching.whole_record import WholeRecord

if TYPE_CHECKING:
    from clearhead.reading.written_tokens import Writes

Options = TypeVar("Options", bound=PageOptions)


class MapOptions(TypedDict, total=False):
    """The options of `Seen.plot`."""

    layers: Sequence[str | int] | None
    heads: Sequence[int] | Sequence[tuple[int | str, int]] | None
    sample: int | None
    tokens: Sequence[str] | None
    source_tokens: Sequence[str] | None
    columns: int | None
    width: float | None
    ax: Any


class Seen(Answering, WholeRecord[Kept]):
    """The record of a watched model, a mapping from the paths of its modules to their records.

    This is the attention matrix of a module, its summary, or the result of a function of the matrix.

    Keys are the paths of the modules, in the order in which they first attended; the model itself
    is "". A number picks a module by its place in that order, from the end if it is negative.

    A module that attended several times has `calls`. If they are the steps of one growing sequence,
    as in generation with a KV cache of any kind or with beams, then `seen[path]` is the one matrix that
    they are rows of, with keys at their places in the whole text; of cross-attention if the self-attention of the
    same queries was seen to grow. If they are not, the repr says why.

    Example:
        >>> import torch, clearhead as ch
        >>> model = torch.nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in range(2)))
        >>> with ch.watch(model) as seen:
        ...     output = model(torch.randn(1, 3, 8))
        >>> seen
        Sequential: 2 modules attended
          0  AttentionMatrix [batch=1, num_heads=2, query_len=3, kv_len=3]
          1  AttentionMatrix [batch=1, num_heads=2, query_len=3, kv_len=3]
        >>> seen["1"] is seen[-1]
        True
    """

    def table(self, tokens: Tensor | None = None, source_tokens: Tensor | None = None) -> Table:
        """Return the heads side by side: entropy, distance, and how far each fills each role.

        Averages are over all real queries of all calls; layers that share a module, as in ALBERT, have a row each.

        Args:
            tokens: ids, (batch, len) or (len,), for the roles that need them, from the first key on. None takes
                those that the model's input embedding read; where there are none, as in a file, `duplicate`
                and `induction` are None. A watch that kept summaries has found the roles.
            source_tokens: in a model of an encoder and a decoder those that the encoder reads.

        Raises:
            ArgumentError: codes `tokens.keep`, for tokens where summaries or totals were kept, and `watch.results`,
                where the results of a function or contexts were.
            ClearheadError: for tokens that `roles` refuses.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
            >>> with ch.watch(layer) as seen:
            ...     output = layer(torch.randn(1, 5, 8))
            >>> [(row.layer, row.head, row.queries) for row in seen.table()]
            [('', 0, 5), ('', 1, 5)]
        """
        self.need_attention("table", totals=True)
        if self._keep in ("summary", "total") and not (tokens is source_tokens is None):
            raise ArgumentError(
                "tokens.keep",
                f"tokens must be given to watch(…, keep={self._keep!r}, tokens=…), which finds the "
                "roles while the model runs; got them afterwards.",
            )
        rows, source = [], source_paths(self._modules)
        for path in self._modules:
            ids = source_tokens if path in source else tokens
            for name, parts in self.apart([path]):
                summaries = [summary_of(each, ids) for each in parts]
                rows += rows_of(name, summaries, self.number(path))
        return Table(rows, self.missing)

    def find(
        self,
        query: str | int | Tensor | None = None,
        key: str | int | Tensor | None = None,
        *,
        tokens: Sequence[str] | None = None,
        source_tokens: Sequence[str] | None = None,
        layers: Sequence[str | int] | None = None,
        sample: int = 0,
    ) -> HeadLinks:
        """Return which heads look from one token to another, the strongest first.

        Args:
            query: the token that looks, as it reads (the first of several) or by its place, −1 for the last; a bool
                tensor, (len,) or (batch, len), for any that is True, and None for any: each head's strongest link.
            key: the same of the token that is attended to. Weights of keys that are True are summed, for the first.
            tokens: the tokens; None takes those of the run.
            source_tokens: in cross-attention the tokens of the keys, in the same form.
            layers: only these, by path or number; None for all.
            sample: the row of the batch.

        Raises:
            ArgumentError: codes `watch.find`, where neither is given, no tokens are known to find a word in, or
                summaries or totals were kept, and `watch.results`, for contexts or results of a function.
            ArgumentTypeError: codes `watch.find-type` and `layers.list`.
            ClearheadError: codes `watch.token`, `watch.layer`, `matrix.range` and `segments.shape`.

        Example:
            >>> import torch, clearhead as ch
            >>> model = torch.nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in "ab"))
            >>> with torch.no_grad(), ch.watch(model) as seen:
            ...     output = model(torch.randn(1, 3, 8))
            >>> links = seen.find("it", "cat", tokens=["the", "cat", "it"])
            >>> len(links), links[0].query, links[0].key
            (4, 2, 1)
        """
        if self._keep in ("summary", "total"):
            raise ArgumentError(
                "watch.find",
                f'find needs a watch with keep="matrix"; keep={self._keep!r} holds no single weights.',
            )
        self.need_attention("find")
        if query is None and key is None:
            raise ArgumentError("watch.find", "find needs a query, a key or both.")
        mine = self.tokens if tokens is None else tokens
        other = self.source_tokens if source_tokens is None else source_tokens
        row = place_of_token("query", query, mine)
        column = place_of_token("key", key, mine if other is None else other)
        found = [
            link
            for name, matrix in self.parts(layers)
            for link in links_of_heads(name, cast(Any, matrix), row, column, sample)
        ]
        return HeadLinks(sorted(found, key=lambda link: -link.weight))

    @with_hints
    def plot(self, kind: str = "map", **options: Unpack[MapOptions]) -> Any:
        """Draw all layers with matplotlib; `seen[layer].plot()` draws one, and larger.

        Args:
            kind: "map" is a small map for each head of each layer. "entropy" (nats), "distance"
                (tokens), "max", "first" and "previous" (shares of 1) are one picture of layers ×
                heads, with the mean over all queries that are not padded. "received" is what each
                key gets in each layer, the mean over heads.
            layers, heads: only these; layers by path or number, heads by their number in the layer. Pairs
                of a layer and a head, `heads=[(0, 2), (5, 1)]`, are those maps alone, for a paper.
            sample: which row of the batch. None is the first; for means over queries, all of them.
            tokens: a word for each key, for "received"; for pairs, of each query.
            source_tokens: for pairs, a word for each key, where keys are of another text.
            columns: for pairs, how many stand side by side.
            width: for pairs, of the figure, in inches; a column of a paper has about 3.35.
            ax: axes to draw in; None is a new figure of pyplot's, as maps always are.

        Returns:
            The axes; for maps an array of axes, layers × heads, None where a layer has no such head.

        Raises:
            MissingExtraError: if matplotlib is not installed.
            ArgumentError: codes `plot.kind`, `plot.option`, `plot.layers`, `plot.empty`, and
                `watch.results` where neither matrices nor summaries were kept.
            ArgumentTypeError: codes `plot.axes`, `plot.layers` and `plot.tokens`.
            ShapeError: codes `plot.tokens`, and `plot.lengths` for keys of different layers.
            SelectionError: codes `plot.part`, for no such head or sample; `watch.layer`; and
                `watch.several`, for maps of a module that attended several times.

        Example:
            >>> import torch, clearhead as ch
            >>> model = torch.nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in range(3)))
            >>> with ch.watch(model) as seen:
            ...     output = model(torch.randn(1, 5, 8))
            >>> seen.plot().shape
            (3, 2)
            >>> axes = seen.plot("entropy")
            >>> [label.get_text() for label in axes.get_yticklabels()]
            ['layer 0', 'layer 1', 'layer 2']
        """
        self.need_attention("plot")
        return drawing("figures").of_seen(self, kind, **options)

    @with_hints
    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        other: "Seen[Any] | None" = None,
        other_tokens: Tokens | None = None,
        names: tuple[str, str] = ("A", "B"),
        writes: "Writes | None" = None,
        words: Callable[[int], str] | Sequence[str] | None = None,
        **page: Unpack[FileOptions],
    ) -> Path:
        """Write a page of everything that was seen, one file that opens offline; returns its path.

        Up to 1024 tokens every head is there to the single token. Of a longer text a head is a map,
        its strongest links and its numbers; then watch one layer at a time with `layers`.

        Args:
            path: where to.
            tokens: strings or ids: (len,), or (batch, len) of ids; None takes those of the file.
            source_tokens: in cross-attention those of the keys.
            other: another run, to compare with.
            other_tokens: its tokens, where they are others: the page compares what is equal in both.
            names: what the two runs are called.
            title: the title of the page; None is the beginning of the text, or what is weighted by values.
            sample: the row of the batch.
            start: the layer and the head that it opens with, by number, or the state of a page as it stands behind
                the # of its address, `"head=5.11&without=first"`; None: at the link that stands out most.
            pin: the query and the key that are pinned, as tokens or places: `pin=("it", "animal")`.
            why: True to write query and key of short texts too, for how each weight comes about.
            writes: the tokens that each head raises and lowers, `ch.reading.writes(model, inputs, query=None)` of this
                run: the ten most of either kind, or as many as 3 MB hold.
            words: a function of a token's number that gives its word, such as `tokenizer.decode`, or all words.
            images: the pictures that the model saw, or one: PNG, JPEG, of Pillow, or pixels with colours first or last.
            grid: rows and columns of patches, a list of them, or the processor's `image_grid_thw`. None: a square.
            image_token: the string or id in `tokens`, or in `source_tokens` if given, for a patch, such as
                `processor.image_token_id`. None: all tokens are patches, or all source tokens if `tokens` are given.
            skip: tokens before the first patch, such as [CLS]. With `image_token` those of the vision tower: its layers
                have patches row by row and a picture in each row of their batch; None leaves them out.

        Raises:
            ArgumentTypeError: codes `page.tokens`, `page.other`, `page.names`, `page.sample-type`, `page.writes-type`
                and `page.words`.
            ArgumentError: codes `watch.results`, as `plot`, `page.empty`, if nothing attended, `page.one-run`, for what
                is of `other` without it, and `page.` with sample, start, pin, why, writes, words, image and grid.
            ShapeError: code `page.lengths`, for tokens that fit neither queries nor keys.
            FileError: code `file.unwritable`, if the place cannot be written to.

        Example:
            >>> import tempfile, torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
            >>> with ch.watch(layer) as seen:
            ...     output = layer(torch.randn(1, 3, 8))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     file = seen.to_html(f"{folder}/heads.html", tokens=["to", " be", " or"])
            ...     file.read_text()[:15]
            '<!doctype html>'
        """
        self.need_attention("to_html")
        layers_of = drawing("page.runs").layers_of
        runs = [layers_of(each) for each in (self, other) if isinstance(each, Seen)]
        if other is not None:
            if not isinstance(other, Seen):
                raise ArgumentTypeError(
                    "page.other",
                    f"other must be what a watch has seen; got {type(other).__name__}.",
                )
            other.need_attention("to_html")
            other_tokens = other.tokens if other_tokens is None else other_tokens
        missing = [*self.missing, *([] if other is None else other.missing)]
        return drawing("page.head_page").write_heads(
            path,
            runs,
            unseen=[each.brief() for each in dict.fromkeys(missing)],
            other_tokens=other_tokens,
            names=names,
            writes=(writes, words),
            **with_texts(self, page),
        )

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        tokens: Tokens | None = None,
        source_tokens: Tokens | None = None,
    ) -> Path:
        """Write everything to a file of safetensors for `load`, whole or not; returns its path.

        Args:
            path: the file.
            tokens: strings or ids, one for each token; None leaves those that `load` found.
            source_tokens: in cross-attention those of the keys.

        Raises:
            MissingExtraError: if safetensors is not installed.
            ArgumentTypeError: codes `save.tokens`, for tokens that are neither strings nor ids, and `path.type`.
            ArgumentError: code `watch.results`, for results of a function.
            FileError: code `file.unwritable`, if the place cannot be written to.
            UnsupportedError: code `file.kind`, for a mask or a bias of one's own class.

        Example:
            >>> import tempfile, torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=2)
            >>> with ch.watch(layer) as seen:
            ...     output = layer(torch.randn(1, 3, 8))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     ch.load(seen.save(f"{folder}/run.clearhead", tokens=["to", " be", "."])).tokens
            ('to', ' be', '.')
        """
        if self._keep != "contexts":
            self.need_attention("save", totals=True)
        texts = {
            name: getattr(self, name) if text is None else listed(name, text)
            for name, text in (("tokens", tokens), ("source_tokens", source_tokens))
        }
        # What tells of contexts how they are put together is in no file.
        whole = self._keep == "contexts"
        calls = {
            name: module.parts() if whole else module.all()
            for name, module in self._modules.items()
        }
        lists: dict[str, Any] = {name: text and list(text) for name, text in texts.items()}
        kept = self._model_name, cast(Any, self._keep), calls
        return write(path, Record(*kept, **self.numbering(), **lists))

    def __repr__(self) -> str:
        modules = "1 module" if len(self) == 1 else f"{len(self)} modules"
        lines = [f"{self._model_name}: {modules} attended"]
        width = max((len(name) for name in self._modules), default=0)
        for name, module in self._modules.items():
            lines.append(f"  {name or '(the model)':{width}}  {module.describe()}")
        lines += [f"  not seen: {each.brief()}" for each in self.missing]
        return readable("\n".join(lines))

    def _repr_html_(self) -> str:
        """Return the record as HTML for a notebook: maps of the heads, or its text where none were kept."""
        if self._keep in ("function", "total", "contexts"):
            return element("pre", repr(self))
        return drawing("notebook.inline.matrices").seen_html(self)


def with_texts(seen: Seen[Any], page: Options) -> Options:
    """Return a copy of the options of a page, with the tokens of the record where the options have none."""
    texts = {"tokens": seen.tokens, "source_tokens": seen.source_tokens}
    return cast(
        Options, {**page, **{name: texts[name] for name in texts if page.get(name) is None}}
    )


@with_hints
def load(path: str | os.PathLike[str]) -> Seen[Any]:
    """Return the record that `Seen.save` wrote to a file.

    Raises:
        MissingExtraError: if safetensors is not installed.
        ArgumentTypeError: code `path.type`, for what is no path.
        FileError: codes `file.unreadable`, for no file or one cut short; `file.foreign`, for one of
            others; `file.version`, for one of another version; `file.content`, for unknown objects
            and for sizes that do not fit together.

    Example:
        >>> import tempfile, torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        >>> with ch.watch(layer, keep="summary") as seen:
        ...     output = layer(torch.randn(1, 5, 8))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = ch.load(seen.save(f"{folder}/run.clearhead"))
        >>> again[0].entropy.equal(seen[0].entropy)
        True
    """
    record = read_seen(path)
    loaded: Seen[Any] = Seen(record.model, record.keep)
    for name, calls in record.calls.items():
        for place, call in enumerate(calls):
            loaded._add(name, call, **({"place": place} if record.keep == "total" else {}))
    texts: Any = record.tokens, record.source_tokens
    loaded.tokens, loaded.source_tokens = (each and tuple(each) for each in texts)
    loaded._runs = record.runs or 0
    if record.numbers is not None:
        loaded._numbers = dict(zip(record.calls, record.numbers, strict=True))
    loaded._close(record.missing or ())
    return loaded
