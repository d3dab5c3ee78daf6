"""Finding the heads that look from this token to that one: held to the weights themselves."""

from typing import Any

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.watching.finding import HeadLink, attending, path_of_layer
from tests.refusals import assert_refused

WORDS = ["the", " cat", " saw", " it", " cat"]


class TwoTexts(nn.Module):
    """Self-attention over five tokens, then a look at three others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        self.second = ch.MultiHeadAttention(8, num_heads=3, head_dim=4, output_dim=8)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x), context)


@pytest.fixture(scope="module")
def seen() -> ch.types.Seen[ch.AttentionMatrix]:
    torch.manual_seed(0)
    model = TwoTexts().double()
    with torch.no_grad(), ch.watch(model) as found:
        model(torch.randn(2, 5, 8).double(), torch.randn(2, 3, 8).double())
    return found


def dense(seen: ch.types.Seen[ch.AttentionMatrix]) -> list[tuple[str, int, torch.Tensor]]:
    return [
        (path, head, matrix.dense()[1, head])
        for path, matrix in seen.items()
        for head in range(matrix.num_heads)
    ]


def test_a_pair_of_tokens(seen: ch.types.Seen[ch.AttentionMatrix]) -> None:
    found = seen.find("it", "cat", tokens=WORDS, layers=["first"], sample=1)
    assert [each[:4] for each in sorted(found, key=lambda each: each.head)] == [
        ("first", 0, 3, 1),
        ("first", 1, 3, 1),
    ]
    wanted = sorted((float(w[3, 1]) for path, _, w in dense(seen) if path == "first"), reverse=True)
    assert [each.weight for each in found] == pytest.approx(wanted, abs=1e-12)


def test_one_of_the_two_is_the_strongest_link_of_each_head(
    seen: ch.types.Seen[ch.AttentionMatrix],
) -> None:
    by_query = seen.find(2, sample=1)
    assert len(by_query) == 5
    expected = [
        HeadLink(path, head, 2, int(w[2].argmax()), float(w[2].max()))
        for path, head, w in dense(seen)
    ]
    for one, other in zip(by_query, sorted(expected, key=lambda each: -each.weight), strict=True):
        assert one[:4] == other[:4]
        assert one.weight == pytest.approx(other.weight, abs=1e-12)
    by_key = seen.find(key="dog", tokens=WORDS, source_tokens=["a", "dog", "b"], layers=["second"])
    assert {each.key for each in by_key} == {1}
    assert [each.weight for each in by_key] == pytest.approx(
        sorted((float(h[:, 1].max()) for h in seen["second"].dense()[0]), reverse=True), abs=1e-12
    )


IMAGES = [1, 99, 99, 5, 99]
IMAGE = ch.reading.image_numbers(IMAGES, 99) == 0


@pytest.mark.parametrize("query", [3, None, IMAGE])
@pytest.mark.parametrize("key", [0, None, IMAGE, torch.stack([~IMAGE, IMAGE])])
def test_the_patches_of_an_image_are_one_key(
    query: Any, key: Any, seen: ch.types.Seen[ch.AttentionMatrix]
) -> None:
    if query is key is None:
        return
    rows = [1, 2] if torch.is_tensor(query) else [3] if query else range(5)
    for link in seen.find(query, key, layers=["first"], sample=1):
        weights = seen["first"].dense()[1, link.head]
        assert link.query in rows
        if torch.is_tensor(key):
            weights = weights[:, IMAGE].sum(dim=1, keepdim=True)
            assert link.key == 1
        elif key is None:
            assert link.key == int(weights[link.query].argmax())
        else:
            weights = weights[:, [key]]
        assert link.weight == pytest.approx(float(weights[list(rows)].max()), abs=1e-12)
        assert link.weight == pytest.approx(float(weights[link.query].max()), abs=1e-12)


def test_numbers_of_images() -> None:
    numbers = ch.reading.image_numbers
    assert numbers(IMAGES, 99).tolist() == [-1, 0, 0, -1, 1]
    assert (numbers(["a", "i"], "i").tolist(), numbers([], 99).tolist()) == ([-1, 0], [])
    ids = torch.tensor([IMAGES, [99, 5, 99, 99, 99]])
    assert numbers(ids, 99)[1].tolist() == [0, -1, 1, 1, 1]
    assert numbers(ids[1:, 1:], 99, patches=1).tolist() == [[-1, 0, 1, 2]]
    for patches in (0, 2):
        with pytest.raises(ch.errors.ArgumentError) as caught:
            numbers(ids, 99, patches=patches)
        assert caught.value.code == "argument.size"


def test_a_row_that_is_not_finite_is_no_link() -> None:
    layer = ch.MultiHeadAttention(4, num_heads=1)
    x = torch.randn(1, 3, 4)
    x[0, 1] = torch.nan
    with torch.no_grad(), ch.watch(layer) as seen:
        layer(x)
    assert len(seen.find(0, 1)) == 0


def test_what_cannot_be_found(seen: ch.types.Seen[ch.AttentionMatrix]) -> None:
    rows: list[tuple[dict[str, Any], str, str]] = [
        ({}, "watch.find", ""),
        ({"query": "it"}, "watch.find", "query // 'it' // … // …"),
        ({"query": "dog", "tokens": WORDS}, "watch.token", "'dog'"),
        ({"query": 9}, "matrix.range", "9 // 2 // 5"),
        ({"query": torch.zeros(5).bool()}, "watch.token", ""),
        ({"key": torch.ones(4).bool()}, "segments.shape", "5 // (2, 5) // (4,)"),
        ({"key": torch.ones(5)}, "watch.find-type", "key // tensor([1., 1., 1., 1., 1.])"),
        *(({"key": each}, "watch.find-type", f"key // {each}") for each in (1.5, True, [0])),
        *(({"query": 0, "sample": each}, "watch.find-type", f"{each}") for each in (1.5, [0])),
        *(({"query": 0, "layers": each}, "layers.list", f"{each!r}") for each in (True, "it", {0})),
    ]
    for given, code, values in rows:
        assert_refused(lambda given=given: seen.find(**given), code, *filter(None, [values]))
    layer = ch.MultiHeadAttention(4, num_heads=1)
    every: Any = ("summary", "total")
    for keep in every:
        with torch.no_grad(), ch.watch(layer, keep=keep) as kept:
            layer(torch.randn(1, 3, 4))
        assert_refused(lambda kept=kept: kept.find(0), "watch.find", f"'{keep}'")


def three(**options: Any) -> ch.types.Seen[Any]:
    torch.manual_seed(0)
    model = nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=4) for _ in range(3)))
    with torch.no_grad(), ch.watch(model, **options) as found:
        model(torch.randn(1, 5, 8))
        model(torch.randn(1, 5, 8))
    return found


@pytest.mark.parametrize("keep", ["matrix", "summary", "total", lambda path, matrix: matrix.max()])
@pytest.mark.parametrize(
    ("layers", "paths"),
    [
        (-1, ["2"]),
        ([-1], ["2"]),
        ([-3], ["0"]),
        ([-2, 2], ["1", "2"]),
        (["0", -1], ["0", "2"]),
        ([-1, -2, -3], ["0", "1", "2"]),
    ],
)
def test_layers_count_from_the_end(keep: Any, layers: Any, paths: list[str]) -> None:
    found = three(layers=layers, keep=keep)
    assert list(found) == paths
    assert all(len(found.calls(path)) == (1 if keep == "total" else 2) for path in paths)


def test_a_layer_before_the_first_is_refused() -> None:
    with pytest.raises(
        ch.errors.WatchError, match="is number -4, counted from the end; these attended"
    ):
        three(layers=[-4])


def test_heads_count_from_the_end() -> None:
    whole, found = three(), three(heads=[0, -1])
    assert found.head_numbers(0) == (0, 3)
    assert found.calls(0)[0].dense().equal(whole.calls(0)[0][:, [0, 3]])
    assert_refused(lambda: three(heads=[3, -1]), "watch.heads", "[3, -1] // 0 // 4")
    assert_refused(lambda: three(heads=[-5]), "watch.heads", "[-5] // 0 // 4")
    assert_refused(lambda: three(heads=[-1, -1]), "heads.value", " // [-1, -1]")


def test_tokens_count_from_the_end(seen: ch.types.Seen[ch.AttentionMatrix]) -> None:
    assert list(seen.find(-1, sample=1)) == list(seen.find(4, sample=1))
    assert {(link.layer, link.key) for link in seen.find(key=-1)} == {("first", 4), ("second", 2)}
    assert {link[2:4] for link in seen.find(-1, -2, layers=[0])} == {(4, 3)}
    assert_refused(lambda: seen.find(-9, 0), "matrix.range", "-9 // 2 // 5")


def test_a_slice_is_the_record_of_some() -> None:
    whole = three()
    some = whole[1:]
    assert isinstance(some, ch.types.Seen)
    assert list(some) == ["1", "2"]
    assert some.calls("1") == whole.calls("1")
    assert list(whole[-1:]) == ["2"]
    assert list(whole[::-1]) == ["2", "1", "0"]
    assert len(whole[3:]) == 0
    assert {row.layer for row in some.table()} == {"1", "2"}
    assert list(whole) == ["0", "1", "2"]


def test_a_layer_by_its_number_in_the_model() -> None:
    paths = {3: "layers.3", 11: "layers.11"}
    block = type("AttentionBlock", (nn.Sequential,), {})
    assert list(attending(block(ch.MultiHeadAttention(8, num_heads=2)))) == ["0"]
    assert [path_of_layer(each, paths) for each in (3, 11, -1, -2, "layers.3")] == [
        "layers.3", "layers.11", "layers.11", "layers.3", "layers.3",
    ]  # fmt: skip
    assert_refused(
        lambda: path_of_layer(0, paths), "watch.layer", "0 // 3 ('layers.3'), 11 ('layers.11')"
    )
    assert_refused(lambda: path_of_layer(1, {0: "a"}), "watch.layer", "1 // 1")
    with pytest.raises(ch.errors.SelectionError, match=r"\[watch.layer\] no module True attended"):
        path_of_layer(True, paths)
