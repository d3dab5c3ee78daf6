"""A trace draws itself."""

import torch

import clearhead as ch
from clearhead import ladder
from clearhead.drawing.notebook.inline.markup import HIDDEN, trace_html
from clearhead.tracing.text import number
from tests.drawing.notebook.inline.reading import Markup

HOSTILE = ["<script>", "```", "\x1b[31m", "\u202eabc", "[red]", "&amp;"]


def test_every_number_of_every_stage() -> None:
    rung = ladder.MaskedAttention(3, head_dim=2, mask=ch.causal())
    trace = ch.trace(rung, ladder.EXAMPLE_EMBEDDINGS, tokens=ladder.EXAMPLE_TOKENS)
    found = Markup(trace_html(trace))
    for name, step in trace.steps.items():
        assert f"{name} [{step.shape}]" in found.text
        if step.same_as is not None:
            assert f"the same as {step.same_as}: {step.formula}" in found.text
            continue
        for label, row in zip(trace.tokens, step.tensor.tolist(), strict=True):
            assert " ".join([label, *map(number, row)]) in found.text
    # 15 pairs of 36 are hidden, as scores and as weights.
    assert sum(HIDDEN in style for style in found.styles) == 30
    assert "the weights and the context are those of the definition" in found.text


def test_the_first_sample_and_head_of_many() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2)
    trace = ch.trace(layer, torch.randn(3, 5, 8))
    text = Markup(trace_html(trace)).text
    assert "shown is sample 0, head 0" in text
    assert " ".join(map(number, trace["weights"][0, 0, 4].tolist())) in text


def test_many_numbers_are_summed_up() -> None:
    trace = ch.trace(ch.attend, *torch.randn(3, 100, 16))
    page = trace_html(trace)
    assert "100 × 100 numbers, too many to print: from " in Markup(page).text
    assert len(page) < 10_000


def test_tokens_are_data() -> None:
    trace = ch.trace(ladder.SimpleAttention(), ladder.EXAMPLE_EMBEDDINGS, tokens=HOSTILE)
    page = trace._repr_html_()
    assert "<script>" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "0 <script>" in Markup(page).text


def test_an_empty_batch_has_shapes_and_formulas() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
    found = Markup(trace_html(ch.trace(layer, torch.zeros(0, 5, 8))))
    assert "weights [batch=0, num_heads=2, query_len=5, kv_len=5]" in found.text
    assert "softmax(masked_scores) over the keys" in found.text
