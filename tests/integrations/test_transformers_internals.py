"""Every private part of transformers that is used: it is there, and is what it is taken for.

A failure here says what a version of transformers has changed, before anything else does.
"""

import sys
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import masking_utils as theirs

from clearhead.integrations.transformers_internals import (
    FUNCTIONS,
    INTERFACE,
    REMAPPED,
    collects_attentions,
    looks_attention_up,
    read_closure,
)
from tests.integrations.models import inputs, make

CHANGED = f"changed in transformers {transformers.__version__}"


def overlay(*arguments: Any) -> Any:
    return theirs.and_masks(*arguments)


IDS = torch.zeros(1, 3, dtype=torch.int64)
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "causal_mask_function": (theirs.causal_mask_function, {}),
    "bidirectional_mask_function": (theirs.bidirectional_mask_function, {}),
    "sliding_window_overlay": (theirs.sliding_window_overlay(3), {"sliding_window": 3}),
    "packed_sequence_mask_function": (
        theirs.packed_sequence_mask_function(IDS),
        {"packed_sequence_mask": IDS},
    ),
    "and_masks": (
        theirs.and_masks(theirs.causal_mask_function),
        {"mask_functions": (theirs.causal_mask_function,)},
    ),
    "or_masks": (
        theirs.or_masks(theirs.causal_mask_function),
        {"mask_functions": (theirs.causal_mask_function,)},
    ),
    "sliding_window_bidirectional_overlay": (
        theirs.sliding_window_bidirectional_overlay(3),
        {"sliding_window": 3},
    ),
}

# The first version that is admitted does not have this one.
IS_FIRST = transformers.__version__.startswith("5.1.")
if not IS_FIRST:
    CASES[REMAPPED] = (
        theirs.remap_positions_for_packed_sequence(theirs.causal_mask_function, IDS),
        {"mask_function": theirs.causal_mask_function, "position_ids": IDS},
    )


def test_what_the_first_version_lacks() -> None:
    assert set(FUNCTIONS) - set(CASES) == ({REMAPPED} if IS_FIRST else set())


@pytest.mark.parametrize("name", CASES)
def test_a_mask_function_is_known_by_its_code(name: str) -> None:
    function, variables = CASES[name]
    assert read_closure(function) == (name, variables), f"masking_utils.{name} {CHANGED}"


def test_a_function_of_another_module_is_not_known() -> None:
    assert read_closure(overlay) == (None, {})
    assert read_closure(torch.add) == (None, {})


def test_a_model_says_that_it_collects_attentions() -> None:
    found: list[bool] = []

    def keep(*_: object) -> None:
        found.append(collects_attentions())

    model = make("llama")
    hook = model.model.layers[0].self_attn.register_forward_pre_hook(keep)
    with torch.no_grad():
        model(**inputs("llama"))
        model(**inputs("llama"), output_attentions=True)
    hook.remove()
    # The first version does not say.
    assert found == [IS_FIRST, True], f"output_capturing._active_collector {CHANGED}"


def test_a_version_that_does_not_say_may_collect_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.utils.output_capturing", None)
    assert collects_attentions()


def test_a_model_looks_its_attention_up() -> None:
    kind = type(make("llama").model.layers[0].self_attn)
    assert looks_attention_up(kind, nn.Module), f"{INTERFACE} {CHANGED}"
    assert not looks_attention_up(nn.MultiheadAttention, nn.Module)
