"""Files: what goes in comes out, and what is not as it should be is refused."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.watching import files
from tests._common.test_writing import STRANGE
from tests.attention.kernels.problems import Problem, problems
from tests.matrix.tensors import tensors_of
from tests.memory import LargestTensor, held_bytes
from tests.watching.models import OwnSoftmax


def matrix(**options: Any) -> AttentionMatrix:
    torch.manual_seed(0)
    return AttentionMatrix(torch.randn(2, 4, 5, 3), torch.randn(2, 2, 7, 3), **options)


def header(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()[files.KEY])


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The file with another header."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    content = header(path)
    change(content)
    save_file(tensors, path, metadata={files.KEY: json.dumps(content)})
    return path


KEPT = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@settings(max_examples=20)
@given(problems((0, 1, 2, 5)), st.sampled_from(KEPT), st.booleans(), st.integers(2, 4))
def test_any_matrix_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    problem: Problem,
    dtype: torch.dtype,
    with_value: bool,
    dims: int,
) -> None:
    """With the weights that it had, its value, its dtype and its dimensions; and so does its summary."""
    tensors, options = problem
    tensors = {
        name: each.to(dtype) for name, each in tensors.items() if with_value or name != "value"
    }
    fewer = options.get("mask") is None and not isinstance(options["bias"], Tensor)
    if fewer and len(tensors["query"]) and "sinks" not in tensors and options["bias"] is None:
        tensors = {name: each[(0,) * (4 - dims)] for name, each in tensors.items()}
    weights = AttentionMatrix(**tensors, **options)
    path = tmp_path_factory.mktemp("any") / "a.clearhead"
    again = files.read(files.write(path, weights))
    assert repr(again) == repr(weights)
    assert again.shape == weights.shape
    assert again.problem.query.dtype == dtype
    assert (again.value is None) == ("value" not in tensors)
    assert again.value is None or again.value.equal(tensors["value"])
    assert again.dense().equal(weights.dense())
    assert (again.problem.mask is None) == (weights.problem.mask is None)
    if not weights.problem.kv_len or not weights.problem.query_len:
        return
    summary = weights.summary(top_k=1, pool=(1, 1), segments=torch.zeros(weights.shape[-1]).long())
    kept = files.read(files.write(path, summary))
    assert repr(kept) == repr(summary)
    for mine, theirs in zip(tensors_of(kept), tensors_of(summary), strict=True):
        assert mine.equal(theirs)


@settings(max_examples=30)
@given(st.floats(0, 1, exclude_max=True))
def test_a_file_that_ends_early_is_none(runs: dict[str, Path], share: float) -> None:
    whole = runs["summary"].read_bytes()
    path = runs["summary"].with_suffix(".cut")
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ch.errors.FileError):
        ch.load(path)


def test_totals_without_a_distance_come_back(tmp_path: Path) -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2)
    with torch.no_grad(), ch.watch(layer, keep="total") as seen:
        layer(torch.randn(2, 5, 8), torch.randn(2, 3, 8))
    again = ch.load(seen.save(tmp_path / "a.clearhead"))[0]
    assert (again.distance, again.queries) == (None, 10)
    assert again.entropy.equal(seen[0].entropy)


def test_queries_that_are_no_padding_come_back(tmp_path: Path) -> None:
    real = torch.tensor([[True, True, False], [True, False, False]])
    query = torch.randn(2, 1, 3, 4)
    given = ch.AttentionMatrix(query, torch.randn(2, 1, 5, 4), cross=True, real_queries=real)
    assert files.read(files.write(tmp_path / "a.clearhead", given)).real.equal(real)


def test_what_begins_at_the_same_place_is_written_once(tmp_path: Path) -> None:
    """The keys of a cache that grows are one tensor, and every call sees its beginning."""
    cache, query = torch.randn(1, 2, 500, 8), torch.randn(1, 2, 1, 8)
    calls = [AttentionMatrix(query, cache[:, :, :n]) for n in range(1, 501)]
    path = files.write(tmp_path / "a.clearhead", calls)
    assert path.stat().st_size < 2 * held_bytes(cache) + 200 * len(calls)
    again = files.read(path)
    assert [each.shape[-1] for each in again] == list(range(1, 501))
    assert again[300].dense().equal(calls[300].dense())


def test_two_parts_of_one_tensor_that_overlap(tmp_path: Path) -> None:
    tensor = torch.randn(6, 5)
    given = [tensor[:2], tensor[:, :3], tensor[3:], tensor]
    again = files.read(files.write(tmp_path / "a.clearhead", given))
    assert all(a.equal(b) for a, b in zip(again, given, strict=True))


def refused(path: Path, code: str) -> str:
    with pytest.raises(ch.errors.FileError) as raised:
        files.read(path)
    assert raised.value.code == code
    assert str(path) in str(raised.value)
    return str(raised.value)


def test_a_file_of_others(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(2)}, path)
    assert "was not written by clearhead" in refused(path, "file.foreign")


@pytest.mark.parametrize("version", [0, 2, "1", True, None])
def test_another_version(version: object, tmp_path: Path) -> None:
    path = rewritten(
        files.write(tmp_path / "a.clearhead", matrix()), lambda head: head.update(version=version)
    )
    text = refused(path, "file.version")
    assert f"must be of version 1, which this clearhead reads; it is of version {version!r}" in text


def change(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda head: head["content"].update(fields)


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (change(**{"is": "pickle"}), "there is no kind 'pickle'; known are alibi, "),
        (
            change(more=1),
            "a matrix has the fields query, key, mask, bias, scale, softcap, sinks, cross, real_queries, "
            "value, context, heads;",
        ),
        (
            lambda head: head["content"].pop("scale"),
            "scale of a matrix must be float; the file gives NoneType",
        ),
        (lambda head: head.update(content={"call": "x"}), "the header holds something unknown"),
        (lambda head: head.pop("content"), "the header holds version."),
        (lambda head: head.update(more=1), "the header holds version, content, more."),
        (change(query={"tensor": "9", "shape": [1]}), "a tensor '9' that is not there"),
        (change(query={"tensor": "0", "shape": [2, 4, 6, 3]}), "at least the shape [2, 4, 6, 3]"),
        (change(query={"tensor": "0", "shape": [2, 4]}), "it has [2, 4, 5, 3]"),
        (change(query={"tensor": "0", "shape": [2, 4, -1, 3]}), "at least the shape"),
        (change(query={"tensor": "0", "shape": [2, 4, 5, 2]}), "a matrix of the file cannot be: "),
        (change(scale="big"), "scale of a matrix must be float; the file gives str."),
        (change(query=None), "query of a matrix must be Tensor; the file gives NoneType."),
        (change(mask=3), "a matrix of the file cannot be: [mask.type]"),
    ],
)
def test_a_header_that_says_something_else(
    edit: Callable[[dict[str, Any]], Any], text: str, tmp_path: Path
) -> None:
    path = rewritten(files.write(tmp_path / "a.clearhead", matrix()), edit)
    assert text in refused(path, "file.content")


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (
            {"is": "causal", "offset": 3},
            "PerRow | None; the file gives int",
        ),
        ({"is": "full", "x": 1}, "a full has the fields none; the file gives x."),
        (
            {"is": "sliding_window", "offset": None, "left": True, "right": 0},
            "left of a sliding_window must be int | None; the file gives bool.",
        ),
        (
            {"is": "padded_to", "lengths": None, "side": "up", "longest": 3},
            "lengths of a padded_to must be PerRow; the file gives NoneType.",
        ),
        ({"is": "dense", "tensor": {"tensor": "0", "shape": [2, 4, 5, 3]}}, "a matrix of the file"),
        ({"is": "not", "mask": {"is": "and", "left": 1, "right": 2}}, "left of a and must be Mask"),
        (
            {
                "is": "causal",
                "offset": {"is": "per_row", "value": 10**30, "name": "offset", "follows": False},
            },
            "a matrix of the file cannot be: ",
        ),
    ],
)
def test_a_mask_of_other_fields(mask: dict[str, Any], text: str, tmp_path: Path) -> None:
    path = rewritten(files.write(tmp_path / "a.clearhead", matrix()), change(mask=mask))
    assert text in refused(path, "file.content")


def test_a_header_nested_too_deeply(tmp_path: Path) -> None:
    for depth in (900, 20_000):  # JSON that can be read, and JSON that cannot
        nested = '{"list":[' * depth + "1" + "]}" * depth
        path = tmp_path / "a.clearhead"
        header = f'{{"version":1,"content":{nested}}}'
        save_file({"a": torch.zeros(1)}, path, metadata={files.KEY: header})
        refused(path, "file.content")
    # JSON has one level for each of these, and an object several.
    masks = '{"is":"not","mask":' * 600 + '{"is":"full"}' + "}" * 600
    header = f'{{"version":1,"content":{masks}}}'
    save_file({"a": torch.zeros(1)}, path, metadata={files.KEY: header})
    assert "the header is nested too deeply." in refused(path, "file.content")


def test_a_load_beside_saves_is_of_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is saved during a load is not in what is loaded."""
    runs = [{"name": str(n), "numbers": torch.full((n, 3), float(n))} for n in (3, 5)]
    path, load = files.write(tmp_path / "a.clearhead", runs[0]), safetensors.torch.load

    def beside(content: bytes) -> dict[str, Tensor]:
        files.write(path, runs[1])
        return load(content)

    monkeypatch.setattr(safetensors.torch, "load", beside)
    found = files.read(path)
    assert found["name"] == "3"
    assert found["numbers"].equal(runs[0]["numbers"])
    assert files.read(path)["name"] == "5"


