"""Small models of several architectures with random weights, and tokenizers for them.

They are made, not downloaded: what is tested with them is how a model is read, not what it knows.
"""

from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = "The animal did not cross the street because it was too tired."
SIZES: dict[str, Any] = {"vocab_size": 330, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
SMALL: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}


def byte_level() -> Tokenizer:
    """As GPT-2 has it: every byte is a letter, and a space is `Ġ`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(tokenizer, ["<|end|>"], initial_alphabet=alphabet)


def metaspace() -> Tokenizer:
    """As Llama 2 has it: a space is `▁`, and an unknown character becomes its bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<|end|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return trained(tokenizer, ["<|end|>", *(f"<0x{byte:02X}>" for byte in range(256))])


def trained(tokenizer: Tokenizer, special: list[str], **options: Any) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=SIZES["vocab_size"], special_tokens=special, show_progress=False, **options
    )
    tokenizer.train_from_iterator([TEXT] * 9, trainer)
    return tokenizer


def save(model: transformers.PreTrainedModel, tokenizer: Tokenizer, folder: Path) -> Path:
    model.save_pretrained(folder)
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    wrapped.save_pretrained(folder)
    return folder


def save_gpt2(folder: Path) -> Path:
    """Two layers of four heads, causal; saved with the head that `AutoModel` has no use for."""
    torch.manual_seed(0)
    sizes = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.5}
    config = transformers.GPT2Config.from_dict(SIZES | sizes)
    return save(transformers.GPT2LMHeadModel(config), byte_level(), folder)


def save_llama(folder: Path) -> Path:
    """Two layers of four heads on two key heads, causal."""
    torch.manual_seed(0)
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.5}
    config = transformers.LlamaConfig.from_dict(SIZES | SMALL | sizes)
    return save(transformers.LlamaModel(config), metaspace(), folder)


def save_roberta(folder: Path) -> Path:
    """Two layers of two heads; 34 positions, of which the first two are never used."""
    torch.manual_seed(0)
    sizes = {"num_attention_heads": 2, "max_position_embeddings": 34, "pad_token_id": 1}
    config = transformers.RobertaConfig.from_dict(SIZES | SMALL | sizes)
    return save(transformers.RobertaModel(config), byte_level(), folder)


def save_albert(folder: Path) -> Path:
    """One layer of two heads, used three times."""
    torch.manual_seed(0)
    sizes = {"num_attention_heads": 2, "embedding_size": 16, "num_hidden_layers": 3}
    config = transformers.AlbertConfig.from_dict(SIZES | SMALL | sizes)
    return save(transformers.AlbertModel(config), metaspace(), folder)


def save_bart(folder: Path) -> Path:
    """An encoder of two layers of two heads, and a decoder of one."""
    torch.manual_seed(0)
    encoder = {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
    decoder = {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}
    sizes = {"d_model": 32, "max_position_embeddings": 50, "decoder_start_token_id": 0}
    sizes |= {"forced_eos_token_id": None}
    config = transformers.BartConfig.from_dict(SIZES | encoder | decoder | sizes)
    return save(transformers.BartModel(config), byte_level(), folder)


VISION: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 24,
    "patch_size": 4,
}


def save_with_processor(model: Any, folder: Path, height: int = 12, width: int = 20) -> Path:
    """A model with a processor that makes pictures of this size, by mean 0.5 and deviation 0.25."""
    model.save_pretrained(folder)
    size = {"height": height, "width": width}
    options: dict[str, Any] = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    transformers.ViTImageProcessor(size=size, **options).save_pretrained(folder)
    return folder


def save_vit(folder: Path) -> Path:
    """Two layers of three heads over a class token and 3 × 5 patches."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(image_size=(12, 20), initializer_range=0.5, **VISION)
    return save_with_processor(transformers.ViTModel(config, add_pooling_layer=False), folder)


def save_llava(folder: Path) -> Path:
    """Two layers of four heads over a text in which a picture is 3 × 3 patches, cropped to a square."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.5}
    kinds: Any = transformers
    words = kinds.PreTrainedTokenizerFast(
        tokenizer_object=metaspace(), eos_token="<|end|>", additional_special_tokens=["<image>"]
    )
    config = kinds.LlavaConfig(
        text_config=kinds.LlamaConfig(**SIZES | SMALL | heads | {"vocab_size": len(words)}),
        vision_config=kinds.CLIPVisionConfig(**VISION, image_size=12),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    kinds.LlavaForConditionalGeneration(config).save_pretrained(folder)
    side = {"height": 12, "width": 12}
    pixels = kinds.CLIPImageProcessor(size={"shortest_edge": 12}, crop_size=side)
    patches = {"patch_size": 4, "num_additional_image_tokens": 1}
    kinds.LlavaProcessor(
        pixels, words, vision_feature_select_strategy="default", **patches
    ).save_pretrained(folder)
    return folder


def save_photo(folder: Path) -> Path:
    """A picture of the size that `save_vit` reads."""
    pixels = torch.randint(256, (12, 20, 3), generator=torch.manual_seed(1), dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(folder / "photo.png")
    return folder / "photo.png"
