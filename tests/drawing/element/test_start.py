"""The state that a figure begins with."""

import pytest
import torch

import clearhead as ch
from tests.refusals import refusals

X = torch.tensor([[0.43, 0.15], [0.55, 0.87], [0.57, 0.85]])


def test_it_stands_in_the_element() -> None:
    start = "scores.1.0=-3.5e1&mask=100.110.111&scale=1&temperature=2&guess=0.5"
    drawn = ch.figure(X, X, X, predict=("weights", 1, 0), start=start)
    assert f'state="{start.replace("&", "&amp;")}"' in drawn.to_element(script=False)
    assert "state=" not in ch.figure(X, X, X, start="").to_element(script=False)
    masked = ch.causal().figure(2, start="mask=11.01")
    assert 'state="mask=11.01"' in masked.to_element(script=False)


HAS = "query.row.column, scores.row.column, mask, scale, temperature"
FIELDS = "key.0.0=1", "scores.0.0=1e999", "scores.0.0=NaN", "guess=1", "scale.0.0=1", "scale=1&"
test_what_it_is_not_is_refused = refusals(
    lambda options: ch.figure(X, X, X, **options),
    *(({"start": each}, "figure.start", HAS, repr(each.split("&")[-1])) for each in FIELDS),
    ({"start": 1}, "figure.start", "1"),
    ({"start": "scale=1", "edit": []}, "figure.start", "nothing // 'scale=1'"),
)


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        ("width", "width=2"),
        ("dropout", "dropout=0.9&draws=3"),
        ("order", "order=2.0.1"),
        ("rotary", "rotary=1"),
    ],
)
def test_what_is_set_beside_the_cells(edit: str, field: str) -> None:
    drawn = ch.figure(X, X, X, show=["weights"], edit=[edit], start=field)
    assert f'state="{field.replace("&", "&amp;")}"' in drawn.to_element(script=False)
    with pytest.raises(ch.errors.ArgumentError, match=r"\[figure.start\]"):
        ch.figure(X, X, X, show=["weights"], edit=["scores"], start=field)
