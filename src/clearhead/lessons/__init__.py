"""The course: attention, learnt by writing it, one page of Markdown a lesson.

A lesson is a file of `docs/lessons`. From it come a page of the site, a notebook and a file to begin with, so nothing
is said twice. The purpose of a fenced block follows its language:

| block | |
|---|---|
| `predict NAME ANSWER TOLERANCE` | a question; ANSWER is an expression, evaluated at the place of the block |
| `python write` | the stub, which is filled in |
| `python solution` | a solution for it; folded away |
| `python live [ADDRESS]` | ends in what draws itself, to be touched: a figure, a trace; its page opens at ADDRESS |
| `python check` | the grade, with the report below it |
| `python wrong CODE` | definitions that take the place of those of the solution, and the name of the mistake |
| `python train` | trains for `steps = …`, which the tests make a few |

The exercises are rows of `docs/lessons/exercises`, which come before the recap, in blocks of the same kind:

| block | |
|---|---|
| `python exercise` | a function or class to fill in or to mend, graded by its name |
| `hint` | a step, folded away |
| `python answer`, `why` | the solution, and why it is right |

A reader of the source on a code host sees plain blocks of Python. The mistakes have the names that
`check(lesson=…)` gives them; a gallery lists those to choose from, each with what it means: "- `sum.wrong`: …".
"""
