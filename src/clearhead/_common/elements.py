"""HTML that escapes by construction: children are escaped as text, unless they are elements."""

import html
from collections.abc import Iterable

EMPTY = {"br", "img", "meta"}
QUOTE = '"'


class Html(str):
    """Markup that needs no escaping."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | int | None) -> Html:
    """Return an element; children that are not `Html` are escaped, and attributes always are.

    Args:
        tag: the name of the element.
        children: in order; ignored for the tags in `EMPTY`, which have none.
        attributes: `class_` is written class, and http_equiv http-equiv; None leaves one out.

    Example:
        >>> element("b", "a < b", element("i", "c"), title='"')
        '<b title="&quot;">a &lt; b<i>c</i></b>'
    """
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_escaped(str(value)).replace(QUOTE, "&quot;")}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in EMPTY:
        return Html(f"<{tag}{named}>")
    return Html(f"<{tag}{named}>{joined(children)}</{tag}>")


def joined(children: Iterable[str]) -> Html:
    """Return several children one after the other; those that are no `Html` are escaped.

    Example:
        >>> joined(["a & ", element("b", "c")])
        'a &amp; <b>c</b>'
    """
    return Html(
        "".join(
            child if isinstance(child, Html) else _escaped(child, quote=True) for child in children
        )
    )


class Drawn:
    """A result that is meant to be looked at: its repr is its picture, at a prompt and in a notebook.

    A class that has a `__str__` need no more; one that has a `__repr__` keeps it.

    Example:
        >>> class Found(Drawn):
        ...     def __str__(self) -> str:
        ...         return "a < b"
        >>> Found(), Found()._repr_html_()
        (a < b, '<pre>a &lt; b</pre>')
    """

    def __repr__(self) -> str:
        """Return the text of `__str__` if a subclass defines it, else Python's default."""
        return str(self) if type(self).__str__ is not object.__str__ else object.__repr__(self)

    def _repr_html_(self) -> str | None:
        """Return the repr as preformatted, escaped HTML for a notebook; a subclass may return None."""
        return str(element("pre", repr(self)))


def document(head: Iterable[str], body: Iterable[str]) -> Html:
    """Return a whole HTML page, in English.

    Args:
        head: the elements of its head, after the declaration of UTF-8.
        body: the elements of its body.

    Example:
        >>> print(document([element("title", "<a>")], ["b"]))
        <!doctype html>
        <html lang="en"><head><meta charset="utf-8"><title>&lt;a&gt;</title></head><body>b</body></html>
        <BLANKLINE>
    """
    top = element("head", element("meta", charset="utf-8"), *head)
    return Html(f"<!doctype html>\n{element('html', top, element('body', *body), lang='en')}\n")


def _escaped(text: str, *, quote: bool = False) -> str:
    """Return the text with markup escaped, quotes too with `quote`; unpaired surrogates become their escapes."""
    return html.escape(text.encode("utf-8", "backslashreplace").decode("utf-8"), quote=quote)
