"""A record, as a table and as a file."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import clearhead as ch
from clearhead.testing.tolerances import assert_no_worse
from clearhead.watching import files
from clearhead.watching.kept_by_path import Keep
from tests.refusals import assert_refused

TOKENS = torch.tensor([[5, 3, 9, 5, 3, 9, 5], [1, 1, 2, 2, 4, 4, 8]])


class Model(nn.Module):
    """Two layers that attend, the second one twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(10, 8)
        self.one = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        self.two = ch.MultiHeadAttention(8, num_heads=4, num_kv_heads=2)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, tokens: Tensor, mask: Any = None) -> Tensor:
        x = self.one(self.embedding(tokens), mask=mask)
        return self.two(self.two(x, mask=mask), mask=mask)


def seen(keep: Keep, mask: Any = None) -> ch.types.Seen[Any]:
    model = Model()
    with ch.watch(model, keep=keep) as found:
        model(TOKENS, mask)
    return found


def same(ours: object, theirs: object) -> None:
    """Compare the numbers of two rows."""
    assert isinstance(ours, tuple)
    assert isinstance(theirs, tuple)
    for a, b in zip(ours, theirs, strict=True):
        assert a == (pytest.approx(b, abs=1e-6) if isinstance(b, float) else b)


def test_the_numbers_are_averages_over_all_calls() -> None:
    model = Model()
    with ch.watch(model) as found:
        model(TOKENS)
        model(TOKENS, ch.padding([7, 7]) & ch.causal())
    for place, row in enumerate(found.table(TOKENS)[2:]):
        calls = found.calls("two")[place // 4 :: 2]
        entropy = torch.stack([call.entropy()[:, row.head] for call in calls])
        distance = torch.stack([call.distance()[:, row.head] for call in calls])
        scores = [ch.roles(call, TOKENS) for call in calls]
        assert row.entropy == pytest.approx(float(entropy.mean()))
        assert row.distance == pytest.approx(float(distance.mean()))
        for name in ("first", "previous", "duplicate", "induction"):
            score = torch.stack([getattr(each, name)[:, row.head] for each in scores])
            number = torch.stack([getattr(each.counts, name)[:, row.head] for each in scores])
            mean = (score * number).sum() / number.sum().clamp(min=1)
            assert getattr(row, name) == pytest.approx(float(mean))


def test_summaries_give_the_same_table() -> None:
    """The ids that the embedding read are those of both."""
    matrices, summaries = seen("matrix"), seen("summary")
    for table in (matrices.table(TOKENS), matrices.table()):
        for ours, theirs in zip(summaries.table(), table, strict=True):
            same(ours, theirs)
    assert matrices.table()["induction"].isfinite().all()
    exact = (each.double() for each in (matrices["one"].problem.query, matrices["one"].problem.key))
    truth = ch.roles(ch.AttentionMatrix(*exact, mask=ch.causal()), TOKENS).induction
    plain = ch.roles(matrices["one"]).induction
    assert truth is not None
    assert plain is not None
    assert_no_worse(summaries["one"].roles.induction, truth, plain)


@pytest.mark.parametrize("keep", ["matrix", "summary"])
def test_without_tokens_two_columns_are_missing(keep: Keep) -> None:
    model = Model()
    with ch.watch(model.one, keep=keep) as found:
        model(TOKENS)
    table = found.table()
    assert all(row.duplicate is None and row.induction is None for row in table)
    assert "induction" not in repr(table)
    assert "previous" in repr(table)


@pytest.mark.parametrize("keep", ["matrix", "summary", "total"])
def test_a_batch_of_no_texts_has_rows_without_queries(keep: Keep) -> None:
    model = Model()
    with ch.watch(model, keep=keep) as found:
        model(TOKENS[:0])
    assert {row.queries for row in found.table()} == {0}


def test_tokens_come_too_late_for_summaries() -> None:
    assert_refused(lambda: seen("summary").table(TOKENS), "tokens.keep", "… // 'summary' // …")


@pytest.mark.parametrize("tokens", [True, [1, 2], torch.zeros(7), torch.tensor(3)])
def test_a_table_of_what_are_no_ids(tokens: Any) -> None:
    with pytest.raises(ch.errors.ClearheadError, match=r"\[tokens\."):
        seen("matrix").table(tokens)


def test_a_growing_sequence_comes_back_as_one(tmp_path: Path) -> None:
    class Step(nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            return ch.attend(query, key, key, mask=ch.causal())

    model, cache = Step(), torch.randn(1, 2, 300, 4)
    with ch.watch(model) as found:
        model(cache[:, :, :100], cache[:, :, :100])
        for length in range(101, 301):
            model(cache[:, :, length - 1 : length], cache[:, :, :length])
    path = found.save(tmp_path / "run.clearhead")
    again = ch.load(path)
    assert again[0].shape == (1, 2, 300, 300)
    assert repr(again).endswith("query_len=300, kv_len=300] mask=causal(), 201 calls")
    assert again[0].dense().equal(found[0].dense())
    assert len(again.calls(0)) == 201
    # Query and key once, and some words for each call.
    assert path.stat().st_size < 2 * 2 * 300 * 4 * 4 + 600 * 201


@pytest.mark.parametrize("keep", ["matrix", "summary"])
def test_tokens_come_back(keep: Keep, tmp_path: Path) -> None:
    found = seen(keep)
    assert found.tokens is None
    assert found.source_tokens is None
    words = ["to", " be", "\n", "\udc80", "<script>", "\u202e", "\x00"]
    path = found.save(tmp_path / "run.clearhead", tokens=words)
    again = ch.load(path)
    assert again.tokens == tuple(words)
    assert again.source_tokens is None
    assert repr(again) == repr(found)
    both = ch.load(again.save(path, source_tokens=torch.tensor([3, 1])))
    assert (both.tokens, both.source_tokens) == (tuple(words), (3, 1))


@pytest.mark.parametrize(
    ("tokens", "got"),
    [
        ("to be", "str"),
        (3, "int"),
        (["a", 1], "list"),
        ([1.5], "list"),
        ([True], "list"),
        (torch.zeros(2, 3, dtype=torch.int64), "shape (2, 3)"),
        (torch.zeros(2), "shape (2,)"),
    ],
)
def test_tokens_that_are_none(tokens: Any, got: str, tmp_path: Path) -> None:
    for name in ("tokens", "source_tokens"):
        call = functools.partial(seen("matrix").save, tmp_path / "a", **{name: tokens})
        assert_refused(call, "save.tokens", f"{name} // {got}")
    meta = torch.zeros(7, device="meta").long()
    with pytest.raises(ch.errors.DeviceError, match=r"\[tokens.meta\] tokens must hold numbers"):
        seen("matrix").save(tmp_path / "a", tokens=meta)
    assert not list(tmp_path.iterdir())


def test_a_file_without_roles(tmp_path: Path) -> None:
    path = seen("summary").save(tmp_path / "run.clearhead", tokens=["a"])
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        head = json.loads(file.metadata()[files.KEY])
    call = head["content"]["calls"]["map"]["one"]["list"][0]
    call["roles"] = None
    save_file(tensors, path, metadata={files.KEY: json.dumps(head)})
    with pytest.raises(ch.errors.FileError, match=r"has a summary of '.*' without roles"):
        ch.load(path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"is": "full"}, "does not hold what a watch has seen."),
        ({"map": {"seen": 3}}, "does not hold what a watch has seen."),
        ({"keep": "pickle"}, "keep of a record must be typing.Literal['matrix', 'summary'"),
        ({"keep": []}, "the header holds something unknown: []"),
        ({"model": 3}, "model of a record must be str; the file gives int."),
        ({"tokens": {"list": ["a", 1.5]}}, "tokens of a record must be list[str] | list[int]"),
        ({"calls": {"map": {"a": {"list": []}}}}, "a AttentionMatrix for every call of 'a'."),
        ({"calls": {"map": {"a": {"list": [{"is": "full"}]}}}}, "for every call of 'a'."),
    ],
)
def test_other_content_is_refused(content: dict[str, Any], text: str, tmp_path: Path) -> None:
    if not {"is", "map"} & content.keys():
        empty = {"is": "record", "model": "M", "keep": "matrix", "calls": {"map": {}}}
        content = empty | content
    path = tmp_path / "run.clearhead"
    header = json.dumps({"version": 1, "content": content})
    save_file({"0": torch.zeros(1)}, path, metadata={files.KEY: header})
    with pytest.raises(ch.errors.FileError) as raised:
        ch.load(path)
    assert raised.value.code == "file.content"
    assert text in str(raised.value)


