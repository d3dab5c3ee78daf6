"""Write the last section of names.md: the names by which projections and sizes are known.

`python docs/generate_names.py` writes it; a test holds it against the source.
"""

from pathlib import Path

from clearhead._common import foreign_names
from clearhead._common.foreign_names import NORM_NAMES, SIZE_NAMES, ProjectionNames

PAGE = Path(__file__).resolve().parent / "names.md"

HEAD = """## Names that are read

`ch.convert` knows a layer by the names of its projections, and finds sizes and norms by theirs; `ch.check` finds
projections by these and by similar names, and sizes by the same.
"""


def kinds() -> list[ProjectionNames]:
    """Every kind of layers that has names."""
    single = [each for each in vars(foreign_names).values() if isinstance(each, ProjectionNames)]
    return [*single, *foreign_names.TUTORIALS]


def coded(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def section() -> str:
    rows = [f"| {each.kind} | {coded(each.inputs)} | {coded(each.output)} |" for each in kinds()]
    sizes = [f"| `{ours}` | {coded(theirs)} |" for ours, theirs in SIZE_NAMES.items()]
    norms = [f"| {coded(pair)} |" for pair in NORM_NAMES]
    tables = [
        ["| layers of | query, key and value | output |", "|---|---|---|", *rows],
        ["| size | its names |", "|---|---|", *sizes],
        ["| norms of query and key |", "|---|", *norms],
    ]
    return "\n".join([HEAD, *("\n".join([*table, ""]) for table in tables)])


def page() -> str:
    before, _, _ = PAGE.read_text().partition(HEAD.splitlines()[0])
    return before + section()


if __name__ == "__main__":
    PAGE.write_text(page())
