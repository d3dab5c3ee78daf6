"""The kernels of Triton, compiled for devices that need not be there: they are code, and fit."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from clearhead.matrix.triton_launches import QUERIES, is_interpreted, tile_of

pytestmark = [
    pytest.mark.skipif(
        is_interpreted() or not find_spec("triton"), reason="make test-triton installs Triton"
    ),
    # Of what a later version will do by default.
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]

SHARED = 99 * 1024
"""What a block of threads may share, in bytes, on the smallest device since compute capability 8.0: that of 8.6."""

PLAIN = {
    "masked": True,
    "pieces": 1,
    "precision": "ieee",
    "upcast": False,
    "capped": False,
    "has_dense": False,
    "has_alibi": False,
    "has_table": False,
}
EVERYTHING = {
    **PLAIN,
    "pieces": 3,
    "capped": True,
    "has_dense": True,
    "has_alibi": True,
    "has_table": True,
}
ROWS = {
    "slots": 1,
    "top": 0,
    "has_sinks": False,
    "has_numbers": True,
    "has_context": True,
    "is_member": False,
}
IN_ROWS = {**ROWS, "slots": 4, "top": 3, "has_sinks": True}

BYTES = {"bf16": 2, "fp32": 4}
WHOLE = ("start", "stop", "wanted", "top_keys", "tiles_from", "tiles_to")
POINTERS = (
    *("dense", "slopes", "table", "sinks", "numbers", "top_scores"),
    *("largest", "maximum", "received"),
)


def compiled(name: str, capability: int, dtype: str, lanes: int, options: dict[str, Any]) -> Any:
    """The kernel as it is launched for rows of one width."""
    triton = import_module("triton")
    compiler = import_module("triton.compiler")
    kernel = getattr(import_module(f"clearhead.matrix.triton_kernels.{name}"), name)
    how = tile_of(lanes * BYTES[dtype])
    constants = {
        "block_queries": QUERIES,
        "block_keys": how.pop("block_keys"),
        "lanes": lanes,
        "value_lanes": lanes,
        **options,
    }

    def kind(parameter: Any) -> str:
        if parameter.is_constexpr:
            return "constexpr"
        if parameter.name in ("query", "keys", "value", "context"):
            return f"*{dtype}"
        if parameter.name.startswith("bad_"):
            return "*u8"
        if parameter.name in WHOLE:
            return "*i32"
        if parameter.name in POINTERS:
            return "*fp32"
        return "fp32" if parameter.name in ("scale", "softcap") else "i32"

    signature = {each.name: kind(each) for each in kernel.params}
    constants = {each: constants[each] for each in constants if each in signature}
    source = compiler.ASTSource(kernel, signature=signature, constexprs=constants)
    target = import_module("triton.backends.compiler").GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options=how)


@pytest.mark.parametrize(
    ("name", "capability", "dtype", "lanes", "options"),
    [
        ("rows", 90, "bf16", 128, {**PLAIN, **ROWS}),
        ("rows", 80, "bf16", 16, {**EVERYTHING, **IN_ROWS}),
        ("columns", 80, "fp32", 256, EVERYTHING),
    ],
    ids=str,
)
def test_it_compiles_and_fits(
    name: str, capability: int, dtype: str, lanes: int, options: dict[str, Any]
) -> None:
    assert compiled(name, capability, dtype, lanes, options).metadata.shared <= SHARED
