"""Converters from the files in sample packages to folders that transformers loads, with safetensors weights."""

import io
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead._common.lazy import importing
from clearhead._text import raised_words
from clearhead.errors import FileError, missing_extra

SMILES = r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
"""The tokens of a reaction (Schwaller et al., 2019, https://doi.org/10.1021/acscentsci.9b00576)."""


WHISPER = {
    "/": ".",
    r"layer_(\d+)": r"layers.\1",
    r"ffn\.linear_0": "fc1",
    r"ffn\.linear_1": "fc2",
    r"ffn\.layer_norm": "final_layer_norm",
    r"self_attention\.": "self_attn.",
    r"\.attention\.": ".encoder_attn.",
    r"attn\.layer_norm": "attn_layer_norm",
    r"embeddings\.weight": "embed_tokens.weight",
    r"position_encodings\.encodings": "embed_positions.weight",
    "gamma$": "weight",
    "beta$": "bias",
}
"""The names of CTranslate2, and those of transformers."""

FUSED = {
    "self_attn.linear_0": "qkv",
    "self_attn.linear_1": ["out"],
    "encoder_attn.linear_0": "q",
    "encoder_attn.linear_1": "kv",
    "encoder_attn.linear_2": ["out"],
}
"""The projections that CTranslate2 holds as one, in the order of its rows."""


LAYER = r"encoder/layer_\d+/ffn/linear_0/bias"
CTRANSLATE2 = 6
DTYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
"""By their numbers in the format of CTranslate2."""


def convert_smollm2(source: Path, target: Path) -> None:
    """Read SmolLM2 from GGUF in the folder `source`, and write it with its tokenizer to the folder `target`, float32.

    Raises:
        MissingExtraError: code `extra.missing`, without gguf or accelerate.
    """
    import transformers

    for package in ("gguf", "accelerate"):
        if not getattr(transformers.utils, f"is_{package}_available")():
            raise missing_extra(package, "samples", "the first load of SmolLM2")
    file = {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf", "local_files_only": True}
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, **file
    )
    # The weights are no longer quantised.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(source, **file).save_pretrained(target)


def convert_rxnmapper(source: Path, target: Path) -> None:
    """Read RXNMapper's ALBERT and its vocabulary in the folder `source`, and write model and tokenizer to `target`."""
    import tokenizers
    import transformers
    from tokenizers import models, pre_tokenizers, processors

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


def convert_whisper(source: Path, target: Path) -> None:
    """Read Whisper from CTranslate2 in the folder `source`, and write model and processor to the folder `target`.

    Raises FileError, code `samples.file`, for a damaged file.
    """
    import transformers

    folder = source / "model"
    tensors = read_ctranslate2(folder / "model.bin")
    vocabulary, width = tensors["decoder/embeddings/weight"].shape
    depth = len([name for name in tensors if re.fullmatch(LAYER, name)])
    heads = int(tensors["encoder/num_heads"])
    config = transformers.WhisperConfig(
        vocab_size=vocabulary,
        d_model=width,
        encoder_layers=depth,
        decoder_layers=depth,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        architectures=["WhisperForConditionalGeneration"],
    )
    state: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim > 0 and name != "decoder/projection/weight":
            state |= _named_as_whisper(name, tensor)
    _write(state, config, target)
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    generation = transformers.GenerationConfig(
        alignment_heads=written["alignment_heads"],
        suppress_tokens=written["suppress_ids"],
        begin_suppress_tokens=written["suppress_ids_begin"],
        is_multilingual=False,
        max_length=448,
        pad_token_id=50256,
        eos_token_id=50256,
        bos_token_id=50257,
        decoder_start_token_id=50257,
        prev_sot_token_id=50360,
        no_timestamps_token_id=50362,
        max_initial_timestamp_index=50,
        return_timestamps=False,
    )
    generation.save_pretrained(target)
    tokenizer = transformers.WhisperTokenizer.from_pretrained(folder, local_files_only=True)
    features = transformers.WhisperFeatureExtractor()
    transformers.WhisperProcessor(features, tokenizer).save_pretrained(target)


