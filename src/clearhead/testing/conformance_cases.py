"""One case of the suite: call an attention, and compare its result with the definition."""

import unittest
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Never

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.accuracy import Tolerance, measured
from clearhead.recording.attempt import attempt
from clearhead.testing.posing import Posed, Sizes, defined, in_chunks, pose
from clearhead.testing.tolerances import difference

# pytest shows what is raised here without frames of this module.
__tracebackhide__ = True

# Gradients are held to the largest of them, and a kernel that never held the weights makes them
# again, with the rounding of score and logsumexp in the exponent.
FACTOR, GRADIENT_FACTOR = 3.0, 10.0
# What is not drawn for: a case and the same case with gradients have the same tensors.
UNDRAWN = frozenset({"gradients", "bias_gradients", "sinks_gradients"})


@dataclass(frozen=True, eq=False)
class ConformanceCase:
    """One case for an attention; each `run` draws the same inputs.

    Attributes:
        features: the features of the case, in addition to plain attention.
        variant: what else is particular about it, in a word, or "".
        sizes: batch, num_heads, num_kv_heads, query_len, kv_len, head_dim, value_head_dim.
        dtype: of the tensors.
        device: of the tensors.
        seed: of everything that is drawn.

    Example:
        >>> case = ch.testing.conformance(ch.attend, features=())[0]
        >>> case.name
        'plain-7x11-float32'
        >>> case.run()
        >>> print(case)
        the plain attention; query (2, 3, 7, 19), key (2, 3, 11, 19), value (2, 3, 11, 19); float32 on cpu; seed 0
    """

    fn: Callable[..., Any] = field(repr=False)
    features: tuple[str, ...]
    variant: str
    sizes: Sizes
    dtype: torch.dtype
    device: torch.device
    seed: int

    @property
    def name(self) -> str:
        """The name of the case, such as "causal-7x11-float32": features, variant if any, lengths and dtype."""
        parts = ["+".join(self.features) or "plain"]
        parts += [self.variant] if self.variant else []
        parts += [f"{self.sizes.query_len}x{self.sizes.kv_len}", _bare(self.dtype)]
        return "-".join(parts)

    @property
    def __name__(self) -> str:
        # What pytest takes for the id of a parameter.
        return self.name

    def __str__(self) -> str:
        asked = ", ".join(self.features) or "the plain attention"
        asked += f" ({self.variant.replace('-', ' ')})" if self.variant else ""
        posed = self._posed()
        shapes = [f"{name} {tuple(each.shape)}" for name, each in posed.tensors.items()]
        options = [
            f"{name} {tuple(each.shape)}" if isinstance(each, Tensor) else f"{name}={each}"
            for name, each in posed.options.items()
        ]
        where = f"{_bare(self.dtype)} on {self.device}; seed {self.seed}"
        return f"{asked}; {', '.join(shapes + options)}; {where}"

    def run(self) -> None:
        """Call the attention, and compare its result with the definition.

        Raises:
            AssertionError: it is wrong. The text says in what case, by how much, where, what was
                allowed and why.
            unittest.SkipTest: several features at once are refused, with NotImplementedError;
                pytest counts that as skipped.
        """
        try:
            if "gradients" in self.features:
                self._ask_for_gradients()
            else:
                self._ask()
        except NotImplementedError as refusal:
            if len(self.features) < 2:
                self._raised(refusal)
            raise unittest.SkipTest(f"refused: {refusal}") from refusal

    def _ask(self) -> None:
        """Compare context and logsumexp with the definition in float64.

        Also check shape, dtype and that no argument is written. Raises AssertionError for the first that differs,
        NotImplementedError if the attention refuses.
        """
        # The function has tensors of its own, which it may write to.
        posed, own = self._posed(), self._posed()
        given, options = (self._moved(each) for each in (own.tensors, own.options))
        with torch.no_grad():
            actual = self._parts(self._call(given, options))
        truth = defined(posed, {name: each.double() for name, each in posed.tensors.items()})
        plain = defined(posed, self._plain(posed))
        for name, part in actual.items():
            # A logsumexp may have more precision than the tensors, or as little.
            if name == "context" and part.dtype != self.dtype:
                self._fail(f"the context is {_bare(part.dtype)}, expected {_bare(self.dtype)}")
            tolerance = measured(truth[name], plain[name], self.dtype, FACTOR)
            self._hold(f"the {name}", part, truth[name], tolerance)
        for name, before in {**posed.tensors, **posed.options}.items():
            now = (given | options)[name]
            if isinstance(before, Tensor) and not _same(now.cpu(), before):
                self._fail(f"the caller's {name} is written to")

    def _ask_for_gradients(self) -> None:
        """Compare the gradients with those of the definition in float64, computed on the CPU.

        Raises AssertionError for the first that is wrong or missing, NotImplementedError if the attention refuses.
        """
        posed = self._posed()

        def define(**tensors: Tensor) -> Tensor:
            """Return the context by the definition."""
            return defined(posed, tensors)["context"]

        def ask(**tensors: Tensor) -> Tensor:
            """Return the context of the attention; raise AssertionError for another shape, or if it has no gradient."""
            context = self._parts(self._call(tensors, posed.options))["context"]
            self._check_shape("the context", context, posed.grad)
            if not context.requires_grad:
                self._fail("the context has no gradient, though the query requires one")
            return context

        given = self._moved(posed.tensors)
        doubled = {name: each.double() for name, each in posed.tensors.items()}
        truth = self._gradients(define, doubled, posed.grad)
        plain = self._gradients(define, self._plain(posed), posed.grad)
        actual = self._gradients(ask, given, posed.grad)
        # A gradient near 0 may be a difference of large ones: all are held to the largest, and to
        # the largest gradient of a weight, from which a kernel takes the mean over the keys.
        tolerance = measured(_flat(truth), _flat(plain), self.dtype, GRADIENT_FACTOR)
        of_weights = _largest_of_weights(posed.grad.double(), doubled["value"])
        tolerance = replace(tolerance, largest=max(tolerance.largest, of_weights))
        for name, expected in truth.items():
            self._hold(f"the gradient of {name}", actual[name], expected, tolerance)

    def _gradients(
        self, compute: Callable[..., Tensor], tensors: Mapping[str, Tensor], grad: Tensor
    ) -> dict[str, Tensor]:
        """Return the gradients of query, key and value, and of bias and sinks if the features ask for them, by name.

        Raises AssertionError if one of them gets no gradient. `grad` is that of the result of `compute`.
        """
        trained = [
            name
            for name in tensors
            if name in ("query", "key", "value") or f"{name}_gradients" in self.features
        ]
        leaves = {
            name: each.detach().requires_grad_(name in trained) for name, each in tensors.items()
        }
        with torch.enable_grad():
            result = compute(**leaves)
        found = torch.autograd.grad(
            result, [leaves[name] for name in trained], grad.to(result), allow_unused=True
        )
        for name, each in zip(trained, found, strict=True):
            if each is None:
                self._fail(f"no gradient reaches {name}")
        return dict(zip(trained, found, strict=True))

    def _posed(self) -> Posed:
        """Return the inputs of the case on the CPU, drawn from its seed; the same at each call, and with gradients."""
        drawn = [name for name in self.features if name not in UNDRAWN]
        own = zlib.crc32(f"{self.seed} {drawn} {self.variant} {tuple(self.sizes)}".encode())
        return pose(frozenset(self.features), self.variant, self.sizes, self.dtype, own)

    def _moved(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a new dict with the tensors on the device of the case; other values are unchanged."""
        return {
            name: each.to(self.device) if isinstance(each, Tensor) else each
            for name, each in given.items()
        }

    def _plain(self, posed: Posed) -> dict[str, Tensor]:
        """Return the tensors for the plain computation in the dtype of the case; float32 instead of float64."""
        coarser = self.dtype == torch.float64
        return {name: each.float() if coarser else each for name, each in posed.tensors.items()}

    def _call(self, tensors: Mapping[str, Tensor], options: Mapping[str, Any]) -> Any:
        """Call the attention once, or in chunks for the feature "chunks", and return its result.

        Raises NotImplementedError if the attention does; any other error becomes an AssertionError.
        """
        moved = self._moved(options)
        if "chunks" in self.features:
            result, error = attempt(in_chunks, self.fn, tensors, moved)
        else:
            others = {name: each for name, each in tensors.items() if name in ("bias", "sinks")}
            inputs = (tensors[name] for name in ("query", "key", "value"))
            result, error = attempt(self.fn, *inputs, **others, **moved)
        if isinstance(error, NotImplementedError):
            raise error
        if error is not None:
            self._raised(error)
        return result

    def _parts(self, found: Any) -> dict[str, Tensor]:
        """Return the result as {"context": …}, and "logsumexp" if it is a feature.

        AssertionError for anything but tensors.
        """
        names = ("context", "logsumexp") if "logsumexp" in self.features else ("context",)
        parts = found if len(names) == 2 and isinstance(found, tuple | list) else (found,)
        if len(parts) != len(names) or not all(isinstance(each, Tensor) for each in parts):
            kinds = ", ".join(type(each).__name__ for each in parts)
            expected = "(context, logsumexp)" if len(names) == 2 else "a tensor"
            self._fail(f"gave {kinds}, expected {expected}")
        return dict(zip(names, parts, strict=True))

    def _check_shape(self, what: str, actual: Tensor, expected: Tensor) -> None:
        """Raise AssertionError if a result has another shape than expected."""
        if actual.shape != expected.shape:
            self._fail(f"{what} has shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")

    def _hold(self, what: str, actual: Tensor, truth: Tensor, tolerance: Tolerance) -> None:
        """Raise AssertionError if a result has another shape than the truth, or differs by more than the tolerance.

        The text gives size and place.
        """
        self._check_shape(what, actual, truth)
        found = difference(what, actual, truth, tolerance)
        if found is not None:
            self._fail(found)

    def _raised(self, error: Exception) -> Never:
        """Raise an AssertionError that is caused by an exception of the attention, with the case in its text."""
        text = f"{self.name}: raised {type(error).__name__}: {error}\n  case: {self}"
        raise AssertionError(text) from error

    def _fail(self, words: str) -> Never:
        """Raise an AssertionError with the name of the case, these words, and the case in full."""
        raise AssertionError(f"{self.name}: {words}\n  case: {self}")


def _largest_of_weights(grad: Tensor, value: Tensor) -> float:
    """Return the largest absolute gradient with respect to a weight, grad · valueᵀ; NaN in the value counts as 0."""
    value = value.nan_to_num()
    if grad.ndim > 2:
        value = stages.repeat_kv_heads(value, grad.shape[-3])
    return (grad @ value.mT).abs().max().item()


def _flat(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return all values of the tensors in one dimension, in their order."""
    return torch.cat([each.flatten() for each in tensors.values()])


def _same(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors have the same numbers; NaN equals NaN."""
    return torch.equal(one.nan_to_num(), other.nan_to_num()) and torch.equal(
        one.isnan(), other.isnan()
    )


def _bare(dtype: torch.dtype) -> str:
    """Return the name of a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")
