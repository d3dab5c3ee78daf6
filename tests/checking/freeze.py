"""The verdict of `check` on every entry of the banks, stored, and compared with the stored one.

python -m tests.checking.freeze write            store the verdicts in bank/frozen.json
python -m tests.checking.freeze compare          print every entry whose verdict is worse, and the rates
python -m tests.checking.freeze compare --every 10    only every tenth entry of each bank

A comparison fails if right code is judged worse than before, if a mistake that was found is called right, or if
fewer mistakes than `FOUND` of those found before, or `NAMED` of all, are found, or have a right name or line.
"""

import argparse
import json
import linecache
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import clearhead as ch
from clearhead.checking.subject.refusals import first_line
from clearhead.checking.words import code_of
from tests.checking.bank import BANKS, entries
from tests.checking.bank.entry import Entry

FROZEN = Path(__file__).parent / "bank" / "frozen.json"
PARTS = 8
FOUND, NAMED = 0.99, 0.90
OUTCOMES = ("wrong", "raised", "not judged", "right")
"""The outcomes of right code, the worst first."""


def frozen() -> dict[str, Any]:
    """Return the stored verdicts, by bank and name."""
    return json.loads(FROZEN.read_text(encoding="utf-8"))


def verdict(entry: Entry) -> dict[str, Any]:
    """Return outcome, codes, line and CPU seconds of the check of one entry."""
    start = time.process_time()
    codes, line, error = [], "", ""
    try:
        report = ch.check(entry.make(), takes=entry.takes, **entry.options())
        codes = [each.code for each in report.findings]
        outcome = "wrong" if codes else "right" if report.ok else "not judged"
        place = report.findings[0].place if codes else None
        line = "" if place is None else linecache.getline(*place).strip()
    except Exception as raised:  # an entry that check cannot call is a verdict too
        outcome, error = "raised", first_line(raised)
    seconds = round(time.process_time() - start, 3)
    found = {"outcome": outcome, "codes": codes, "line": line, "seconds": seconds}
    return {**found, "error": error} if error else found


def _job(job: tuple[str, int, int]) -> dict[str, Any]:
    torch.set_num_threads(1)
    bank, part, every = job
    chosen = entries(bank)[::every][part::PARTS]
    return {f"{bank}: {each.name}": verdict(each) for each in chosen}


def verdicts(banks: Sequence[str], processes: int, every: int = 1) -> dict[str, Any]:
    """Return the verdict of every entry of some banks, or of every n-th one, by bank and name."""
    found: dict[str, Any] = {}
    jobs = [(bank, part, every) for bank in banks for part in range(PARTS)]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for each in pool.map(_job, jobs):
            found |= each
    return dict(sorted(found.items()))


def worse(entry: Entry, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield in which way a verdict is worse than the stored one; what must not be is in capitals."""
    if not entry.codes:
        if OUTCOMES.index(now["outcome"]) < OUTCOMES.index(was["outcome"]):
            yield f"{'ACCUSED' if now['outcome'] == 'wrong' else 'UNSURE'}: {now['codes']}"
    elif was["outcome"] == "wrong" != now["outcome"]:
        yield f"{'CALLED RIGHT' if now['outcome'] == 'right' else now['outcome']}: {was['codes']}"
    elif is_named(entry, was) and not is_named(entry, now):
        yield f"name: {was['codes']} -> {now['codes']}"
    elif was["line"] and not now["line"]:
        yield f"line: {was['line']}"


def is_hard(line: str) -> bool:
    """Return True for a way of being worse that fails a comparison by itself."""
    return any(sign in line for sign in ("ACCUSED", "UNSURE", "CALLED RIGHT"))


def is_named(entry: Entry, found: Mapping[str, Any]) -> bool:
    """Return True if the first code, or the code that covers it now, is one of the right names."""
    return bool(found["codes"]) and code_of(found["codes"][0]) in map(code_of, entry.codes)


def is_placed(entry: Entry, found: Mapping[str, Any]) -> bool:
    """Return True if a mistake has a right name, or is reported at the line that is at fault."""
    return is_named(entry, found) or (bool(found["codes"]) and "" != entry.line == found["line"])


def rates(named: Mapping[str, Entry], old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the rates of mistakes that are found and named; one that is too small is in capitals."""
    wrong = [name for name in new if named[name].codes]
    before = [name for name in wrong if old[name]["outcome"] == "wrong"]
    found = sum(new[name]["outcome"] == "wrong" for name in before) / max(len(before), 1)
    placed = sum(is_placed(named[name], new[name]) for name in wrong) / max(len(wrong), 1)
    return [
        f"{words if share >= least else words.upper()} {share:.1%}, of {least:.0%}"
        for words, share, least in (
            ("found of those found before:", found, FOUND),
            ("with a right name or line:", placed, NAMED),
        )
    ]


def main(arguments: Sequence[str]) -> int:
    """Write the verdicts or compare them; return 1 if one is worse."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("banks", nargs="*", default=list(BANKS))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--every", type=int, default=1, help="compare every n-th entry")
    given = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    new = verdicts(given.banks, given.processes, given.every)
    if given.what == "write":
        rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in new.items())
        FROZEN.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")
        return 0
    old = frozen()
    known = {f"{bank}: {each.name}": each for bank in given.banks for each in entries(bank)}
    named = {name: known[name] for name in new if name in old}
    lines = sorted(
        f"{name}: {line}" for name in named for line in worse(named[name], old[name], new[name])
    )  # fmt: skip
    print("\n".join(lines))
    for bank in given.banks:
        rows = [(each, new[name]) for name, each in known.items() if name in new]
        print(bank, *counts([row for row in rows if row[0] in entries(bank)]))
    totals = rates(named, old, {name: new[name] for name in named})
    print("\n".join(totals))
    seconds = sum(each["seconds"] for each in new.values())
    print(f"{len(new)} entries, {len(lines)} worse; {seconds:.0f} CPU s")
    return int(any(map(is_hard, lines)) or any(each.partition(":")[0].isupper() for each in totals))


def counts(rows: Sequence[tuple[Entry, Mapping[str, Any]]]) -> Iterator[str]:
    """Yield how many mistakes were found and named, and how much right code was accused."""
    wrong = [row for row in rows if row[0].codes]
    found = [row for row in wrong if row[1]["codes"]]
    yield f"{len(wrong)} wrong: {len(found)} found, {sum(is_named(*row) for row in found)} named;"
    accused = sum(bool(row["codes"]) for entry, row in rows if not entry.codes)
    yield f"{len(rows) - len(wrong)} right: {accused} accused"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
