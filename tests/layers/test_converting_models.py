"""Every attention of a model is converted in place, and back."""

import copy
import pickle
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import clearhead as ch
from clearhead.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from clearhead.layers import QueryKeyNorm
from clearhead.layers.converting.model_comparison import _difference
from clearhead.layers.converting.model_conversion import ModelConversion
from tests.drawing.page.test_photo import READERS, Reader
from tests.integrations.models import SIZES
from tests.layers.test_converting import Own, causally
from tests.refusals import assert_refused
from tests.refusals import wrong as refused

TOKENS, WIDTH, HEADS = 7, 15, 3


class Attention(Own):
    """As nanoGPT has it."""

    def __init__(self, *, causal: bool = True) -> None:
        options: dict[str, Any] = {"n_head": HEADS, "resid_dropout": nn.Dropout(0.5)}
        super().__init__("c_attn c_proj", change=causally if causal else None, **options)

    def forward(self, x: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(x)


class One(nn.Module):
    """A model of one attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x)


def test_inputs_are_a_tensor_a_tuple_or_a_mapping() -> None:
    x = torch.randn(2, TOKENS, WIDTH)
    for inputs in (x, (x,), {"x": x}):
        assert len(ch.convert(One().eval(), inputs=inputs).layers) == 1
    model, wrong = One().eval(), refused([x])
    before = model.attention
    text = "a mapping of named arguments; got list. Of a text"
    with pytest.raises(ArgumentTypeError, match=rf"^\[inputs.type\] inputs must be .* {text}"):
        ch.convert(model, inputs=wrong)
    assert model.attention is before


class Separate(Own):
    """With a matrix each, which can be shared with ours; and a mask that a caller may give."""

    def __init__(self) -> None:
        super().__init__("q_proj k_proj v_proj o_proj", is_tuple=True, num_heads=HEADS)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Tensor, mask: Tensor | None = None, scale: float = 1.0
    ) -> Any:
        return super().forward(scale * x)


class Packed(Own):
    """As timm has it."""

    def __init__(self, *, qk_norm: bool = False) -> None:
        norm: Any = (lambda: nn.RMSNorm(5, eps=1e-6)) if qk_norm else nn.Identity
        super().__init__(
            "qkv proj", norms="q_norm k_norm", q_norm=norm(), k_norm=norm(), num_heads=HEADS, head_dim=5,
            scale=5**-0.5, attn_drop=nn.Dropout(0.25), norm=nn.Identity(), proj_drop=nn.Dropout(0.5),
        )  # fmt: skip

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Any:
        return super().forward(x)


class Telling(Attention):
    """Returns more than its output."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class Linear(nn.Module):
    """Called an attention, and none by the names in it."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


class LinearAttention(Linear): ...


class Model(nn.Module):
    """Attentions one after the other."""

    def __init__(self, *attentions: nn.Module, **options: Any) -> None:
        super().__init__()
        self.attentions, self.options = nn.ModuleList(attentions), options

    def forward(self, x: Tensor) -> Tensor:
        for each in self.attentions:
            output = each(x, **self.options)
            x = x + (output[0] if isinstance(output, tuple) else output)
        return x


def drawn() -> Tensor:
    return torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def state_of(module: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(module.state_dict())


def test_a_model_of_ones_own_and_back() -> None:
    model = Model(Attention(), Attention(causal=False), Separate()).eval()
    x, before = drawn(), state_of(model)
    expected, modules = model(x), list(model.attentions)
    conversion: ModelConversion = ch.convert(model, inputs=(x,))
    assert conversion.model is model
    assert list(conversion.layers) == ["attentions.0", "attentions.1", "attentions.2"]
    assert conversion.left == {}
    layers: list[Any] = list(conversion.layers.values())
    assert all(type(each) is ch.MultiHeadAttention for each in layers)
    assert [None if each.mask is None else each.mask.describe() for each in layers] == [
        "causal()",
        None,
        None,
    ]
    assert isinstance(model.attentions[0], Attention)  # which a model may ask
    assert conversion.rows["attentions.2"][0].theirs == "q_proj.weight"
    close(model(x), expected)
    assert model.attentions[2](x)[1] is None
    conversion.undo()
    assert list(model.attentions) == modules
    assert torch.equal(model(x), expected)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    conversion.undo()  # nothing is left to do


def test_the_table_of_a_model() -> None:
    model = Model(Attention(), LinearAttention(), Separate())
    assert str(ch.convert(model)).splitlines() == [
        "Model: 1 attention converted, 2 left",
        "  attentions.0  Attention        →  clearhead.MultiHeadAttention",
        "  attentions.1  LinearAttention  left: of no known kind: it has no projections by known names",
        "  attentions.2  Separate         left: its forward takes mask, scale besides; give inputs= of "
        "the model, so that it is seen whether the model uses them",
    ]


def test_weights_are_shared_and_trained_ones_go_back() -> None:
    model = Model(Separate(), Attention())
    x, separate = drawn(), model.attentions[0]
    frozen = separate.get_parameter("k_proj.weight").requires_grad_(False)
    conversion = ch.convert(model, inputs=(x,))
    layers: list[Any] = list(conversion.layers.values())
    shared, packed = layers
    assert shared.query_projection.weight is separate.get_parameter("q_proj.weight")
    assert shared.key_projection.weight is frozen
    assert packed.query_projection.weight.requires_grad
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    model.eval()(x).square().sum().backward()
    optimizer.step()
    expected = model(x)
    conversion.undo()
    close(model(x), expected)
    assert not model.attentions[1].training


def test_dropout_of_the_output() -> None:
    model = Model(Attention()).train()
    conversion = ch.convert(model)
    assert model.attentions[0].training
    assert conversion.layers["attentions.0"].training
    output = model.attentions[0](drawn())
    assert 0.3 < float((output == 0).double().mean()) < 0.7


@pytest.mark.parametrize("qk_norm", [False, True])
def test_attentions_of_vision_transformers(qk_norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(Packed(qk_norm=qk_norm)).eval()
    expected = model(drawn())
    assert "takes attn_mask, is_causal besides" in ch.convert(model).left["attentions.0"]
    # Of timm it is known that its models leave them out, and the adapter refuses them.
    monkeypatch.setattr(Packed, "__module__", "timm.layers.attention")
    conversion = ch.convert(model)
    layer: Any = conversion.layers["attentions.0"]
    assert layer.dropout == 0.25
    assert [type(part) for part in layer.parts] == ([QueryKeyNorm] if qk_norm else [])
    close(model(drawn()), expected)
    with pytest.raises(UnsupportedError, match="is_causal of Packed was not known"):
        model.attentions[0](drawn(), is_causal=True)
    conversion.undo()
    assert torch.equal(model(drawn()), expected)


def test_what_stands_in_two_places() -> None:
    attention = Attention()
    model = Model(attention, attention).eval()
    expected = model(drawn())
    conversion = ch.convert(model)
    assert list(conversion.layers) == ["attentions.0"]
    assert model.attentions[0] is model.attentions[1]
    close(model(drawn()), expected)
    conversion.undo()
    assert model.attentions[0] is model.attentions[1] is attention


def test_a_converted_model_is_copied_and_pickled() -> None:
    model = Model(Separate()).eval()
    ch.convert(model, inputs=(drawn(),))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(drawn()), model(drawn()))
        assert type(twin.attentions[0]) is type(model.attentions[0])


def hooked() -> nn.Module:
    attention: Any = Attention()
    attention.c_proj.register_forward_hook(lambda *given: None)
    return attention


def replaced() -> nn.Module:
    attention: Any = Attention()
    attention.forward = lambda x: x
    return attention


def of_no_matrix() -> nn.Module:
    attention: Any = Packed()
    attention.qkv = nn.Tanh()
    return attention


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (of_no_matrix, "qkv must be a plain torch.nn.Linear, whose weight is a parameter"),
        (hooked, "c_proj has a hook, which may change what it gives; remove it before"),
        (replaced, "the module has a forward of its own"),
        (Telling, "it returns more than its output, which our layer does not"),
        (lambda: nn.MultiheadAttention(WIDTH, HEADS), "gets its masks at each call; convert it by"),
    ],
)
def test_what_is_left_and_why(make: Any, reason: str) -> None:
    model = Model(make(), Attention()).eval()
    kept = model.attentions[0]
    conversion = ch.convert(model)
    assert list(conversion.layers) == ["attentions.1"]
    assert reason in conversion.left["attentions.0"]
    assert model.attentions[0] is kept


def test_an_argument_that_the_model_uses() -> None:
    model = Model(Separate(), scale=2.0).eval()
    left = ch.convert(model, inputs=(drawn(),)).left
    assert "scale of Separate was not known" in left["attentions.0"]
    model.options = {}
    ch.convert(model, inputs=(drawn(),))
    model.options = {"mask": torch.ones(TOKENS, TOKENS, dtype=torch.bool)}
    assert_refused(lambda: model(drawn()), "convert.argument", "mask // Separate")


def test_further_arguments_that_are_left_out() -> None:
    class Loose(Attention):
        def forward(self, x: Tensor, *others: Any) -> Tensor:
            return super().forward(x)

    model = Model(Loose()).eval()
    expected = model(drawn())
    ch.convert(model, inputs=(drawn(),))
    close(model(drawn()), expected)
    with pytest.raises(UnsupportedError, match="others of Loose was not known"):
        model.attentions[0](drawn(), None)


def test_a_converted_attention_is_written_out_as_what_it_is() -> None:
    class Written(Attention):
        def extra_repr(self) -> str:
            return "of three heads"

    model = Model(Written())
    assert "of three heads" in repr(model)
    ch.convert(model)
    assert "ConvertedWritten(" in repr(model)


def test_what_is_frozen_stays_so() -> None:
    model = Model(Attention()).requires_grad_(False)
    conversion = ch.convert(model)
    (layer,) = conversion.layers.values()
    assert not any(each.requires_grad for each in layer.parameters())


def test_a_call_without_rows_is_compared() -> None:
    model = Model(Attention()).eval()
    conversion = ch.convert(model, inputs=(drawn()[:0],))
    assert list(conversion.layers) == ["attentions.0"]


def test_a_call_of_the_model_that_fails_is_the_error_of_the_model() -> None:
    model = Model(Attention())
    kept = model.attentions[0]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        ch.convert(model, inputs=(torch.zeros(2, 3, WIDTH + 1),))
    assert model.attentions[0] is kept


class Longer(Attention):
    """Gives as many tokens as it gets, but for one length."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, : 1 if x.shape[1] == 3 else None]


class More(Attention):
    """Gives two things for one length."""

    def forward(self, x: Tensor) -> Any:
        output = super().forward(x)
        return (output, x) if x.shape[1] == 3 else output


@pytest.mark.parametrize(
    ("make", "reason"), [(Longer, "the output has another shape"), (More, "it returns 2 things")]
)
def test_what_is_another_in_a_call_of_the_model(make: Any, reason: str) -> None:
    model = Model(make(), Attention())
    conversion = ch.convert(model, inputs=(torch.randn(2, 3, WIDTH),))
    assert conversion.left == {"attentions.0": f"in a call of the model, {reason}"}
    assert isinstance(model.attentions[0], make)
    assert list(conversion.layers) == ["attentions.1"]


def test_an_attention_that_is_not_called() -> None:
    model = Model(Attention(), Attention())
    model.attentions.append(nn.Module())
    model.attentions[2].spare = Attention()
    model.attentions[2].forward = lambda x: x
    conversion = ch.convert(model, inputs=(drawn(),))
    assert conversion.left == {
        "attentions.2.spare": "in a call of the model, it is not called; give inputs= of a call that does"
    }


def test_what_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="or a model with some; got Model") as unknown:
        ch.convert(Model(LinearAttention()))
    assert unknown.value.code == "convert.unknown"
    model = Model(Attention())
    assert_refused(lambda: ch.convert(model, mask=ch.causal()), "convert.beside", "mask // Model")
    with pytest.raises(ArgumentError, match="got inputs for Attention") as beside:
        ch.convert(model.attentions[0], inputs=(drawn(),))
    assert beside.value.code == "convert.beside"
    conversion = ch.convert(model)
    with pytest.raises(UnsupportedError, match="or a model with some"):
        ch.convert(model)  # twice
    model.attentions[0] = Attention()
    assert_refused(
        conversion.undo, "convert.changed", "attentions.0 // ConvertedAttention // Attention"
    )


