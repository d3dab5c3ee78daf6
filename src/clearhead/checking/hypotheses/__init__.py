"""The definition as a row of stages, its edits, and the search for the nearest script of them."""
