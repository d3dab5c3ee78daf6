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
from clearhead._common.writing import check_writable, write_text
from clearhead._text import shown
from clearhead.cli import check_process
from clearhead.cli.scan import Scan
from clearhead.errors import ClearheadError


def check(
    places: Annotated[
        list[str],
        typer.Argument(
            help="What to check: file.py:Name or package.module:Name; or files, folders and packages, in "
            "which every attention is checked.",
            metavar="PLACE",
        ),
    ],
    takes: Annotated[
        str | None,
        typer.Option(
            help='Calling convention: x, qkv, "qkv,mask", x2d, "x,mask", "x,context", decode, ids, '
            '"ids,mask"; a part: "query,key", scores, "weights,value". By default what its '
            "parameters suggest, or x."
        ),
    ] = None,
    args: Annotated[
        str, typer.Option(help="Arguments of the constructor: d_in=3,d_out=2.", metavar="K=V,…")
    ] = "",
    sizes: Annotated[
        str,
        typer.Option(help="Sizes that cannot be inferred: d_in=3,num_heads=4.", metavar="K=V,…"),
    ] = "",
    causal: Annotated[
        bool | None, typer.Option("--causal/--no-causal", help="Whether later tokens are hidden.")
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(help="Sliding window, tokens on each side: 128,0.", metavar="LEFT,RIGHT"),
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Number of query heads.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Number of key and value heads.")] = None,
    scale: Annotated[
        float | None, typer.Option(help="Scale of the scores, by default 1/√head_dim.")
    ] = None,
    softcap: Annotated[float | None, typer.Option(help="Softcap of the scores.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Dropout probability in training.")] = None,
    rope: Annotated[
        str | None,
        typer.Option(help="Rotary positions: half or interleaved.", metavar="LAYOUT[,BASE]"),
    ] = None,
    alibi: Annotated[
        bool, typer.Option("--alibi", help="ALiBi with the published slopes; requires --heads.")
    ] = False,
    world: Annotated[
        int | None, typer.Option(help="Number of ranks that share the tokens.", min=1)
    ] = None,
    layout: Annotated[
        str | None, typer.Option(help="With --world: contiguous, zigzag or balanced.")
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Print every finding, also measured values and what was not judged."
        ),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 instead of 2 if something was not judged.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    sarif: Annotated[
        Path | None, typer.Option(help="Also write SARIF, for a code host.", metavar="FILE")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also write an HTML page.", metavar="FILE")
    ] = None,
    lesson: Annotated[
        int | None, typer.Option(help="Grade PLACE as lesson 1 to 16 of the course.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.", min=0)] = 0,
    timeout: Annotated[
        float | None, typer.Option(help="Time limit in seconds: 60, with --world 600.", min=0.001)
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Check again each time the file is saved, until Ctrl-C.")
    ] = False,
) -> None:
    """Check your attention, and name its mistakes.

    The file is run as Python would run it, in a process of its own. The exit code is 0 if everything that is declared
    was verified, 1 if a mistake is found, 2 if something could not be judged or is not written yet, and 3 if the code
    could not be imported, constructed or called, or the time limit was exceeded. "clearhead explain NAME" explains a
    mistake, with wrong and right code.

    In files, folders and packages, every class and function that attends is found, tried in a process of its own, and
    listed as right, wrong, not judged, or not made, with the reason. Tests, setup.py and __main__.py are not run. The
    exit code is then 1 if one is wrong (with --strict, if one is not right), 3 if a place does not exist or nothing
    could be imported, and 0 otherwise.
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
        "alibi": alibi or None,
    }
    declared = {name: value for name, value in declared.items() if value is not None}
    options = {"takes": takes, "sizes": _keywords(sizes, "--sizes"), "seed": seed, **declared}
    if alibi and heads is None:
        raise typer.BadParameter("expected --heads with it.", param_hint="--alibi")
    for path in (html, sarif):
        if path is not None:
            check_writable(path)
    from clearhead.checking.scanning.sources import is_scanned

    several = len(places) > 1 or is_scanned(places[0])
    if lesson is not None and len(places) > 1:
        raise typer.BadParameter("grades one file: lesson_07.py.", param_hint="--lesson")
    if lesson is None and several:
        alone = {"--args": args, "--watch": watch, "--html": html, "--world": world}
        for option, given in alone.items():
            if given:
                words = "is for one class or function: file.py:Name."
                raise typer.BadParameter(words, param_hint=option)
        scan = Scan()
        try:
            scan.run(places, options, timeout or 60.0)
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

            write_text(sarif, as_sarif(reports))
        raise typer.Exit(scan.exit_code(strict))
    (place,) = places
    options |= {"args": _keywords(args, "--args") or None}
    if lesson is not None:
        options["lesson"] = lesson
    asked: dict[str, Any] = {"place": place, "options": options}
    if watch:
        file = Path(place.partition(":")[0])
        if not file.is_file() or not hasattr(os, "fork"):
            words = "wants a file, file.py:Name, and a system that can fork."
            raise typer.BadParameter(words, param_hint="--watch")
        _watched(file, asked, timeout or 60.0, everything)
    most = timeout or (600.0 if world is not None else 60.0)
    try:
        report = _report(check_process.checked(asked, timeout=most))
    except ClearheadError as error:
        print(f"clearhead: {_as_options(str(error))}", file=sys.stderr)
        raise typer.Exit(3) from error  # 1 is for a mistake in what is checked
    if as_json:
        print(json.dumps(json.loads(report.to_json()), indent=2))
    else:
        from clearhead.drawing.terminal.scanned import print_report

        notes = {
            name: tuple(map(_as_options, getattr(report, name))) for name in ("told", "unverified")
        }
        print_report(Console(), replace(report, **notes), everything=everything)
    if html is not None:
        write_text(html, report.to_html())
    if sarif is not None:
        write_text(sarif, report.to_sarif())
    if not report.ok:
        raise typer.Exit(1 if report.findings or strict else 2)


def _watched(file: Path, asked: dict[str, Any], timeout: float, everything: bool) -> None:
    """Check and print the report whenever the file is saved, in a reused process.

    Ends by an interrupt, or by FileNotFoundError if the file is gone; either is raised. `everything` also
    prints measured values and what was not judged.
    """
    from clearhead.drawing.terminal.scanned import print_report

    kept = check_process.Kept()
    try:
        while True:
            saved = file.stat().st_mtime_ns
            try:
                found = check_process.checked(asked, timeout=timeout, kept=kept)
                print_report(Console(), _report(found), everything=everything)
            except ClearheadError as error:
                print(f"clearhead: {_as_options(str(error))}", file=sys.stderr)
            print(flush=True)
            while file.exists() and file.stat().st_mtime_ns == saved:
                time.sleep(0.1)
    finally:
        kept.close()


def _as_options(text: str) -> str:
    """Return a message with the arguments takes=, sizes= and args= written as options of the command line."""
    text = re.sub(r"takes=(['\"])(.*?)\1", lambda found: f'--takes "{found[2]}"', text)
    text = re.sub(r'--takes "(\w+)"', r"--takes \1", text)
    return re.sub(r"\b(sizes|args)=dict\((.*?)\)", _as_option, text)


def _as_option(found: re.Match[str]) -> str:
    """Return a matched argument, such as sizes=dict(d_in=3), as an option of the command line."""
    return f"--{found[1]} {found[2].replace(', ', ',')}"


def _report(given: Mapping[str, Any]) -> Any:
    """Return the `Report` of its `as_dict` after a round trip through JSON; lists become tuples."""
    import clearhead as ch

    def frozen(value: Any) -> Any:
        """Return a list as a tuple, and lists in it too; any other value unchanged."""
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
    """Return `read(text)`, None for None; BadParameter, which shows the format, if `read` raises ValueError."""
    try:
        return None if text is None else read(text)
    except ValueError as error:
        words = f"expected {expected}; got {shown(text)}."
        raise typer.BadParameter(words, param_hint=option) from error


def _rotary(text: str) -> dict[str, Any]:
    """Return {"layout", "base"} of rotary positions from a text such as "half,10000"; the base is 10000 by default.

    Raises ValueError for a base that is no number; the layout is not checked.
    """
    layout, _, base = text.partition(",")
    return {"layout": layout, "base": float(base or 10000.0)}


def _pair(text: str) -> tuple[int | None, int | None]:
    """Return the two numbers of a text such as "3,None"; None for an empty side too. ValueError for anything else."""
    left, right = (None if side.strip() in ("", "None") else int(side) for side in text.split(","))
    return left, right


def _keywords(text: str, option: str) -> dict[str, Any]:
    """Return keyword arguments from a text k=v,…, {} for ""; BadParameter for another form.

    Each value is a literal of Python, such as a number, True or None; else a string. No value has a comma in it.
    """
    return dict(
        _parse(option, "name=value", _keyword, part) for part in filter(None, text.split(","))
    )


def _keyword(text: str) -> tuple[str, Any]:
    """Return name and value of a text such as "dropout=0.1"; a value that is no literal stays a string.

    Raises ValueError without "=" or if the name is no dotted identifier.
    """
    name, equals, value = (each.strip() for each in text.partition("="))
    if not equals or not all(each.isidentifier() for each in name.split(".")):
        raise ValueError(text)
    try:
        return name, literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
