"""A sound whose moments are the keys of a page: their seconds, and the outline of its waveform."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead._common.checks import is_number
from clearhead._common.text import shown
from clearhead.errors import ArgumentError

PAIRS = 600
"""The waveform is drawn from so many pairs of its smallest and largest sample."""

LONGEST = 1e30
"""Seconds; a text with more is refused."""

MIDDLE = 127.5
"""Of a byte: silence."""


class Sound(NamedTuple):
    """The seconds of keys, and a waveform.

    Attributes:
        times: (keys + 1,), float32, seconds: the beginning of each key, and the end of the last.
        wave: (2, PAIRS), uint8: the smallest and the largest sample of each part, 0 to 255 from the lowest
            to the highest amplitude; None without audio.
        seconds: the length of the audio; to the end of the keys without it, or where these end before.
    """

    times: Tensor
    wave: Tensor | None
    seconds: float

    @property
    def keys(self) -> int:
        """The number of keys."""
        return len(self.times) - 1

    @property
    def tokens(self) -> list[str]:
        """The time of each key, as its name."""
        return [f"{time:.2f}s" for time in self.times[:-1].tolist()]

    @property
    def entry(self) -> dict[str, Any]:
        """The entry of a payload."""
        heard = int((self.times[:-1] < self.seconds).sum())
        about = {"keys": self.keys, "heard": heard, "wave": self.wave is not None}
        return {"sound": {"seconds": self.seconds} | about}

    @property
    def arrays(self) -> dict[str, Tensor]:
        """The arrays of a payload."""
        return {"times": self.times} | ({} if self.wave is None else {"wave": self.wave})

    def check(self, keys: Sequence[int]) -> None:
        """Refuse times if no layer has so many keys.

        Raises:
            ArgumentError: code `page.sound`.
        """
        if self.keys not in keys:
            found = ", ".join(str(each) for each in sorted(set(keys)))
            raise ArgumentError(
                "page.sound",
                f"times must be as many as the keys of a layer; got {self.keys}, and layers of {found}.",
            )


def read_sound(times: Any, audio: Any, keys: int) -> Sound:
    """The seconds of keys, and the outline of the audio.

    Args:
        times: the seconds of each key, one number for all; or where each begins, in seconds.
        audio: samples, (len,), of any kind of number, and samples per second; None for none.
        keys: the number of keys, where `times` is one number.

    Raises:
        ArgumentError: code `page.sound`.

    Example:
        >>> sound = read_sound(0.5, (torch.tensor([0.0, 0.5, -1.0, 0.0]), 2), 3)
        >>> sound.tokens, sound.seconds
        (['0.00s', '0.50s', '1.00s'], 1.5)
    """
    edges = _edges(times, keys)
    if audio is None:
        return Sound(edges, None, float(edges[-1]))
    given: Any = None
    rate: Any = None
    if isinstance(audio, tuple | list) and len(audio) == 2:
        given, rate = audio
    samples = _numbers(given)
    if samples is None or not len(samples) or not is_number(rate) or not 0 < float(rate) < math.inf:
        got = (
            f"samples of shape {tuple(given.shape)}"
            if hasattr(given, "shape")
            else type(given).__name__
        )
        raise ArgumentError(
            "page.sound",
            "audio must be finite samples of shape (len,), one or more, and how many there are per second, "
            f"such as (samples, 16_000); got {got} and {shown(rate)}.",
        )
    samples = samples[: math.ceil(float(edges[-1]) * float(rate))]
    # A part of fewer samples than parts repeats them.
    bounds = torch.arange(PAIRS + 1) * len(samples) // PAIRS
    parts = [
        samples[low : max(high, low + 1)]
        for low, high in zip(bounds.tolist(), bounds[1:].tolist(), strict=False)
    ]
    ends = torch.stack([torch.stack(part.aminmax()) for part in parts], dim=1)
    loudest = float(samples.abs().max()) or 1.0
    wave = (MIDDLE + MIDDLE * ends / loudest).round().to(torch.uint8)
    seconds = min(len(samples) / float(rate), float(edges[-1]))
    return Sound(edges, wave, seconds)


def _edges(times: Any, keys: int) -> Tensor:
    # Beyond it float32, which a page has, is not finite.
    if is_number(times) and 0 < float(times) < LONGEST / max(keys, 1):
        return torch.arange(keys + 1, dtype=torch.float32) * float(times)
    starts = None if is_number(times) else _numbers(times)
    if (
        starts is None
        or len(starts) < 2
        or float(starts[0]) < 0
        or bool((starts.diff() <= 0).any())
        or float(starts[-1]) >= LONGEST
    ):
        raise ArgumentError(
            "page.sound",
            "times must be the seconds of a key, above 0, or where each key begins, two or more that "
            f"increase from 0 or above; got {shown(times)}.",
        )
    # The last key is as long as the one before.
    return torch.cat([starts, 2 * starts[-1:] - starts[-2:-1]]).float()


def _numbers(given: Any) -> Tensor | None:
    """(len,), float64; None for what is not finite numbers of one dimension."""
    try:
        found = torch.as_tensor(given).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        return None
    if found.ndim != 1 or found.is_complex() or found.dtype == torch.bool:
        return None
    found = found.double()
    return found if bool(found.isfinite().all()) else None