def test_a_model_that_reads_the_weights_itself() -> None:
    """Each attention is equal, and the whole is not: nothing is changed."""

    class Reading(Model):
        def forward(self, x: Tensor) -> Tensor:
            attention: Any = self.attentions[0]
            return super().forward(x) + (attention.c_attn.weight.sum() if attention else 0)

    model = Reading(Attention(), Telling())
    kept = list(model.attentions)
    left = ch.convert(model, inputs=(drawn(),)).left
    assert "it cannot be run: AttributeError" in left["attentions.0"]
    assert list(model.attentions) == kept


def test_a_model_that_asks_for_the_weights() -> None:
    class Asking(Model):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + hasattr(self.attentions[0], "c_attn")

    left = ch.convert(Asking(Attention()), inputs={"x": drawn()}).left
    assert "with all of them the output is off by" in left["attentions.0"]


def test_models_that_cannot_be_run_to_compare() -> None:
    """A model of transformers inside one of the user's own, whose inputs are not known."""
    config = transformers.LlamaConfig(**SIZES)
    llama: Any = transformers.LlamaModel(config)
    model = nn.Sequential(llama.layers[0].self_attn)
    left = ch.convert(model).left
    assert "the model could not be run to compare it; give inputs=" in left["0"]


@pytest.mark.parametrize("reader", READERS, ids=[each.name for each in READERS])
@torch.no_grad()
def test_a_model_of_text_and_pictures(reader: Reader) -> None:
    """Without inputs what is of a known kind is converted, but for Qwen's own positions, and the rest is listed."""
    model = reader.make()
    before = model(**reader.call()).logits
    last = [each for name, each in model.named_modules() if name.endswith("layers.1.self_attn")]
    last[0].q_proj.register_forward_hook(lambda *given: None)
    conversion = ch.convert(model)
    assert len(conversion.layers) == (0 if reader.name == "Qwen2_5_VL" else 2)
    assert len(conversion.layers) + len(conversion.left) == 3
    close(model(**reader.call()).logits, before)


def test_all_that_a_module_returns_is_compared_but_weights_that_ours_lacks() -> None:
    output, weights = torch.zeros(2, 3), torch.ones(2, 2)
    assert _difference((output, weights), (output, None), weights=True) is None
    for other in (output + 1, output[:1]):
        assert _difference((output, weights), (other, None), weights=True)
        assert _difference((output, other, weights), (output, output, None), weights=True)
    assert _difference((output, weights), (output, weights + 1), weights=True)
    assert _difference((output, None), (output,), weights=True) == "it returns 2 things"
