"""The tree of errors, and the text of every error that masks, biases and the problem raise."""

import ast
import copy
import errno
import operator
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import errors
from clearhead.attention.problem import make_problem
from tests.attention.test_biases import First
from tests.refusals import assert_refused, wrong
from tests.surface import MODULES

TREE = {
    ch.errors.ArgumentError: (ValueError,),
    ch.errors.ArgumentTypeError: (TypeError,),
    ch.errors.ShapeError: (ValueError,),
    ch.errors.DtypeError: (TypeError,),
    ch.errors.DeviceError: (ValueError,),
    ch.errors.MaskError: (ValueError,),
    ch.errors.SelectionError: (IndexError, KeyError),
    ch.errors.TooLargeError: (MemoryError,),
    ch.errors.UnsupportedError: (NotImplementedError,),
    ch.errors.WatchError: (RuntimeError,),
    ch.errors.EditError: (RuntimeError,),
    ch.errors.RankError: (RuntimeError,),
    ch.errors.ModelError: (ValueError,),
    ch.errors.FileError: (OSError, ValueError),
    ch.errors.MissingExtraError: (ImportError,),
    ch.errors.NoAttributeError: (AttributeError,),
}


def test_the_tree_is_whole() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    defined = [value for value in classes if not issubclass(value, Warning)]
    assert set(defined) == {ch.errors.ClearheadError, errors.MissingFileError, *TREE}
    for error in TREE:
        assert error.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize("error", TREE, ids=lambda each: each.__name__)
def test_each_error_is_also_a_builtin(error: type[ch.errors.ClearheadError]) -> None:
    assert error.__bases__ == (ch.errors.ClearheadError, *TREE[error])
    raised = error("some.code", "something is wrong.")
    assert raised.code == "some.code"
    assert raised.message == "something is wrong."
    assert str(raised) == "[some.code] something is wrong."


def test_a_file_that_is_not_there_is_the_error_that_open_raises(tmp_path: Path) -> None:
    calls = (ch.load, lambda path: ch.causal().figure(2).to_html(path))
    for call, place in zip(
        calls, (tmp_path / "none", tmp_path / "none" / "page.html"), strict=True
    ):
        with pytest.raises(FileNotFoundError) as raised:
            call(place)
        assert isinstance(raised.value, ch.errors.FileError)
        assert raised.value.errno == errno.ENOENT
    (tmp_path / "empty").touch()
    with pytest.raises(OSError, match="could not be read") as other:
        ch.load(tmp_path / "empty")
    assert not isinstance(other.value, FileNotFoundError)
    assert other.value.errno is None


