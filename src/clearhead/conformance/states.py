"""What a module keeps: sizes read from outside, masks saved with the weights or too short."""

import types
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.conformance.contract import Contract
from clearhead.conformance.notes import Notes
from clearhead.conformance.sizes import kept_masks
from clearhead.conformance.subject import Subject


def examine_globals(subject: Subject, error: Exception, notes: Notes) -> bool:
    """Whether a call failed because a name of the notebook is not there."""
    if not isinstance(error, NameError) or isinstance(error, UnboundLocalError):
        return False
    notes.found(
        "state.global-dim",
        f"it reads {error.name!r} from outside, and nothing of that name is there",
        str(error),
        "take the size from the tensor at hand: query.shape[-1]",
    )
    return True


def global_sizes(subject: Subject) -> dict[str, int]:
    """The whole numbers that its code reads from the module around it."""
    found: dict[str, int] = {}
    run = subject.run
    parts: list[Any] = list(run.modules()) if isinstance(run, nn.Module) else [run]
    for part in parts:
        own = type(part).__dict__.get("forward") if isinstance(part, nn.Module) else part
        if not isinstance(own, types.FunctionType):
            continue
        for name in own.__code__.co_names:
            value = own.__globals__.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                found[name] = value
    return found


def examine_state(
    subject: Subject,
    width: int,
    longest: int | None,
    plain: bool,
    filled: Contract,
    notes: Notes,
    seed: int,
) -> None:
    """The mask in the state_dict, and at the longest legal input."""
    module = subject.module
    if module is None:
        return
    masks = kept_masks(module)
    saved = set(module.state_dict())
    trained = [name for name, each in module.named_parameters() if name in masks]
    if trained:
        notes.found(
            "state.mask-saved",
            f"the mask {trained[0]} is a parameter: it is trained and saved with the weights",
            f"{trained[0]} {list(masks[trained[0]].shape)} is among the parameters",
            "register_buffer(name, mask, persistent=False)",
        )
    for name in sorted(set(masks) & saved - set(trained)):
        notes.tell(
            f"the mask {name} is saved with the weights; register_buffer(…, persistent=False) "
            "would leave it out"
        )
    if longest is None or longest > 600:
        return
    _examine_longest(subject, width, longest, plain, notes, seed)


def _examine_longest(
    subject: Subject, width: int, longest: int, plain: bool, notes: Notes, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (longest, width) if plain else (1, longest, width)
    x: Tensor = torch.randn(shape, generator=generator, dtype=torch.float64)
    try:
        subject(x)
    except Exception as error:  # whatever it raises
        notes.found(
            "state.mask-saved",
            f"{longest} tokens are legal, and it fails on them",
            f"{type(error).__name__}: {str(error).splitlines()[0]}",
            "the mask is too short: it must be context_length × context_length",
        )


