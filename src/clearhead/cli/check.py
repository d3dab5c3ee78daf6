"""`clearhead check`."""

import json
import sys
from ast import literal_eval
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from clearhead._common.text import readable
from clearhead.cli.progress import busy, progress_bars
from clearhead.errors import ClearheadError


def check(
    place: Annotated[
        str, typer.Argument(help="Where it is: file.py:Name, or package.module:Name.")
    ],
    takes: Annotated[
        str,
        typer.Option(
            help='How it is called: qkv, "qkv,mask", x, x2d, "x,mask", "x,context", decode, ids, "ids,mask".'
        ),
    ] = "x",
    args: Annotated[
        str, typer.Option(help="For the constructor of a class: d_in=3,d_out=2.", metavar="K=V,…")
    ] = "",
    sizes: Annotated[
        str, typer.Option(help="Sizes that it does not say: d_in=3,num_heads=4.", metavar="K=V,…")
    ] = "",
    causal: Annotated[
        bool | None, typer.Option("--causal/--no-causal", help="No token sees a later one.")
    ] = None,
    window: Annotated[
        str | None, typer.Option(help="Tokens seen on each side: 128,0.", metavar="LEFT,RIGHT")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="How many heads.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="How many heads of keys and values.")] = None,
    scale: Annotated[float | None, typer.Option(help="Of the scores; else 1/√head_dim.")] = None,
    softcap: Annotated[float | None, typer.Option(help="The scores are bent below this.")] = None,
    dropout: Annotated[float | None, typer.Option(help="The probability in training.")] = None,
    rope: Annotated[
        str | None,
        typer.Option(help="Rotary positions: half or interleaved.", metavar="LAYOUT[,BASE]"),
    ] = None,
    alibi: Annotated[
        bool, typer.Option("--alibi", help="ALiBi with slopes 2^(-8·head/heads); wants --heads.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="All that was measured, asked and not judged.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with 1, not 2, if something is not judged.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    sarif: Annotated[
        Path | None, typer.Option(help="Write SARIF for a code host as well.", metavar="FILE")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page into this file as well.", metavar="FILE")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything that is random.", min=0)] = 0,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Measure time and memory over length as well."),
    ] = False,
    lengths: Annotated[
        str, typer.Option(help="For --profile, in tokens.", metavar="N,N,…")
    ] = "128,256,512,1024,2048",
) -> None:
    """Check your attention: a mistake is reported by its name.

    The file is run, as python would run it. The exit code is 0 if all that is declared was verified,
    1 if a mistake is found, 2 if something could not be judged, 3 if it could not be imported, made
    or called. "clearhead explain NAME" shows what a mistake is, with wrong and with right code. With
    --profile the report also says what your attention costs over length, beside the fused call.
    """
    import clearhead as ch
    from clearhead._common.writing import check_writable, replacing

    declared = {
        "causal": causal,
        "window": _parse("--window", "LEFT,RIGHT", _pair, window),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "scale": scale,
        "softcap": softcap,
        "dropout": dropout,
        "rope": _parse("--rope", "half or interleaved, and a base", _rotary, rope),
        "alibi_slopes": _slopes(heads) if alibi else None,
    }
    asked: dict[str, Any] = {
        "takes": takes,
        "args": _keywords(args, "--args") or None,
        "sizes": _keywords(sizes, "--sizes"),
        "seed": seed,
        **{name: value for name, value in declared.items() if value is not None},
    }
    measured = _parse("--lengths", "numbers of tokens, N,N,…", _numbers, lengths)
    for path in (html, sarif):
        if path is not None:
            check_writable(path)
    # What the file itself prints is no part of the JSON.
    printed = redirect_stdout(sys.stderr) if as_json else nullcontext()
    try:
        with busy("checking"), printed:
            report = ch.check(place, **asked)
    except ClearheadError as error:  # 1 is for a mistake in what is checked
        print(f"clearhead: {readable(str(error))}", file=sys.stderr)
        raise typer.Exit(3) from error
    found = None
    if profile:
        with progress_bars() as progress, printed:
            found = ch.profile(place, **asked, lengths=measured, progress=progress)
    if as_json:
        whole = json.loads(report.to_json())
        if found is not None:
            whole["profile"] = found.as_dict()
        print(json.dumps(whole, ensure_ascii=False, indent=2))
    else:
        from clearhead.drawing.terminal.checked import print_report

        print_report(Console(), report, everything=everything)
        if found is not None:
            print(f"\n{found}")
    if html is not None:
        from clearhead.checking.pages import page

        sections = [each._repr_html_() for each in (report, found) if each is not None]
        with replacing(html) as (name, _):
            Path(name).write_text(page(f"check: {report.name}", *sections), encoding="utf-8")
    if sarif is not None:
        with replacing(sarif) as (name, _):
            Path(name).write_text(report.to_sarif(), encoding="utf-8")
    if not report.ok:
        raise typer.Exit(1 if report.findings or strict else 2)


def _parse(option: str, expected: str, read: Callable[[str], Any], text: str | None) -> Any:
    """The value of an option, or a refusal that says how it is written."""
    try:
        return None if text is None else read(text)
    except ValueError as error:
        words = f"expected {expected}; got {text!r}."
        raise typer.BadParameter(words, param_hint=option) from error


def _rotary(text: str) -> dict[str, Any]:
    layout, _, base = text.partition(",")
    return {"layout": layout, "base": float(base or 10000.0)}


def _slopes(heads: int | None) -> Any:
    import torch

    if heads is None:
        raise typer.BadParameter("expected --heads beside it.", param_hint="--alibi")
    return 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _pair(text: str) -> tuple[int | None, int | None]:
    left, right = (None if side.strip() in ("", "None") else int(side) for side in text.split(","))
    return left, right


def _keywords(text: str, option: str) -> dict[str, Any]:
    """Keyword arguments, k=v,…, each value a number, a string, True, False or None."""
    return dict(
        _parse(option, "name=value", _keyword, part) for part in filter(None, text.split(","))
    )


def _keyword(text: str) -> tuple[str, Any]:
    name, equals, value = (each.strip() for each in text.partition("="))
    if not equals or not all(each.isidentifier() for each in name.split(".")):
        raise ValueError(text)
    try:
        return name, literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
