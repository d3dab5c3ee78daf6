"""Elements escape what is put into them."""

from hypothesis import given
from hypothesis import strategies as st

from clearhead._common.elements import Html, element
from clearhead.drawing.notebook.inline.markup import frame, line, table, title
from tests.drawing.notebook.inline.reading import Markup

HOSTILE = "<script>alert(1)</script>&amp;\"'"


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_text_stays_text(text: str) -> None:
    found = Markup(element("div", text, element("b", text), title=text))
    assert "".join(found.words) == text + text


def test_every_part_escapes() -> None:
    whole = frame(title(HOSTILE), line(HOSTILE), table([[HOSTILE]], [[HOSTILE, HOSTILE]]))
    assert "<script>" not in whole
    assert Markup(whole).text.count("<script>alert(1)</script>&amp;\"'") == 5


def test_what_is_markup_already_is_not_escaped_again() -> None:
    assert element("div", Html("&lt;")) == "<div>&lt;</div>"
    assert element("img", alt="a") == '<img alt="a">'
