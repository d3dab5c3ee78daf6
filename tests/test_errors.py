"""The tree of errors, and the text of every error that masks, biases and the problem raise."""

import ast
import copy
import operator
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
import torch

import clearhead as ch
from clearhead import errors
from clearhead.attention.problem import make_problem
from tests.attention.test_biases import First
from tests.surface import MODULES

TREE = {
    ch.ArgumentError: (ValueError,),
    ch.ArgumentTypeError: (TypeError,),
    ch.ShapeError: (ValueError,),
    ch.DtypeError: (TypeError,),
    ch.DeviceError: (ValueError,),
    ch.MaskError: (ValueError,),
    ch.SelectionError: (IndexError, KeyError),
    ch.TooLargeError: (MemoryError,),
    ch.UnsupportedError: (NotImplementedError,),
    ch.WatchError: (RuntimeError,),
    ch.EditError: (RuntimeError,),
    ch.RankError: (RuntimeError,),
    ch.ModelError: (ValueError,),
    ch.FileError: (ValueError,),
    ch.MissingExtraError: (ImportError,),
    ch.NoAttributeError: (AttributeError,),
}


def test_the_tree_is_whole() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    defined = [value for value in classes if not issubclass(value, Warning)]
    assert set(defined) == {ch.ClearheadError, *TREE}
    for error in TREE:
        assert error.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize("error", TREE, ids=lambda each: each.__name__)
def test_each_error_is_also_a_builtin(error: type[ch.ClearheadError]) -> None:
    assert error.__bases__ == (ch.ClearheadError, *TREE[error])
    raised = error("some.code", "something is wrong.")
    assert raised.code == "some.code"
    assert raised.message == "something is wrong."
    assert str(raised) == "[some.code] something is wrong."


