"""`conformance`: right attentions pass, and each wrong one fails where it is wrong."""

import unittest
from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
from torch import Tensor

from clearhead.testing import ConformanceCase, conformance
from clearhead.testing.posing import FEATURES, apart
from tests.refusals import refusals
from tests.surface import ROOT
from tests.testing import attentions as those

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.mark.parametrize(
    "case", conformance(those.Dropping(always=False), features={"dropout", "gradients"})
)
def test_a_module(case: ConformanceCase) -> None:
    case.run()


def failures(
    fn: Callable[..., Any], features: Collection[str] = (), **options: Any
) -> dict[str, str]:
    """The cases that fail, by name, with the text of the failure."""
    found = {}
    for case in conformance(fn, features=features, **options):
        try:
            case.run()
        except AssertionError as error:
            found[case.name] = str(error)
    return found


def test_ours() -> None:
    assert failures(those.ours, those.OURS, dtypes=DTYPES) == {}


def test_that_of_pytorch() -> None:
    assert failures(those.pytorch, those.PYTORCHS, dtypes=DTYPES[:3:2]) == {}


def test_what_is_written_by_hand_is_right() -> None:
    assert failures(those.plain, those.PLAINS) == {}


@pytest.mark.parametrize(
    ("fn", "features", "where"),
    [
        (those.inverted, {"mask"}, "mask"),
        (those.from_the_first_key, {"causal"}, "causal"),
        (those.window_without_itself, {"window", "causal"}, "window"),
        (those.tiled, {"grouped"}, "grouped"),
        (those.capped_before_the_scale, {"softcap"}, "softcap"),
        (those.sink_that_gives, {"sinks"}, "sinks"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_is_wrong_fails_where_it_is_asked_for(
    fn: Callable[..., Any], features: set[str], where: str
) -> None:
    found = failures(fn, features)
    asked = {case.name for case in conformance(fn, features=features) if where in case.features}
    assert found
    assert set(found) <= asked


def test_what_is_always_wrong_fails_everywhere_but_with_one_key() -> None:
    found = failures(those.unscaled)
    names = {case.name for case in conformance(those.unscaled, features=())}
    assert set(found) == names - {"plain-13x1-float32", "plain-1x1-float32"}


def test_causal_fails_only_where_lengths_differ() -> None:
    found = failures(those.from_the_first_key, {"causal"})
    assert {name.partition("-")[2] for name in found} == {
        "7x11-float32",
        "1x17-float32",
        "61x131-float32",
        "64x128-float32",
        "127x257-float32",
    }


def test_the_edge_of_a_block() -> None:
    """Nothing is wrong with few keys, nor with whole blocks."""
    found = set(failures(those.edge_of_the_block))
    assert found >= {"plain-61x67-float32", "plain-65x63-float32", "plain-129x127-float32"}
    assert not found & {"plain-7x11-float32", "plain-31x32-float32", "plain-64x128-float32"}


@pytest.mark.parametrize(
    ("fn", "features", "names", "words"),
    [
        (
            those.without_the_largest,
            (),
            {"plain-large-scores-61x131-float32"},
            "numbers are NaN or infinite where they should not be, or the reverse.",
        ),
        (those.of_contiguous_memory, (), {"plain-strided-61x131-float32"}, "NaN or infinite where"),
        (
            those.key_is_a_constant,
            {"gradients"},
            None,
            "no gradient reaches key",
        ),
        (
            those.wrong_on_the_way_back,
            {"gradients"},
            None,
            "the gradient of query (float32) is wrong by",
        ),
        (
            those.logsumexp_in_bits,
            {"logsumexp"},
            {"logsumexp-7x11-float32", "logsumexp-61x131-float32"},
            "the logsumexp (float32) is wrong by",
        ),
        (
            those.drops_without_growing,
            {"dropout"},
            {"dropout-dropped-61x16-float32"},
            "is wrong by",
        ),
        (
            those.drops_too_much,
            {"dropout"},
            {"dropout-dropped-61x16-float32"},
            "of the weights are dropped, expected 0.4 ± 0.038 (6 standard deviations)",
        ),
        (
            those.drops_all_alike,
            {"dropout"},
            {"dropout-dropped-61x16-float32"},
            "the same weights are dropped for many queries, heads or samples",
        ),
        (
            those.Dropping(always=True),
            {"dropout"},
            {"dropout-in-eval-61x16-float32"},
            "is wrong by",
        ),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_mistake_in_one_thing(
    fn: Callable[..., Any], features: Collection[str], names: set[str] | None, words: str
) -> None:
    found = failures(fn, features)
    if names is None:
        names = {
            case.name for case in conformance(fn, features=features) if "gradients" in case.features
        }
        # A softmax over one key has no gradient to be wrong.
        names -= {name for name in names if "x1-" in name and name not in found}
    assert set(found) == names
    assert all(words in text for text in found.values())


def test_every_case_sees_what_is_written_to() -> None:
    found = failures(those.scales_in_place)
    assert found
    assert all("the caller's query is written to" in text for text in found.values())
    wrong = {"value": those.clears_what_is_padded, "mask": those.turns_the_mask}
    for name, fn in wrong.items():
        found = failures(fn, {"padding"})
        cases = conformance(fn, features={"padding"})
        assert set(found) == {case.name for case in cases if "padding" in case.features}
        assert all(f": the caller's {name} is written to\n" in text for text in found.values())


def test_less_precision_than_the_dtype_has_fails() -> None:
    found = failures(those.in_half_the_precision)
    assert set(found) == {case.name for case in conformance(those.plain, features=())}


def test_a_failure_in_words() -> None:
    case = next(
        each
        for each in conformance(those.from_the_first_key, features={"causal"}, seed=7)
        if each.name == "causal-7x11-float32"
    )
    with pytest.raises(AssertionError) as raised:
        case.run()
    first, second, third, fourth = str(raised.value).splitlines()
    assert first.startswith("causal-7x11-float32: the context (float32) is wrong by ")
    assert "; allowed is " in first
    assert first.endswith(" (error of the plain computation) + rounding.")
    assert second.endswith(" of 798 numbers are beyond it.")
    assert third.startswith("  at [")
    assert fourth == (
        "  case: causal; query (2, 3, 7, 19), key (2, 3, 11, 19), value (2, 3, 11, 19), "
        "causal=True; float32 on cpu; seed 7"
    )


def first(fn: Callable[..., Any], features: Collection[str] = (), at: int = 0) -> str:
    with pytest.raises(AssertionError) as raised:
        conformance(fn, features=features)[at].run()
    return str(raised.value)


def test_what_is_no_answer() -> None:
    def nothing(query: Tensor, key: Tensor, value: Tensor) -> None:
        return None

    def narrow(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return those.plain(query, key, value)[..., :-1]

    def doubled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return those.plain(query, key, value).double()

    def detached(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return those.plain(query, key, value).detach()

    def fails(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        raise RuntimeError("out of registers")

    def alone(query: Tensor, key: Tensor, value: Tensor, return_logsumexp: bool = False) -> Tensor:
        return those.plain(query, key, value)

    end = "\n  case: the plain attention; query (2, 3, 7, 19), "
    assert first(nothing).startswith(f"plain-7x11-float32: gave NoneType, expected a tensor{end}")
    assert first(narrow).startswith(
        "plain-7x11-float32: the context has shape (2, 3, 7, 18), expected (2, 3, 7, 19)"
    )
    assert first(doubled).startswith("plain-7x11-float32: the context is float64, expected float32")
    assert first(detached, {"gradients"}, 1).startswith(
        "gradients-7x11-float32: the context has no gradient, though the query requires one"
    )
    assert first(fails).startswith(
        f"plain-7x11-float32: raised RuntimeError: out of registers{end}"
    )
    assert (
        "gave Tensor, expected (context, logsumexp)"
        in failures(alone, {"logsumexp"})["logsumexp-7x11-float32"]
    )


def test_several_features_at_once_may_be_refused() -> None:
    def modest(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        if len(options) > 1:
            raise NotImplementedError("one thing at a time")
        return those.plain(query, key, value, **options)

    cases = {case.name: case for case in conformance(modest, features={"causal", "softcap"})}
    cases["causal-7x11-float32"].run()
    with pytest.raises(unittest.SkipTest, match="refused: one thing at a time"):
        cases["causal+softcap-61x131-float32"].run()


def test_one_feature_may_not_be_refused() -> None:
    def refuses(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        if options:
            raise NotImplementedError("not yet")
        return those.plain(query, key, value)

    found = failures(refuses, {"softcap"})
    assert set(found) == {"softcap-7x11-float32", "softcap-61x131-float32"}
    assert all("raised NotImplementedError: not yet" in text for text in found.values())


def test_what_is_not_declared_is_not_asked_for() -> None:
    seen: set[str] = set()

    def spy(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        assert query.shape[:2] == key.shape[:2]
        seen.update(options)
        return those.plain(query, key, value, **options)

    for case in conformance(spy, features={"scale", "causal"}):
        case.run()
    assert seen == {"scale", "causal"}


def test_names_are_unique_and_cases_the_same_each_time() -> None:
    cases = conformance(those.ours, features=those.ALL, dtypes=DTYPES)
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    assert [case.__name__ for case in cases] == names
    again = conformance(those.ours, features=sorted(those.ALL), dtypes=DTYPES)
    assert list(map(str, again)) == list(map(str, cases))


def test_every_feature_is_asked_for_alone_and_with_every_other() -> None:
    cases = conformance(those.ours, features=those.ALL)
    asked = [set(case.features) for case in cases]
    for name, feature in FEATURES.items():
        assert any(name in each for each in asked), name
        for other, beside in FEATURES.items():
            together = feature.with_others and beside.with_others and not apart(name, other)
            if together and name != other:
                assert any({name, other} <= each for each in asked), (name, other)


def test_what_a_feature_needs_is_given_where_the_two_go_together() -> None:
    declared = {"empty_rows", "padding", "window"}  # of which the last two do not
    asked = [set(case.features) for case in conformance(those.ours, features=declared)]
    assert {"empty_rows", "padding"} in asked
    assert all(each <= {"empty_rows", "padding"} or each == {"window"} for each in asked)


def test_the_tensors_are_those_that_the_case_says() -> None:
    """No row is empty, and no NaN is seen, unless that is asked for."""
    for case in conformance(those.ours, features=those.ALL):
        posed = case._posed()
        visible, features = posed.visible, set(case.features)
        if visible is None:
            continue
        nothing = ~visible.any(-1)
        assert nothing.any().item() == ("empty_rows" in features), case.name
        broken = posed.tensors["key"].isnan().any(-1)
        assert broken.any().item() == ("nan_behind_mask" in features), case.name
        if "nan_behind_mask" in features:
            expanded = visible.expand(*posed.tensors["query"].shape[:2], *visible.shape[-2:])
            groups = case.sizes.num_heads // case.sizes.num_kv_heads
            where = broken.repeat_interleave(groups, 1)[:, :, None, :]
            assert (~expanded & where).any(), case.name
            if "gradients" in features:
                assert not (expanded & where).any(), case.name


def test_a_seed_changes_the_tensors_and_gradients_do_not() -> None:
    cases = conformance(those.ours, features={"gradients"})
    other = conformance(those.ours, features={"gradients"}, seed=1)
    forward, backward = (case._posed().tensors["query"] for case in cases[:2])
    assert torch.equal(forward, backward)
    assert not torch.equal(forward, other[0]._posed().tensors["query"])


def test_the_table_lists_every_feature() -> None:
    page = (ROOT / "docs" / "check_projects.md").read_text(encoding="utf-8")
    for name in FEATURES:
        assert f'"{name}"' in (conformance.__doc__ or "")
        assert f'"{name}"' in page


def test_a_module_is_put_back_into_its_mode() -> None:
    module = those.Dropping(always=False)
    for case in conformance(module, features={"dropout"}):
        module.train()
        case.run()
        assert module.training
        module.eval()
        case.run()
        assert not module.training


def test_random_numbers_are_left_alone() -> None:
    before = torch.get_rng_state()
    for case in conformance(those.ours, features={"dropout"}):
        case.run()
    assert torch.equal(torch.get_rng_state(), before)


test_what_makes_no_sense_is_refused = refusals(
    lambda arguments: conformance(**{"fn": those.plain, "features": ()} | arguments),
    ({"fn": 3}, "conformance.fn", "int"),
    ({"features": "causal"}, "conformance.features", "'causal'"),
    (
        {"features": {"causality", "mask"}},
        "conformance.feature",
        f"{', '.join(FEATURES)} // causality",
    ),
    ({"features": {"chunks"}}, "conformance.needs", "chunks // causal // is"),
    (
        {"features": {"empty_rows"}},
        "conformance.needs",
        "empty_rows // mask or head_mask or padding or causal // are",
    ),
    ({"device": "gpu"}, "conformance.device", "'gpu'"),
    ({"dtypes": ()}, "conformance.dtypes", "()"),
    ({"dtypes": (torch.int64,)}, "conformance.dtypes", "(torch.int64,)"),
    ({"head_dims": ()}, "conformance.head-dims", "()"),
    ({"head_dims": (0,)}, "argument.size", "head_dims // 0"),
    ({"seed": 1.5}, "seed.type", "float"),
)
