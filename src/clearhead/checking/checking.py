"""`check`: what is wrong with somebody's attention, by name."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clearhead.checking.contract import FIELDS, Contract
from clearhead.checking.from_context import examine_cross
from clearhead.checking.from_decode import examine_decoder
from clearhead.checking.from_padding import examine_padded
from clearhead.checking.from_qkv import examine_qkv
from clearhead.checking.from_tokens import examine_tokens
from clearhead.checking.notes import Notes
from clearhead.checking.report import Report
from clearhead.checking.subject import Subject, left_alone, undisturbed
from clearhead.errors import ArgumentError, ArgumentTypeError, ModelError

EXAMINATIONS = {
    "qkv": examine_qkv,
    "qkv,mask": examine_qkv,
    "x": examine_tokens,
    "x2d": examine_tokens,
    "x,mask": examine_padded,
    "x,context": examine_cross,
    "decode": examine_decoder,
}


def check(
    subject: Any,
    *,
    takes: str,
    contract: Contract | None = None,
    args: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    **declared: Any,
) -> Report:
    """Say what is wrong with an attention, by name, or that nothing is.

    Args:
        subject: a class, an instance, a function, a dotted path or "file.py:Name". It is left as it
            was: state, mode, gradients, random numbers.
        takes: how it is called. "qkv": f(query, key, value), each (batch, heads, len, dim);
            "qkv,mask": with a mask (batch, 1, query_len, kv_len), True = may attend; "x": (batch,
            tokens, d_in); "x2d": (tokens, d_in); "x,mask": with (batch, tokens), True = a real
            token; "x,context"; "decode": an object with reset(), step(x), full(x).
        contract: what it promises; or its fields as keywords, such as causal=True.
        args: for the constructor of a class.
        sizes: d_in, num_heads, context_length and the like, where they cannot be found.
        seed: of the inputs, and of a class's own weights.

    Raises:
        ArgumentError, ArgumentTypeError: a declaration that makes no sense.
        ModelError: what is checked could not be found, made or called.

    Example:
        >>> def inverted(query, key, value):
        ...     scores = query @ key.mT / query.shape[-1] ** 0.5
        ...     past = torch.tril(torch.ones(scores.shape[-2:])).bool()
        ...     return scores.masked_fill(past, -torch.inf).softmax(-1) @ value
        >>> ch.check(inverted, takes="qkv", causal=True).findings[0].code
        'mask.inverted'
    """
    promised = _contract(contract, sizes, declared)
    notes = Notes()
    try:
        with undisturbed():
            found = Subject(subject, takes, args, promised, seed)
            with left_alone(found.original, found.copied):
                examine = EXAMINATIONS[takes]
                sizes_used = examine(found, promised, notes, seed)
    except SystemExit as error:  # nobody may take that for a report without findings
        raise ModelError(
            "check.exit", f"what is checked ended the program, by sys.exit({error.code!r})."
        ) from error
    return notes.report(found.name, sizes_used)


def _contract(
    contract: Contract | None, sizes: Mapping[str, int] | None, declared: dict[str, Any]
) -> Contract:
    unknown = sorted(set(declared) - set(FIELDS))
    if unknown:
        raise ArgumentTypeError(
            "check.declared",
            f"check knows {', '.join(FIELDS)}; got {', '.join(unknown)}.",
        )
    if contract is not None and declared:
        raise ArgumentError(
            "check.contract",
            "declare in the contract or as keywords, not both; got a contract and "
            f"{', '.join(sorted(declared))}.",
        )
    promised = contract if contract is not None else Contract(**declared)
    if sizes is not None:
        promised = replace(promised, sizes={**promised.sizes, **sizes})
    return promised
