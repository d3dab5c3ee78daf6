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


@pytest.mark.parametrize(
    ("fn", "features", "dtypes"),
    [
        (those.ours, those.ALL, DTYPES),
        (those.pytorch, those.PYTORCHS, DTYPES[:3:2]),
        (those.plain, those.PLAINS, DTYPES[:1]),
    ],
)
def test_what_is_right_passes(fn: Any, features: Collection[str], dtypes: Any) -> None:
    assert failures(fn, features, dtypes=dtypes) == {}


def asks(*names: str) -> Callable[[ConformanceCase], bool]:
    """Whether a case has one of these features or is one of these variants."""
    return lambda case: not {case.variant, *case.features}.isdisjoint(names)


def has_several_keys(case: ConformanceCase) -> bool:
    return case.sizes.kv_len > 1


WRONG: list[tuple[Any, set[str], Callable[[ConformanceCase], bool], str]] = [
    (those.inverted, {"mask"}, asks("mask"), "the context"),
    (
        those.from_the_first_key, {"causal"},
        lambda case: asks("causal")(case) and case.sizes.query_len != case.sizes.kv_len,
        "is wrong by",
    ),
    (those.window_without_itself, {"window", "causal"}, asks("window"), "is wrong by"),
    (
        those.tiled, {"grouped"},
        lambda case: asks("grouped")(case) and case.variant != "one-key-head",
        "is wrong by",
    ),
    (those.capped_before_the_scale, {"softcap"}, asks("softcap"), "is wrong by"),
    (those.sink_that_gives, {"sinks"}, asks("sinks"), "is wrong by"),
    (those.unscaled, set(), has_several_keys, "is wrong by"),
    # Nothing is wrong with few keys, nor with whole blocks.
    (
        those.edge_of_the_block, set(),
        lambda case: case.sizes.kv_len > 32 and case.sizes.kv_len % 32 > 0,
        "is wrong by",
    ),
    (
        those.without_the_largest, set(), asks("large-scores"),
        "numbers are NaN or infinite where they should not be, or the reverse.",
    ),
    (those.of_contiguous_memory, set(), asks("strided"), "NaN or infinite where"),
    (those.key_is_a_constant, {"gradients"}, asks("gradients"), "no gradient reaches key"),
    # A softmax over one key has no gradient to be wrong.
    (
        those.wrong_on_the_way_back, {"gradients"},
        lambda case: asks("gradients")(case) and has_several_keys(case),
        "the gradient of query (float32) is wrong by",
    ),
    (those.logsumexp_in_bits, {"logsumexp"}, asks("logsumexp"), "the logsumexp (float32) is wrong by"),
    (those.in_half_the_precision, set(), lambda case: True, "is wrong by"),
    (those.scales_in_place, set(), lambda case: True, "the caller's query is written to"),
    (those.clears_what_is_padded, {"padding"}, asks("padding"), ": the caller's value is written to\n"),
    (those.turns_the_mask, {"padding"}, asks("padding"), ": the caller's mask is written to\n"),
    (those.nothing, set(), lambda case: True, ": gave NoneType, expected a tensor\n  case: the plain attention"),
    (those.narrow, set(), lambda case: True, ": the context has shape (2, 3, "),
    (those.doubled, set(), lambda case: True, ": the context is float64, expected float32"),
    (
        those.detached, {"gradients"}, asks("gradients"),
        ": the context has no gradient, though the query requires one",
    ),
    (those.fails, set(), lambda case: True, ": raised RuntimeError: out of registers\n  case: the plain"),
    (those.without_logsumexp, {"logsumexp"}, asks("logsumexp"), "gave Tensor, expected (context, logsumexp)"),
    # Several features at once may be refused, one may not.
    (those.refuses, {"softcap"}, asks("softcap"), "raised NotImplementedError: not yet"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fn", "features", "is_wrong", "words"), WRONG, ids=[row[0].__name__ for row in WRONG]
)
def test_what_is_wrong_fails_where_it_is_wrong(
    fn: Any, features: set[str], is_wrong: Callable[[ConformanceCase], bool], words: str
) -> None:
    found = failures(fn, features)
    cases = conformance(fn, features=features)
    assert set(found) == {case.name for case in cases if is_wrong(case)}
    assert all(words in text for text in found.values())


def test_several_features_at_once_may_be_refused() -> None:
    cases = {case.name: case for case in conformance(those.modest, features={"causal", "softcap"})}
    cases["causal-7x11-float32"].run()
    with pytest.raises(unittest.SkipTest, match="refused: one thing at a time"):
        cases["causal+softcap-61x131-float32"].run()


def test_a_failure_in_words() -> None:
    cases = conformance(those.from_the_first_key, features={"causal"}, seed=7)
    case = next(each for each in cases if each.name == "causal-7x11-float32")
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


def test_what_is_not_declared_is_not_asked_for() -> None:
    seen: set[str] = set()

    def spy(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        assert query.shape[:2] == key.shape[:2]
        seen.update(options)
        return those.plain(query, key, value, **options)

    assert failures(spy, {"scale", "causal"}) == {}
    assert seen == {"scale", "causal"}


def test_names_are_unique_and_cases_the_same_each_time() -> None:
    cases = conformance(those.ours, features=those.ALL, dtypes=DTYPES)
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    assert [case.__name__ for case in cases] == names
    again = conformance(those.ours, features=sorted(those.ALL), dtypes=DTYPES)
    assert list(map(str, again)) == list(map(str, cases))


def test_every_feature_is_asked_for_alone_and_with_every_other() -> None:
    asked = [set(case.features) for case in conformance(those.ours, features=those.ALL)]
    for name, feature in FEATURES.items():
        assert any(name in each for each in asked), name
        for other, beside in FEATURES.items():
            together = feature.with_others and beside.with_others and not apart(name, other)
            if together and name != other:
                assert any({name, other} <= each for each in asked), (name, other)
    declared = {"empty_rows", "padding", "window"}  # of which the last two do not go together
    asked = [set(case.features) for case in conformance(those.ours, features=declared)]
    assert {"empty_rows", "padding"} in asked
    assert all(each <= {"empty_rows", "padding"} or each == {"window"} for each in asked)


def test_the_tensors_are_those_that_the_case_says() -> None:
    """No row is empty, and no NaN is seen, unless that is asked for."""
    for case in conformance(those.ours, features=those.ALL):
        posed = case._posed()
        visible, features = posed.visible, set(case.features)
        if visible is None or "empty_axes" in features:
            continue
        assert (~visible.any(-1)).any().item() == ("empty_rows" in features), case.name
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


test_what_makes_no_sense_is_refused = refusals(
    lambda arguments: conformance(**{"fn": those.plain, "features": ()} | arguments),
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
    ({"dtypes": ()}, "conformance.dtypes", "()"),
    ({"dtypes": (torch.int64,)}, "conformance.dtypes", "(torch.int64,)"),
    ({"seed": 1.5}, "seed.type", "float"),
)
