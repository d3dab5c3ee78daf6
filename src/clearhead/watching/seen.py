"""What a watched model attended to, module by module."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, overload

from torch import Tensor

from clearhead._common.checks import as_int
from clearhead._common.lazy import drawing
from clearhead.attention.problem import Problem
from clearhead.errors import ArgumentError, ArgumentTypeError, FileError, SelectionError
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.roles import summary_with_roles
from clearhead.matrix.summary import Summary
from clearhead.watching import files
from clearhead.watching.recording import Matrices, Summaries, summarised
from clearhead.watching.table import Table, rows_of

Keep = Literal["matrix", "summary"]
Tokens = Sequence[str] | Sequence[int] | Tensor

TEXTS = frozenset({"tokens", "source_tokens"})
"""What a file may say beside what was seen."""

Kept = TypeVar("Kept", AttentionMatrix, Summary)
Default = TypeVar("Default")


class Seen(Mapping[str, Kept], Generic[Kept]):
    """What a watched model attended to: for each module that did, its attention matrix, or its
    summary.

    Keys are the paths of the modules, in the order in which they first attended; the model itself
    is "". A number picks a module by its place in that order.

    A module that attended several times has `calls`. If they are the steps of one growing sequence,
    as in generation with a cache, and their masks are causal, with or without padding, then
    `seen[path]` is the one matrix that they are rows of.

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

    def __init__(self, model_name: str, keep: Keep) -> None:
        self._model_name = model_name
        self._keep = keep
        self._modules: dict[str, Any] = {}
        self._texts: dict[str, tuple[str, ...] | tuple[int, ...] | None] = dict.fromkeys(TEXTS)

    @property
    def tokens(self) -> tuple[str, ...] | tuple[int, ...] | None:
        """The tokens that were read, if `save` was told of them; None otherwise."""
        return self._texts["tokens"]

    @property
    def source_tokens(self) -> tuple[str, ...] | tuple[int, ...] | None:
        """Those of the text that was looked at from another, likewise."""
        return self._texts["source_tokens"]

    @property
    def layers(self) -> tuple[str, ...]:
        """The paths of the modules that attended, in order."""
        return tuple(self._modules)

    def calls(self, layer: str | int) -> tuple[Kept, ...]:
        """Every call that a module made, in order.

        Raises:
            SelectionError: code `watch.layer`, if no such module attended.
        """
        return self._modules[self.path(layer)].all()

    def parts(self, layers: Sequence[str | int] | None = None) -> list[tuple[str, Kept]]:
        """Every module that attended, by its path, with its one matrix or summary; call by call, as
        "path, call 0", where its calls are no rows of one matrix.

        Args:
            layers: only these, by path or number, in the order of `layers`; None for all.

        Raises:
            SelectionError: code `watch.layer`, if no such module attended.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=2)
            >>> with ch.watch(layer) as seen:
            ...     output = layer(torch.randn(1, 3, 8)), layer(torch.randn(1, 5, 8))
            >>> [path for path, matrix in seen.parts()]
            [', call 0', ', call 1']
        """
        wanted = set(self.layers) if layers is None else set(map(self.path, layers))
        found: list[tuple[str, Kept]] = []
        for name, module in self._modules.items():
            if name in wanted:
                whole, calls = module.whole(), module.all()
                numbered = enumerate(calls)
                found += (
                    [(f"{name}, call {number}", call) for number, call in numbered]
                    if whole is None
                    else [(name, whole)]
                )
        return found

    def path(self, layer: str | int) -> str:
        """The path of a module, by its path or its number.

        Raises:
            SelectionError: code `watch.layer`, if no such module attended.
        """
        name = layer
        if isinstance(layer, int):
            if not -len(self) <= layer < len(self):
                raise SelectionError(
                    "watch.layer", f"{len(self)} modules attended; there is no {layer}."
                )
            name = self.layers[layer]
        if name not in self._modules:
            known = ", ".join(map(repr, self.layers))
            raise SelectionError("watch.layer", f"no module {name!r} attended; these did: {known}.")
        return str(name)

    def __getitem__(self, layer: str | int) -> Kept:
        module = self._modules[self.path(layer)]
        together = module.whole()
        if together is None:
            raise SelectionError(
                "watch.several",
                f"{layer!r} attended {len(module)} times; calls({layer!r}) has them all.",
            )
        return together

    @overload
    def get(self, layer: str | int, default: None = None, /) -> Kept | None: ...
    @overload
    def get(self, layer: str | int, default: Kept | Default, /) -> Kept | Default: ...
    def get(self, layer: str | int, default: Any = None, /) -> Any:
        """What `self[layer]` is, or the default if no such module attended.

        Raises:
            SelectionError: code `watch.several`, as `self[layer]` does.
        """
        try:
            self.path(layer)
        except SelectionError:
            return default
        return self[layer]

    def table(self, tokens: Tensor | None = None) -> Table:
        """Every head of every layer, a row each: entropy, distance, and how far it fills each role.

        Averages are over all queries of all samples and calls that are no padding.

        Args:
            tokens: ids of what was read, (batch, len) or (len,), for the roles that need them. Of
                a watch that kept summaries, the roles are those that it found.

        Raises:
            ArgumentError: code `tokens.keep`, for tokens where summaries were kept.
            ClearheadError: for tokens that `roles` refuses.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
            >>> with ch.watch(layer) as seen:
            ...     output = layer(torch.randn(1, 5, 8))
            >>> [(row.layer, row.head, row.queries) for row in seen.table()]
            [('', 0, 5), ('', 1, 5)]
        """
        if tokens is not None and self._keep == "summary":
            raise ArgumentError(
                "tokens.keep",
                "tokens must be given to watch(…, keep='summary', tokens=…), which finds the "
                "roles while the model runs; got them afterwards.",
            )
        rows = []
        for name, module in self._modules.items():
            whole = module.whole()
            calls = module.all() if whole is None else (whole,)
            rows += rows_of(name, [_summary(each, tokens) for each in calls])
        return Table(rows)

    def plot(
        self,
        kind: str = "map",
        *,
        layers: Sequence[str | int] | None = None,
        heads: Sequence[int] | None = None,
        sample: int | None = None,
        tokens: Sequence[str] | None = None,
        log: bool = False,
        cells: int | None = None,
        ax: Any = None,
    ) -> Any:
        """Draw all layers with matplotlib; `seen[layer].plot()` draws one of them, and larger.

        Args:
            kind: "map" is a small map for each head of each layer. "entropy" (nats), "distance"
                (tokens), "max", "first" and "previous" (shares of 1) are one picture of layers ×
                heads, with the mean over all queries that are no padding. "received" is what each
                key gets in each layer, the mean over heads.
            layers: only these, by path or number.
            heads: only these.
            sample: which row of the batch. None is the first; for means over queries, all of them.
            tokens: a word for each key, for "received".
            log: a logarithmic scale.
            cells: how many cells a side a map has at most, 64 by default, or a strip, 256.
            ax: axes to draw in, an array of them for maps; None is a new figure of pyplot's.

        Returns:
            The axes; for maps an array of axes, layers × heads, None where a layer has no such head.

        Raises:
            MissingExtraError: if matplotlib is not installed.
            ArgumentError: codes `plot.kind`, `plot.option`, `plot.layers`, `plot.cells` and
                `plot.empty`.
            ArgumentTypeError: codes `plot.axes`, `plot.layers`, `plot.tokens` and `log.type`.
            ShapeError: codes `plot.axes`, `plot.tokens`, and `plot.lengths` for what keys received
                where layers have different keys.
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
        return drawing("figures").of_seen(
            self,
            kind,
            layers=layers,
            heads=heads,
            sample=sample,
            tokens=tokens,
            log=log,
            cells=cells,
            ax=ax,
        )

    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        tokens: Sequence[str] | Sequence[int] | Tensor | None = None,
        source_tokens: Sequence[str] | Sequence[int] | Tensor | None = None,
        other: "Seen[Any] | None" = None,
        title: str | None = None,
        sample: int = 0,
    ) -> Path:
        """Write everything that was seen as a page, one file that opens offline; returns its path.

        Up to 1024 tokens every head is there to the single token. Of a longer text a head is a map,
        its strongest links and its numbers; one layer at a time is best then: watch with `layers`.

        Args:
            path: where to.
            tokens: what was read, strings or ids: (len,), or (batch, len) of ids. None takes those
                of the file, if it was saved with some.
            source_tokens: of attention from one text to another, the one that is looked at.
            other: what was seen in another run on the same tokens, to compare with.
            title: what the page is called; the beginning of the text, if nothing is said.
            sample: which one of a batch.

        Raises:
            ArgumentTypeError: codes `page.tokens`, `page.other` and `page.sample-type`.
            ArgumentError: codes `page.empty`, if nothing attended, and `page.sample`.
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
        if other is not None and not isinstance(other, Seen):
            raise ArgumentTypeError(
                "page.other", f"other must be what a watch has seen; got {type(other).__name__}."
            )
        return drawing("page.head_page").write_heads(
            path,
            [self.parts()] if other is None else [self.parts(), other.parts()],
            tokens=self.tokens if tokens is None else tokens,
            source_tokens=self.source_tokens if source_tokens is None else source_tokens,
            title=title,
            sample=sample,
        )

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        tokens: Tokens | None = None,
        source_tokens: Tokens | None = None,
    ) -> Path:
        """Write everything that was seen to a file, which `load` reads; returns its path.

        It is a file of safetensors, and there is nothing in it to run. It is whole or not there.

        Args:
            path: the file.
            tokens: what was read, as strings or ids, one for each token, so that who looks at the
                file sees them. None leaves those that `load` found.
            source_tokens: in cross-attention the tokens of the text that is looked at.

        Raises:
            MissingExtraError: if safetensors is not installed.
            ArgumentTypeError: code `save.tokens`, for tokens that are neither strings nor ids.
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
        given = {"tokens": tokens, "source_tokens": source_tokens}
        texts = {
            name: self._texts[name] if text is None else _text(name, text)
            for name, text in given.items()
        }
        calls = {name: module.all() for name, module in self._modules.items()}
        content: dict[str, Any] = {"model": self._model_name, "keep": self._keep, "calls": calls}
        told = any(text is not None for text in texts.values())
        return files.write(
            path, {"seen": content | (texts if told else {})}, version=2 if told else 1
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __contains__(self, layer: object) -> bool:
        return layer in self._modules

    def __repr__(self) -> str:
        modules = "1 module" if len(self) == 1 else f"{len(self)} modules"
        lines = [f"{self._model_name}: {modules} attended"]
        width = max((len(name) for name in self._modules), default=0)
        for name, module in self._modules.items():
            calls, together = module.all(), module.whole()
            times = ""
            if len(calls) > 1:
                times = (
                    f"  and {len(calls) - 1} more" if together is None else f", {len(calls)} calls"
                )
            shown = calls[0] if together is None else together
            lines.append(f"  {name or '(the model)':{width}}  {shown!r}{times}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return drawing("notebook.inline.matrices").seen_html(self)

    def _add(self, name: str, problem: Problem, tokens: Tensor | None) -> None:
        if self._keep == "matrix":
            self._modules.setdefault(name, Matrices()).add(problem)
        else:
            # First the summary: a module without a call is none.
            summary = summarised(problem, tokens)
            self._modules.setdefault(name, Summaries()).add(summary)

    def _close(self) -> None:
        for module in self._modules.values():
            module.close()


def load(path: str | os.PathLike[str]) -> Seen[Any]:
    """What `Seen.save` wrote.

    Args:
        path: the file.

    Raises:
        MissingExtraError: if safetensors is not installed.
        FileError: codes `file.unreadable`, for no file or one cut short; `file.foreign`, for one of
            others; `file.version`, for one of another version; `file.content`, for one that holds
            what is not known, or sizes that do not fit together.

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
    content = files.read(path)
    seen = content.get("seen") if isinstance(content, dict) and len(content) == 1 else None
    if not isinstance(seen, dict) or seen.keys() - TEXTS != {"model", "keep", "calls"}:
        raise FileError("file.content", f"{path} does not hold what a watch has seen.")
    keep, modules = seen["keep"], seen["calls"]
    if keep not in ("matrix", "summary") or not isinstance(modules, dict):
        raise FileError("file.content", f"{path} keeps {keep!r}, which is not known.")
    kind = AttentionMatrix if keep == "matrix" else Summary
    loaded: Seen[Any] = Seen(str(seen["model"]), keep)
    for name, calls in modules.items():
        if not isinstance(calls, list) or not calls or not all(isinstance(c, kind) for c in calls):
            raise FileError(
                "file.content", f"{path} must hold a {kind.__name__} for every call of {name!r}."
            )
        if any(isinstance(call, Summary) and call.roles is None for call in calls):
            raise FileError("file.content", f"{path} has a summary of {name!r} without roles.")
        loaded._modules[name] = _module(calls)
    for name in TEXTS & seen.keys():
        try:
            loaded._texts[name] = None if seen[name] is None else _text(name, seen[name])
        except ArgumentTypeError as error:
            raise FileError("file.content", f"{path}: {error.message}") from error
    loaded._close()
    return loaded


