"""`clearhead check`."""

import json
import os
import re
import sys
import time
from ast import literal_eval
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from clearhead._common.lessons import LESSONS
from clearhead._common.writing import check_writable, replacing
from clearhead._text import shown
from clearhead.cli import check_process
from clearhead.cli.scan import Scan
from clearhead.errors import ClearheadError


def check(
    places: Annotated[
        list[str],
        typer.Argument(
            help="Where it is: file.py:Name, or package.module:Name; or files, folders and packages, to "
            "try all that attends in them.",
            metavar="PLACE",
        ),
    ],
    takes: Annotated[
        str | None,
        typer.Option(
            help='How it is called: x, qkv, "qkv,mask", x2d, "x,mask", "x,context", decode, ids, '
            '"ids,mask"; a part: "query,key", scores, "weights,value". By default what its '
            "parameters suggest, or x."
        ),
    ] = None,
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
        bool, typer.Option("--alibi", help="ALiBi with the published slopes; wants --heads.")
    ] = False,
    world: Annotated[
        int | None, typer.Option(help="On how many ranks, each with its own tokens.", min=1)
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(help="Beside --world: contiguous, zigzag or balanced."),
    ] = None,
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
    lesson: Annotated[
        int | None,
        typer.Option(
            help="Grade what is written in this lesson of the course, 1 to 16: lesson_07.py."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything that is random.", min=0)] = 0,
    timeout: Annotated[
        float | None,
        typer.Option(help="Seconds after which it is ended: 60; with --world 600.", min=0.001),
    ] = None,
    memory: Annotated[
        float | None, typer.Option(help="GB that it may hold; by default no limit.", min=0.001)
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Check again whenever the file is saved, until Ctrl-C.")
    ] = False,
    trains: Annotated[
        bool,
        typer.Option(
            "--trains",
            help="PLACE is a function that returns model, loss, optimizer and batch: ask the laws of "
            "training.",
        ),
    ] = False,
) -> None:
    """Check your attention, and name its mistakes.

    The file is run, as python would run it, in a process of its own. The exit code is 0 if all that
    is declared was verified, 1 if a mistake is found, 2 if something could not be judged or is not written yet, 3 if it
    could not be imported, made or called, or there was no report in time. "clearhead explain NAME"
    shows what a mistake is, with wrong and with right code. With --trains a training script is checked:
    its targets, padding, parameters, dropout, saves and decoding.

    Of files, folders and packages all classes and functions that attend are found, tried in a process
    of their own, and listed: right, wrong, not judged, or not made, with the reason. Tests, setup.py
    and __main__.py are not run. The exit code is 1 if one is wrong (with --strict, if one is not
    right), 3 if a place is not there or nothing could be imported, else 0.
    """
    declared = {
        "causal": causal,
        "window": _parse("--window", "LEFT,RIGHT", _pair, window),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "scale": scale,
        "softcap": softcap,
        "dropout": dropout,
        "world": world,
        "layout": layout,
        "rope": _parse("--rope", "half or interleaved, and a base", _rotary, rope),
    }
    declared = {name: value for name, value in declared.items() if value is not None}
    known = _keywords(sizes, "--sizes")
    for path in (html, sarif):
        if path is not None:
            check_writable(path)
    from clearhead.checking.scanning.sources import is_scanned

    if trains:
        of_attention = {**declared, "takes": takes, "sizes": known, "seed": seed}
        of_attention["alibi"] = alibi
        for name, given in of_attention.items():
            if given or name in declared:
                option = f"--{name.removeprefix('num_').replace('_', '-')}"
                words = "is of an attention; what --trains asks is declared in what PLACE returns."
                raise typer.BadParameter(words, param_hint=option)
        if len(places) > 1 or is_scanned(places[0]):
            raise typer.BadParameter("wants one function: train.py:make.", param_hint="--trains")
    if lesson is not None and len(places) > 1:
        raise typer.BadParameter("grades one file: lesson_07.py.", param_hint="--lesson")
    if lesson is None and (len(places) > 1 or is_scanned(places[0])):
        alone = {"--args": args, "--watch": watch, "--html": html, "--world": world}
        for option, given in alone.items():
            if given:
                words = "is for one class or function: file.py:Name."
                raise typer.BadParameter(words, param_hint=option)
        asked = {
            "declared": {**declared, "sizes": known},
            "slopes": _slopes(heads) if alibi else None,
            "takes": takes,
            "seed": seed,
        }
        scan = Scan()
        try:
            scan.run(places, asked, timeout or 60.0, memory)
        except ClearheadError as error:
            print(f"clearhead: {error}", file=sys.stderr)
            raise typer.Exit(3) from error
        reports = [_report(each.report) for each in scan.rows if each.report is not None]
        if as_json:
            print(json.dumps(scan.as_dict(), indent=2))
        else:
            scan.show([each for each in reports if everything and each.findings])
            for row in LESSONS.values():
                if [Path(each).name for each in places] == [row.file]:
                    print(
                        f"\nOf lesson {row.number}? clearhead check {places[0]} --lesson {row.number}"
                    )
        if sarif is not None:
            from clearhead.checking.report import sarif as as_sarif

            with replacing(sarif) as (name, _):
                Path(name).write_text(as_sarif(reports), encoding="utf-8")
        raise typer.Exit(scan.exit_code(strict))
    (place,) = places
    options: dict[str, Any] = {
        "takes": takes,
        "args": _keywords(args, "--args") or None,
        "sizes": known,
        "seed": seed,
        **({} if lesson is None else {"lesson": lesson}),
        **declared,
    }
    asked = {
        "place": place,
        "options": options,
        "slopes": _slopes(heads) if alibi else None,
    }
    if trains:
        asked = {"place": place, "trains": options["args"] or {}}
    if watch:
        file = Path(place.partition(":")[0])
        if not file.is_file() or not hasattr(os, "fork"):
            words = "wants a file, file.py:Name, and a system that can fork."
            raise typer.BadParameter(words, param_hint="--watch")
        _watched(file, asked, timeout or 60.0, memory, everything)
    most = timeout or (600.0 if world is not None else 60.0)
    try:
        found = check_process.checked(asked, timeout=most, memory=memory)
    except ClearheadError as error:
        print(f"clearhead: {_as_options(str(error))}", file=sys.stderr)
        raise typer.Exit(3) from error  # 1 is for a mistake in what is checked
    report = _report(found["report"])
    if as_json:
        print(json.dumps(json.loads(report.to_json()), indent=2))
    else:
        from clearhead.drawing.terminal.checked import print_report

        report = replace(
            report,
            told=tuple(map(_as_options, report.told)),
            unverified=tuple(map(_as_options, report.unverified)),
        )
        print_report(Console(), report, everything=everything)
    if html is not None:
        with replacing(html) as (name, _):
            Path(name).write_text(report.to_html(), encoding="utf-8")
    if sarif is not None:
        with replacing(sarif) as (name, _):
            Path(name).write_text(report.to_sarif(), encoding="utf-8")
    if not report.ok:
        raise typer.Exit(1 if report.findings or strict else 2)


def _watched(
    file: Path, asked: dict[str, Any], timeout: float, memory: float | None, everything: bool
) -> None:
    """Check whenever the file is saved, in a reused process, until an interrupt."""
    from clearhead.drawing.terminal.checked import print_report

    kept = check_process.Kept()
    try:
        while True:
            saved = file.stat().st_mtime_ns
            try:
                found = check_process.checked(asked, timeout=timeout, memory=memory, kept=kept)
                print_report(Console(), _report(found["report"]), everything=everything)
            except ClearheadError as error:
                print(f"clearhead: {_as_options(str(error))}", file=sys.stderr)
            print(flush=True)
            while file.exists() and file.stat().st_mtime_ns == saved:
                time.sleep(0.1)
    finally:
        kept.close()


def _as_options(text: str) -> str:
    """Return a message with its arguments written as options of the command line."""
    text = re.sub(r"takes=(['\"])(.*?)\1", lambda found: f'--takes "{found[2]}"', text)
    text = re.sub(r'--takes "(\w+)"', r"--takes \1", text)
    return re.sub(r"\b(sizes|args)=dict\((.*?)\)", _as_option, text)


def _as_option(found: re.Match[str]) -> str:
    """Return a matched argument, such as sizes=dict(d_in=3), as an option of the command line."""
    return f"--{found[1]} {found[2].replace(', ', ',')}"


def _report(given: Mapping[str, Any]) -> Any:
    """Return the report from its `as_dict` after a round trip through JSON."""
    import clearhead as ch

    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    findings = tuple(
        ch.types.Finding(**{each.name: frozen(one[each.name]) for each in fields(ch.types.Finding)})
        for one in given["findings"]
    )
    values = {each.name: frozen(given[each.name]) for each in fields(ch.types.Report)}
    return ch.types.Report(
        **values | {"findings": findings, "sizes": tuple(given["sizes"].items())}
    )


def _parse(option: str, expected: str, read: Callable[[str], Any], text: str | None) -> Any:
    """Return the parsed value of an option; raise an error that shows its format if it is invalid."""
    try:
        return None if text is None else read(text)
    except ValueError as error:
        words = f"expected {expected}; got {shown(text)}."
        raise typer.BadParameter(words, param_hint=option) from error


def _rotary(text: str) -> dict[str, Any]:
    """Return layout and base of rotary positions, from a text such as "half,10000"."""
    layout, _, base = text.partition(",")
    return {"layout": layout, "base": float(base or 10000.0)}


def _slopes(heads: int | None) -> list[float]:
    """Return the slopes of ALiBi for this number of heads; raise if the number is None."""
    if heads is None:
        raise typer.BadParameter("expected --heads beside it.", param_hint="--alibi")
    import clearhead as ch

    bias: Any = ch.alibi(heads)
    return bias.slopes.tolist()


def _pair(text: str) -> tuple[int | None, int | None]:
    """Return the two numbers of a text such as "3,None"."""
    left, right = (None if side.strip() in ("", "None") else int(side) for side in text.split(","))
    return left, right


def _keywords(text: str, option: str) -> dict[str, Any]:
    """Return keyword arguments from a text k=v,…; each value is a number, a string, True, False or None."""
    return dict(
        _parse(option, "name=value", _keyword, part) for part in filter(None, text.split(","))
    )


def _keyword(text: str) -> tuple[str, Any]:
    """Return name and value of a text such as "dropout=0.1"; a value that is no literal stays a string."""
    name, equals, value = (each.strip() for each in text.partition("="))
    if not equals or not all(each.isidentifier() for each in name.split(".")):
        raise ValueError(text)
    try:
        return name, literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
