"""`python -m tests.mutants PART…`: whether the tests still kill the mutants of `tests/mutants.json`.

A part is a package, such as `masks`, or a module, such as `masks.causal`; without one it is all of them. Each mutant
first meets the test that killed it last, then the others of its package that call the function. `--redraw` draws
another one where a statement is gone, from the same function, module or package. `--all` asks every mutant of
the part instead of those of the list, and prints who lives: before tests are thrown out, and after. `--draw 400
--seed 0` makes the list anew.
"""

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tests.environment import prepare
from tests.mutants.judging import Judge, Ran
from tests.mutants.mutation import GoneError, Mutant, mutants, mutated
from tests.surface import MODULES, ROOT, SOURCE

LIST = ROOT / "tests" / "mutants.json"
# What is not tested in the folder of its package: what ranks do is tested with them.
ELSEWHERE = {"clearhead.attention.sharded": "sharding", "clearhead.__main__": "cli"}
# What every test calls, as long as its file is the same.
RUNS = ROOT / ".cache" / "mutants.json"
# Seconds of CPU, without a mutant, of the tests that one meets at most.
ENOUGH = 120.0


@dataclass
class Kept:
    """A mutant of the list, with the test that kills it or the reason why none can."""

    mutant: Mutant
    killed_by: str = ""
    equivalent: str = ""

    def row(self) -> dict[str, object]:
        """The fields that say something."""
        every = asdict(self.mutant) | {"killed_by": self.killed_by, "equivalent": self.equivalent}
        return {name: value for name, value in every.items() if value}


def read() -> list[Kept]:
    rows = json.loads(LIST.read_text(encoding="utf-8"))
    return [
        Kept(Mutant(**row), killed, equivalent)
        for row in rows
        for killed, equivalent in [(row.pop("killed_by", ""), row.pop("equivalent", ""))]
    ]


def write(kept: Iterable[Kept]) -> None:
    rows = [each.row() for each in sorted(kept, key=lambda each: str(each.mutant))]
    LIST.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def note(kept: Kept) -> None:
    """Write down the killer of a mutant of the list at once, so that an interrupt loses none."""
    rows = {each.mutant: each for each in read()} if LIST.exists() else {}
    if kept.mutant in rows:
        write((rows | {kept.mutant: kept}).values())


def is_in(mutant: Mutant, parts: Sequence[str]) -> bool:
    """Whether it belongs to one of the packages or modules."""
    name = mutant.module.removeprefix("clearhead.")
    return not parts or any(name == part or name.startswith(f"{part}.") for part in parts)


def mirror(module: str) -> Path | None:
    """The file that tests the module alone."""
    path = MODULES[module].relative_to(ROOT / "src" / "clearhead")
    test = ROOT / "tests" / path.parent / f"test_{path.stem.lstrip('_')}.py"
    return test if test.exists() else None


def tests(module: str) -> Path:
    """The folder or the file that tests a package."""
    elsewhere = (folder for start, folder in ELSEWHERE.items() if module.startswith(start))
    package = next(elsewhere, module.split(".")[1])
    folder = ROOT / "tests" / package
    return folder if folder.exists() else folder.with_name(f"test_{package}.py")


def meeting(mutant: Mutant, ran: dict[str, Ran]) -> list[str]:
    """The tests that call the function, in order: those of its file first, and the quick ones."""
    own = mirror(mutant.module)
    beside = str(own.relative_to(ROOT)) if own else "-"
    path = str(MODULES[mutant.module].relative_to(SOURCE))
    calling = [
        name
        for name, each in ran.items()
        if any(
            file == path and f"{mutant.function}.".startswith(f"{function}.")
            for file, function in each.calls
        )
    ]
    calling.sort(key=lambda name: (not name.startswith(beside), ran[name].seconds))
    spent, chosen = 0.0, list[str]()
    for name in calling:
        spent += ran[name].seconds
        if chosen and spent > ENOUGH:
            break
        chosen.append(name)
    return chosen


def collected(places: Iterable[str], ask: Callable[[Judge], None]) -> None:
    """Collect the tests of these places, and ask."""
    judge = Judge(ask)
    code = pytest.main(
        [
            *(f"-pno:{name}" for name in ("cacheprovider", "xdist", "terminal")),
            *dict.fromkeys(places),
        ],
        plugins=[judge],
    )
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"the tests could not be collected: {code}")


def reached(judge: Judge) -> dict[str, Ran]:
    """What the tests call, from the runs that are kept where their files are as they were."""
    kept = json.loads(RUNS.read_text(encoding="utf-8")) if RUNS.exists() else {}
    known: dict[str, Ran] = {}
    for file in dict.fromkeys(name.partition("::")[0] for name in judge.items):
        names = [name for name in judge.items if name.partition("::")[0] == file]
        # A table of cases may stand in another file.
        whole = (ROOT / file).read_bytes() + "\n".join(names).encode()
        digest = hashlib.sha256(whole).hexdigest()
        if kept.get(file, {}).get("digest") != digest:
            runs = judge.plain(names)
            kept[file] = {
                "digest": digest,
                "runs": {name: [ran.seconds, sorted(ran.calls)] for name, ran in runs.items()},
            }
        for name, (seconds, calls) in kept[file]["runs"].items():
            known[name] = Ran(seconds, {tuple(each) for each in calls})
    RUNS.parent.mkdir(exist_ok=True)
    RUNS.write_text(json.dumps(kept), encoding="utf-8")
    return {name: ran for name, ran in known.items() if name in judge.items}