@pytest.mark.parametrize("again", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
def test_an_error_survives_a_copy(
    again: Callable[[ch.errors.ClearheadError], ch.errors.ClearheadError],
) -> None:
    """As it has to, on its way from one process to another."""
    found = again(ch.errors.MaskError("some.code", "something is wrong."))
    assert isinstance(found, ch.errors.MaskError)
    assert (found.code, str(found)) == ("some.code", "[some.code] something is wrong.")


def test_a_missing_extra_says_how_to_get_it() -> None:
    error = errors.missing_extra("matplotlib", "plot", "a picture")
    assert isinstance(error, ImportError)
    assert str(error) == (
        "[extra.missing] a picture needs matplotlib, which is not installed. In a checkout of clearhead:\n"
        "  pip install '.[plot]'"
    )


LAYER = ch.MultiHeadAttention(4, num_heads=2)
BOOL = torch.ones(3, 5, dtype=torch.bool)
META = torch.ones(3, 5, dtype=torch.bool, device="meta")
SPARSE = torch.ones(3, 5).to_sparse()
CAUSAL = ch.causal()


def at(batch: int, num_heads: int, query_len: int, kv_len: int, device: str) -> ch.masks.Extent:
    return ch.masks.Extent(batch, num_heads, query_len, kv_len, torch.device(device))


def call(function: Callable[..., object], *args: Any, **kwargs: Any) -> Callable[[], object]:
    return lambda: function(*args, **kwargs)


MASKS = [
    (call(ch.documents), "documents.which", "none of them"),
    (call(ch.documents, [0, 0], lengths=[2]), "documents.which", "ids and lengths"),
    (call(ch.documents, [0, 0], queries=[2]), "documents.ids", "queries"),
    (
        call(ch.documents, lengths=[2, 3], mask=torch.ones(2, 2).bool()),
        "mask.type",
        "Tensor // Wrap it: clearhead.dense(tensor).",
    ),
    *(
        (call(ch.documents, lengths=[2, 3], mask=within), "mask.documents-mask", f"… // {got}")
        for within, got in [
            (ch.causal(offset=0), "causal(offset=0)"),
            (ch.documents([0, 1]), "documents([0, 1])"),
        ]
    ),
    (call(ch.documents, lengths=META[0].long()), "lengths.meta", "lengths // on the meta device"),
    (
        call(ch.documents, offsets=[0, 3], queries=SPARSE),
        "queries.layout",
        "queries // torch.sparse_coo",
    ),
    (call(ch.documents, lengths=[2, 3], queries=[2]), "mask.documents-pair", "[2] // [2, 3]"),
    (call(ch.documents, offsets=[0, 3], queries=[1, 3]), "mask.offsets", "queries // [1, 3]"),
    (call(ch.documents, lengths=[3], queries=[-1]), "mask.lengths", "queries // [-1]"),
    (
        call(ch.documents(lengths=[2, 3], queries=[1, 2]).to_dense, 3, 4),
        "mask.kv-len",
        "documents(lengths=[2, 3], queries=[1, 2]) // 3 // 5 // 3 // 4 // ",
    ),
    (
        call(ch.documents(lengths=[2, 3], mask=ch.causal()).to_dense, 8, 8),
        "mask.kv-len",
        (
            "documents(lengths=[2, 3], mask=causal()) // 5 // 5 // 8 // 8 // Let what comes behind "
            "them, such as padding, be a document of its own, of length 3."
        ),
    ),
    (
        lambda: ch.documents(lengths=[2, 3], queries=[1, 2]) & (ch.full() | ~ch.causal()),
        "mask.documents-beside",
        "causal() // … // … // causal()",
    ),
    (
        call(ch.padding([2, 3]).check, at(5, 1, 3, 5, "cpu")),
        "mask.batch",
        "padding([2, 3]) // 2 // 5 // ",
    ),
    (
        call(ch.padding([2, 3]).check, at(1, 5, 3, 5, "cpu")),
        "mask.batch",
        "padding([2, 3]) // 2 // 1 // Tensors of three dimensions are (num_heads, len, dim).",
    ),
    (
        call(ch.dense(BOOL.expand(1, 7, 3, 5)).check, at(1, 2, 3, 5, "cpu")),
        "mask.heads",
        "dense(<1 × 7 × 3 × 5>) // 7 // 2",
    ),
    (call(CAUSAL.to_dense, 2.0, 3), "length.type", "query_len // float"),
    (call(CAUSAL.blocks, True, 3, 2), "length.type", "query_len // bool"),
    (call(CAUSAL.to_dense, 2, -1), "length.negative", "kv_len // -1"),
    (call(CAUSAL.draw, 3, 201), "mask.drawing-size", "200 // 3 // 201"),
    *(
        (call(CAUSAL.blocks, 3, 3, block), "mask.block-size", f"{block!r}")
        for block in (0, -1, 2.0, True, None, "3", (2, 0), (2,), (1, 2, 3), (2, None))
    ),
    (lambda: CAUSAL and CAUSAL, "mask.truth"),
    (
        lambda: ch.padding([1]) & ch.causal(offset=[1, 2]),
        "mask.batch",
        "batch // padding([1]) // 1 // causal(offset=[1, 2]) // 2",
    ),
    (
        lambda: ch.dense(BOOL.expand(1, 2, 3, 5)) | ch.dense(BOOL.expand(1, 7, 3, 5)),
        "mask.heads",
        "heads // dense(<1 × 2 × 3 × 5>) // 2 // dense(<1 × 7 × 3 × 5>) // 7",
    ),
    (
        lambda: ch.dense(BOOL) & ~ch.dense(META),
        "mask.device",
        "dense(<1 × 1 × 3 × 5>) // cpu // ~dense(<1 × 1 × 3 × 5>) // meta",
    ),
    (call(operator.and_, CAUSAL, True), "mask.type", "bool // "),
    (call(operator.and_, BOOL, CAUSAL), "mask.type", "Tensor // Wrap it: clearhead.dense(tensor)."),
    (call(ch.causal, offset=1.0), "mask.not-whole", "offset // float"),
    (call(ch.causal, offset=[1, 2.5]), "mask.not-whole", "offset // [1, 2.5]"),
    (call(ch.padding, torch.ones(2)), "mask.not-whole", "lengths // torch.float32"),
    (call(ch.prefix, torch.ones(2, 3).long()), "mask.per-row", "length // (2, 3)"),
    (
        call(ch.prefix, torch.ones(2).long().to_sparse()),
        "length.layout",
        "length // torch.sparse_coo",
    ),
    (
        call(ch.causal(offset=torch.tensor([1])).check, at(1, 1, 3, 5, "meta")),
        "mask.device",
        "offset // cpu // meta",
    ),
    (call(ch.sliding_window, left=-1), "window.negative", "left // -1"),
    (call(ch.sliding_window, left=1, right=1.5), "window.type", "right // float"),
    (call(ch.prefix, -1), "mask.negative-length", "-1"),
    (call(ch.padding, [3, -1]), "mask.negative-length", "[3, -1]"),
    (call(ch.padding([3, 6]).to_dense, 3, 5), "mask.length-over", "padding([3, 6]) // 6 // 5"),
    (call(ch.padding(BOOL).to_dense, 3, 4), "mask.kv-len", "padding(<valid 3 × 5>) // 5 // 4"),
    (call(ch.padding(META).check, at(3, 1, 3, 5, "cpu")), "mask.device", "meta // cpu"),
    (call(ch.padding, BOOL.long()), "mask.dtype", "torch.int64 // (3, 5)"),
    (call(ch.padding, [1], side="top"), "mask.side", "'top'"),
    (call(ch.padding, BOOL, side="left"), "mask.side", "'left'"),
    (call(ch.padding, BOOL[None]), "mask.valid-shape", "(1, 3, 5)"),
    (
        call(ch.documents([1, 1, 2]).to_dense, 3, 4),
        "mask.kv-len",
        (
            "documents([1, 1, 2]) // 3 // 3 // 4 // Let what comes behind them, such as padding, be "
            "a document of its own, of length 1."
        ),
    ),
    (
        call(ch.documents(META.long()).check, at(3, 1, 3, 5, "cpu")),
        "mask.device",
        "meta // cpu",
    ),
    *(
        (call(ch.documents, offsets=offsets), "mask.offsets", f"offsets // {got}")
        for offsets, got in [
            ([], "[]"),
            ([1, 3], "[1, 3]"),
            (torch.zeros(1, 2).long(), "[[0, 0]]"),
            (7, "7"),
        ]
    ),
    *(
        (call(ch.documents, lengths=lengths), "mask.lengths", f"lengths // {got}")
        for lengths, got in [
            ([3, -1], "[3, -1]"),
            (torch.ones(2), "[1.0, 1.0]"),
            (torch.ones(1, 2).long(), "[[1, 1]]"),
            (7, "7"),
        ]
    ),
    *(
        (call(ch.documents, ids), "mask.ids", str(got))
        for ids, got in [
            (torch.ones(3), "torch.float32 of shape (3,)"),
            (torch.ones(1, 3, 5).long(), "torch.int64 of shape (1, 3, 5)"),
            ([1.5, 2], "torch.float32 of shape (2,)"),
            ([[1, 2], [3]], "[[1, 2], [3]]"),
            ("ab", "'ab'"),
            ([2**70], f"[{2**70}]"),
        ]
    ),
    (
        call(ch.dense, CAUSAL),
        "mask.type",
        "mask // a Mask, such as clearhead.causal(), or a bool tensor // Causal",
    ),
    (
        call(ch.dense, BOOL.numpy()),
        "mask.type",
        "mask // a Mask, such as clearhead.causal(), or a bool tensor // ndarray. torch.as_tensor(…)"
        " makes a tensor of it",
    ),
    (call(ch.dense, ch.causal), "mask.type", "causal // causal // …"),
    (call(ch.dense, BOOL.to_sparse()), "mask.layout", "mask // torch.sparse_coo"),
    (
        call(ch.dense, BOOL.float()),
        "mask.dtype",
        "torch.float32 // (3, 5) // ; numbers to add to the scores go to bias=",
    ),
    (call(ch.dense, BOOL[None]), "mask.ambiguous", "(1, 3, 5)"),
    (call(ch.dense, BOOL[0]), "mask.dimensions", "(5,)"),
    (call(ch.dense(BOOL).to_dense, 4, 5), "mask.shape", "3 // 5 // 4 // 5 // "),
    (call(ch.dense(META).check, at(1, 1, 3, 5, "cpu")), "mask.device", "meta // cpu"),
]

Q, K, V = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 5, 8), torch.zeros(2, 2, 5, 7)
NESTED = torch.nested.nested_tensor([K[0, :, :3], K[1]], layout=torch.jagged)