@pytest.mark.parametrize("again", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
def test_an_error_survives_a_copy(
    again: Callable[[ch.ClearheadError], ch.ClearheadError],
) -> None:
    """As it has to, on its way from one process to another."""
    found = again(ch.MaskError("some.code", "something is wrong."))
    assert isinstance(found, ch.MaskError)
    assert (found.code, str(found)) == ("some.code", "[some.code] something is wrong.")


def test_a_missing_extra_says_how_to_get_it() -> None:
    error = errors.missing_extra("matplotlib", "plot", "a picture")
    assert isinstance(error, ImportError)
    assert str(error) == (
        "[extra.missing] a picture needs matplotlib, which is not installed.\n"
        "  pip install 'clearhead[plot]'"
    )


class Case(NamedTuple):
    """A call, and the error that it raises: its class, its code and its whole message."""

    call: Callable[[], object]
    error: type[ch.ClearheadError]
    code: str
    message: str


BOOL = torch.ones(3, 5, dtype=torch.bool)
META = torch.ones(3, 5, dtype=torch.bool, device="meta")
SPARSE = torch.ones(3, 5).to_sparse()
CAUSAL = ch.causal()


def call(function: Callable[..., object], *args: Any, **kwargs: Any) -> Callable[[], object]:
    return lambda: function(*args, **kwargs)


MASKS = [
    Case(
        call(ch.documents),
        ch.ArgumentError,
        "documents.which",
        "documents takes ids, lengths or offsets; got none of them.",
    ),
    Case(
        call(ch.documents, [0, 0], lengths=[2]),
        ch.ArgumentError,
        "documents.which",
        "documents takes ids, lengths or offsets; got ids and lengths.",
    ),
    Case(
        call(ch.documents, [0, 0], queries=[2]),
        ch.ArgumentError,
        "documents.ids",
        "queries goes with lengths or offsets of the documents; got ids.",
    ),
    Case(
        call(ch.documents, lengths=[2, 3], mask=torch.ones(2, 2).bool()),
        ch.ArgumentTypeError,
        "mask.type",
        "a mask combines with a mask only; got Tensor. Wrap it: clearhead.dense(tensor).",
    ),
    *(
        Case(
            call(ch.documents, lengths=[2, 3], mask=within),
            ch.MaskError,
            "mask.documents-mask",
            "the mask of each document must fit any length and sample, such as causal() and "
            f"sliding_window(…) without offset, or prefix(3); got {got}.",
        )
        for within, got in [
            (ch.causal(offset=0), "causal(offset=0)"),
            (ch.causal() & ch.prefix([1, 2]), "prefix([1, 2])"),
            (~ch.padding(2), "padding(2)"),
            (ch.documents([0, 1]), "documents([0, 1])"),
        ]
    ),
    Case(
        call(ch.documents, lengths=META[0].long()),
        ch.DeviceError,
        "lengths.meta",
        "lengths must hold numbers; got a tensor on the meta device.",
    ),
    Case(
        call(ch.documents, offsets=[0, 3], queries=SPARSE),
        ch.ArgumentTypeError,
        "queries.layout",
        "queries must be a dense tensor; got one of layout torch.sparse_coo. .to_dense() makes one of it.",
    ),
    Case(
        call(ch.documents, lengths=[2, 3], queries=[2]),
        ch.MaskError,
        "mask.documents-pair",
        "queries must be of as many documents as the keys, 0 tokens or more each; got lengths [2] of "
        "the queries, [2, 3] of the keys.",
    ),
    Case(
        call(ch.documents, offsets=[0, 3], queries=[1, 3]),
        ch.MaskError,
        "mask.offsets",
        "queries must be whole numbers of shape (documents + 1,), from 0 on and never falling; got "
        "[1, 3].",
    ),
    Case(
        call(ch.documents, lengths=[3], queries=[-1]),
        ch.MaskError,
        "mask.lengths",
        "queries must be whole numbers of shape (documents,), 0 or more each; got [-1].",
    ),
    Case(
        call(ch.documents(lengths=[2, 3], queries=[1, 2]).to_dense, 3, 4),
        ch.MaskError,
        "mask.kv-len",
        "the mask documents(lengths=[2, 3], queries=[1, 2]) is for 3 queries and 5 keys; there are "
        "query_len=3, kv_len=4.",
    ),
    Case(
        call(ch.documents(lengths=[2, 3], mask=ch.causal()).to_dense, 8, 8),
        ch.MaskError,
        "mask.kv-len",
        "the mask documents(lengths=[2, 3], mask=causal()) is for 5 queries and 5 keys; there are "
        "query_len=8, kv_len=8. Let what comes behind them, such as padding, be a "
        "document of its own, of length 3.",
    ),
    Case(
        lambda: ch.documents(lengths=[2, 3], queries=[1, 2]) & (ch.full() | ~ch.causal()),
        ch.MaskError,
        "mask.documents-beside",
        "causal() counts through the whole row, where queries and keys of one document stand apart. "
        "To count in each document: documents(…, queries=…, mask=causal()).",
    ),
    Case(
        call(ch.padding([2, 3]).check, 5, 1, 3, 5, torch.device("cpu")),
        ch.MaskError,
        "mask.batch",
        "the mask padding([2, 3]) describes a batch of 2; the query has a batch of 5.",
    ),
    Case(
        call(ch.padding([2, 3]).check, 1, 5, 3, 5, torch.device("cpu")),
        ch.MaskError,
        "mask.batch",
        "the mask padding([2, 3]) describes a batch of 2; the query has a batch of 1. "
        "Tensors of three dimensions are (num_heads, len, dim).",
    ),
    Case(
        call(ch.dense(BOOL.expand(1, 7, 3, 5)).check, 1, 2, 3, 5, torch.device("cpu")),
        ch.MaskError,
        "mask.heads",
        "the mask dense(<1 × 7 × 3 × 5>) describes 7 heads; the query has num_heads=2.",
    ),
    Case(
        call(CAUSAL.to_dense, 2.0, 3),
        ch.ArgumentTypeError,
        "length.type",
        "query_len must be a whole number of tokens; got float.",
    ),
    Case(
        call(CAUSAL.to_dense, 2, None),
        ch.ArgumentTypeError,
        "length.type",
        "kv_len must be a whole number of tokens; got NoneType.",
    ),
    Case(
        call(CAUSAL.blocks, True, 3, 2),
        ch.ArgumentTypeError,
        "length.type",
        "query_len must be a whole number of tokens; got bool.",
    ),
    Case(
        call(CAUSAL.to_dense, 2, -1),
        ch.ArgumentError,
        "length.negative",
        "kv_len must be 0 or more tokens; got -1.",
    ),
    Case(
        call(CAUSAL.draw, -2, 3),
        ch.ArgumentError,
        "length.negative",
        "query_len must be 0 or more tokens; got -2.",
    ),
    Case(
        call(CAUSAL.draw, 3, 201),
        ch.ArgumentError,
        "mask.drawing-size",
        "draw() writes one character a pair, up to 200 tokens a side; got query_len=3, "
        "kv_len=201. blocks() tells the shape of a long mask.",
    ),
    *(
        Case(
            call(CAUSAL.blocks, 3, 3, block),
            ch.ArgumentError,
            "mask.block-size",
            f"block must be a number of tokens, 1 or more, or a pair of them; got {block!r}.",
        )
        for block in (0, -1, 2.0, True, None, "3", (2, 0), (2,), (1, 2, 3), (2, None))
    ),
    Case(
        lambda: CAUSAL and CAUSAL,
        ch.ArgumentTypeError,
        "mask.truth",
        "a mask is neither true nor false; combine masks with &, | and ~, not with `and`, `or` "
        "and `not`.",
    ),
    Case(
        lambda: ch.padding([1]) & ch.causal(offset=[1, 2]),
        ch.MaskError,
        "mask.batch",
        "masks of different batch cannot be combined: padding([1]) is for 1, "
        "causal(offset=[1, 2]) for 2.",
    ),
    Case(
        lambda: ch.dense(BOOL.expand(1, 2, 3, 5)) | ch.dense(BOOL.expand(1, 7, 3, 5)),
        ch.MaskError,
        "mask.heads",
        "masks of different heads cannot be combined: dense(<1 × 2 × 3 × 5>) is for 2, "
        "dense(<1 × 7 × 3 × 5>) for 7.",
    ),
    Case(
        lambda: ch.dense(BOOL) & ~ch.dense(META),
        ch.DeviceError,
        "mask.device",
        "masks on different devices cannot be combined: dense(<1 × 1 × 3 × 5>) is on cpu, "
        "~dense(<1 × 1 × 3 × 5>) on meta.",
    ),
    Case(
        call(operator.and_, CAUSAL, True),
        ch.ArgumentTypeError,
        "mask.type",
        "a mask combines with a mask only; got bool.",
    ),
    Case(
        call(operator.or_, None, CAUSAL),
        ch.ArgumentTypeError,
        "mask.type",
        "a mask combines with a mask only; got NoneType.",
    ),
    Case(
        call(operator.and_, BOOL, CAUSAL),
        ch.ArgumentTypeError,
        "mask.type",
        "a mask combines with a mask only; got Tensor. Wrap it: clearhead.dense(tensor).",
    ),
    Case(
        call(ch.causal, offset=1.0),
        ch.ArgumentTypeError,
        "mask.not-whole",
        "offset must be a whole number (tokens), or one per row of the batch; got float.",
    ),
    Case(
        call(ch.causal, offset=[1, 2.5]),
        ch.ArgumentTypeError,
        "mask.not-whole",
        "offset must hold whole numbers (tokens); got [1, 2.5].",
    ),
    Case(
        call(ch.padding, torch.ones(2)),
        ch.ArgumentTypeError,
        "mask.not-whole",
        "lengths must hold whole numbers (tokens); got a tensor of torch.float32.",
    ),
    Case(
        call(ch.prefix, torch.ones(2, 3).long()),
        ch.MaskError,
        "mask.per-row",
        "length must be one number or one per row of the batch, of shape (batch,); got shape "
        "(2, 3).",
    ),
    Case(
        call(ch.prefix, torch.ones(2).long().to_sparse()),
        ch.ArgumentTypeError,
        "length.layout",
        "length must be a dense tensor; got one of layout torch.sparse_coo. .to_dense() makes one "
        "of it.",
    ),
    Case(
        call(ch.causal(offset=torch.tensor([1])).check, 1, 1, 3, 5, torch.device("meta")),
        ch.DeviceError,
        "mask.device",
        "the mask must be on the query's device; its offset is on cpu, the query on meta.",
    ),
    Case(
        call(ch.sliding_window, left=-1),
        ch.ArgumentError,
        "window.negative",
        "left must be 0 or more tokens, or None for no limit; got -1.",
    ),
    Case(
        call(ch.sliding_window, left=1, right=1.5),
        ch.ArgumentTypeError,
        "window.type",
        "right must be a whole number of tokens or None; got float.",
    ),
    Case(
        call(ch.prefix, -1),
        ch.MaskError,
        "mask.negative-length",
        "length must be 0 or more tokens; got -1.",
    ),
    Case(
        call(ch.padding, [3, -1]),
        ch.MaskError,
        "mask.negative-length",
        "lengths must be 0 or more tokens; got [3, -1].",
    ),
    Case(
        call(ch.padding([3, 6]).to_dense, 3, 5),
        ch.MaskError,
        "mask.length-over",
        "the mask padding([3, 6]) says that a row has 6 real tokens; there are kv_len=5 keys.",
    ),
    Case(
        call(ch.padding(BOOL).to_dense, 3, 4),
        ch.MaskError,
        "mask.kv-len",
        "the mask padding(<valid 3 × 5>) is for 5 keys; there are kv_len=4.",
    ),
    Case(
        call(ch.padding(META).check, 3, 1, 3, 5, torch.device("cpu")),
        ch.DeviceError,
        "mask.device",
        "the mask must be on the query's device; its valid is on meta, the query on cpu.",
    ),
    Case(
        call(ch.padding, BOOL.long()),
        ch.MaskError,
        "mask.dtype",
        "padding takes lengths of shape (batch,), or a bool tensor of shape (batch, kv_len) that "
        "is True at real tokens; got torch.int64 of shape (3, 5). A tokenizer's attention_mask "
        "becomes one with .bool().",
    ),
    Case(
        call(ch.padding, [1], side="top"),
        ch.ArgumentError,
        "mask.side",
        'side must be "right" or "left"; got \'top\'.',
    ),
    Case(
        call(ch.padding, BOOL, side="left"),
        ch.ArgumentError,
        "mask.side",
        "side='left' goes with lengths; a bool tensor already says where the padding is.",
    ),
    Case(
        call(ch.padding, BOOL[None]),
        ch.MaskError,
        "mask.valid-shape",
        "padding takes a bool tensor of shape (batch, kv_len) or (kv_len,); got shape (1, 3, 5). "
        "A mask of queries × keys is clearhead.dense(tensor).",
    ),
    Case(
        call(ch.documents([1, 1, 2]).to_dense, 3, 4),
        ch.MaskError,
        "mask.kv-len",
        "the mask documents([1, 1, 2]) is for 3 keys, the last of which are also the queries; "
        "there are query_len=3, kv_len=4. Let what comes behind them, such as padding, be "
        "a document of its own, of length 1.",
    ),
    Case(
        call(ch.documents([1, 1, 2]).to_dense, 4, 3),
        ch.MaskError,
        "mask.kv-len",
        "the mask documents([1, 1, 2]) is for 3 keys, the last of which are also the queries; "
        "there are query_len=4, kv_len=3.",
    ),
    Case(
        call(ch.documents(META.long()).check, 3, 1, 3, 5, torch.device("cpu")),
        ch.DeviceError,
        "mask.device",
        "the mask must be on the query's device; its ids are on meta, the query on cpu.",
    ),
    *(
        Case(
            call(ch.documents, offsets=offsets),
            ch.MaskError,
            "mask.offsets",
            "offsets must be whole numbers of shape (documents + 1,), from 0 on and never falling; "
            f"got {got}.",
        )
        for offsets, got in [
            ([], "[]"),
            ([1, 3], "[1, 3]"),
            ([0, 3, 2], "[0, 3, 2]"),
            ([0, 1.5], "[0, 1.5]"),
            (torch.zeros(1, 2).long(), "[[0, 0]]"),
            (7, "7"),
        ]
    ),
    *(
        Case(
            call(ch.documents, lengths=lengths),
            ch.MaskError,
            "mask.lengths",
            f"lengths must be whole numbers of shape (documents,), 0 or more each; got {got}.",
        )
        for lengths, got in [
            ([3, -1], "[3, -1]"),
            ([3, 1.5], "[3, 1.5]"),
            (torch.ones(2), "[1.0, 1.0]"),
            (torch.ones(1, 2).long(), "[[1, 1]]"),
            (torch.tensor(3), "3"),
            (7, "7"),
        ]
    ),
    *(
        Case(
            call(ch.documents, ids),
            ch.MaskError,
            "mask.ids",
            f"ids must be whole numbers of shape (tokens,) or (batch, tokens); got {got}.",
        )
        for ids, got in [
            (torch.ones(3), "torch.float32 of shape (3,)"),
            (BOOL, "torch.bool of shape (3, 5)"),
            (torch.ones(1, 3, 5).long(), "torch.int64 of shape (1, 3, 5)"),
            ([1.5, 2], "torch.float32 of shape (2,)"),
            (7, "torch.int64 of shape ()"),
            ([[1, 2], [3]], "[[1, 2], [3]]"),
            ("ab", "'ab'"),
            ([2**70], f"[{2**70}]"),
        ]
    ),
    Case(
        call(ch.dense, CAUSAL),
        ch.ArgumentTypeError,
        "mask.type",
        "mask must be a Mask or a bool tensor; got Causal.",
    ),
    Case(
        call(ch.dense, ch.causal),
        ch.ArgumentTypeError,
        "mask.type",
        "mask must be a Mask or a bool tensor; got the function causal. Call it: causal(…).",
    ),
    Case(
        call(ch.dense, BOOL.numpy()),
        ch.ArgumentTypeError,
        "mask.type",
        "mask must be a Mask or a bool tensor; got ndarray. torch.as_tensor(…) makes a tensor of "
        "it.",
    ),
    Case(
        call(ch.dense, BOOL.to_sparse()),
        ch.ArgumentTypeError,
        "mask.layout",
        "mask must be a dense tensor; got one of layout torch.sparse_coo. .to_dense() makes one "
        "of it.",
    ),
    Case(
        call(ch.dense, BOOL.float()),
        ch.MaskError,
        "mask.dtype",
        "mask must be bool, True = may attend; got torch.float32 of shape (3, 5). A tensor of 0 "
        "and 1 becomes a mask with .bool() (True = may attend); numbers to add to the scores go "
        "to bias=.",
    ),
    Case(
        call(ch.dense, BOOL.int()),
        ch.MaskError,
        "mask.dtype",
        "mask must be bool, True = may attend; got torch.int32 of shape (3, 5). A tensor of 0 and "
        "1 becomes a mask with .bool() (True = may attend).",
    ),
    Case(
        call(ch.dense, BOOL[None]),
        ch.MaskError,
        "mask.ambiguous",
        "mask of shape (1, 3, 5) could be one mask for each sample or one for each head; say "
        "which: mask[:, None] for (batch, 1, query_len, kv_len), mask[None] for (1, num_heads, "
        "query_len, kv_len).",
    ),
    Case(
        call(ch.dense, BOOL[0]),
        ch.MaskError,
        "mask.dimensions",
        "mask must have shape (query_len, kv_len) or (batch, num_heads, query_len, kv_len); got "
        "(5,). Which keys are real is clearhead.padding(valid).",
    ),
    Case(
        call(ch.dense(BOOL).to_dense, 4, 5),
        ch.MaskError,
        "mask.shape",
        "the mask has 3 × 5 (queries × keys); expected query_len=4 × kv_len=5.",
    ),
    Case(
        call(ch.dense(META).check, 1, 1, 3, 5, torch.device("cpu")),
        ch.DeviceError,
        "mask.device",
        "the mask must be on the query's device; it is on meta, the query on cpu.",
    ),
]

Q, K, V = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 5, 8), torch.zeros(2, 2, 5, 7)


