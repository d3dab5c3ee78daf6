"""RoPE scaling: rotary positions for longer texts than a model was trained on."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead._common.checks import is_number
from clearhead._common.hints import with_hints
from clearhead._text import shown
from clearhead.errors import ArgumentError


class Scaling(ABC):
    """A change of the frequencies of rotary positions, for longer texts.

    Example:
        >>> frequencies = torch.tensor([1.0, 0.01])
        >>> Linear(4.0).stretched(frequencies, 10_000.0, torch.tensor(12))
        tensor([0.2500, 0.0025])
    """

    @abstractmethod
    def stretched(self, frequencies: Tensor, base: float, length: Tensor) -> Tensor:
        """Return the changed frequencies, (pairs,), as a new tensor.

        Args:
            frequencies: (pairs,), radians per token, falling: base^(−pair / pairs).
            base: their base.
            length: number of tokens of the text, a tensor ().
        """

    @property
    def gain(self) -> float:
        """The factor that queries and keys are multiplied by as well; 1 by default."""
        return 1.0

    def __post_init__(self) -> None:
        """Raise ArgumentError, `scaling.value`, unless factor is 1 or more and original_len, if any, is 2 or more."""
        for name, least in (("factor", 1), ("original_len", 2)):
            number = getattr(self, name, least)
            if not is_number(number) or not least <= number < math.inf:
                raise ArgumentError(
                    "scaling.value",
                    f"{name} must be a number, {least} or more; got {shown(number)}.",
                )


@with_hints
@dataclass(frozen=True)
class Linear(Scaling):
    """Positions divided by a factor (Chen et al., 2023, https://arxiv.org/abs/2306.15595).

    Args:
        factor: ratio of the new length to the old one, 1 or more.

    Raises:
        ArgumentError: code `scaling.value`.

    Example:
        >>> Linear(0.5)
        Traceback (most recent call last):
        ...
        clearhead.errors.ArgumentError: [scaling.value] factor must be a number, 1 or more; got 0.5.
    """

    factor: float

    def stretched(self, frequencies: Tensor, base: float, length: Tensor) -> Tensor:
        """Return the frequencies divided by the factor; `base` and `length` are not used."""
        return frequencies / self.factor


@with_hints
@dataclass(frozen=True)
class Ntk(Scaling):
    """A larger base, so that slow pairs are stretched and fast ones stay.

    Sources: bloc97, 2023, "NTK-aware scaled RoPE"; Peng et al., 2023, section 3.1, https://arxiv.org/abs/2309.00071.

    Args:
        factor: ratio of the new length to the old one, 1 or more.

    Raises:
        ArgumentError: code `scaling.value`.

    Example:
        >>> Ntk(4.0).stretched(torch.tensor([1.0, 0.01]), 10_000.0, torch.tensor(12))
        tensor([1.0000, 0.0025])
    """

    factor: float

    def stretched(self, frequencies: Tensor, base: float, length: Tensor) -> Tensor:
        """Return the frequencies of a larger base, the slowest divided by the factor; `length` is not used."""
        return _with_base_times(frequencies, self.factor)


@with_hints
@dataclass(frozen=True)
class Dynamic(Scaling):
    """A base that grows with the text once it is longer than the texts of the training.

    Sources: emozilla, 2023; Peng et al., 2023, appendix B, https://arxiv.org/abs/2309.00071.

    Keys in a KV cache keep the rotation that they were appended with.

    Args:
        factor: its growth, 1 or more.
        original_len: tokens of the texts in the training.

    Raises:
        ArgumentError: code `scaling.value`.

    Example:
        >>> short = Dynamic(2.0, original_len=16)
        >>> short.stretched(torch.tensor([1.0, 0.01]), 10_000.0, torch.tensor(12))
        tensor([1.0000, 0.0100])
    """

    factor: float
    original_len: int

    def stretched(self, frequencies: Tensor, base: float, length: Tensor) -> Tensor:
        """Return the frequencies of a base that grows with `length`; unchanged up to original_len tokens."""
        tokens = length.clamp(min=self.original_len).to(frequencies.dtype)
        return _with_base_times(
            frequencies, self.factor * tokens / self.original_len - (self.factor - 1)
        )


@with_hints
@dataclass(frozen=True)
class Yarn(Scaling):
    """Slow pairs stretched, fast ones left, a ramp between them, and a gain.

    Source: Peng et al., 2023, https://arxiv.org/abs/2309.00071.

    Args:
        factor: ratio of the new length to the old one, 1 or more.
        original_len: tokens of the texts in the training.
        fast: pairs with more turns than this in such a text stay as they are.
        slow: pairs with fewer turns than this are stretched whole.
        attention_gain: factor of queries and keys; None is 0.1 · ln(factor) + 1.
        truncate: whether the ramp begins and ends at whole pairs.

    Raises:
        ArgumentError: code `scaling.value`.

    Example:
        >>> yarn = Yarn(4.0, original_len=2048)
        >>> round(yarn.gain, 4)
        1.1386
    """

    factor: float
    original_len: int
    fast: float = 32.0
    slow: float = 1.0
    attention_gain: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        """Raise ArgumentError, `scaling.value`, as `Scaling`, and unless 0 < slow < fast < ∞."""
        super().__post_init__()
        _check_order("slow", self.slow, "fast", self.fast)

    @property
    def gain(self) -> float:
        """The factor of queries and keys: attention_gain, or 0.1 · ln(factor) + 1 if that is None."""
        if self.attention_gain is not None:
            return self.attention_gain
        return 0.1 * math.log(self.factor) + 1

    def stretched(self, frequencies: Tensor, base: float, length: Tensor) -> Tensor:
        """Return the frequencies: fast ones unchanged, slow ones divided by the factor, a ramp between.

        `length` is not used.
        """
        pairs = len(frequencies)

        def pair(turns: float) -> float:
            """Return the index of the pair, as a real number, that makes `turns` turns over a text of the training."""
            return pairs * math.log(self.original_len / (2 * math.pi * turns)) / math.log(base)

        first, last = pair(self.fast), pair(self.slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        places = torch.arange(pairs, device=frequencies.device, dtype=frequencies.dtype)
        share = ((places - first) / max(last - first, 0.001)).clamp(0, 1)
        return frequencies * (1 - share) + frequencies / self.factor * share


@with_hints
@dataclass(frozen=True)
class Llama3(Scaling):
    """Long waves stretched, short ones left, and those between in part.

    Source: Llama 3.1, 2024, https://arxiv.org/abs/2407.21783.

    Args:
        factor: ratio of the new length to the old one, 1 or more.
        original_len: tokens of the texts in the training.
        low: pairs with fewer turns than this in such a text are stretched whole.
        high: pairs with more turns stay as they are.

    Raises:
        ArgumentError: code `scaling.value`.

    Example:
        >>> llama3 = Llama3(8.0, original_len=8192)
        >>> llama3.stretched(torch.tensor([1.0, 1e-5]), 500_000.0, torch.tensor(12))
        tensor([1.0000e+00, 1.2500e-06])
    """

    factor: float
    original_len: int
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        """Raise ArgumentError, `scaling.value`, as `Scaling`, and unless 0 < low < high < ∞."""
        super().__post_init__()
        _check_order("low", self.low, "high", self.high)

    def stretched(self, frequencies: Tensor, base: float, length: Tensor) -> Tensor:
        """Return the frequencies: high ones unchanged, low ones divided by the factor, a mean between.

        `length` is not used.
        """
        turns = self.original_len * frequencies / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return frequencies * kept + frequencies / self.factor * (1 - kept)


@with_hints
@dataclass(frozen=True)
class LongRope(Scaling):
    """A factor for each pair, found by search: some for short texts, others for long ones.

    Source: Ding et al., 2024, https://arxiv.org/abs/2402.13753.

    Args:
        short: the factors for texts of up to original_len tokens, one a pair.
        long: those for longer ones.
        original_len: tokens of the texts in the training.
        factor: how many times longer the texts are, for the gain √(1 + ln(factor) /
            ln(original_len)).
        attention_gain: the gain itself, instead.

    Raises:
        ArgumentError: code `scaling.value`; `scaling.pairs`, when they are not one a pair.

    Example:
        >>> longrope = LongRope([1.0, 1.0], [2.0, 4.0], original_len=16, factor=4.0)
        >>> longrope.stretched(torch.tensor([1.0, 0.01]), 10_000.0, torch.tensor(17))
        tensor([0.5000, 0.0025])
    """

    short: Sequence[float]
    long: Sequence[float]
    original_len: int
    factor: float = 1.0
    attention_gain: float | None = None

    @property
    def gain(self) -> float:
        """The factor of queries and keys: attention_gain, or √(1 + ln(factor) / ln(original_len)) if that is None."""
        if self.attention_gain is not None:
            return self.attention_gain
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_len))

    def stretched(self, frequencies: Tensor, base: float, length: Tensor) -> Tensor:
        """Return the frequencies divided by `long` if length > original_len, else by `short`.

        Raises ArgumentError, code `scaling.pairs`, unless both have one factor a pair.
        """
        if not len(self.short) == len(self.long) == len(frequencies):
            raise ArgumentError(
                "scaling.pairs",
                f"short and long must have a factor for each of {len(frequencies)} pairs; got "
                f"{len(self.short)} and {len(self.long)}.",
            )
        short, long = (frequencies.new_tensor(list(each)) for each in (self.short, self.long))
        return frequencies / torch.where(length > self.original_len, long, short)


def _with_base_times(frequencies: Tensor, factor: float | Tensor) -> Tensor:
    """Return the frequencies for a larger base: the slowest divided by the factor, the fastest unchanged."""
    pairs = len(frequencies)
    share = torch.arange(pairs, device=frequencies.device, dtype=frequencies.dtype)
    return frequencies * factor ** (-share / max(pairs - 1, 1))


def _check_order(small: str, smaller: Any, large: str, larger: Any) -> None:
    """Raise ArgumentError, `scaling.value`, unless 0 < smaller < larger < ∞; `small` and `large` are their names."""
    if not is_number(smaller) or not is_number(larger) or not 0 < smaller < larger < math.inf:
        raise ArgumentError(
            "scaling.value",
            f"{small} and {large} must be numbers above 0, {small} the smaller one; got "
            f"{shown(smaller)} and {shown(larger)}.",
        )
