"""The container of bytes."""

import json
import struct
import zlib
from typing import Any

import pytest
import torch
from torch import Tensor

from clearhead.drawing.page.payload import DTYPES, MAGIC, Payload, deflated
from tests.refusals import assert_refused

LETTERS = {"uint8": "B", "uint16": "H", "uint32": "I", "int32": "i", "float32": "f"}


def read(content: bytes) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Decode a payload as the front end does."""
    assert content.startswith(MAGIC)
    (size,) = struct.unpack_from("<I", content, len(MAGIC))
    head = json.loads(zlib.decompress(content[18 : 18 + size]))
    end = 18 + -(-size // 3) * 3
    arrays = {}
    for name, place in head["arrays"].items():
        start = end + place["start"]
        assert start % 3 == 0
        numbers = zlib.decompress(content[start : start + place["bytes"]])
        letter = LETTERS[place["dtype"]]
        count = len(numbers) // struct.calcsize(letter)
        arrays[name] = list(struct.unpack(f"<{count}{letter}", numbers))
    return head, arrays


def tensor(dtype: torch.dtype) -> Tensor:
    return torch.arange(35).reshape(5, 7).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_written_is_read(dtype: torch.dtype) -> None:
    # Columns of a larger tensor do not lie one behind the other.
    given = {"whole": tensor(dtype), "part": tensor(dtype)[:, 2:5], "none": tensor(dtype)[:0]}
    head, arrays = read(Payload("heads", "ein Title ␣", {"a": [1, None]}, given).to_bytes())
    assert {key: head[key] for key in ("version", "kind", "title", "data")} == {
        "version": 1,
        "kind": "heads",
        "title": "ein Title ␣",
        "data": {"a": [1, None]},
    }
    for name, each in given.items():
        assert arrays[name] == each.int().flatten().tolist()
        assert head["arrays"][name]["shape"] == list(each.shape)
        assert head["arrays"][name]["dtype"] == DTYPES[dtype]


def test_what_is_deflated_already_is_taken_as_it_is() -> None:
    given = torch.arange(7, dtype=torch.int32)
    once = Payload("heads", "", {}, {"a": deflated(given)}).to_bytes()
    assert once == Payload("heads", "", {}, {"a": given}).to_bytes()


def test_half_a_surrogate_pair_is_a_token_like_others() -> None:
    head, _ = read(Payload("heads", "", {"tokens": ["\ud83d", "\x00", "</script>"]}, {}).to_bytes())
    assert head["data"]["tokens"] == ["\ud83d", "\x00", "</script>"]


def test_other_dtypes_are_refused() -> None:
    assert_refused(
        Payload("heads", "", {}, {"a": torch.zeros(2, dtype=torch.float64)}).to_bytes,
        "page.dtype",
        "'a' // uint8, uint16, uint32, int32, float32 // torch.float64",
    )


def test_what_json_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        Payload("heads", "", {"a": float("nan")}, {}).to_bytes()


@pytest.mark.parametrize(
    "codes",
    [
        torch.randn(60_000, generator=torch.Generator().manual_seed(0)).mul(9).abs(),
        torch.randint(50, (300,), generator=torch.Generator().manual_seed(0)).repeat(200),
        torch.zeros(60_000),
    ],
    ids=["noise", "a pattern", "one run"],
)
def test_bytes_are_deflated_as_well_as_by_a_search(codes: torch.Tensor) -> None:
    codes = codes.to(torch.uint8)
    content = bytes(codes.tolist())
    packed = deflated(codes).content
    assert zlib.decompress(packed) == content
    assert len(packed) <= len(zlib.compress(content, 6))