def posed(*inputs: Any, **options: Any) -> Callable[[], object]:
    query, key, value = inputs or (Q, K, V)
    return lambda: make_problem(query, key, value, **options)


BIASES = [
    Case(
        call(ch.alibi),
        ch.ArgumentError,
        "alibi.heads",
        "alibi takes num_heads, 1 to 65536, or slopes of shape (num_heads,); got num_heads=None, "
        "slopes=None.",
    ),
    Case(
        call(ch.alibi, 2, slopes=torch.ones(2)),
        ch.ArgumentError,
        "alibi.heads",
        "alibi takes num_heads, 1 to 65536, or slopes of shape (num_heads,); got num_heads=2, "
        "slopes=a tensor.",
    ),
    Case(
        call(ch.alibi, 0),
        ch.ArgumentError,
        "alibi.heads",
        "alibi takes num_heads, 1 to 65536, or slopes of shape (num_heads,); got num_heads=0, "
        "slopes=None.",
    ),
    Case(
        call(ch.alibi, 8.0),
        ch.ArgumentTypeError,
        "alibi.type",
        "num_heads must be a whole number; got float.",
    ),
    Case(
        call(ch.alibi, slopes=[0.5, 0.25]),
        ch.ArgumentTypeError,
        "slopes.type",
        "slopes must be a tensor of shape (num_heads,); got list.",
    ),
    Case(
        call(ch.alibi, slopes=torch.ones(2, 3)),
        ch.ArgumentError,
        "alibi.heads",
        "slopes must be floating, of shape (num_heads,), 1 or more; got torch.float32 of shape "
        "(2, 3).",
    ),
    Case(
        call(ch.alibi(2).to_dense, -1, 2),
        ch.ArgumentError,
        "length.negative",
        "query_len must be 0 or more tokens; got -1.",
    ),
    Case(
        posed(bias=ch.alibi(3)),
        ch.ShapeError,
        "bias.heads",
        "the bias alibi(3) is for 3 heads; the query has num_heads=4.",
    ),
    Case(
        posed(bias=ch.alibi(slopes=torch.ones(4, device="meta"))),
        ch.DeviceError,
        "bias.device",
        "bias must be on the query's device; the slopes of alibi are on meta, the query on cpu.",
    ),
    Case(
        call(ch.relative, [0.5, 0.25, 0.5]),
        ch.ArgumentTypeError,
        "relative.type",
        "values must be a torch.Tensor; got list.",
    ),
    Case(
        call(ch.relative, torch.ones(2, 4)),
        ch.ShapeError,
        "relative.shape",
        "values must have shape (num_heads or 1, 2 · reach + 1), a number for each distance from "
        "−reach to reach; got (2, 4).",
    ),
    Case(
        call(ch.relative, torch.ones(2, 3).int()),
        ch.DtypeError,
        "relative.dtype",
        "values must be floating; got torch.int32.",
    ),
    Case(
        posed(bias=ch.relative(torch.ones(3, 5))),
        ch.ShapeError,
        "bias.heads",
        "the bias relative(3 × 5) is for 3 heads; the query has num_heads=4.",
    ),
    Case(
        posed(bias=ch.relative(torch.ones(4, 5).double())),
        ch.DtypeError,
        "bias.dtype",
        "bias must have the query's dtype, torch.float32, or float32; got torch.float64.",
    ),
    Case(
        posed(bias=ch.relative(torch.ones(4, 5, device="meta"))),
        ch.DeviceError,
        "bias.device",
        "bias must be on the query's device; it is on meta, the query on cpu.",
    ),
    Case(
        posed(bias=CAUSAL),
        ch.ArgumentTypeError,
        "bias.type",
        "bias must be a floating tensor or a Bias; got the mask causal(). A mask goes to mask=.",
    ),
    Case(
        posed(bias=True),
        ch.ArgumentTypeError,
        "bias.type",
        "bias must be a floating tensor or a Bias; got bool.",
    ),
    Case(
        posed(bias=SPARSE),
        ch.ArgumentTypeError,
        "bias.layout",
        "bias must be a dense tensor; got one of layout torch.sparse_coo. .to_dense() makes one "
        "of it.",
    ),
    Case(
        posed(bias=BOOL),
        ch.DtypeError,
        "bias.dtype",
        "bias is added to the scores and must be floating; got torch.bool. A bool tensor is a "
        "mask: mask=.",
    ),
    Case(
        posed(bias=BOOL.int()),
        ch.DtypeError,
        "bias.dtype",
        "bias is added to the scores and must be floating; got torch.int32.",
    ),
    Case(
        posed(bias=torch.zeros(3, 5).double()),
        ch.DtypeError,
        "bias.dtype",
        "bias must have the query's dtype, torch.float32, or float32; got torch.float64.",
    ),
    Case(
        posed(bias=torch.zeros(4, 3, 5)),
        ch.ShapeError,
        "bias.dimensions",
        "bias must have shape (query_len, kv_len) or (batch, num_heads, query_len, kv_len), where "
        "each size may be 1; got (4, 3, 5). Three could mean samples or heads: bias[:, None] or "
        "bias[None].",
    ),
    Case(
        posed(bias=torch.zeros(5)),
        ch.ShapeError,
        "bias.dimensions",
        "bias must have shape (query_len, kv_len) or (batch, num_heads, query_len, kv_len), where "
        "each size may be 1; got (5,).",
    ),
    Case(
        posed(bias=torch.zeros(3, 4)),
        ch.ShapeError,
        "bias.shape",
        "bias must broadcast to (batch, num_heads, query_len, kv_len) = (2, 4, 3, 5); got "
        "(1, 1, 3, 4).",
    ),
    Case(
        posed(bias=torch.zeros(3, 5, device="meta")),
        ch.DeviceError,
        "bias.device",
        "bias must be on the query's device; it is on meta, the query on cpu.",
    ),
    Case(
        # A bias of one's own, which has this method of the base.
        lambda: ch.Bias.of_heads(First(), torch.tensor([1])),
        ch.UnsupportedError,
        "bias.heads-apart",
        "the bias first cannot be given to some of the heads; alibi, relative and a tensor can.",
    ),
]


