"""The sequences that a generation returned, as rows of one matrix, against one pass over each of them."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import clearhead as ch
from tests.drawing.page.test_photo import READERS

SIZES: Any = {
    "vocab_size": 30, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "initializer_range": 0.4, "pad_token_id": 0, "eos_token_id": 7, "bos_token_id": 1,
}  # fmt: skip
END = 7


def made(window: int | None = None, seed: int = 0) -> Any:
    """A text model with seeded weights in float64, with a window or without."""
    torch.manual_seed(seed)
    if window is None:
        model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    else:
        config = transformers.MistralConfig(**SIZES, sliding_window=window)
        model = transformers.MistralForCausalLM(config)
    return model.double().eval()


def lengths_of(sequences: Tensor, prompt: int) -> list[int]:
    """The tokens of each sequence that were read for sure: all before the end token, or before the last."""
    ends = [(row[prompt:-1] == END).nonzero().flatten().tolist() for row in sequences]
    return [prompt + end[0] if end else sequences.shape[1] - 1 for end in ends]


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 4, "num_return_sequences": 2},
        {"num_beams": 3},
        {"do_sample": True, "num_return_sequences": 3},
        {"prompt_lookup_num_tokens": 3},
        {"assistant": True},
    ],
    ids=["beams", "best beam", "samples", "prompt lookup", "assistant"],
)
def test_each_row_is_one_pass_over_its_sequence(window: int | None, options: Any) -> None:
    drafts = not options.keys() & {"num_beams", "do_sample"}
    if drafts and window is not None:
        pytest.skip("a window's cache is not cut")
    model, ids = made(window), torch.randint(3, 20, (2, 6))
    valid = torch.ones_like(ids)
    valid[1, :2] = 0
    if drafts:
        ids, valid = (each[:1].repeat(1, 3) for each in (ids, valid))
    options = {"do_sample": False, "max_new_tokens": 8, **options}
    if options.pop("assistant", False):
        options["assistant_model"] = made(seed=1)
    with torch.no_grad(), ch.watch(model, values=True, contexts=True) as seen:
        sequences = model.generate(ids, attention_mask=valid, **options)
    found = seen.returned(sequences)
    assert list(found) == list(seen)
    lengths = lengths_of(sequences, ids.shape[1])
    for row, length in enumerate(lengths):
        begun = valid[row * len(ids) // len(sequences)]
        real = torch.cat([begun, begun.new_ones(length - len(begun))])[None]
        places = (real.cumsum(-1) - 1).clamp(min=0)
        with torch.no_grad(), ch.watch(model, values=True, contexts=True) as once:
            model(sequences[row : row + 1, :length], attention_mask=real, position_ids=places)
        for name, matrix in once.items():
            given, here = found[name], real[0].bool()
            pairs = [
                (given.dense()[row, :, :length, :length], matrix.dense()[0]),
                (given.value[row, :, :length], matrix.value[0]),  # type: ignore[index]
                (given.context[row, :, :length], matrix.context[0]),  # type: ignore[index]
            ]
            for mine, expected in pairs:
                torch.testing.assert_close(mine[:, here], expected[:, here], atol=1e-10, rtol=0)
            assert given.real is None or not given.real[row, length + 1 :].any()


def test_sequences_that_were_not_read_are_refused() -> None:
    model, ids = made(), torch.randint(8, 20, (2, 6))
    with torch.no_grad(), ch.watch(model) as seen:
        sequences = model.generate(ids, max_new_tokens=3, do_sample=False)
    other = sequences.clone()
    other[1, 4] = 25
    for given, text in ((other, "sequence 1 was read up to token 4 of 8"), (ids + 10, "token 0")):
        with pytest.raises(ch.errors.SelectionError, match=text) as raised:
            seen.returned(given)
        assert raised.value.code == "watch.returned"
    layer = nn.TransformerEncoderLayer(16, nhead=2, batch_first=True)
    with torch.no_grad(), ch.watch(layer) as unknown:
        layer(torch.randn(1, 5, 16))
    with pytest.raises(ch.errors.SelectionError, match="the ids that the model read are not known"):
        unknown.returned(sequences)
    with torch.no_grad(), ch.watch(layer, keep="summary") as summaries:
        layer(torch.randn(1, 5, 16))
    with pytest.raises(ch.errors.ArgumentError, match="keep was 'summary'"):
        summaries.returned(sequences)


def test_an_answer_about_a_picture_is_one_matrix() -> None:
    """Gemma 3 sees each picture whole, in its window too: the generation is one pass over the whole text."""
    [reader] = [each for each in READERS if each.name == "Gemma3"]
    model = reader.make().double()
    ids = torch.randint(3, 20, (2, 12))
    ids[0, 3:7] = ids[1, 5:9] = 99
    pixels = torch.randn(2, 3, 28, 28, dtype=torch.float64)
    kinds = (ids == 99).long()
    with torch.no_grad(), ch.watch(model) as seen:
        sequences = model.generate(
            ids, token_type_ids=kinds, pixel_values=pixels, max_new_tokens=5, do_sample=False
        )
    read = sequences[:, :-1]
    with torch.no_grad(), ch.watch(model) as once:
        model(read, token_type_ids=(read == 99).long(), pixel_values=pixels)
    for name in list(seen)[-2:]:
        for found in (seen[name], seen.returned(sequences)[name]):
            torch.testing.assert_close(found.dense(), once[name].dense(), atol=1e-10, rtol=0)