def test_a_dtype_that_files_do_not_know(tmp_path: Path) -> None:
    with pytest.raises(
        ch.errors.UnsupportedError, match=r"a file holds no tensor of torch\.complex64\."
    ):
        files.write(tmp_path / "a.clearhead", {"a": torch.zeros(1, dtype=torch.complex64)})
    assert os.listdir(tmp_path) == []


def test_what_is_empty_claims_little(tmp_path: Path) -> None:
    """A batch of 0 has no numbers, and spans of a mask for each of its tokens."""
    empty = torch.zeros(0, 1, 1 << 21, 4)
    path = tmp_path / "a.clearhead"
    files.write(path, {"a": empty})
    text = refused(path, "file.content")
    assert "claims [0, 1, 2097152, 4], and the file holds 0 bytes." in text
    assert files.read(files.write(path, {"a": empty[:, :, :9]}))["a"].shape == (0, 1, 9, 4)


@pytest.mark.parametrize("name", STRANGE)
def test_a_name_that_no_file_has(name: str) -> None:
    with pytest.raises(ch.errors.FileError, match=r"^\[file\.unreadable\] "):
        ch.load(STRANGE[name])


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "it is no file" in refused(tmp_path / "pipe", "file.unreadable")
    assert "it is no file" in refused(tmp_path, "file.unreadable")
    assert "No such file" in refused(tmp_path / "none.clearhead", "file.unreadable")