def shapes(query: str, key: str, value: str) -> str:
    return f"\n  query  {query}\n  key    {key}\n  value  {value}"


QUERY = "[batch=2, num_heads=4, query_len=3, head_dim=8] float32 cpu"
KEY = "[batch=2, num_kv_heads=2, kv_len=5, head_dim=8] float32 cpu"
VALUE = "[batch=2, num_kv_heads=2, kv_len=5, value_head_dim=7] float32 cpu"

PROBLEMS = [
    Case(
        posed([[1.0]], K, V),
        ch.ArgumentTypeError,
        "query.type",
        "query must be a torch.Tensor; got list.",
    ),
    Case(
        posed(Q, None, V),
        ch.ArgumentTypeError,
        "key.type",
        "key must be a torch.Tensor; got NoneType.",
    ),
    Case(
        posed(Q, K, V.numpy()),
        ch.ArgumentTypeError,
        "value.type",
        "value must be a torch.Tensor; got ndarray. torch.as_tensor(…) makes a tensor of it.",
    ),
    Case(
        posed(Q.to_sparse(), K, V),
        ch.ArgumentTypeError,
        "query.layout",
        "query must be a dense tensor; got one of layout torch.sparse_coo. .to_dense() makes one "
        "of it.",
    ),
    Case(
        lambda: make_problem(
            Q, torch.nested.nested_tensor([K[0, :, :3], K[1]], layout=torch.jagged), V
        ),
        ch.ArgumentTypeError,
        "key.layout",
        "key must be a dense tensor; got a nested one. Pad it, and say which tokens are real: "
        "mask=clearhead.padding(lengths).",
    ),
    Case(
        posed(Q, K[0], V[0, 0]),
        ch.ShapeError,
        "shape.dimensions",
        "query, key and value must have the same number of dimensions, 2 to 4: (batch, num_heads, "
        "len, dim), (num_heads, len, dim) or (len, dim); got 4, 3 and 2."
        + shapes(
            QUERY,
            "[num_kv_heads=2, kv_len=5, head_dim=8] float32 cpu",
            "[kv_len=5, value_head_dim=7] float32 cpu",
        ),
    ),
    Case(
        posed(Q[None], K[None], V[None]),
        ch.ShapeError,
        "shape.dimensions",
        "query, key and value must have the same number of dimensions, 2 to 4: (batch, num_heads, "
        "len, dim), (num_heads, len, dim) or (len, dim); got 5, 5 and 5."
        + shapes(
            "[1, 2, 4, 3, 8] float32 cpu",
            "[1, 2, 2, 5, 8] float32 cpu",
            "[1, 2, 2, 5, 7] float32 cpu",
        ),
    ),
    Case(
        posed(Q, K.double(), V.half()),
        ch.DtypeError,
        "dtype.mixed",
        "query, key and value must have one dtype; got float32, float64 and float16."
        + shapes(QUERY, KEY.replace("float32", "float64"), VALUE.replace("float32", "float16")),
    ),
    *(
        Case(
            posed(Q.to(dtype), K.to(dtype), V.to(dtype)),
            ch.DtypeError,
            "dtype.unsupported",
            f"query, key and value must be float16, bfloat16, float32 or float64; got {name}."
            + shapes(*(text.replace("float32", name) for text in (QUERY, KEY, VALUE))),
        )
        for dtype, name in [
            (torch.int64, "int64"),
            (torch.uint8, "uint8"),
            (torch.bool, "bool"),
            (torch.complex64, "complex64"),
        ]
    ),
    Case(
        posed(Q, K, V.to("meta")),
        ch.DeviceError,
        "device.mixed",
        "query, key and value must be on one device; got cpu, cpu and meta."
        + shapes(QUERY, KEY, VALUE.replace("cpu", "meta")),
    ),
    Case(
        posed(Q, K[:1], V),
        ch.ShapeError,
        "shape.batch",
        "query, key and value must have the same batch; got 2, 1 and 2."
        + shapes(QUERY, KEY.replace("batch=2", "batch=1"), VALUE),
    ),
    Case(
        posed(Q[..., :6], K, V),
        ch.ShapeError,
        "shape.head-dim",
        "query and key must have the same head_dim, 1 or more; got 6 and 8."
        + shapes(QUERY.replace("dim=8", "dim=6"), KEY, VALUE),
    ),
    Case(
        posed(Q[..., :0], K[..., :0], V),
        ch.ShapeError,
        "shape.head-dim",
        "query and key must have the same head_dim, 1 or more; got 0 and 0."
        + shapes(QUERY.replace("dim=8", "dim=0"), KEY.replace("dim=8", "dim=0"), VALUE),
    ),
    Case(
        posed(Q, K[:, :, :3], V),
        ch.ShapeError,
        "shape.kv-len",
        "key and value must have the same kv_len; got 3 and 5."
        + shapes(QUERY, KEY.replace("kv_len=5", "kv_len=3"), VALUE),
    ),
    Case(
        posed(Q, K, V[:, :1]),
        ch.ShapeError,
        "shape.value-heads",
        "key and value must have the same num_kv_heads; got 2 and 1."
        + shapes(QUERY, KEY, VALUE.replace("heads=2", "heads=1")),
    ),
    Case(
        posed(Q[:, :3], K, V),
        ch.ShapeError,
        "shape.kv-heads",
        "num_heads must be a multiple of num_kv_heads, both 1 or more; got 3 and 2."
        + shapes(QUERY.replace("heads=4", "heads=3"), KEY, VALUE),
    ),
    Case(
        posed(Q.transpose(1, 2), K.transpose(1, 2), V.transpose(1, 2)),
        ch.ShapeError,
        "shape.kv-heads",
        "num_heads must be a multiple of num_kv_heads, both 1 or more; got 3 and 5."
        + shapes(
            "[batch=2, num_heads=3, query_len=4, head_dim=8] float32 cpu",
            "[batch=2, num_kv_heads=5, kv_len=2, head_dim=8] float32 cpu",
            "[batch=2, num_kv_heads=5, kv_len=2, value_head_dim=7] float32 cpu",
        ),
    ),
    Case(
        posed(Q[:, :3, :2], K.transpose(1, 2), V.transpose(1, 2)),
        ch.ShapeError,
        "shape.kv-heads",
        "num_heads must be a multiple of num_kv_heads, both 1 or more; got 3 and 5."
        + shapes(
            "[batch=2, num_heads=3, query_len=2, head_dim=8] float32 cpu",
            "[batch=2, num_kv_heads=5, kv_len=2, head_dim=8] float32 cpu",
            "[batch=2, num_kv_heads=5, kv_len=2, value_head_dim=7] float32 cpu",
        )
        + "\nIf the tensors are (batch, len, num_heads, head_dim), turn them: "
        "tensor.transpose(1, 2).",
    ),
    Case(
        posed(scale=True),
        ch.ArgumentTypeError,
        "scale.type",
        "scale must be a finite number, or None for 1/√head_dim; got bool.",
    ),
    Case(
        posed(scale=float("nan")),
        ch.ArgumentError,
        "scale.value",
        "scale must be a finite number, or None for 1/√head_dim; got nan.",
    ),
    Case(
        posed(scale=10**400),
        ch.ArgumentError,
        "scale.value",
        "scale must be a finite number, or None for 1/√head_dim; got inf.",
    ),
    Case(
        posed(softcap="30"),
        ch.ArgumentTypeError,
        "softcap.type",
        "softcap must be a finite number above 0, or None for no cap; got str.",
    ),
    Case(
        posed(softcap=0),
        ch.ArgumentError,
        "softcap.value",
        "softcap must be a finite number above 0, or None for no cap; got 0.0.",
    ),
    Case(
        posed(dropout=torch.tensor(0.1)),
        ch.ArgumentTypeError,
        "dropout.type",
        "dropout must be a probability in [0, 1), or None for no dropout; got Tensor.",
    ),
    Case(
        posed(dropout=-0.1),
        ch.ArgumentError,
        "dropout.value",
        "dropout must be a probability in [0, 1), or None for no dropout; got -0.1.",
    ),
    Case(
        posed(sinks=[0.0] * 4),
        ch.ArgumentTypeError,
        "sinks.type",
        "sinks must be a tensor of shape (num_heads,); got list.",
    ),
    Case(
        posed(sinks=torch.zeros(2)),
        ch.ShapeError,
        "sinks.shape",
        "sinks must have shape (num_heads,) = (4,); got (2,).",
    ),
    Case(
        posed(sinks=torch.zeros(4).double()),
        ch.DtypeError,
        "sinks.dtype",
        "sinks must have the query's dtype, torch.float32, or float32; got torch.float64.",
    ),
    Case(
        posed(sinks=torch.zeros(4, device="meta")),
        ch.DeviceError,
        "sinks.device",
        "sinks must be on the query's device; they are on meta, the query on cpu.",
    ),
]

