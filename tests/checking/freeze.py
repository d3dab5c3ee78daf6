"""The verdict of `check` on every entry of the banks, stored, and compared with the stored one.

python -m tests.checking.freeze write            store the verdicts in bank/frozen.json
python -m tests.checking.freeze compare          print every entry whose verdict is worse
"""

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import clearhead as ch
from clearhead.checking.subject.refusals import first_line
from clearhead.checking.words import code_of
from tests.checking.bank.entry import Entry
from tests.checking.rates import BANKS
from tests.surface import ROOT

FROZEN = Path(__file__).parent / "bank" / "frozen.json"


def verdict(entry: Entry) -> dict[str, Any]:
    """Return outcome, codes, line and CPU seconds of the check of one entry."""
    start = time.process_time()
    codes, line, error = [], "", ""
    try:
        report = ch.check(entry.make(), takes=entry.takes, **entry.declared)
        codes = [each.code for each in report.findings]
        outcome = "wrong" if codes else "right" if report.ok else "not judged"
        line = _line(report.findings[0].place) if codes else ""
    except Exception as raised:  # an entry that check cannot call is a verdict too
        outcome, error = "raised", first_line(raised)
    found = {
        "takes": entry.takes,
        "declared": sorted(entry.declared),
        "codes": codes,
        "outcome": outcome,
        "line": line,
        "wanted": [] if entry.code is None else [entry.code, *entry.also],
        "seconds": round(time.process_time() - start, 3),
    }
    return {**found, "error": error} if error else found


def _line(place: tuple[str, int] | None) -> str:
    if place is None:
        return ""
    path = Path(place[0])
    return f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name}:{place[1]}"


def _part(bank: str, part: int, parts: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    entries = importlib.import_module(BANKS[bank]).ENTRIES[part::parts]
    return {f"{bank}: {each.name}": verdict(each) for each in entries}


def verdicts(banks: Sequence[str], processes: int) -> dict[str, Any]:
    """Return the verdict of every entry of some banks, by bank and name."""
    found: dict[str, Any] = {}
    jobs = [(bank, part) for bank in banks for part in range(8)]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for each in pool.map(partial(_job, parts=8), jobs):
            found |= each
    return dict(sorted(found.items()))


def _job(job: tuple[str, int], parts: int) -> dict[str, Any]:
    return _part(*job, parts)


def worse(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each entry whose verdict is worse than the stored one.

    Right code must not be accused; a mistake that was found must not be called right; a name that
    was right must stay one of the right names.
    """
    for name, now in new.items():
        was = old.get(name)
        if was is None:
            continue
        if not now["wanted"]:
            if now["outcome"] != was["outcome"] != "wrong" and was["outcome"] != "raised":
                yield f"{'ACCUSED' if now['outcome'] == 'wrong' else now['outcome']}: {name}: {now['codes']}"
        elif was["outcome"] == "wrong" != now["outcome"]:
            yield f"{'CALLED RIGHT' if now['outcome'] == 'right' else now['outcome']}: {name}: {was['codes']}"
        elif named(was) and not named(now):
            yield f"name: {name}: {was['codes']} -> {now['codes']}"
        elif was["line"] and not now["line"]:
            yield f"line: {name}: {was['line']}"


def named(found: dict[str, Any]) -> bool:
    """Return True if the first code, or the code that covers it now, is one of the right names."""
    return bool(found["codes"]) and code_of(found["codes"][0]) in map(code_of, found["wanted"])


def main(arguments: Sequence[str]) -> int:
    """Write the verdicts or compare them; return 1 if one is worse."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("banks", nargs="*", default=list(BANKS))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    new = verdicts(given.banks, given.processes)
    if given.what == "write":
        rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in new.items())
        FROZEN.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")
        return 0
    old = json.loads(FROZEN.read_text(encoding="utf-8"))
    lines = list(worse(old, new))
    print("\n".join(lines))
    seconds = sum(each["seconds"] for each in new.values())
    print(f"{len(new)} entries, {len(lines)} worse; {seconds:.0f} CPU s")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