def posed(*inputs: Any, **options: Any) -> Callable[[], object]:
    query, key, value = inputs or (Q, K, V)
    return lambda: make_problem(query, key, value, **options)


OF_HEADS = "a tensor of shape (num_heads,) // list // "
BIASES = [
    (call(ch.alibi), "alibi.heads", "65536 // None // None"),
    (call(ch.alibi, 0), "alibi.heads", "65536 // 0 // None"),
    (call(ch.alibi, 8.0), "alibi.type", "float"),
    (call(ch.alibi, slopes=[0.5, 0.25]), "slopes.type", f"slopes // {OF_HEADS}"),
    (call(ch.alibi, slopes=torch.ones(2, 3)), "alibi.heads", "torch.float32 // (2, 3)"),
    (call(ch.alibi(2).to_dense, -1, 2), "length.negative", "query_len // -1"),
    (posed(bias=ch.alibi(3)), "bias.heads", "alibi(3) // 3 // 4"),
    (posed(bias=ch.alibi(slopes=torch.ones(4, device="meta"))), "bias.device", "meta // cpu"),
    (call(ch.relative, [0.5, 0.25, 0.5]), "relative.type", "list"),
    (call(ch.relative, torch.ones(2, 4)), "relative.shape", "(2, 4)"),
    (call(ch.relative, torch.ones(2, 3).int()), "relative.dtype", "torch.int32"),
    (posed(bias=ch.relative(torch.ones(3, 5))), "bias.heads", "relative(3 × 5) // 3 // 4"),
    (
        posed(bias=ch.relative(torch.ones(4, 5).double())),
        "bias.dtype",
        "torch.float32 // torch.float64",
    ),
    (posed(bias=ch.relative(torch.ones(4, 5, device="meta"))), "bias.device", "meta // cpu"),
    (posed(bias=CAUSAL), "bias.type", "causal()"),
    (posed(bias=True), "bias.type", "bias // a floating tensor or a Bias // bool"),
    (posed(bias=SPARSE), "bias.layout", "bias // torch.sparse_coo"),
    (posed(bias=BOOL), "bias.dtype", "torch // bool. A bool tensor is a mask: mask=."),
    (posed(bias=BOOL.int()), "bias.dtype", "torch // int32."),
    (posed(bias=torch.zeros(3, 5).double()), "bias.dtype", "torch.float32 // torch.float64"),
    (
        posed(bias=torch.zeros(4, 3, 5)),
        "bias.dimensions",
        "(4, 3, 5) // Three could mean samples or heads: bias[:, None] or bias[None].",
    ),
    (posed(bias=torch.zeros(5)), "bias.dimensions", "(5,) // "),
    (posed(bias=torch.zeros(3, 4)), "bias.shape", "(2, 4, 3, 5) // (1, 1, 3, 4)"),
    (posed(bias=torch.zeros(3, 5, device="meta")), "bias.device", "meta // cpu"),
    (lambda: ch.Bias.of_heads(First(), torch.tensor([1])), "bias.heads-apart", "first"),
]