def _text(name: str, given: Tokens) -> tuple[str, ...] | tuple[int, ...]:
    listed: Any = given
    if isinstance(given, Tensor):
        # What is no row of ids, such as a tensor of numbers with a point, is refused below.
        listed = given.tolist() if given.ndim == 1 else None
    if isinstance(listed, Sequence) and not isinstance(listed, str | bytes):
        if all(isinstance(each, str) for each in listed):
            return tuple(listed)
        ids = [as_int(each) for each in listed]
        if None not in ids:
            return tuple(each for each in ids if each is not None)
    found = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
    raise ArgumentTypeError(
        "save.tokens",
        f"{name} must be strings, or ids as whole numbers, one for each token; got {found}.",
    )


def _module(calls: list[Any]) -> Matrices | Summaries:
    """What a module attended to, from its calls, which are all of one kind."""
    matrices, summaries = Matrices(), Summaries()
    for call in calls:
        if isinstance(call, AttentionMatrix):
            matrices.add(call.problem)
        else:
            summaries.add(call)
    return matrices if len(matrices) else summaries


def _summary(call: AttentionMatrix | Summary, tokens: Tensor | None) -> Summary:
    """The summary of a call with its roles; tokens may go on beyond its keys."""
    if isinstance(call, Summary):
        return call
    return summary_with_roles(call, None if tokens is None else tokens[..., : call.kv_len])
