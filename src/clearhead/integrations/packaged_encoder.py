"""The packaged MiniLM in layers of this library, read without transformers, whose import takes seconds."""

import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from clearhead._common.lazy import importing
from clearhead.layers.multi_head_attention import MultiHeadAttention

RENAMED = {
    ".self.query.": ".self.query_projection.",
    ".self.key.": ".self.key_projection.",
    ".self.value.": ".self.value_projection.",
    ".attention.output.dense.": ".attention.self.output_projection.",
}
"""The names of parameters in the file, and in the layers here; all others are equal."""


class Encoded(NamedTuple):
    """The output of the encoder: (batch, tokens, width)."""

    last_hidden_state: Tensor


class SentenceEncoder(nn.Module):
    """BERT without its pooler (Devlin et al., 2018, https://arxiv.org/abs/1810.04805), in eval mode.

    The paths of its modules are those of BERT in transformers.

    Args:
        config: the sizes, by their names in `config.json`.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, inner = config["hidden_size"], config["intermediate_size"]
        norm = partial(nn.LayerNorm, width, config["layer_norm_eps"])

        def table(size: str) -> nn.Embedding:
            """Return a new embedding, without values, with `config[size]` rows."""
            # A normal draw on the meta device imports the compiler of PyTorch, which takes two seconds.
            return nn.Embedding(config[size], width, _weight=torch.empty(config[size], width))

        embeddings = {
            "word_embeddings": table("vocab_size"),
            "position_embeddings": table("max_position_embeddings"),
            "token_type_embeddings": table("type_vocab_size"),
            "LayerNorm": norm(),
        }
        layers = [
            {
                "attention": {
                    "self": MultiHeadAttention(width, config["num_attention_heads"], bias=True),
                    "output": {"LayerNorm": norm()},
                },
                "intermediate": {"dense": nn.Linear(width, inner)},
                "output": {"dense": nn.Linear(inner, width), "LayerNorm": norm()},
            }
            for _ in range(config["num_hidden_layers"])
        ]
        self.embeddings = _modules(embeddings)
        self.encoder = _modules({"layer": nn.ModuleList(map(_modules, layers))})
        self.eval()

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding of the tokens."""
        return self.embeddings["word_embeddings"]

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Encoded:
        """Return the encoding of texts, (batch, tokens, width).

        Args:
            input_ids: (batch, tokens).
            attention_mask: 0 at padding, (batch, tokens); None if there is none.
        """
        valid = None if attention_mask is None else attention_mask.bool()
        part: Any = self.embeddings
        x = part.word_embeddings(input_ids) + part.token_type_embeddings.weight[0]
        x = part.LayerNorm(x + part.position_embeddings.weight[: input_ids.shape[1]])
        layer: Any
        for layer in self.get_submodule("encoder.layer").children():
            x = layer.attention.output.LayerNorm(x + layer.attention.self(x, valid=valid))
            hidden = layer.output.dense(gelu(layer.intermediate.dense(x)))
            x = layer.output.LayerNorm(x + hidden)
        return Encoded(x)


def _modules(parts: dict[str, Any]) -> nn.ModuleDict:
    """Return modules by their names, where a dictionary is a module that holds others."""
    return nn.ModuleDict(
        {name: _modules(part) if isinstance(part, dict) else part for name, part in parts.items()}
    )


class PackagedTokenizer:
    """A `tokenizer.json` with the methods of transformers' tokenizers that reading a text needs.

    Args:
        folder: the folder of the file.

    Attributes:
        name_or_path: the folder, as a string.
        backend_tokenizer: the tokenizer of the package `tokenizers`.
        all_special_ids: the ids of [CLS], [SEP] and the others that are not of a text.

    Raises:
        MissingExtraError: if tokenizers is not installed.
    """

    def __init__(self, folder: Path) -> None:
        """Read `tokenizer.json` in the folder; MissingExtraError if the package tokenizers is not installed."""
        with importing("tokenizers", extra="models", purpose="reading with a model"):
            import tokenizers

        self.name_or_path = str(folder)
        self.backend_tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.backend_tokenizer.no_truncation()
        self.backend_tokenizer.no_padding()
        added = self.backend_tokenizer.get_added_tokens_decoder()
        self.all_special_ids = [number for number, token in added.items() if token.special]

    def __call__(self, text: str) -> dict[str, list[int]]:
        """Return the ids of a text, special ones included, as `input_ids`."""
        return {"input_ids": self.backend_tokenizer.encode(text).ids}

    def convert_ids_to_tokens(self, ids: int | list[int]) -> Any:
        """Return the token of an id, or a list of them for a list; None for an unknown id."""
        if isinstance(ids, int):
            return self.backend_tokenizer.id_to_token(ids)
        return [self.backend_tokenizer.id_to_token(each) for each in ids]


def read_encoder(folder: Path) -> tuple[SentenceEncoder, PackagedTokenizer, int]:
    """Return the encoder and the tokenizer in a folder, and the largest number of tokens of a text.

    Raises:
        MissingExtraError: if safetensors or tokenizers is not installed.
    """
    tokenizer = PackagedTokenizer(folder)
    with importing(
        "safetensors", "safetensors.torch", extra="models", purpose="reading with a model"
    ):
        from safetensors.torch import load_file
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with torch.device("meta"):
        encoder = SentenceEncoder(config)
    state = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        for old, new in RENAMED.items():
            name = name.replace(old, new)
        if not name.startswith(("pooler.", "embeddings.position_ids")):
            state[name] = tensor
    encoder.load_state_dict(state, assign=True)
    return encoder, tokenizer, config["max_position_embeddings"]