DIMS = [
    ["batch", "num_heads", "query_len", "head_dim"],
    ["batch", "num_kv_heads", "kv_len", "head_dim"],
    ["batch", "num_kv_heads", "kv_len", "value_head_dim"],
]


def shaped(code: str, words: str, *tensors: Tensor, advice: str = "") -> tuple[Any, ...]:
    """A case whose message lists what the three tensors are."""
    lines = []
    for name, dims, tensor in zip(("query", "key", "value"), DIMS, tensors, strict=True):
        names = [f"{dim}=" for dim in dims[4 - tensor.ndim :]] if tensor.ndim < 5 else [""] * 5
        sizes = ", ".join(f"{dim}{size}" for dim, size in zip(names, tensor.shape, strict=True))
        dtype = str(tensor.dtype).removeprefix("torch.")
        lines.append(f"\n  {name:<5}  [{sizes}] {dtype} {tensor.device}")
    return posed(*tensors), code, words + "".join(lines) + advice


PROBLEMS = [
    (posed([[1.0]], K, V), "query.type", "query // a torch.Tensor // list"),
    (posed(Q, None, V), "key.type", "key // a torch.Tensor // NoneType"),
    (
        posed(Q, K, V.numpy()),
        "value.type",
        "value // a torch.Tensor // ndarray. torch.as_tensor(…) makes a tensor of it",
    ),
    (posed(Q.to_sparse(), K, V), "query.layout", "query // torch.sparse_coo"),
    (posed(Q, NESTED, V), "key.layout", "key"),
    shaped("shape.dimensions", "4 // 3 // 2 // ", Q, K[0], V[0, 0]),
    shaped("shape.dimensions", "5 // 5 // 5 // ", Q[None], K[None], V[None]),
    shaped(
        "dtype.mixed",
        " // query, key and value must have one dtype; got float32, float64 and float16.",
        *(Q, K.double(), V.half()),
    ),
    shaped("dtype.unsupported", "int64 // ", Q.long(), K.long(), V.long()),
    shaped("dtype.unsupported", "bool // ", Q.bool(), K.bool(), V.bool()),
    shaped("dtype.unsupported", "complex64 // ", *(each.to(torch.complex64) for each in (Q, K, V))),
    shaped("device.mixed", "cpu // cpu // meta // ", Q, K, V.to("meta")),
    shaped("shape.batch", "2 // 1 // 2 // ", Q, K[:1], V),
    shaped("shape.head-dim", "6 // 8 // ", Q[..., :6], K, V),
    shaped("shape.head-dim", "0 // 0 // ", Q[..., :0], K[..., :0], V),
    shaped("shape.kv-len", "3 // 5 // ", Q, K[:, :, :3], V),
    shaped("shape.value-heads", "2 // 1 // ", Q, K, V[:, :1]),
    shaped("shape.kv-heads", "3 // 2 // ", Q[:, :3], K, V),
    shaped("shape.kv-heads", "3 // 5 // ", Q.transpose(1, 2), K.transpose(1, 2), V.transpose(1, 2)),
    shaped(
        "shape.kv-heads",
        "3 // 5 // ",
        *(Q[:, :3, :2], K.transpose(1, 2), V.transpose(1, 2)),
        advice="If the tensors are (batch, len, num_heads, head_dim), turn them: tensor.transpose(1, 2).",
    ),
    (posed(scale=True), "scale.type", "scale // a finite number, or None for 1/√head_dim // bool"),
    (
        posed(scale=float("nan")),
        "scale.value",
        "scale // a finite number, or None for 1/√head_dim // nan",
    ),
    (
        posed(softcap="30"),
        "softcap.type",
        "softcap // a finite number above 0, or None for no cap // str",
    ),
    (
        posed(softcap=0),
        "softcap.value",
        "softcap // a finite number above 0, or None for no cap // 0.0",
    ),
    (
        posed(dropout=-0.1),
        "dropout.value",
        "dropout // a probability in [0, 1), or None for no dropout // -0.1",
    ),
    (posed(sinks=[0.0] * 4), "sinks.type", f"sinks // {OF_HEADS}"),
    (posed(sinks=torch.zeros(2)), "sinks.shape", "4 // (2,)"),
    (posed(sinks=torch.zeros(4).double()), "sinks.dtype", "torch.float32 // torch.float64"),
    (posed(sinks=torch.zeros(4, device="meta")), "sinks.device", "meta // cpu"),
]

