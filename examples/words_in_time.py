"""When was each word said? The cross-attention of Whisper, on its own kernel, as times.

    clearhead samples install whisper
    python examples/words_in_time.py [PICTURE.png] [SPEECH.wav]

Without a recording espeak-ng (apt-get install espeak-ng) speaks a sentence and says itself when each word began. The
alignment is that of https://github.com/openai/whisper: weights of the alignment heads, normalised, smoothed, and the
cheapest monotonic path through them (dynamic time warping).
"""

import sys
from typing import Any

import torch
from speech import RATE, Speech, read, speak
from torch import Tensor

import clearhead as ch

FRAME = 320
"""Samples of one position of the encoder, 0.02 s."""
TEXT = "Every morning my brother walks along the river, because the water is quiet before the city wakes up."


@torch.no_grad()
def transcribed(sample: Any, sound: Tensor) -> list[int]:
    """The text tokens that Whisper hears."""
    ids = sample.model.generate(features(sample, sound))[0].tolist()
    return [each for each in ids if each < sample.tokenizer.eos_token_id]


def tokens_of(sample: Any, text: str) -> list[int]:
    return sample.tokenizer(f" {text}", add_special_tokens=False)["input_ids"]


def features(sample: Any, sound: Tensor) -> Tensor:
    read = sample.processor(sound.numpy(), sampling_rate=RATE, return_tensors="pt")
    return read.input_features


def whole(sample: Any, tokens: list[int]) -> Tensor:
    """Return the tokens that the decoder reads: these, between its own."""
    own = sample.model.generation_config
    ends = [own.decoder_start_token_id, own.no_timestamps_token_id], [own.eos_token_id]
    return torch.tensor([[*ends[0], *tokens, *ends[1]]])


@torch.no_grad()
def looked(sample: Any, sound: Tensor, tokens: list[int]) -> list[ch.AttentionMatrix]:
    """The cross-attention of each layer of the decoder, read over the tokens once."""
    with ch.watch(sample.model, layers="*encoder_attn") as seen:
        sample.model(
            input_features=features(sample, sound), decoder_input_ids=whole(sample, tokens)
        )
    return [seen[layer] for layer in seen]


def weights_of(
    matrices: list[ch.AttentionMatrix], sound: Tensor, heads: list[tuple[int, int]]
) -> Tensor:
    """The weights of some (layer, head), (heads, tokens + 1, frames).

    The query of a token is the one that predicts it, and the last predicts the end.
    """
    frames = min(len(sound) // FRAME, matrices[0].shape[-1])
    return torch.stack([matrices[layer][0, head, 1:-1, :frames] for layer, head in heads])


def aligned(weights: Tensor) -> list[int]:
    """The frame at which each token begins."""
    return path(smoothed(weights).mean(dim=0))


def smoothed(weights: Tensor, width: int = 7) -> Tensor:
    """Each frame's weights normalised over the tokens; then the median of some frames."""
    mean, deviation = weights.mean(-2, keepdim=True), weights.std(-2, keepdim=True, correction=0)
    pad = width // 2
    padded = torch.nn.functional.pad((weights - mean) / deviation, (pad, pad), mode="reflect")
    return padded.unfold(-1, width, 1).median(dim=-1).values


def path(gain: Tensor) -> list[int]:
    """The first frame of each token on the monotonic path of the largest gain, (tokens, frames)."""
    rows, columns = gain.shape
    best = [[float("-inf")] * (columns + 1) for _ in range(rows + 1)]
    best[0][0] = 0.0
    for row, gains in enumerate(gain.double().tolist(), start=1):
        above, here = best[row - 1], best[row]
        for column, each in enumerate(gains, start=1):
            here[column] = each + max(above[column - 1], above[column], here[column - 1])
    starts, row, column = [0] * rows, rows, columns
    while row > 0 and column > 0:
        starts[row - 1] = column - 1
        steps = [(row - 1, column - 1), (row - 1, column), (row, column - 1)]
        row, column = max(steps, key=lambda step: best[step[0]][step[1]])
    return starts


def words(sample: Any, tokens: list[int]) -> list[tuple[str, int, int]]:
    """Each word, the number of its first token, and its place in the text."""
    found: list[tuple[str, int, int]] = []
    place = 0
    for number, token in enumerate(tokens):
        text = sample.tokenizer.decode([token])
        if text.startswith(" "):
            found.append((text[1:], number, place))
        elif found and text[0].isalpha():
            word, first, start = found.pop()
            found.append((word + text, first, start))
        place += len(text)
    return found


def draw(sample: Any, speech: Speech, tokens: list[int], weights: Tensor, file: str) -> None:
    """The smoothed weights, tokens × seconds, with the path and the times that the synthesiser says."""
    from matplotlib import pyplot

    starts = torch.tensor(aligned(weights)) * FRAME / RATE
    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    values = smoothed(weights).mean(dim=0)[:-1].numpy()
    extent = (0, weights.shape[-1] * FRAME / RATE, len(tokens) - 0.5, -0.5)
    axes.imshow(values, aspect="auto", cmap="Blues", vmin=0, extent=extent)
    axes.step(starts.tolist(), [*range(len(tokens)), len(tokens) - 1], where="post", color="black")
    said = [(speech.starts.get(place), number) for _, number, place in words(sample, tokens)]
    marks = torch.tensor([(second, number) for second, number in said if second is not None])
    axes.plot(
        *marks.reshape(-1, 2).T.tolist(), "|", color="#d95f02", markersize=14, markeredgewidth=2
    )
    axes.set_yticks(range(len(tokens)), [sample.tokenizer.decode([each]) for each in tokens])
    axes.set_xlabel("seconds; orange: the word's start, as the synthesiser says it")
    figure.savefig(file, dpi=120)


def main() -> None:
    given = {name.rsplit(".", 1)[-1]: name for name in sys.argv[1:]}
    sample = ch.samples.whisper()
    speech = read(given["wav"]) if "wav" in given else speak(TEXT)
    tokens = tokens_of(sample, speech.text) if speech.text else transcribed(sample, speech.sound)
    heads = sample.model.generation_config.alignment_heads
    weights = weights_of(looked(sample, speech.sound, tokens), speech.sound, heads)
    starts = aligned(weights)
    for word, number, place in words(sample, tokens):
        said = f"  espeak-ng {speech.starts[place]:.2f}" if place in speech.starts else ""
        print(f"{starts[number] * FRAME / RATE:5.2f} s  {word:12}{said}".rstrip())
    if "png" in given:
        draw(sample, speech, tokens, weights, given["png"])


if __name__ == "__main__":
    main()