def test_sizes_that_are_only_claimed_take_no_memory(tmp_path: Path) -> None:
    path = files.write(tmp_path / "a.clearhead", matrix())
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    known = json.loads(whole[8:start])
    with LargestTensor() as seen:
        for length in (1 << 30, 1 << 62, (1 << 64) - 1):
            path.write_bytes(length.to_bytes(8, "little") + whole[8:])
            refused(path, "file.unreadable")
        for size in (1 << 40, 1 << 62, 10**30):
            for claim in ({"shape": [size]}, {"data_offsets": [0, size]}):
                head = json.dumps(known | {"0": known["0"] | claim}).encode()
                path.write_bytes(len(head).to_bytes(8, "little") + head + whole[start:])
                refused(path, "file.unreadable")
        files.write(path, matrix())
        claimed = {"tensor": "0", "shape": [2, 4, 1 << 40, 3]}
        refused(rewritten(path, change(query=claimed)), "file.content")
    assert seen.largest <= 8 * len(whole)


FOREIGN: list[Any] = [
    None, True, -1, 0, 1, 7, 10**18, 10**400, 0.5, float("nan"), float("inf"), "", "matrix", "0",
    [], {}, {"list": []}, {"list": 3}, {"map": [1]}, {"map": {"a": 1}},
    {"is": "full"}, {"is": []}, {"is": "causal", "offset": None}, {"tensor": [], "shape": []},
    {"tensor": "0", "shape": {}}, {"tensor": "1", "shape": [1, 1, 1, 1]},
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything that a header is made of."""
    if path:
        yield path
    if not isinstance(value, dict | list):
        return
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        yield from places(each, (*path, key))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file of each kind, with most kinds of masks."""
    masks = [
        ch.causal() & ch.padding([3, 5]),
        ch.sliding_window(left=2),
        ch.documents([0, 0, 1, 1, 1]) | ~ch.prefix(2),
        ch.dense(torch.rand(2, 2, 5, 5) < 0.5),
        ch.padding(torch.rand(5) < 0.7),
    ]
    layers = [ch.MultiHeadAttention(8, num_heads=2, num_kv_heads=1, mask=mask) for mask in masks]
    model, folder = torch.nn.Sequential(*layers), tmp_path_factory.mktemp("runs")
    found = {}
    for keep in ("matrix", "summary"):
        with ch.watch(model, keep=keep) as seen:
            model(torch.randn(2, 5, 8))
        found[keep] = seen.save(folder / keep, tokens=list("abcde"))
    return found


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    keep=st.sampled_from(["matrix", "summary"]),
    edits=st.lists(
        st.tuples(st.integers(0, 9999), st.sampled_from([*FOREIGN, ...])), min_size=1, max_size=3
    ),
    tensors=st.dictionaries(
        st.integers(0, 30),
        st.sampled_from(["double", "long", "bool", "half", "flatten", "neg"]),
        max_size=2,
    ),
)
def test_whatever_a_file_says_the_error_is_of_the_tree(
    runs: dict[str, Path], keep: str, edits: list[tuple[int, Any]], tensors: dict[int, str]
) -> None:
    """`...` takes a part away. What is still a file is fit to be looked at."""
    path = runs[keep]
    with safe_open(path, framework="pt") as file:
        numbers = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    head = header(path)
    for place, value in edits:
        known = list(places(head))
        if not known:
            break
        *way, last = known[place % len(known)]
        inside = head
        for step in way:
            inside = inside[step]
        if value is ...:
            del inside[last]
        else:
            inside[last] = deepcopy(value)
    for place, change in tensors.items():
        name = sorted(numbers)[place % len(numbers)]
        if not (change == "neg" and numbers[name].dtype == torch.bool):
            numbers[name] = getattr(numbers[name], change)()
    changed = path.with_suffix(".changed")
    save_file(numbers, changed, metadata={files.KEY: json.dumps(head)})
    try:
        seen = ch.load(changed)
    except ch.errors.FileError:
        return
    assert repr(seen)
    for layer in seen:
        for call in seen.calls(layer):
            if isinstance(call, AttentionMatrix):
                call.summary()