CHECKS = [
    (call(ch.MultiHeadAttention, 8.0, num_heads=2), "argument.type", "embed_dim // float"),
    (call(ch.MultiHeadAttention, 8, num_heads=2, bias=1), "bias.type", "bias // 1"),
    (
        lambda: ch.MultiHeadAttention(8, num_heads=2, dropout=1.0),
        "dropout.value",
        "dropout // a probability in [0, 1), or None for no dropout // 1.0",
    ),
    (
        lambda: ch.effects(LAYER, torch.ones(1, 3, 4), torch.sum, by=wrong("row")),
        "by.value",
        'by // "head", "head,position", "call", "layer" // \'row\'',
    ),
    (
        lambda: ch.roles(ch.AttentionMatrix(*torch.ones(2, 1, 3, 2)), tokens=torch.ones(3)),
        "tokens.type",
        "torch.float32",
    ),
    (lambda: ch.watch(torch.nn.Linear(2, 2), heads=[True]), "heads.type", "[True]"),
    (lambda: ch.watch(torch.nn.Linear(2, 2), heads=[0, 0]), "heads.value", " // [0, 0]"),
    (lambda: ch.MultiHeadAttention(0, num_heads=2), "argument.size", "embed_dim // 0"),
    (lambda: ch.effects(LAYER, "a text", torch.sum), "inputs.type", "str"),
]

