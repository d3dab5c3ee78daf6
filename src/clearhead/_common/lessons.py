"""The thirteen lessons: what each grades, what it promises, and the mistakes that it speaks of.

Nothing here needs PyTorch, so that the command line, the pages and `check` read one table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# So narrow that scores without a scale leave weights that are felt.
NARROW = {"d_in": 5, "d_out": 3}
HALF, INTERLEAVED = {"layout": "half"}, {"layout": "interleaved"}


@dataclass(frozen=True)
class LessonRow:
    """One row.

    Attributes:
        number, title: as its page says them.
        stem: of the name of its page.
        names: what a learner's file may define to be graded; the first is that of the starter.
        takes: how it is called, as `check` takes it.
        contract: what it promises, as `check` declares it.
        codes: the mistakes that it speaks of.
        either: other promises that are as good.
        sizes: that a class is made with, where they are not guessed; each another prime.
        named: what one of its names promises besides.
        parameters: those that it asks for by name, and no others.
        headings: of its page, under which a mistake is explained, by what its code begins with.
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

    def pointer(self, code: str) -> str:
        """Say where a mistake is explained: lesson, heading and the command that prints them.

        Example:
            >>> LESSONS[9].pointer("state.mask-saved")
            'lesson 9, Two modes, under "A table that is not trained": clearhead lesson 9 --read'
        """
        began = max((each for each in self.headings if code.startswith(each)), key=len, default="")
        heading = self.headings.get(began, "Write")
        return f'lesson {self.number}, {self.title}, under "{heading}": {self.told}'

    @property
    def slug(self) -> str:
        """The name of its page without the ending.

        Example:
            >>> LESSONS[7].slug
            '07_not_the_future'
        """
        return f"{self.number:02d}_{self.stem}"

    @property
    def told(self) -> str:
        """The command that prints the lesson, where clearhead is installed and where it is checked out.

        Example:
            >>> LESSONS[1].told
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
        """True of a lesson whose class mixes what heads bring home, by a layer with a bias.

        Example:
            >>> LESSONS[10].has_out
            True
        """
        return "num_heads" in self.contract

    @property
    def is_part(self) -> bool:
        """True of a lesson that grades a function of tensors, False of one that grades a class."""
        return self.names[0].islower()


ROWS = (
    LessonRow(
        1, "one_number", "One number", ("scores",), "query,key",
        ("sum.carried", "sum.left-out", "sum.overwritten", "law.pairs", "law.scores", "shape.square-only"),
        {"scale": 1.0}, headings={"law.scores": "Why"},
    ),
    LessonRow(
        2, "a_share_of_one", "A share of one", ("weights", "softmax"), "scores",
        ("softmax.axis", "softmax.keepdim", "softmax.missing", "softmax.twice", "dtype.overflow",
         "input.modified"),
        {"scale": 1.0},
        headings={"softmax.missing": "Predict", "dtype": "Predict", "law.scores": "Predict"},
    ),
    LessonRow(
        3, "taking_home", "Taking home", ("context",), "weights,value",
        ("sum.overwritten", "law.value", "weights.scaled"),
        headings={"law": "Why", "weights": "Why"},
    ),
    LessonRow(
        4, "three_matrices", "Three matrices", ("SelfAttention",), "x2d",
        ("parameter.missing", "parameter.dead", "parameter.shared", "grad.blocked"),
        {"causal": False, "scale": 1.0}, ({"causal": False},), NARROW,
        headings={"parameter.dead": "Why", "parameter.shared": "Why"},
    ),
    LessonRow(
        5, "why_root_d", "Why √d", ("attention",), "qkv",
        ("scale.missing", "scale.wrong", "scale.inverse"), {"causal": False},
        headings={"scale": "Predict"},
    ),
    LessonRow(
        6, "modules", "Modules", ("SelfAttention",), "x2d",
        ("parameter.missing", "length.fixed", "shape.square-only", "law.length"),
        {"causal": False}, (), NARROW,
        parameters=("W_query.weight", "W_key.weight", "W_value.weight"),
        headings={"shape": "Predict", "differs": "Predict", "parameter": "See"},
    ),
    LessonRow(
        7, "not_the_future", "Not the future", ("CausalAttention",), "x2d",
        ("mask.inverted", "mask.missing", "mask.multiplied", "mask.off-by-one", "mask.after-softmax",
         "mask.added-as-number", "mask.non-finite", "law.pairs", "differs"),
        {"causal": True}, (), NARROW,
        headings={"mask": "Two ways to hide", "law": "Why"},
    ),
    LessonRow(
        8, "batches", "Batches", ("SelfAttention", "CausalAttention"), "x,mask",
        ("mask.padding-ignored", "batch.mixed", "mask.on-queries", "mask.batch-mixed", "law.samples",
         "length.fixed"),
        named={"SelfAttention": {"causal": False}, "CausalAttention": {"causal": True}},
        headings={"mask": "Write", "mask.padding-ignored": "Stuffing", "mask.multiplied": "Stuffing",
                  "batch": "Predict", "law": "Predict", "length": "See"},
    ),
    LessonRow(
        9, "two_modes", "Two modes", ("CausalAttention",), "x",
        ("dropout.in-eval", "dropout.on-scores", "dropout.unscaled", "dropout.never",
         "dropout.misplaced", "state.mask-plain", "state.mask-saved", "law.again",
         "output.nondeterministic"),
        {"causal": True, "dropout": 0.2},
        headings={"dropout": "What is dropped?", "dropout.in-eval": "Predict", "dropout.never": "Predict",
                  "output": "Predict", "state": "A table that is not trained",
                  "law.again": "A table that is not trained"},
    ),
    LessonRow(
        10, "several_heads", "Several heads", ("MultiHeadAttention",), "x",
        ("heads.split", "heads.merge", "heads.identical", "heads.layout", "heads.summed",
         "heads.count", "softmax.axis"),
        {"causal": True, "num_heads": 3}, ({"causal": False, "num_heads": 3},),
        headings={"heads": "Cutting a table", "heads.count": "One matrix for all", "heads.identical": "Side by side",
                  "heads.summed": "Side by side", "softmax": "Side by side", "parameter": "One matrix for all"},
    ),
    LessonRow(
        11, "two_sequences", "Two sequences", ("CrossAttention",), "x,context",
        ("context.ignored", "context.swapped", "parameter.shared", "law.pairs"),
        headings={"context": "Why"},
    ),
    LessonRow(
        12, "where_is_a_word", "Where is a word?", ("rotate", "RotaryAttention"), "x",
        ("rope.values", "rope.layout", "rope.offset", "rope.before-split", "differs", "law.scores"),
        {"rope": HALF}, ({"rope": INTERLEAVED},),
        headings={"rope": "Turning", "rope.layout": "Write", "rope.values": "See", "law.scores": "Turning"},
    ),
    LessonRow(
        13, "a_real_model", "A real model, fast", ("CachedAttention",), "decode",
        ("cache.stale", "cache.offset", "cache.unmasked", "cache.window", "mask.top-left"),
        {"causal": True},
        headings={"cache": "Predict", "cache.stale": "Write", "mask": "Predict"},
    ),
)  # fmt: skip
LESSONS: Mapping[int, LessonRow] = {each.number: each for each in ROWS}


def lessons_of(code: str) -> tuple[LessonRow, ...]:
    """The lessons that speak of a mistake.

    Example:
        >>> [each.slug for each in lessons_of("mask.inverted")]
        ['07_not_the_future']
    """
    return tuple(each for each in ROWS if code in each.codes)