def hunt(asked: Sequence[Kept], places: Sequence[str] = ()) -> list[Kept]:
    """Those that live; the others are told their killers. Without `places` they meet the tests of their own file first,
    and then those of their package."""
    if not places:
        own = [each for each in asked if mirror(each.mutant.module)]
        alive = hunt(own, [str(mirror(each.mutant.module)) for each in own]) if own else []
        rest = [each for each in asked if each in alive or each not in own]
        packages = sorted({str(tests(each.mutant.module)) for each in rest})
        return hunt(rest, packages) if rest else []
    alive = []

    def ask(judge: Judge) -> None:
        ran = reached(judge)
        print(f"{len(ran)} of {len(judge.items)} tests are quick and pass", flush=True)
        for kept in asked:
            names = meeting(kept.mutant, ran)
            kept.killed_by = judge.killer(kept.mutant, names, ran) or "" if names else ""
            # A test that fails without the mutant as well, since the source changed after it ran, kills none.
            while kept.killed_by and not judge.plain([kept.killed_by]):
                names.remove(kept.killed_by)
                kept.killed_by = judge.killer(kept.mutant, names, ran) or "" if names else ""
            print(
                "dead " if kept.killed_by else "ALIVE", kept.mutant, f"({len(names)})", flush=True
            )
            if kept.killed_by:
                note(kept)
            else:
                alive.append(kept)

    collected(places, ask)
    return alive


def again(asked: Sequence[Kept]) -> list[Kept]:
    """Those that their last killer no longer kills."""
    lost: list[Kept] = []

    def ask(judge: Judge) -> None:
        ran = judge.plain({each.killed_by for each in asked})
        for kept in asked:
            names = [kept.killed_by] if kept.killed_by in ran else []
            if not names or judge.killer(kept.mutant, names, ran) is None:
                lost.append(kept)

    killers = [each.killed_by.partition("::")[0] for each in asked if each.killed_by]
    collected([each for each in killers if (ROOT / each).exists()], ask)
    return lost


def gone(mutant: Mutant) -> bool:
    try:
        mutated(mutant)
    except (GoneError, KeyError):
        return True
    return False


def drawn(among: Sequence[Mutant], count: int, random: random.Random) -> list[Mutant]:
    """So many of these, no two of one statement."""
    chosen: dict[tuple[str, str, str, int], Mutant] = {}
    for each in random.sample(among, len(among)):
        if len(chosen) == count:
            break
        chosen.setdefault((each.module, each.function, each.statement, each.nth), each)
    return list(chosen.values())


def spread(count: int, seed: int) -> list[Mutant]:
    """So many mutants, to each package by its share of all that there are, and ten at least."""
    of: dict[str, list[Mutant]] = {}
    for module in MODULES:
        if module != "clearhead":
            for each in mutants(module):
                of.setdefault(each.package, []).append(each)
    whole = sum(map(len, of.values()))
    chance = random.Random(seed)
    return [
        mutant
        for package, every in sorted(of.items())
        for mutant in drawn(every, max(10, round(count * len(every) / whole)), chance)
    ]


def redrawn(mutant: Mutant, taken: set[Mutant]) -> Mutant:
    """Another one in place of one that is gone: of the same function, else module, else package."""
    package = [m for m in MODULES if m.split(".")[1:2] == [mutant.package]]
    modules = [mutant.module] if mutant.module in MODULES else package
    near = [each for module in modules for each in mutants(module) if each not in taken]
    same = [each for each in near if each.function == mutant.function]
    return random.Random(str(mutant)).choice(same or near)


def frozen(parts: Sequence[str], redraw: bool, places: Sequence[str]) -> int:
    """How many mutants of the list live, or are gone."""
    here = [each for each in read() if is_in(each.mutant, parts)]
    listed = {each.mutant for each in here}
    missing = [each for each in here if gone(each.mutant)]
    for each in missing:
        print("gone ", each.mutant, flush=True)
        here.remove(each)
        if redraw:
            here.append(Kept(redrawn(each.mutant, listed | {kept.mutant for kept in here})))
    asked = [each for each in here if not each.equivalent]
    lost = again(asked) if asked else []
    print(
        f"{len(asked) - len(lost)} of {len(asked)} die by the test that killed them last",
        flush=True,
    )
    alive = hunt(lost, places) if lost else []
    # Another part may have been written meanwhile.
    others = [each for each in read() if each.mutant not in listed]
    write([*others, *here, *([] if redraw else missing)])
    print(
        f"{len(asked) - len(alive)} dead, {len(alive)} alive, {len(here) - len(asked)} equivalent, "
        f"{len(missing)} gone{' and drawn anew' * redraw}"
    )
    return len(alive) + (0 if redraw else len(missing))


def all_of(parts: Sequence[str], places: Sequence[str]) -> None:
    """Ask every mutant of the parts."""
    equal = {each.mutant for each in read() if each.equivalent} if LIST.exists() else set()
    asked = [
        Kept(mutant)
        for module in MODULES
        if is_in(Mutant(module, "", "", ""), parts)
        for mutant in mutants(module)
        if mutant not in equal
    ]
    alive = hunt(asked, places)
    print(f"{len(asked) - len(alive)} dead, {len(alive)} alive")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", help="such as masks, or masks.causal")
    parser.add_argument("--tests", nargs="*", default=[], help="instead of those of the package")
    parser.add_argument("--redraw", action="store_true", help="another one where one is gone")
    parser.add_argument("--all", action="store_true", help="every mutant of the parts")
    parser.add_argument("--draw", type=int, help="write a new list of about so many")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    prepare()
    if asked.draw:
        write(Kept(each) for each in spread(asked.draw, asked.seed))
    elif asked.all:
        all_of(asked.parts, asked.tests)
    else:
        sys.exit(bool(frozen(asked.parts, asked.redraw, asked.tests)))


if __name__ == "__main__":
    main()