CHECKS = [
    Case(
        lambda: ch.MultiHeadAttention(8.0, num_heads=2),  # pyright: ignore[reportArgumentType]
        ch.ArgumentTypeError,
        "argument.type",
        "embed_dim must be a whole number; got float.",
    ),
    Case(
        lambda: ch.MultiHeadAttention(0, num_heads=2),
        ch.ArgumentError,
        "argument.size",
        "embed_dim must be 1 or more; got 0.",
    ),
    Case(
        lambda: ch.MultiHeadAttention(8, num_heads=2, bias=1),  # pyright: ignore[reportArgumentType]
        ch.ArgumentTypeError,
        "bias.type",
        "bias must be True or False; got 1.",
    ),
    Case(
        lambda: ch.MultiHeadAttention(8, num_heads=2, dropout=True),
        ch.ArgumentTypeError,
        "dropout.type",
        "dropout must be a probability in [0, 1), or None for no dropout; got bool.",
    ),
    Case(
        lambda: ch.MultiHeadAttention(8, num_heads=2, dropout=1.0),
        ch.ArgumentError,
        "dropout.value",
        "dropout must be a probability in [0, 1), or None for no dropout; got 1.0.",
    ),
    Case(
        lambda: ch.roles(ch.AttentionMatrix(*torch.ones(2, 1, 3, 2)), tokens=torch.ones(3)),
        ch.ArgumentTypeError,
        "tokens.type",
        "tokens must be ids, which are whole numbers; got torch.float32.",
    ),
    Case(
        lambda: ch.watch(torch.nn.Linear(2, 2), heads=[True]),
        ch.ArgumentTypeError,
        "heads.type",
        "heads must hold whole numbers; got [True].",
    ),
    Case(
        lambda: ch.watch(torch.nn.Linear(2, 2), heads=[0, 0]),
        ch.ArgumentError,
        "heads.value",
        "heads must be different numbers, at least one; got [0, 0].",
    ),
]