def _named_as_whisper(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return one tensor of CTranslate2 as a dict by the names in transformers.

    A fused one is split into its projections; a bias of the key is dropped.
    """
    for old, new in WHISPER.items():
        name = re.sub(old, new, name)
    stem, kind = name.rsplit(".", 1)
    for fused, parts in FUSED.items():
        if stem.endswith(fused):
            prefix = stem.removesuffix(fused.split(".")[1])
            pieces = zip(parts, tensor.chunk(len(parts)), strict=True)
            # A bias of the key is the same number for all scores of a query, and Whisper has none.
            return {
                f"model.{prefix}{part}_proj.{kind}": piece.contiguous()
                for part, piece in pieces
                if (part, kind) != ("k", "bias")
            }
    return {f"model.{name}": tensor}


def convert_dinov2(source: Path, target: Path) -> None:
    """Read DINOv2 from ONNX in the folder `source`, and write model and image processor to the folder `target`.

    Raises MissingExtraError, code `extra.missing`, without onnx.
    """
    import transformers

    with importing("onnx", extra="samples", purpose="the first load of DINOv2"):
        import onnx
    file = source / "models" / "vit_s_focus.onnx"
    graph = onnx.load(file, load_external_data=False).graph
    constants = {
        each.name: torch.from_numpy(onnx.numpy_helper.to_array(each).copy())
        for each in graph.initializer
    }
    prefix = "backbone."
    state = {
        name.removeprefix(prefix): tensor
        for name, tensor in constants.items()
        if name.startswith(prefix)
    }
    # A product has no name of its own, and the bias that is added to it has.
    products = {each.output[0]: each.input[1] for each in graph.node if each.op_type == "MatMul"}
    for node in graph.node:
        if node.op_type == "Add":
            for bias, product in (node.input, reversed(node.input)):
                if bias.startswith(prefix) and products.get(product) in constants:
                    name = bias.removeprefix(prefix).removesuffix("bias") + "weight"
                    state[name] = constants[products[product]].T.contiguous()
    # Nor has a constant: the positions of the class token and of the 37 × 37 patches.
    nameless = [each for name, each in constants.items() if each.ndim == 3 and "." not in name]
    state["embeddings.position_embeddings"] = torch.cat(
        sorted(nameless, key=lambda each: each.shape[1]), dim=1
    )
    config = transformers.Dinov2Config(
        hidden_size=384,
        num_attention_heads=6,
        image_size=518,
        use_mask_token=False,
        architectures=["Dinov2Model"],
    )
    _write(state, config, target)
    pictures = {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": 256},
        "crop_size": {"height": 224, "width": 224},
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    }
    (target / "preprocessor_config.json").write_text(json.dumps(pictures), encoding="utf-8")


def _write(state: dict[str, Tensor], config: Any, target: Path) -> None:
    """Write weights as model.safetensors and a config of transformers as config.json to a folder, which must exist.

    The tensors must be contiguous and share no memory.
    """
    from safetensors.torch import save_file

    save_file(state, target / "model.safetensors", {"format": "pt"})
    config.save_pretrained(target)


def read_ctranslate2(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a `model.bin` of CTranslate2 (https://github.com/OpenNMT/CTranslate2) by their names.

    An alias shares the tensor that it names. The format holds no code.

    Raises:
        FileError: code `samples.file`, for another format, a tensor of another size than its shape, or an end too soon.
        OSError: if the file cannot be read.
    """
    content = io.BytesIO(file.read_bytes())

    def take(size: int) -> bytes:
        """Consume and return the next `size` bytes; EOFError if the file ends before."""
        taken = content.read(size)
        if len(taken) < size:
            raise EOFError("it ends too soon")
        return taken

    def number(kind: str) -> int:
        """Consume and return the next integer, little-endian; `kind` is its format character in `struct`."""
        return struct.unpack(f"<{kind}", take(struct.calcsize(kind)))[0]

    def text() -> str:
        """Consume and return the next string, which is stored after its length; undecodable bytes become U+FFFD."""
        return take(number("H")).rstrip(b"\0").decode(errors="replace")

    def tensor() -> tuple[str, Tensor]:
        """Consume the next tensor, and return its name and values."""
        name, shape = text(), [number("I") for _ in range(number("B"))]
        dtype, data = DTYPES[number("B")], bytearray(take(number("I")))
        return name, torch.frombuffer(data, dtype=dtype).reshape(shape)

    try:
        if (version := number("I")) != CTRANSLATE2:
            raise ValueError(f"its version is {version}")
        # The name of the specification, and its revision.
        text()
        number("I")
        tensors = dict(tensor() for _ in range(number("I")))
        for _ in range(number("I")):
            alias = text()
            tensors[alias] = tensors[text()]
    except (EOFError, IndexError, KeyError, RuntimeError, ValueError) as error:
        raise FileError(
            "samples.file",
            f"{file.name} must be a model of CTranslate2 in version {CTRANSLATE2}: {raised_words(error)}.",
        ) from error
    return tensors


CONVERTERS: dict[str, Callable[[Path, Path], None]] = {
    "smollm2": convert_smollm2,
    "rxnmapper": convert_rxnmapper,
    "whisper": convert_whisper,
    "dinov2": convert_dinov2,
}
"""By the names of the samples: each writes a folder that transformers reads from the folder of a package."""
