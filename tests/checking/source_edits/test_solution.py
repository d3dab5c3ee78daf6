"""The solution of a lesson in the words of a program."""

import ast

from clearhead.checking.source_edits.solution import in_words_of

SOLUTION = """class Cached(nn.Module):
    def reset(self):
        self.W_key, self.keys = make(), None
"""


def test_an_attribute_that_the_solution_has_too_stays_itself() -> None:
    """`keys` and `W_key` are both names of keys."""
    program = ast.parse(
        "class Cached(nn.Module):\n    def reset(self):\n        self.to_k = self.keys = 0\n"
    )
    solution = ast.unparse(ast.fix_missing_locations(in_words_of(program, SOLUTION)))
    assert "self.to_k, self.keys = (make(), None)" in solution
