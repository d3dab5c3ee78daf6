"""Models of transformers with their tokenizers, by name or from a folder.

Only weights in safetensors are loaded, and no code that comes with a model is run.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from clearhead._common.lazy import importing, sample
from clearhead._text import shown
from clearhead.errors import ModelError
from clearhead.integrations.image_models import ImageModel, PicturedModel
from clearhead.integrations.packaged_encoder import read_encoder
from clearhead.integrations.text_models import TextModel, brief, quiet

PACKAGED = "all-MiniLM-L6-v2"
"""The small sentence encoder that is the sample `minilm` (Wang et al., 2020,
https://arxiv.org/abs/2002.10957)."""

NO_LIMIT = 10**9
"""Tokenizers write a number above this where they know no limit."""

# Of a folder with a model, what is not of a tokenizer.
CONFIGS = ("config.json", "generation_config.json", ".gitattributes", "README.md")
WEIGHTS = (".safetensors", ".bin", ".pt", ".h5", ".msgpack")

# What may be missing from a file of weights, because nothing that attends comes after it.
AFTER_ATTENTION = ("pooler",)


def load(name: str | None = None, *, logits: bool = False, progress: bool = False) -> TextModel:
    """Load a model of transformers with its tokenizer, by its name or from a folder.

    For None the sample `minilm` is read into layers of this library, without transformers; it makes no logits.
    A folder is read without the network. The attention is the one that transformers takes by
    itself, PyTorch's own ("sdpa") where the model has it. Weights must be in safetensors; code that
    comes with a model is never run.

    Args:
        name: a folder, a name on the Hugging Face Hub, or None for the sample `minilm`.
        logits: load what makes the logits of the next token as well, which `TextModel.writes` needs.
        progress: let transformers draw its own bars while it downloads and loads.

    Raises:
        MissingExtraError: if transformers is not installed, or for None the sample `minilm`.
        ModelError: codes `model.not-found`, for no such folder or name, or a file of it that cannot be
            downloaded; `model.unreadable`, for one that transformers cannot load like this;
            `model.incomplete`, if weights are missing; `model.no-tokenizer`, if it does not read text;
            `model.logits`, if it makes no logits.

    Example:
        >>> from clearhead.integrations import huggingface
        >>> minilm = huggingface.load()
        >>> reading = minilm.read("It was too tired.")
        >>> reading.tokens
        ('[CLS]', 'it', 'was', 'too', 'tired', '.', '[SEP]')
        >>> reading.layers[0], reading.matrices[0].shape
        ('encoder.layer.0.attention.self', torch.Size([1, 12, 7, 7]))
    """
    if name is None and not logits:
        encoder, words, longest = read_encoder(Path(_packaged()))
        return TextModel(PACKAGED, encoder, words, False, longest)
    where, called, options, model = _loaded(name, logits=logits, progress=progress)
    # Of a folder without one, transformers makes a tokenizer that knows no word.
    tokenizer: Any = None
    if not _is_bare(Path(where)):
        with (
            quiet(progress=progress),
            _translated(called, missing="model.no-tokenizer", broken="model.no-tokenizer"),
        ):
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(where, **options)
    if tokenizer is None or len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ModelError(
            "model.no-tokenizer",
            f"there is no tokenizer with {called}. Save the model's tokenizer in the same folder, "
            f"tokenizer.save_pretrained({shown(called)}), or watch the model while it reads ids: "
            "clearhead.watch(model).",
        )
    encoder_only = bool(getattr(model.config, "is_encoder_decoder", False))
    reader = model.get_encoder() if encoder_only else model
    return TextModel(
        called, reader.eval(), tokenizer, encoder_only, _max_tokens(model, reader, tokenizer)
    )


def load_for_pictures(name: str, *, text: bool = False, progress: bool = False) -> Any:
    """Load an `ImageModel` of transformers with its processor, by its name or from a folder.

    Of a model that reads text as well, such as CLIP, it is the part that reads pictures.

    Args:
        name: a folder, or a name on the Hugging Face Hub.
        text: load a model that reads pictures in a text, such as LLaVA, as a `PicturedModel`.
        progress: let transformers draw its own bars while it downloads and loads.

    Raises:
        MissingExtraError: if transformers is not installed.
        ModelError: as `load`, and code `model.no-pictures`, for a model that reads none.

    Example:
        >>> from clearhead.integrations import huggingface
        >>> huggingface.load_for_pictures(huggingface.load().tokenizer.name_or_path)
        Traceback (most recent call last):
        clearhead.errors.ModelError: [model.no-pictures] ...
    """
    where, called, options, model = _loaded(name, progress=progress)
    alone = (
        model if model.main_input_name == "pixel_values" else getattr(model, "vision_model", None)
    )
    reader = model if text else alone
    with (
        quiet(progress=progress),
        _translated(called, missing="model.no-pictures", broken="model.no-pictures"),
    ):
        from transformers import AutoImageProcessor, AutoProcessor

        kind: Any = AutoProcessor if text else AutoImageProcessor
        processor = None if reader is None else kind.from_pretrained(where, **options)
    if reader is None or (text and not hasattr(processor, "image_token")):
        raise ModelError(
            "model.no-pictures",
            f"the model must read pictures{' in a text' if text else ''}; {called}, {type(model).__name__}, reads "
            f"{model.main_input_name}.",
        )
    if text:
        return PicturedModel(called, reader.eval(), processor)
    return ImageModel(called, reader.eval(), processor, part=reader is not model)


def _loaded(
    name: str | None, *, logits: bool = False, progress: bool
) -> tuple[str, str, dict[str, Any], Any]:
    """Return the place of a model (None: the sample `minilm`), its name, the options to load more from there, and it.

    Raises MissingExtraError without transformers, and ModelError if there is no such model, it cannot be loaded,
    weights are missing or, with `logits`, it makes none.
    """
    with importing("transformers", extra="models", purpose="reading with a model"):
        import transformers
    source, called = (_packaged(), PACKAGED) if name is None else (name, name)
    local = Path(source).expanduser()
    is_local = local.exists()
    # An empty name would be the current folder.
    if not source or (is_local and not (local / "config.json").is_file()):
        raise ModelError(
            "model.not-found",
            f"{shown(source)} must be a folder with config.json, model.safetensors and a tokenizer; there "
            "is no config.json in it.",
        )
    where = str(local) if is_local else source
    options: dict[str, Any] = {"local_files_only": is_local, "trust_remote_code": False}
    missing = "model.unreadable" if is_local else "model.not-found"
    with quiet(progress=progress), _translated(called, missing=missing, broken="model.unreadable"):
        kind: Any = transformers.AutoModel
        if logits:
            config = transformers.AutoConfig.from_pretrained(where, **options)
            known = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
            # Of an encoder and a decoder it is the encoder that reads.
            if known and not config.is_encoder_decoder:
                kind = transformers.AutoModelForCausalLM
        model, report = kind.from_pretrained(
            where, use_safetensors=True, output_loading_info=True, **options
        )
    own = f"{model.base_model_prefix}."
    added = [key for key in report["missing_keys"] if not key.startswith(own)]
    if logits and (added or kind is transformers.AutoModel):
        raise ModelError(
            "model.logits",
            f"{called} must make logits of the next token from what it reads, as smollm2 does; there are no weights "
            "for that in it.",
        )
    _check_complete(called, report)
    return where, called, options, model


def _is_bare(folder: Path) -> bool:
    """Return True for a folder without files other than a model's configuration and weights; False for no folder."""
    return folder.is_dir() and all(
        file.name in CONFIGS or file.suffix in WEIGHTS or file.name.endswith(".index.json")
        for file in folder.iterdir()
    )


def _packaged() -> str:
    """Return the folder of the sample MiniLM's weights; MissingExtraError if it is not installed."""
    return str(sample("models").SAMPLES["minilm"].weights())


def _check_complete(name: str, report: dict[str, Any]) -> None:
    """Raise ModelError, code `model.incomplete`, if weights that attention depends on were missing in the file."""
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
    """Return the smallest length limit of tokenizer, configuration and position embeddings; None if none is known."""
    limits = [tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None)]
    for name, module in reader.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, nn.Embedding):
            # RoBERTa counts positions from the one after the padding.
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - first)
    known = [limit for limit in limits if isinstance(limit, int) and 0 < limit < NO_LIMIT]
    return min(known, default=None)


@contextmanager
def _translated(name: str, *, missing: str, broken: str) -> Iterator[None]:
    """Raise any error in the block but a ModelError as a ModelError: of code `missing` for OSError, else `broken`."""
    try:
        yield
    except ModelError:
        raise
    # It has no common type; OSError says that something is not there.
    except Exception as error:
        code = missing if isinstance(error, OSError) else broken
        message = f"{name} could not be loaded: {brief(error)}"
        if "trust_remote_code" in str(error):
            message = f"{name} needs code that comes with it, and such code is never run."
        raise ModelError(code, message) from error