CASES = [*MASKS, *BIASES, *PROBLEMS, *CHECKS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]}: {case[-1][:60]}")
def test_what_every_error_says(case: tuple[Any, ...]) -> None:
    call, code, *values = case
    error = assert_refused(call, code, *values)
    # Nobody has to read how the check was written.
    assert error.__cause__ is None or code == "mask.ids"


CHECKED = {
    str(path)
    for name, path in MODULES.items()
    if name.startswith("clearhead.masks.")
    or name.endswith((".biases", ".distance_biases", ".attention.problem", "._common.checks"))
}


def places_of_errors() -> set[tuple[str, int]]:
    """File and line of every expression that makes an error."""
    names = {error.__name__ for error in TREE}
    return {
        (file, node.lineno)
        for file in CHECKED
        for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    }


def test_every_error_has_a_case_and_a_code_stands_for_one_class() -> None:
    reached: set[tuple[str, int]] = set()
    kinds: dict[str, set[type]] = {}

    def line(frame: FrameType, event: str, arg: object) -> Any:
        reached.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    def function(frame: FrameType, event: str, arg: object) -> Any:
        return line if frame.f_code.co_filename in CHECKED else None

    before = sys.gettrace()
    sys.settrace(function)
    try:
        for call, *_ in CASES:
            with pytest.raises(ch.errors.ClearheadError) as caught:
                call()
            kinds.setdefault(caught.value.code, set()).add(type(caught.value))
    finally:
        sys.settrace(before)
    places = places_of_errors()
    assert len(places) > 40
    missed = sorted(f"{Path(file).name}:{number}" for file, number in places - reached)
    assert not missed, f"no case reaches {missed}"
    assert {code for code, classes in kinds.items() if len(classes) > 1} == set()
