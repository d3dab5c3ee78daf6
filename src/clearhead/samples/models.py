"""The models of the samples with what reads their input."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from clearhead.errors import FileError, missing_extra
from clearhead.integrations.text_models import quiet
from clearhead.samples.packages import SAMPLES, SamplePackage

SMILES = r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
"""The tokens of a reaction (Schwaller et al., 2019, https://doi.org/10.1021/acscentsci.9b00576)."""


class Sample(NamedTuple):
    """A trained model.

    Attributes:
        name: the sample.
        model: the model of transformers, in eval mode, in float32.
        tokenizer: what reads its input.
        licence: of the weights.

    Example:
        >>> import clearhead as ch
        >>> ch.samples.Sample._fields
        ('name', 'model', 'tokenizer', 'licence')
    """

    name: str
    model: Any
    tokenizer: Any
    licence: str


def smollm2() -> Sample:
    """Load SmolLM2-135M-Instruct (Ben Allal et al., 2025, https://arxiv.org/abs/2502.02737).

    A Llama of 30 layers × 9 heads on 3 key heads, for up to 8192 tokens. Its weights are dequantised from 4 bits the
    first time, which takes half a minute, 540 MB and the packages gguf and accelerate; then they are read in seconds.

    Raises:
        MissingExtraError: code `samples.missing`, with the command that installs it, and `extra.missing`.
        ModelError: code `samples.version`.
        FileError: code `samples.cache`, if the converted model cannot be written.

    Example:
        >>> import clearhead as ch
        >>> ch.samples.SAMPLES["smollm2"].licence  # ch.samples.smollm2() gives the model
        'Apache-2.0'
    """
    return _load("smollm2", "AutoModelForCausalLM")


def rxnmapper() -> Sample:
    """Load RXNMapper's ALBERT (Schwaller et al., 2021, https://doi.org/10.1126/sciadv.abe4166).

    12 layers, which share their weights, × 8 heads over the tokens of a reaction in SMILES; head 5 of layer 10 maps the
    atoms of the product to those of the reactants.

    Raises:
        MissingExtraError, ModelError, FileError: as `smollm2`.

    Example:
        >>> import clearhead as ch
        >>> ch.samples.SAMPLES["rxnmapper"].licence  # ch.samples.rxnmapper() gives the model
        'MIT'
    """
    return _load("rxnmapper", "AutoModel")


def folder_of(name: str) -> Path:
    """Return the folder of a sample as transformers reads it; converted, if it was not.

    Raises:
        MissingExtraError, ModelError, FileError: as `smollm2`.
    """
    return _converted(SAMPLES[name], _CONVERTERS[name])


def _load(name: str, kind: str) -> Sample:
    transformers = _transformers()
    folder = folder_of(name)
    with quiet(progress=False):
        model = getattr(transformers, kind).from_pretrained(folder, local_files_only=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return Sample(name, model.eval(), tokenizer, SAMPLES[name].licence)


def _transformers() -> Any:
    try:
        import transformers
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise missing_extra("transformers", "samples", "a sample") from error
    return transformers


def _converted(sample: SamplePackage, convert: Callable[[Path, Path], None]) -> Path:
    """The folder beside the package's data that holds the model in safetensors, whole or not at all."""
    source = sample.folder()
    target = source / f"clearhead-{sample.version}"
    if target.is_dir():
        return target
    made = ""
    try:
        made = tempfile.mkdtemp(dir=source, prefix=".clearhead-")
        with quiet(progress=False):
            convert(source, Path(made))
        os.chmod(made, 0o755)
        os.replace(made, target)
    except OSError as error:
        # Somebody else may have been first.
        if not target.is_dir():
            raise FileError(
                "samples.cache", f"{sample.name} could not be converted into {target}: {error}"
            ) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target


def _convert_smollm2(source: Path, target: Path) -> None:
    import torch

    transformers = _transformers()
    for package in ("gguf", "accelerate"):
        if not getattr(transformers.utils, f"is_{package}_available")():
            raise missing_extra(package, "samples", "the first load of SmolLM2")
    file = {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf", "local_files_only": True}
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **file)
    # The weights are no longer quantised.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(source, **file).save_pretrained(target)


def _convert_rxnmapper(source: Path, target: Path) -> None:
    import tokenizers
    from tokenizers import models, pre_tokenizers, processors

    transformers = _transformers()
    folder = source / "models" / "transformers" / "albert_heads_8_uspto_all_1310k"
    model = transformers.AlbertModel.from_pretrained(folder, local_files_only=True)
    model.save_pretrained(target)
    words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    vocabulary = {word: number for number, word in enumerate(words)}
    reader = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    pieces = pre_tokenizers.Split(tokenizers.Regex(SMILES), behavior="isolated")
    reader.pre_tokenizer = pieces
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    both = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    reader.post_processor = both
    special = {
        f"{name.lower()}_token": f"[{name}]" for name in ("UNK", "SEP", "PAD", "CLS", "MASK")
    }
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=reader, model_max_length=512, **special
    )
    wrapped.save_pretrained(target)


_CONVERTERS: dict[str, Callable[[Path, Path], None]] = {
    "smollm2": _convert_smollm2,
    "rxnmapper": _convert_rxnmapper,
}
