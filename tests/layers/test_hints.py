"""The words of other libraries are answered by ours."""

import inspect
from typing import Any

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.errors import ArgumentTypeError
from clearhead.layers.hints import WORDS, hint_at

X = torch.zeros(2, 5, 8)


def layer() -> Any:
    return ch.MultiHeadAttention(8, num_heads=2)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (
            lambda kind: kind(8, 2, batch_first=True),
            "takes embed_dim by place, and the rest by name, from num_heads= on; takes no "
            "batch_first (leave it out: the batch is always first)",
        ),
        (lambda kind: kind(8, nhead=2), "takes no nhead (num_heads)"),
        (lambda kind: kind(d_model=8, num_heads=2), "takes no d_model (embed_dim)"),
        (
            lambda kind: kind(8, num_heads=2, num_key_value_heads=1, kdim=4),
            "takes no num_key_value_heads (num_kv_heads); takes no kdim (context_dim)",
        ),
        (
            lambda kind: layer()(X, X, X),
            "takes x, context by place, and the rest by name, from mask= on",
        ),
        (
            lambda kind: layer()(X, attn_mask=X, need_weights=False),
            "takes no attn_mask (mask=clearhead.dense(~attn_mask): here True is visible); takes no "
            "need_weights (layer.weights(x) has",
        ),
        (lambda kind: layer()(X, is_causal=True), "takes no is_causal (mask=clearhead.causal()"),
        (lambda kind: layer()(hidden_states=X), "takes no hidden_states (x and context are"),
        (
            lambda kind: layer()(X, past_key_values=None),
            "takes no past_key_values (cache=clearhead.layers.GrowingCache()",
        ),
    ],
)
def test_what_an_argument_is_here(call: Any, hint: str) -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        call(ch.MultiHeadAttention)
    assert refused.value.code == "layer.words"
    assert refused.value.message.startswith("MultiHeadAttention ")
    assert hint in refused.value.message
    assert "MultiHeadAttention.from_torch or clearhead.convert" in refused.value.message
    assert isinstance(refused.value.__cause__, TypeError)


def test_latent_attention_has_hints_too() -> None:
    sizes: dict[str, Any] = {"num_heads": 2, "head_dim": 4, "rotary_dim": 2, "latent_dim": 3}
    latent: Any = ch.layers.LatentAttention(8, **sizes)
    with pytest.raises(ArgumentTypeError, match=r"LatentAttention takes no use_cache"):
        latent(X, use_cache=True)


def test_other_errors_stay_as_they_are() -> None:
    given: Any = {"colour": "red"}
    for call in (lambda: layer()(X, **given), lambda: ch.MultiHeadAttention(8, **given)):
        with pytest.raises(TypeError) as raised:
            call()
        assert not isinstance(raised.value, ArgumentTypeError)
    with pytest.raises(ArgumentTypeError) as refused:
        layer()("a text")
    assert refused.value.code == "x.type"


def test_no_word_is_one_of_ours() -> None:
    own = inspect.signature(ch.MultiHeadAttention).parameters
    of_call = inspect.signature(ch.MultiHeadAttention.forward).parameters
    assert not set(WORDS) & {*own, *of_call}
    for name in WORDS:
        assert hint_at(inspect.signature(ch.MultiHeadAttention), [8], {name: 1, "num_heads": 2})


@pytest.mark.parametrize(
    ("theirs", "name"),
    [
        (nn.MultiheadAttention(8, 2), "in_proj_weight"),
        (
            nn.ModuleDict({name: nn.Linear(8, 8) for name in ("q_proj", "k_proj", "v_proj")}),
            "q_proj",
        ),
        (nn.ModuleDict({"c_attn": nn.Linear(8, 24)}), "c_attn.weight"),
    ],
)
def test_the_weights_of_others(theirs: nn.Module, name: str) -> None:
    text = rf"{name}.*: the names of another library\. .*from_torch or clearhead\.convert"
    with pytest.raises(RuntimeError, match=text):
        layer().load_state_dict(theirs.state_dict())


def test_weights_of_ours_that_are_missing_have_no_hint() -> None:
    state = layer().state_dict()
    del state["query_projection.weight"]
    with pytest.raises(RuntimeError) as refused:
        layer().load_state_dict(state)
    assert "another library" not in str(refused.value)
    layer().load_state_dict(nn.MultiheadAttention(8, 2).state_dict(), strict=False)
