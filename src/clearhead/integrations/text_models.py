"""Models that read text: its tokens and its attention, as matrices or as summaries."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from glob import escape
from itertools import count
from logging import WARNING, disable, root
from operator import methodcaller
from typing import Any, NamedTuple

import torch
from torch import nn

from clearhead._text import bounded, shown
from clearhead.errors import ArgumentTypeError, ModelError, SelectionError
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.roles import summary_with_roles
from clearhead.matrix.summary import Summary
from clearhead.reading.written_tokens import Writes, writes
from clearhead.watching.seen import Seen
from clearhead.watching.watch import watch
from clearhead.watching.watcher import Watch

Progress = Callable[[str, float], None]
"""Called with the name of a task, and the share of it that is done."""


class Reading(NamedTuple):
    """The tokens and the attention matrices of a text, a picture, or both.

    Attributes:
        tokens: as a person reads them: " the" for a byte-level "Ġthe"; "##ing" stays. Of a picture alone, a name for
            each token before the patches, then each patch by its row and column.
        special: for each token True if it is one of the tokenizer's own, such as [CLS], or no patch of a picture.
        layers: the path of the module that attended, in order; one that attended twice stands twice.
        matrices: what each of them attended to: [batch=1, num_heads, tokens, tokens].
        seen: the same by the paths of the modules, which can be saved.
        page: with pictures, the options of a page, as `Seen.to_html` takes them: `images`, each (3, height, width) from
            0 to 1, the part that the model saw; `grid`, rows and columns of patches; `skip`, tokens before the first
            patch. None for a text alone.
    """

    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    layers: tuple[str, ...]
    matrices: tuple[AttentionMatrix, ...]
    seen: Seen[AttentionMatrix]
    page: dict[str, Any] | None = None


class LongReading(NamedTuple):
    """The tokens and the summaries of a text, of all layers or of one.

    Attributes:
        tokens: as a person reads them.
        layers: the path of the module that attended, in order; one that attended twice stands twice.
        heads: how many query heads each of them has.
        summaries: by the number of the layer, the summary of its attention, with roles: of all
            layers, or of the requested one.
        seen: what was kept, which can be saved: the summaries of all layers, or the matrix of the
            requested one.
        page: None, as of a text without pictures.
    """

    tokens: tuple[str, ...]
    layers: tuple[str, ...]
    heads: tuple[int, ...]
    summaries: dict[int, Summary]
    seen: Seen[Any]
    page: None = None


@dataclass(frozen=True, eq=False)
class TextModel:
    """A model that reads text, with its tokenizer.

    Attributes:
        name: the requested name.
        model: in eval mode, on the CPU. Of a model with encoder and decoder it is the encoder.
        tokenizer: the tokenizer of transformers, or of the packaged model.
        encoder_only: True for half of a model that also has a decoder.
        max_tokens: how many tokens it can read, special ones included; None for no known limit.
    """

    name: str
    model: nn.Module
    tokenizer: Any
    encoder_only: bool
    max_tokens: int | None

    def read(self, text: str) -> Reading:
        """Run the model on a text, and return its tokens and its attention.

        Raises:
            ArgumentTypeError: code `text.type`, for what is no string.
            ModelError: codes `model.no-text`, for an empty text; `model.text`, for one that is no
                Unicode; `model.too-long`, for more tokens than the model has places for;
                `model.shape`, if it attends to something else than the tokens; `model.unreadable`, if it takes
                other input, or has another tokenizer.
            WatchError: code `watch.nothing-seen`, if it attends by code of its own.
        """
        ids = self._ids(text)
        with watch(self.model) as seen:
            self._run(ids)
        calls = calls_of(seen)
        for name, matrix in calls:
            self._check_shape(name, matrix, tuple(matrix.shape), len(ids))
        special = frozenset(self.tokenizer.all_special_ids)
        return Reading(
            readable_tokens(self.tokenizer, ids),
            tuple(each in special for each in ids),
            tuple(name for name, _ in calls),
            tuple(matrix for _, matrix in calls),
            seen,
        )

    def count(self, text: str) -> int:
        """Return how many tokens a text has, special ones included.

        Raises:
            ArgumentTypeError, ModelError: for a text that `read` refuses.
        """
        return len(self._ids(text))

    def writes(self, text: str, *, query: int | None = -1) -> Writes:
        """Return what each head writes at a query of a text, or at all for None; runs the model.

        Raises as `read` and `clearhead.reading.writes` do.
        """
        return writes(self.model, {"input_ids": torch.tensor([self._ids(text)])}, query=query)

    def word(self, token: int) -> str:
        """Return a token of the vocabulary as a person reads it; its number where the tokenizer has none."""
        name = self.tokenizer.convert_ids_to_tokens(token)
        return str(token) if name is None else readable_tokens(self.tokenizer, [token])[0]

    def read_long(
        self,
        text: str,
        *,
        layer: int | None = None,
        head: int | None = None,
        pool: int = 64,
        top_k: int | None = None,
        progress: Progress = lambda doing, done: None,
    ) -> LongReading:
        """Run the model on a text of any length, in O(tokens) memory in addition to the model's own.

        Args:
            text: the text.
            layer: only this layer, counted from 0; None is all of them.
            head: only this head of the layer; ignored without one.
            pool: rows and columns of the map of each head, for one layer; 64 for all of them.
            top_k: how many of the largest weights of each query, for one layer, None for none; 8 for all of them.
            progress: called with a task, and the share of it that is done.

        Raises:
            SelectionError: codes `show.layer` and `show.head`, if there is no such layer or head.
            ArgumentTypeError, ModelError, WatchError: as `read`.
        """
        ids = self._ids(text)
        with watch(self.model) as first:
            self._run(ids[:2])
        calls = calls_of(first)
        paths, heads = [name for name, _ in calls], [each.shape[1] for _, each in calls]
        check_place(layer, head, heads)
        tokens = torch.tensor([ids])
        if layer is None:
            watching: Watch[Any] = watch(self.model, keep="summary", tokens=tokens)
        else:
            one = None if head is None else [head]
            watching = watch(self.model, layers=escape(paths[layer]), heads=one)
        with ExitStack() as stack:
            done = count(1)
            for path in dict.fromkeys(paths):
                hook = self.model.get_submodule(path).register_forward_hook(
                    lambda *_: progress("reading", next(done) / len(paths))
                )
                stack.callback(hook.remove)
            seen = stack.enter_context(watching)
            self._run(ids)
        if layer is None:
            summaries = dict(enumerate(each for _, each in calls_of(seen)))
        else:
            # A module that attended several times stands several times among the paths.
            matrix = seen.calls(paths[layer])[paths[:layer].count(paths[layer])]
            size = min(pool, len(ids))
            summary = summary_with_roles(
                matrix,
                tokens,
                pool=(size, size),
                top_k=None if top_k is None else min(top_k, len(ids)),
                progress=lambda done: progress(f"layer {layer}", done),
            )
            summaries = {layer: summary}
        for number, summary in summaries.items():
            shape = (*summary.entropy.shape, summary.kv_len)
            self._check_shape(paths[number], summary, shape, len(ids))
        names = readable_tokens(self.tokenizer, ids)
        return LongReading(names, tuple(paths), tuple(heads), summaries, seen)

    def _run(self, ids: list[int]) -> None:
        """Run the model on the ids of a text, without gradients; return nothing.

        Raises ModelError, code `model.unreadable`, if it cannot read text alone.
        """
        mask = torch.ones(1, len(ids)).long()
        try:
            with torch.no_grad():
                self.model(input_ids=torch.tensor([ids]), attention_mask=mask)
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise ModelError(
                "model.unreadable", f"{self.name} could not read a text alone: {brief(error)}"
            ) from error

    def _check_shape(self, path: str, call: object, shape: Sequence[int], length: int) -> None:
        """Raise ModelError, `model.shape`, unless `shape`, (batch, …, queries, keys), is of one text of this length."""
        if (shape[0], *shape[2:]) != (1, length, length):
            raise ModelError(
                "model.shape",
                f"every layer must attend from {length} tokens to the same; {path} of {self.name} "
                f"has {shown(call)}.",
            )

    def _ids(self, text: str) -> list[int]:
        """Return the ids of a text's tokens, special ones included.

        Raises ArgumentTypeError for no string, and ModelError for an empty or too long text, or one that is no Unicode;
        the codes are those of `read`.
        """
        if not isinstance(text, str):
            raise ArgumentTypeError(
                "text.type", f"text must be a string; got {type(text).__name__}."
            )
        if not text.strip():
            raise ModelError("model.no-text", "text must hold at least one character; got none.")
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise ModelError(
                "model.text", "text must be Unicode; got bytes that are not UTF-8 in it."
            )
        with quiet(progress=False):
            ids = list(self.tokenizer(text)["input_ids"])
        if not ids:
            raise ModelError(
                "model.no-text", f"the tokenizer of {self.name} makes no token of this text."
            )
        if self.max_tokens is not None and len(ids) > self.max_tokens:
            raise ModelError(
                "model.too-long",
                f"the text must have {self.max_tokens} tokens at most, which is what {self.name} "
                f"can read; it has {len(ids)}.",
            )
        return ids


def calls_of(seen: Seen[Any]) -> list[tuple[str, Any]]:
    """Return every call with the path of its module, in order."""
    return [(name, each) for name in seen for each in seen.calls(name)]


def check_place(layer: int | None, head: int | None, heads: Sequence[int]) -> None:
    """Raise if there is no such layer or head; with `layer` None the head is not checked.

    Args:
        layer: the number of a layer, or None for all.
        head: the number of a head, or None for all.
        heads: how many heads each layer has.

    Raises:
        SelectionError: codes `show.layer`, `show.head`.
    """
    if layer is None:
        return
    if not 0 <= layer < len(heads):
        raise SelectionError("show.layer", f"layer must be 0 to {len(heads) - 1}; got {layer}.")
    if head is not None and not 0 <= head < heads[layer]:
        raise SelectionError("show.head", f"head must be 0 to {heads[layer] - 1}; got {head}.")


def readable_tokens(tokenizer: Any, ids: list[int]) -> tuple[str, ...]:
    r"""Return the tokens of these ids in readable spelling.

    The bytes that a byte-level tokenizer writes as letters become text again, with `\xe2` for
    those that are no character on their own; the `▁` of others becomes the space that it is.
    Everything else, such as the `##ing` of WordPiece, stays.

    Args:
        tokenizer: a tokenizer of transformers.
        ids: the ids of the tokens.

    Example:
        >>> from clearhead.integrations import huggingface
        >>> tokenizer = huggingface.load().tokenizer
        >>> readable_tokens(tokenizer, tokenizer("unseeable")["input_ids"])
        ('[CLS]', 'un', '##see', '##able', '[SEP]')
    """
    tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(ids)]
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    special = frozenset(tokenizer.all_special_ids)
    # The decoder shows which spelling a tokenizer uses, by tokens where spellings differ.
    if decoder is not None and decoder.decode(["a", "Ġa"]) == "a a":
        spell = _from_bytes
    elif decoder is not None and decoder.decode(["a", "▁a"]) == "a a":
        spell = methodcaller("replace", "▁", " ")
    else:
        return tuple(tokens)
    return tuple(
        token if each in special else spell(token) for each, token in zip(ids, tokens, strict=True)
    )


def _from_bytes(token: str) -> str:
    r"""Return the text of a byte-level BPE token, with `\x…` for incomplete UTF-8; any other token as it is."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
    if any(letter not in letters for letter in token):
        return token
    return bytes(letters[letter] for letter in token).decode(errors="backslashreplace")


@contextmanager
def quiet(*, progress: bool) -> Iterator[None]:
    """Disable logs below errors in the block, and, unless `progress`, the progress bars of transformers."""
    transformers: Any = sys.modules.get("transformers")
    before = root.manager.disable
    bars = transformers and not progress and transformers.utils.logging.is_progress_bar_enabled()
    disable(max(before, WARNING))
    if bars:
        transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        disable(before)
        if bars:
            transformers.utils.logging.enable_progress_bar()


def brief(error: Exception) -> str:
    """Return another library's message on one line, cut to 300 letters; the type of the error if it has none."""
    return bounded(" ".join(str(error).split()) or type(error).__name__, 300)
