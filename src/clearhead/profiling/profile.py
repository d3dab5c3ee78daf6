"""`profile`: time and memory of your attention over length, beside the fused call."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead._common.checks import check_sizes, is_number
from clearhead._common.hints import hints_at_names, with_hints
from clearhead._common.memory import within_memory
from clearhead._common.text import shown
from clearhead.checking.checking import contract_of, found_with_takes
from clearhead.checking.contract import FIELDS, Contract
from clearhead.checking.subject.subject import left_alone, prepare, undisturbed
from clearhead.errors import ArgumentError, ArgumentTypeError, ModelError
from clearhead.profiling.measuring import kernels_in_words, time_in_turn, weigh
from clearhead.profiling.report import Cost, Profile
from clearhead.profiling.sides import Sides, sides

LENGTHS = (128, 256, 512, 1024, 2048)
ROUNDS = 5


@with_hints
def profile(
    subject: Any,
    *,
    takes: str | None = None,
    contract: Contract | None = None,
    args: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    lengths: Sequence[int] = LENGTHS,
    seconds: float = 1.0,
    rounds: int = ROUNDS,
    device: torch.device | str = "cpu",
    seed: int = 0,
    progress: Callable[[str, float], None] = lambda doing, done: None,
    **declared: Any,
) -> Profile:
    """Measure what an attention takes over length, beside the fused call of the same sizes.

    A function of query, key and value is held beside `attend`, a module beside
    `MultiHeadAttention`, both with the declared mask. Time is the median of turns (A B A B …) in
    float32. Memory is the peak beside inputs and weights, as PyTorch's allocator tells it.

    Args:
        subject: as for `check`; it is left as it was.
        takes: as for `check`, but not "decode".
        contract: as for `check`; or its fields as keywords, such as causal=True. num_heads is 4
            and head_dim 64 where a function declares nothing else.
        args: for the constructor of a class.
        sizes: d_in, num_heads, head_dim and the like; those of a module that are not given are what
            a call shows, as `check` sees it.
        lengths: in tokens, two or more, growing.
        seconds: a length is left out where one pass is expected to take longer, and all behind it.
        rounds: how many turns are timed.
        device: where it runs.
        seed: of the inputs, and of a class's own weights.
        progress: is told what is done, and how much of it, from 0 to 1.

    Returns:
        A `Profile`: print it, or see `to_json` and `to_html`.

    Raises:
        ArgumentError, ArgumentTypeError: an argument that makes no sense.
        ModelError: what is profiled could not be found, made or called.
        TooLargeError: code `memory.full`, for lengths and sizes that do not fit into memory.

    Example:
        >>> def mine(query, key, value):
        ...     return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value
        >>> found = ch.profile(mine, takes="qkv", lengths=(128, 256, 512), rounds=1, seconds=60)
        >>> found.growth("memory"), found.growth("memory", fused=True)
        ('tokens²', 'tokens')
        >>> found.kernel
        "bmm + softmax: none of PyTorch's fused kernels"
    """
    _check(lengths, seconds, rounds, declared)
    promised = contract_of(contract, sizes, declared)
    if promised.world is not None:
        raise ArgumentError("check.world", "profile runs on one process; got world=….")
    place = _device(device)
    with within_memory("Give shorter lengths, or smaller sizes."), undisturbed():
        subject, takes = found_with_takes(subject, takes, promised)
        found = prepare(subject, takes, args, promised, seed)
        with left_alone(found):
            torch.manual_seed(seed)
            both = sides(found, promised, place, seed)
            return _measured(found.name, both, lengths, seconds, rounds, place, progress)


def _measured(
    name: str,
    both: Sides,
    lengths: Sequence[int],
    seconds: float,
    rounds: int,
    device: torch.device,
    progress: Callable[[str, float], None],
) -> Profile:
    costs: list[Cost] = []
    operations: list[frozenset[str]] = []
    stopped = trainable = ""
    for position, tokens in enumerate(lengths):
        progress("profiling", position / len(lengths))
        if both.longest is not None and tokens > both.longest:
            stopped = f"not beyond {both.longest} tokens, which is all that it takes"
            break
        expected = _expected(costs, tokens)
        if expected > seconds:
            stopped = f"not at {tokens} tokens, which would take some {expected:.1f} s a pass"
            break
        inputs = both.draw(tokens)
        for backward in (False, True):
            calls = [
                _call(run, inputs, parameters if backward else None)
                for run, parameters in zip((both.theirs, both.ours), both.parameters, strict=True)
            ]
            try:
                # What a first call sets up is not part of the cost of a call.
                for call in calls:
                    call()
            except Exception as error:  # whatever somebody's code raises
                if backward:
                    trainable = f"no backward pass: {type(error).__name__}: {error}"
                    continue
                raise _cannot_call(name, inputs, error) from error
            weights = [weigh(call, device) for call in calls]
            times = time_in_turn(calls, device, rounds)
            memory, fused = (each.memory for each in weights)
            costs.append(Cost(tokens, backward, *times, memory=memory, fused_memory=fused))
            operations = [each.operations for each in weights]
    progress("profiling", 1.0)
    place = f"float32, {device}"
    threads = torch.get_num_threads()
    place += f", {threads} thread{'s' * (threads > 1)}" if device.type == "cpu" else ""
    return Profile(
        name,
        f"{both.words}, {place}",
        tuple(costs),
        *(kernels_in_words(each) for each in operations),
        notes=(*both.notes, *filter(None, (stopped, trainable))),
    )


def _call(
    run: Callable[..., Tensor], inputs: Sequence[Tensor], parameters: Sequence[Tensor] | None
) -> Callable[[], object]:
    """A pass forward, or, given parameters, forward and backward."""
    if parameters is None:

        def forward() -> object:
            with torch.no_grad():
                return run(*inputs)

        return forward
    leaves = [
        each.detach().requires_grad_() if each.is_floating_point() else each for each in inputs
    ]
    trained = [each for each in (*leaves, *parameters) if each.requires_grad]
    grads: list[Tensor] = []

    def there_and_back() -> object:
        with torch.enable_grad():
            output = run(*leaves)
        if not grads:
            grads.append(torch.ones_like(output))
        return torch.autograd.grad(output, trained, grads[0], allow_unused=True)

    return there_and_back


def _expected(costs: Sequence[Cost], tokens: int) -> float:
    """Seconds that the slowest pass will take, if it grows with tokens²."""
    before = costs[-1].length if costs else 0
    slowest = [max(each.seconds, each.fused_seconds) for each in costs if each.length == before]
    return max(slowest, default=0.0) * (tokens / before) ** 2 if slowest else 0.0


def _cannot_call(name: str, inputs: Sequence[Tensor], error: Exception) -> ModelError:
    shapes = ", ".join(str(tuple(each.shape)) for each in inputs)
    return ModelError(
        "profile.call",
        f"{name} was called with {shapes} and raised {type(error).__name__}: {error}\n"
        "If it needs other sizes, give them: sizes=dict(num_heads=…, head_dim=…).",
    )


def _device(device: Any) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(
            "profile.device",
            f'device must be one of PyTorch\'s, such as "cuda"; got {shown(device)}.',
        ) from error


def _check(lengths: object, seconds: object, rounds: Any, declared: Mapping[str, Any]) -> None:
    unknown = sorted(set(declared) - set(FIELDS))
    if unknown:
        raise ArgumentTypeError(
            "profile.declared", f"profile takes {'; '.join(hints_at_names(unknown, FIELDS))}."
        )
    if (
        not isinstance(lengths, Sequence)
        or len(lengths) < 2
        or not all(isinstance(each, int) and each > 0 for each in lengths)
        or list(lengths) != sorted(set(lengths))
    ):
        raise ArgumentError(
            "profile.lengths",
            f"lengths must be two or more numbers of tokens, growing; got {shown(lengths)}.",
        )
    if not is_number(seconds) or not seconds > 0:  # type: ignore[operator]
        raise ArgumentError("profile.seconds", f"seconds must be above 0; got {shown(seconds)}.")
    check_sizes(rounds=rounds)
