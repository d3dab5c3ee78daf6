"""The sixteen lessons and their exercises: what each grades, what it promises, and the mistakes that it speaks of.

Nothing here needs PyTorch, so that the command line, the pages and `check` read one table.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

# Narrow, so that even scores without a scale do not saturate the softmax.
NARROW = {"d_in": 5, "d_out": 3}
HALF, INTERLEAVED = {"layout": "half"}, {"layout": "interleaved"}


@dataclass(frozen=True)
class LessonRow:
    """A lesson of the course, as one row of the table.

    Attributes:
        number, title: as on its page.
        stem: the file name of its page, without the number.
        names: the names in a learner's file that are graded; the first is that of the starter.
        takes: how it is called, as `check` takes it.
        contract: what the lesson requires, as `check` declares it.
        codes: the mistakes that the lesson explains.
        either: other contracts that are accepted as well.
        sizes: the sizes that a class is made with, where they are not guessed; all are different primes.
        named: what one of the names has to fulfil in addition.
        parameters: the names that the parameters must have; () if any names are right.
        headings: the heading on the page under which a mistake is explained, by the beginning of its code.
        calls: the inputs of each call, as expressions, where the solution of the lesson defines what is right.
        made: the arguments that a class is made with for these calls, as text.
        solution: the text of the solution; "" for the one on the page.
    """

    number: int
    stem: str
    title: str
    names: tuple[str, ...]
    takes: str
    codes: tuple[str, ...]
    contract: Mapping[str, Any] = field(default_factory=dict)
    either: tuple[Mapping[str, Any], ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    named: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    headings: Mapping[str, str] = field(default_factory=dict)
    calls: tuple[str, ...] = ()
    made: str = ""
    solution: str = ""

    def pointer(self, code: str) -> str:
        """Return where a mistake with this code is explained: lesson, heading and the command that prints them.

        The heading is that of the longest beginning of the code in `headings`, "Write" without any.

        Example:
            >>> LESSONS[9].pointer("state.mask")
            'lesson 9, Two modes, under "A table that is not trained": clearhead lesson 9 --read'
        """
        began = max((each for each in self.headings if code.startswith(each)), key=len, default="")
        heading = self.headings.get(began, "Write")
        return f'lesson {self.number}, {self.title}, under "{heading}": {self.command}'

    @property
    def slug(self) -> str:
        """The name of its page without the ending.

        Example:
            >>> LESSONS[7].slug
            '07_not_the_future'
        """
        return f"{self.number:02d}_{self.stem}"

    @property
    def command(self) -> str:
        """The command that prints the lesson, where clearhead is installed and where it is checked out.

        Example:
            >>> LESSONS[1].command
            'clearhead lesson 1 --read'
        """
        return f"clearhead lesson {self.number} --read"

    @property
    def file(self) -> str:
        """The name of the file that a learner writes.

        Example:
            >>> LESSONS[13].file
            'lesson_13.py'
        """
        return f"lesson_{self.number:02d}.py"

    @property
    def has_out(self) -> bool:
        """True for a lesson with several heads, whose class joins them by a layer with a bias.

        Example:
            >>> LESSONS[10].has_out
            True
        """
        return "num_heads" in self.contract

    @property
    def is_part(self) -> bool:
        """True for a lesson that grades a function of tensors, False for one that grades a class."""
        return self.names[0].islower()


def _sized(*calls: str) -> tuple[str, ...]:
    """Return each call, a text with {q}, {k}, {d} and {v}, filled in with four sets of sizes: all calls in one tuple.

    q is the number of queries, k of keys, d a width and v = d + 2; in two sets q and k differ, in two they are equal.
    """
    sizes = ((3, 5, 2), (5, 3, 2), (5, 5, 3), (1, 1, 2))
    return tuple(each.format(q=q, k=k, d=d, v=d + 2) for each in calls for q, k, d in sizes)


ROWS = (
    LessonRow(
        1, "one_number", "One number", ("scores",), "query,key",
        ("sum.wrong", "law.pairs", "law.scores", "shape.fixed"),
        {"causal": False, "scale": 1.0}, headings={"law.scores": "Why"},
        calls=_sized("torch.randn({q}, {d}), torch.randn({k}, {d})"),
    ),
    LessonRow(
        2, "a_share_of_one", "A share of one", ("weights", "softmax"), "scores",
        ("softmax.axis", "softmax.missing", "softmax.twice", "output.non-finite", "input.modified"),
        {"causal": False, "scale": 1.0},
        headings={"softmax.missing": "Predict", "output": "Predict", "law.scores": "Predict"},
        calls=(*_sized("torch.randn({q}, {k})"), "torch.randn(4, 3) - 800 * torch.arange(4.0)[:, None]"),
    ),
    LessonRow(
        3, "taking_home", "Taking home", ("context",), "weights,value",
        ("law.value",), {"causal": False, "scale": 1.0},
        headings={"law": "Why"},
        calls=_sized("torch.randn({q}, {k}).softmax(-1), torch.randn({k}, {d})"),
    ),
    LessonRow(
        4, "three_matrices", "Three matrices", ("SelfAttention",), "x2d",
        ("parameter.missing", "parameter.dead", "grad.wrong"),
        {"causal": False, "scale": 1.0}, ({"causal": False},), NARROW,
        headings={"parameter.dead": "Why", "parameter.missing": "Why"},
    ),
    LessonRow(
        5, "why_root_d", "Why √d", ("attention",), "qkv",
        ("scale.missing", "scale.wrong"), {"causal": False},
        headings={"scale": "Predict"},
        calls=_sized("torch.randn({q}, {d}), torch.randn({k}, {d}), torch.randn({k}, {v})"),
    ),
    LessonRow(
        6, "modules", "Modules", ("SelfAttention",), "x2d",
        ("parameter.missing", "shape.fixed", "law.length"),
        {"causal": False}, (), NARROW,
        parameters=("W_query.weight", "W_key.weight", "W_value.weight"),
        headings={"shape": "Predict", "differs": "Predict", "parameter": "See"},
    ),
    LessonRow(
        7, "not_the_future", "Not the future", ("CausalAttention",), "x2d",
        ("mask.inverted", "mask.missing", "mask.soft", "mask.off-by-one", "mask.after-softmax",
         "output.non-finite", "law.pairs", "differs"),
        {"causal": True}, (), NARROW,
        headings={"mask": "Two ways to hide", "law": "Why"},
    ),
    LessonRow(
        8, "batches", "Batches", ("SelfAttention", "CausalAttention"), "x,mask",
        ("mask.padding-ignored", "law.samples", "mask.broadcast", "shape.fixed"),
        named={"SelfAttention": {"causal": False}, "CausalAttention": {"causal": True}},
        headings={"mask": "Write", "mask.padding-ignored": "Padding", "mask.soft": "Padding",
                  "law": "Predict", "shape": "See"},
    ),
    LessonRow(
        9, "two_modes", "Two modes", ("CausalAttention",), "x",
        ("dropout.in-eval", "dropout.wrong", "dropout.never", "state.mask", "law.again"),
        {"causal": True, "dropout": 0.2},
        headings={"dropout": "What is dropped?", "dropout.in-eval": "Predict", "dropout.never": "Predict",
                  "state": "A table that is not trained",
                  "law.again": "A table that is not trained"},
    ),
    LessonRow(
        10, "several_heads", "Several heads", ("MultiHeadAttention",), "x",
        ("heads.layout", "softmax.axis"),
        {"causal": True, "num_heads": 3}, ({"causal": False, "num_heads": 3},),
        headings={"heads": "Cutting a table", "softmax": "Side by side",
                  "parameter": "One matrix for all"},
    ),
    LessonRow(
        11, "two_sequences", "Two sequences", ("CrossAttention",), "x,context",
        ("context.wrong", "parameter.missing", "law.pairs"),
        headings={"context": "Why"},
    ),
    LessonRow(
        12, "where_is_a_word", "Where is a word?", ("rotate", "RotaryAttention"), "x",
        ("rope.layout", "rope.offset", "differs"),
        {"rope": HALF}, ({"rope": INTERLEAVED},),
        headings={"rope": "Rotation", "rope.layout": "Write", "differs": "Rotation"},
        calls=("torch.randn(5, 4)", "torch.randn(2, 7, 6)", "torch.randn(2, 3, 7, 8)", "torch.randn(1, 6)"),
    ),
    LessonRow(
        13, "a_real_model", "A real model, fast", ("CachedAttention",), "decode",
        ("cache.wrong", "mask.top-left"),
        {"causal": True},
        headings={"cache": "Write", "mask": "Predict"},
    ),
    LessonRow(
        14, "a_block", "A block", ("Block",), "",
        ("stage.input", "stage.missing", "parameter.missing"),
        calls=("torch.randn(2, 5, 8)", "torch.randn(1, 1, 8)", "torch.randn(3, 7, 8)"),
        made="width=8, attention=Mixing(8)",
        headings={"stage": "Why"},
    ),
    LessonRow(
        15, "a_model_that_writes", "A model that writes", ("GPT",), "",
        ("stage.input", "stage.missing", "parameter.missing"),
        calls=("torch.randint(11, (2, 5))", "torch.randint(11, (1, 9))", "torch.randint(11, (3, 1))"),
        made="num_tokens=11, context_length=9, width=8, blocks=[Mixing(8), Mixing(8)]",
        headings={"stage": "Three parts", "parameter": "Three parts"},
    ),
    LessonRow(
        16, "your_class_in_a_real_model", "Your class in a real model", ("GroupedAttention",), "",
        ("stage.input", "stage.missing", "parameter.missing", "differs"),
        calls=("torch.randn(2, 5, 24)", "torch.randn(1, 1, 24)", "torch.randn(3, 7, 24)"),
        made="width=24, num_heads=6, num_kv_heads=2, base=100.0",
        headings={"stage": "Fewer keys than queries"},
    ),
)  # fmt: skip
# What each mistake does, in the words of the lessons, including `differs`, which every lesson has.
REASONS: Mapping[str, str] = {
    "sum.wrong": "a sum has the wrong terms: its total is not reset to 0, or a term is left out",
    "law.pairs": "a result is computed from the wrong query or the wrong key",
    "law.scores": "the result does not depend on the scores as it should",
    "law.value": "a term is missing, the values are changed before they are added, or the weights do not add up to 1",
    "law.samples": "one text of a batch changes the result of another",
    "law.again": "the same call returns a different result the second time",
    "law.length": "a longer text changes the result of its first words",
    "shape.fixed": "it works only for some sizes",
    "softmax.axis": "each row is divided by the wrong sum: keepdim=True keeps each sum next to its row",
    "softmax.missing": "a row of weights does not add up to 1, or is not computed with exp",
    "softmax.twice": "softmax is applied to something that is already a share",
    "output.non-finite": "some results are NaN or infinite: subtract the largest score of each row before exp",
    "input.modified": "the tensor of the caller is changed: make a new one instead",
    "parameter.missing": "a matrix is not a separate parameter, so it is not trained",
    "parameter.dead": "this matrix does not affect the result, so it learns nothing",
    "grad.wrong": "the gradient is wrong: some step cuts it off or changes it",
    "scale.missing": "the scores are not divided by √d",
    "scale.wrong": "the scores are not divided by √d, the square root of the width of a query, but by another number",
    "mask.inverted": "the earlier words are hidden, and the later ones are visible",
    "mask.missing": "later words are visible",
    "mask.soft": "a hidden score becomes a number such as 0 or 1, which still gets a share: -inf gets none",
    "mask.off-by-one": "the mask starts one word too early or too late",
    "mask.after-softmax": "weights are hidden after the softmax, and the others no longer add up to 1",
    "mask.padding-ignored": "words attend to the padding of a short text",
    "mask.broadcast": "the mask hides queries, or words of another text, where it should hide keys",
    "mask.top-left": "the mask of a step starts at the first key: the last query belongs to the last key",
    "dropout.in-eval": "weights are dropped in evaluation too",
    "dropout.wrong": "something other than single weights is dropped, or the others are not divided by 1 - p",
    "dropout.never": "nothing is dropped in training",
    "state.mask": "register_buffer(…, persistent=False) moves the mask with the module, and does not save it",
    "heads.layout": "the columns are not cut into one head after another, or the heads are merged in another order",
    "context.wrong": "the queries come from x, and the keys and values from the context",
    "rope.layout": "the wrong pairs of numbers are rotated, or query and key use different pairs",
    "rope.offset": "the first word has position 0, so it should not be rotated, but it is",
    "cache.wrong": "a step does not continue with the cached words, or words of an earlier text are left in the cache",
    "stage.missing": "this part of the solution is not used",
    "stage.input": "this part does not get the input that it has in the solution: see its call, and the lines above",
    "differs": "the result is not that of the formula of this lesson",
}
LESSONS: Mapping[int, LessonRow] = {each.number: each for each in ROWS}


def lessons_of(code: str) -> tuple[LessonRow, ...]:
    """Return the lessons that explain a mistake, by its code, in their order; () if none does.

    Example:
        >>> [each.slug for each in lessons_of("mask.inverted")]
        ['07_not_the_future']
    """
    return tuple(each for each in ROWS if code in each.codes)


PACKAGE = Path(__file__).resolve().parent.parent


def docs(name: str) -> Path:
    """Return the path of a page or folder of the docs: in the installed package, else in the checkout around it.

    The second path is returned even if nothing is there.

    Example:
        >>> docs("lessons/01_one_number.md").is_file()
        True
    """
    installed = PACKAGE / "docs" / name
    return installed if installed.exists() else PACKAGE.parents[1] / "docs" / name


@dataclass(frozen=True)
class Exercise:
    """An exercise of a lesson.

    Attributes:
        row: what is graded: the row of the lesson with the name, the calls and the solution of the exercise.
        title: a heading.
        stars: how hard it is, 1 to 3.
        ask: the task.
        hints: from a first step to nearly all of it.
        stub: the code to fill in or to mend.
        why: why the solution is right.
    """

    row: LessonRow
    title: str
    stars: int
    ask: str
    hints: tuple[str, ...]
    stub: str
    why: str

    @property
    def name(self) -> str:
        """The name of the function or class that is graded."""
        return self.row.names[0]

    def page(self) -> str:
        """Return the exercise as Markdown, with blocks as in a lesson."""
        blocks = [("python exercise", self.stub), *(("hint", f"{each}\n") for each in self.hints)]
        blocks += [("python answer", self.row.solution), ("why", f"{self.why}\n")]
        code = "\n\n".join(f"```{role}\n{source}```" for role, source in blocks)
        return f"### {'★' * self.stars} {self.title}\n\n{self.ask}\n\n{code}\n"


@cache
def exercises_of(number: int) -> Mapping[str, Exercise]:
    """Return the exercises of a lesson by their names, the easiest first; read from its file once, then cached.

    The mapping is shared: do not change it. Raises KeyError for a lesson that is not there.

    Example:
        >>> [exercise.stars for exercise in exercises_of(7).values()]
        [1, 2, 3]
    """
    lesson = LESSONS[number]
    file = docs(f"lessons/exercises/{lesson.slug}.toml")
    rows = tomllib.loads(file.read_text(encoding="utf-8"))
    return {name: _exercise(lesson, name, each) for name, each in rows.items()}


def _exercise(lesson: LessonRow, name: str, fields: Mapping[str, Any]) -> Exercise:
    """Return the exercise of a lesson that grades `name`, from the fields of its row in the file.

    Raises KeyError if a field other than `made` is missing.
    """
    row = replace(
        lesson, names=(name,), takes="", contract={}, either=(), calls=tuple(fields["calls"]),
        made=fields.get("made", ""), headings={"": "Exercises"},
        solution=f"import torch\nfrom torch import nn\n\n\n{fields['solution']}",
    )  # fmt: skip
    same = {each: fields[each] for each in ("title", "stars", "ask", "stub", "why")}
    return Exercise(row, hints=tuple(fields["hints"]), **same)