def test_a_header_that_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "a.clearhead"
    save_file({"a": torch.zeros(1)}, path, metadata={files.KEY: "{"})
    assert "the header of" in refused(path, "file.content")


def test_something_else_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ch.errors.UnsupportedError, match=r"got Linear\.") as raised:
        files.write(tmp_path / "a.clearhead", torch.nn.Linear(1, 1))
    assert raised.value.code == "file.kind"
    assert os.listdir(tmp_path) == []


def test_without_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ch.errors.MissingExtraError, match=r"pip install '\.\[files\]'") as refusal:
        files.write(tmp_path / "a.clearhead", [1])
    assert "a file of what was seen needs safetensors, which is not installed." in str(
        refusal.value
    )


def test_what_was_not_seen_and_the_numbers_of_layers_come_back(tmp_path: Path) -> None:
    layers = (ch.MultiHeadAttention(8, num_heads=2) for _ in range(3))
    model, x = torch.nn.Sequential(*layers, OwnSoftmax()), torch.randn(1, 5, 8)
    keeps: tuple[Any, ...] = ("matrix", "summary", "total")
    for keep in keeps:
        watching: Any = ch.watch(model, layers=[1, 2], keep=keep)
        with pytest.warns(ch.errors.WatchWarning), watching as seen:
            model(x)
        path = seen.save(tmp_path / "a.clearhead")
        again = ch.load(path)
        assert again.missing == seen.missing
        assert again.path(2) == "2"
        assert repr(again) == repr(seen)
        assert "not seen: 3, it takes a softmax of its own" in repr(again.table())
        if keep == "total":
            both = again.merge(seen)
            assert both.missing == seen.missing
            assert both.path(1) == "1"
        else:
            page = again.to_html(tmp_path / "a.html").read_text()
            assert "not seen: 3, it takes a softmax of its own" in page
            assert "Not seen: 3" in again._repr_html_()


NUMBERS: dict[str, list[Any]] = {
    "heads": [[1 << 63, 0], [1, 1], [-1, 0], [0.0, 1], [True, 0], [{"list": [0]}, 1], [0]],
    "runs": [-1, True, 1 << 64, {"list": [1]}],
    "numbers": [[1 << 63], [-1], [0, 1], [True], [1.0], [{"list": [1]}], {"map": {"0": 1}}],
    "missing": [
        "0",
        [{"list": ["0", "Own", "reason"]}],
        [{"is": "missing", "path": 3}],
        {"map": {}},
    ],
}


@pytest.mark.parametrize(
    ("field", "value"), [(n, each) for n, of in NUMBERS.items() for each in of]
)
def test_numbers_that_are_none(field: str, value: Any, tmp_path: Path) -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2)
    with torch.no_grad(), ch.watch(layer) as seen:
        layer(torch.randn(1, 5, 8))
    given = {"list": value} if isinstance(value, list) else value

    def edit(head: dict[str, Any]) -> None:
        content = head["content"]
        part = content["calls"]["map"][""]["list"][0] if field == "heads" else content
        part[field] = given

    refused(rewritten(seen.save(tmp_path / "a.clearhead"), edit), "file.content")
