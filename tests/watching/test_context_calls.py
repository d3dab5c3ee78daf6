"""The contexts that a watch keeps, held against hooks on the output projections."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.attention.problem import make_problem
from clearhead.errors import ArgumentError
from clearhead.watching.continuing import PORTION
from clearhead.watching.kept_by_path import ContextCalls, without_numbers
from clearhead.watching.projections import projection_of
from tests.integrations.models import KINDS, OTHERS, inputs, make, pair
from tests.memory import LargestTensor, LiveTensors
from tests.refusals import assert_refused
from tests.watching.models import Direct

BATCH, LEN, WIDTH, HEADS = 2, 5, 16, 4
watch: Any = ch.watch  # with arguments that no overload has


def projected(model: nn.Module, paths: Any) -> tuple[dict[str, tuple[Tensor, Tensor]], list[Any]]:
    """What each output projection reads and makes, by hooks, and what takes the hooks away."""
    found: dict[str, tuple[Tensor, Tensor]] = {}
    handles = []
    for path in paths:
        projection = projection_of(model, path)
        assert projection is not None

        def take(module: Any, given: Any, made: Tensor, path: str = path) -> None:
            found[path] = given[0], made

        handles.append(projection.register_forward_hook(take))
    return found, handles


@pytest.mark.parametrize(
    ("name", "implementation"),
    [(name, how) for name, kind in KINDS.items() for how in kind.implementations]
    + [(name, "sdpa") for name in OTHERS],
)
def test_contexts_and_results_are_those_of_hooks(name: str, implementation: str) -> None:
    model, given, _ = pair(name, implementation)
    with torch.no_grad():
        plain = model(**given)[0]
        with watch(model, keep="contexts") as seen:
            assert torch.equal(model(**given)[0], plain)
        by_hand, handles = projected(model, seen)
        model(**given)
    for each in handles:
        each.remove()
    for path in seen:
        batch, heads, query_len, _ = seen[path].shape
        read, made = by_hand[path]
        expected = read.reshape(batch, query_len, heads, -1).transpose(1, 2)
        assert torch.equal(seen[path].context, expected)
        torch.testing.assert_close(
            seen.results(path, model).total(), made.view(batch, query_len, -1), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("name", ["llama", "mistral", "t5", "bart"])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_generation_has_the_contexts_of_all_its_queries(name: str, beams: int) -> None:
    model, given = make(name, "sdpa").double(), inputs(name)
    given.pop("decoder_input_ids", None)
    options = {"max_new_tokens": 4, "num_beams": beams, "do_sample": False}
    contexts, both = watch(model, keep="contexts"), watch(model, contexts=True, values=True)
    with torch.no_grad(), contexts as seen, both as matrices:
        model.generate(**given, **options)
    for path in seen:
        found = seen[path]
        if name == "t5" and "EncDec" not in path:
            # A bias puts no matrix together, and says nothing of contexts.
            assert found.query_len == sum(call.query_len for call in matrices.calls(path))
            continue
        whole = matrices[path]
        value = whole.value.repeat_interleave(whole.num_heads // whole.num_kv_heads, dim=1)
        torch.testing.assert_close(found.context, whole.dense() @ value, rtol=0, atol=1e-12)
        assert torch.equal(whole.context, found.context)


@pytest.mark.parametrize("heads", [None, [2, 0]])
def test_totals_have_the_mean_over_a_data_set(heads: list[int] | None, tmp_path: Path) -> None:
    """Of texts of any length, with padding or without, and of files and parts that are merged."""
    model, padded = make("llama", "sdpa").double(), inputs("llama", "left")
    other = {"input_ids": inputs("llama")["input_ids"][:1, :4]}
    options: Any = {"keep": "total", "contexts": True, "heads": heads}
    with torch.no_grad():
        with watch(model, **options) as whole:
            _ = model(**padded), model(**other)
        parts = []
        for given in (padded, other):
            with watch(model, **options) as part:
                model(**given)
            parts.append(ch.load(part.save(tmp_path / "part")))
        with watch(model, keep="contexts", heads=heads) as seen:
            _ = model(**padded), model(**other)
    for path in seen:
        first, second = seen.calls(path)
        queries = torch.cat(
            [first.context.transpose(1, 2)[first.real], second.context[0].transpose(0, 1)]
        )
        assert whole[path].queries == len(queries)
        for record in (whole, parts[0].merge(parts[1])):
            torch.testing.assert_close(
                record[path].context, queries.mean(dim=0), rtol=0, atol=1e-12
            )
    with (
        torch.no_grad(),
        ch.edit(model) as edit,
        watch(model, keep="contexts", layers=[1]) as ablated,
    ):
        mean = whole[1].context[-1]
        edit[1].heads[0].ablate(mean=mean)
        model(**other)
    torch.testing.assert_close(ablated[1].context[0, 0], mean.expand(4, -1), rtol=0, atol=1e-12)
    with watch(model, keep="total", heads=heads) as bare:
        model(**other)
    text = "[merge.fields] both totals must have a context, or neither; one is of a watch without contexts=True."
    with pytest.raises(ArgumentError, match=re.escape(text)):
        whole.merge(bare)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def test_fast_paths_stay_and_their_contexts_are_worked_out() -> None:
    model, x = encoder(), torch.randn(BATCH, LEN, WIDTH)
    hidden = torch.zeros(BATCH, LEN, dtype=torch.bool)
    hidden[1, 3:] = True
    with torch.no_grad(), watch(model, contexts=True, values=True) as seen:
        found = model(x, src_key_padding_mask=hidden)
    with torch.no_grad():
        assert torch.equal(found, model(x, src_key_padding_mask=hidden))
    matrix = seen[0]
    assert matrix.context is not None
    torch.testing.assert_close(matrix.context, matrix.dense() @ matrix.value)
    with torch.no_grad(), watch(model, keep="contexts") as again:
        model(x, src_key_padding_mask=hidden)
    assert torch.equal(again[0].real, ~hidden)
    theirs, x = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), x.detach()
    with torch.no_grad(), watch(theirs, keep="contexts", heads=[1, 2]) as some:
        output, _ = theirs(x, x, x)  # which works its weights out by itself
    with torch.no_grad(), watch(theirs, keep="contexts") as every:
        theirs(x, x, x)
    assert torch.equal(some[0].context, every[0].context[:, 1:3])
    torch.testing.assert_close(every.results(0, theirs).total(), output)


def test_heads_and_layers_are_chosen_as_for_matrices() -> None:
    model, x = encoder(), torch.randn(BATCH, LEN, WIDTH)
    with watch(model, keep="contexts") as every:
        model(x)
    for keep in ("matrix", "gradients", "contexts"):
        options: dict[str, Any] = {"keep": keep, "contexts": True}
        with watch(model, layers=[1], heads=[-1, 0], **options) as some:
            model(x)
        assert some.head_numbers(1) == (3, 0)
        torch.testing.assert_close(some[1].context, every[1].context[:, [3, 0]])
        assert not some[1].context.requires_grad


def test_the_context_is_a_copy_of_what_the_model_goes_on_with() -> None:
    class Writes(Direct):
        def forward(self, *args: Any, **kwargs: Any) -> Tensor:
            return super().forward(*args, **kwargs).mul_(0)

    model, query = Writes(), torch.randn(1, 2, 3, 4)
    with torch.inference_mode(), watch(model, keep="contexts") as seen:
        model(query, query, query)
    assert bool((seen[0].context != 0).all())
    assert not seen[0].context.is_inference()


def test_files_have_contexts(tmp_path: Path) -> None:
    model, given = make("llama", "sdpa"), inputs("llama", "left")
    for options in ({"keep": "contexts"}, {"contexts": True}):
        with torch.no_grad(), watch(model, heads=[1, 3], **options) as seen:
            model.generate(**given, max_new_tokens=2, do_sample=False)
        again = ch.load(seen.save(tmp_path / "run"))
        for path in seen:
            assert again.head_numbers(path) == (1, 3)
            assert torch.equal(seen[path].real, again[path].real)
            assert again[path].query_len == 8  # two calls, as one
            assert torch.equal(seen[path].context, again[path].context)


def test_calls_apart_stay_apart_in_a_file(tmp_path: Path) -> None:
    model = Direct()
    with watch(model, keep="contexts") as seen:
        for length in (3, 5):
            query = torch.randn(1, 2, length, 4)
            model(query, query, query)
    again = ch.load(seen.save(tmp_path / "run"))
    assert [each.query_len for each in again.calls(0)] == [3, 5]
    with pytest.raises(ch.errors.SelectionError, match="since a result is of one call"):
        again[0]
    assert torch.equal(again.calls(0)[1].context, seen.calls(0)[1].context)


def test_keys_have_numbers_of_their_own() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        key = torch.randn(2, 3, 50, 5, dtype=dtype)
        key[0, :, 7] = key[1, :, 3]
        key[0, :, 9] = 0
        found = without_numbers(make_problem(key, key, key)).key
        same = found[:, 0, :, 0].flatten()[:, None] == found[:, 0, :, 0].flatten()
        assert (same.nonzero().tolist()).count([7, 53]) == 1
        assert int(same.sum()) == 102  # each its own, and one pair
        assert int(found[0, 0, 9, 0]) == 0


def test_what_needs_matrices_refuses_contexts() -> None:
    layer, x = ch.MultiHeadAttention(WIDTH, num_heads=HEADS), torch.randn(1, LEN, WIDTH)
    with watch(layer, keep="contexts") as seen:
        layer(x)
    assert_refused(seen.table, "watch.results", "table // 'contexts'")
    assert_refused(seen.plot, "watch.results", "plot // 'contexts'")
    with watch(layer) as plain:
        layer(x)
    assert_refused(lambda: plain.results(0, layer), "results.context", "'matrix'")
    assert_refused(lambda: seen.results(0, None), "norms.model", "None")
    text = "[contexts.keep] contexts go with keep="
    with pytest.raises(ArgumentError, match=re.escape(text)):
        watch(layer, contexts=True, keep=lambda path, matrix: 0)
    assert_refused(lambda: watch(layer, keep="contexts", values=True), "values.keep", "'contexts'")
    assert_refused(lambda: watch(layer, contexts=1), "contexts.type", "contexts // 1")


def test_a_call_that_raised_has_no_context() -> None:
    calls, query = ContextCalls(), torch.randn(1, 2, 3, 4)
    calls.add(make_problem(query, query, query))
    assert_refused(calls.all, "watch.context")
    assert_refused(calls.whole, "watch.context")


def test_keys_are_numbered_head_by_head() -> None:
    key = torch.randn(1, 1, PORTION // 64 + 1, 64).expand(-1, 8, -1, -1)
    call = make_problem(key, key, key)
    with LargestTensor() as memory:
        without_numbers(call)
    assert memory.largest == key[:, 0].nbytes


def test_contexts_take_what_they_are_and_a_tenth_at_most() -> None:
    """At its peak, and when it has run, beside a run that is not watched; counted tensor by tensor."""
    model = nn.Sequential(
        *(ch.MultiHeadAttention(64, num_heads=2, mask=ch.causal()) for _ in range(4))
    )
    x = torch.randn(1, 512, 64)
    with torch.no_grad(), LiveTensors() as plain:
        model(x)
        held = plain.now
    with torch.no_grad(), LiveTensors() as memory:
        with watch(model, keep="contexts") as seen:
            model(x)
        held = memory.now - held
    contexts = 4 * x.nbytes
    assert [each.context.nbytes for each in seen.values()] == [x.nbytes] * 4
    assert contexts < held < 1.1 * contexts
    assert memory.most - plain.most < 1.1 * contexts