CASES = [*MASKS, *BIASES, *PROBLEMS, *CHECKS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code}: {case.message[:60]}")
def test_the_text_of_every_error(case: Case) -> None:
    with pytest.raises(ch.ClearheadError) as caught:
        case.call()
    assert type(caught.value) is case.error
    assert caught.value.code == case.code
    assert caught.value.message == case.message
    # Nobody has to read how the check was written.
    assert caught.value.__cause__ is None or case.code == "mask.ids"


def test_a_code_stands_for_one_class() -> None:
    classes: dict[str, set[type]] = {}
    for case in CASES:
        classes.setdefault(case.code, set()).add(case.error)
    assert {code: kinds for code, kinds in classes.items() if len(kinds) > 1} == {}


CHECKED = {
    str(path)
    for name, path in MODULES.items()
    if name.startswith("clearhead.masks.")
    or name
    in (
        "clearhead.attention.biases",
        "clearhead.attention.distance_biases",
        "clearhead.attention.problem",
        "clearhead._common.checks",
    )
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


def test_every_error_has_a_case() -> None:
    reached: set[tuple[str, int]] = set()

    def line(frame: FrameType, event: str, arg: object) -> Any:
        reached.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    def function(frame: FrameType, event: str, arg: object) -> Any:
        return line if frame.f_code.co_filename in CHECKED else None

    before = sys.gettrace()
    sys.settrace(function)
    try:
        for case in CASES:
            with pytest.raises(case.error):
                case.call()
    finally:
        sys.settrace(before)
    places = places_of_errors()
    assert len(places) > 40
    missed = sorted(f"{Path(file).name}:{number}" for file, number in places - reached)
    assert not missed, f"no case reaches {missed}"