@pytest.mark.parametrize("keep", ["matrix", "summary"])
def test_a_page_has_every_call_of_every_module(
    keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clearhead.drawing.page import head_page

    written = []
    monkeypatch.setattr(
        head_page, "write_page", lambda path, payload: written.append(payload) or path
    )
    found = seen(keep)
    path = found.to_html(tmp_path / "a.html", tokens=TOKENS, other=found, title="two", sample=1)
    assert path == tmp_path / "a.html"
    layers = written[0].data["layers"]
    names = ["one", "two, call 0", "two, call 1"]
    assert [(each["run"], each["name"]) for each in layers] == [
        (run, name) for run in range(2) for name in names
    ]
    entropy = [each.entropy if keep == "summary" else each.entropy() for each in found.calls("two")]
    rows = layers[2]["rows"]
    true = entropy[1][1].double().mean(dim=-1).tolist()
    assert [row["entropy"] for row in rows] == pytest.approx(true, rel=1e-6)
    text = tuple(f"#{each}" for each in TOKENS[1].tolist())
    assert (written[0].data["texts"], written[0].data["runs"]) == ([text], ["A", "B"])
    words = [f"w{n}" for n in range(len(text))]
    names = ("before", "after")
    found.to_html(path, tokens=TOKENS[1], other=found, other_tokens=words, names=names, sample=1)
    assert written[1].data["texts"] == [text, tuple(words)]
    assert tuple(written[1].data["runs"]) == names


def test_a_page_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ch.errors.ArgumentTypeError) as caught:
        seen("matrix").to_html(tmp_path / "a.html", other=3)  # pyright: ignore[reportArgumentType]
    assert str(caught.value) == "[page.other] other must be what a watch has seen; got int."
    for names in (("one",), "ab", ("a", "")):
        with pytest.raises(ch.errors.ArgumentTypeError) as caught:
            seen("matrix").to_html(tmp_path / "a.html", names=names)  # pyright: ignore[reportArgumentType]
        assert str(caught.value) == (
            f"[page.names] names must be what each of the two runs is called; got {names!r}."
        )
    assert list(tmp_path.iterdir()) == []


def test_calls_that_are_no_rows_of_one_matrix_are_parts_of_their_own() -> None:
    model = torch.nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in range(2)))
    with ch.watch(model) as found:
        model(torch.randn(1, 3, 8))
        model[1](torch.randn(1, 3, 8))
    assert [path for path, _ in found.parts()] == ["0", "1, call 0", "1, call 1"]
    assert [path for path, _ in found.parts([-2])] == ["0"]
    assert found.parts(["0"])[0][1] is found["0"]
    assert_refused(lambda: found.parts([2]), "watch.layer", "2 // 0 ('0'), 1 ('1')")
