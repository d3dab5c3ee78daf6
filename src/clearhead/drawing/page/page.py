"""A payload as a page: one HTML file that opens offline.

The page's policy (Content Security Policy) runs the bundled script and nothing else, and loads
nothing at all. What comes from outside, tokens and names, is data: it stands deflated in base64.
"""

import os
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files as resources
from pathlib import Path

from clearhead._common.elements import Html, document, element
from clearhead._common.writing import write_text
from clearhead.drawing.labels import label
from clearhead.drawing.page.payload import Payload

MOST_OF_TITLE = 140


def page(payload: Payload) -> str:
    """Return the payload as an HTML page, which opens offline.

    Example:
        >>> from clearhead.drawing.page.payload import Payload
        >>> html = page(Payload("heads", "<script>", {}, {}))
        >>> html[:15], "<title>&lt;script&gt;</title>" in html
        ('<!doctype html>', True)
    """
    title = label(payload.title).replace("␣", " ") if payload.title else "clearhead"
    note = label(str(payload.data.get("note", ""))).replace("␣", " ")
    held = b64encode(payload.to_bytes()).decode("ascii")
    head = [
        element("meta", http_equiv="Content-Security-Policy", content=policy(payload.kind)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(asset(f"{payload.kind}.css"))),
    ]
    body = [
        element(
            "div",
            element("noscript", f"This page draws itself with JavaScript. {note}".strip()),
            id="clearhead-page",
        ),
        element(
            "script", Html(held), id="clearhead-payload", type="application/octet-stream;base64"
        ),
        element("script", Html(asset(f"{payload.kind}.js")), type="module"),
    ]
    return str(document(head, body))


@cache
def policy(kind: str) -> str:
    """Return the content security policy for a kind of page: run its own script, and load nothing; cached.

    Example:
        >>> policy("heads").startswith("default-src 'none'; script-src 'sha256-")
        True
    """
    return (
        f"default-src 'none'; script-src {_hash(asset(f'{kind}.js'))}; "
        f"style-src {_hash(asset(f'{kind}.css'))}; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )


def write_page(path: str | os.PathLike[str], payload: Payload) -> Path:
    """Write the payload as a page, completely or not at all, and return its path.

    Raises:
        ArgumentTypeError: code `path.type`, for what is no path.
        FileError: code `file.unwritable`, if the place cannot be written to.
    """
    return write_text(path, page(payload))


@cache
def asset(name: str) -> str:
    """Return the text of a bundled file of the front end, such as `heads.js` or `heads.css`; read once.

    Example:
        >>> asset("heads.js").startswith("/* clearhead")
        True
    """
    return (resources("clearhead.drawing.page") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash by which a content security policy names a script or a style."""
    return f"'sha256-{b64encode(sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
