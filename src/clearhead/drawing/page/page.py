"""A payload as a page: one file of HTML that opens without a network.

The page's policy (Content Security Policy) runs the bundled script and nothing else, and loads
nothing at all. What comes from outside, tokens and names, is data: it stands deflated in base64.
"""

import os
from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files as resources
from pathlib import Path

from clearhead._common.writing import replacing
from clearhead.drawing.labels import label
from clearhead.drawing.page.payload import Payload

MOST_OF_TITLE = 140

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="clearhead-page"><noscript>This page draws itself with JavaScript.</noscript></div>
<script id="clearhead-payload" type="application/octet-stream;base64"{source}>{payload}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def page(payload: Payload, *, served: bool = False) -> str:
    """The payload as a page of HTML, which opens without a network.

    Args:
        payload: what it draws.
        served: whether it asks its server for the payload instead of holding it.

    Example:
        >>> from clearhead.drawing.page.payload import Payload
        >>> html = page(Payload("heads", "<script>", {}, {}))
        >>> html[:15], "<title>&lt;script&gt;</title>" in html
        ('<!doctype html>', True)
    """
    return PAGE.format(
        policy=policy(served=served),
        title=escape(label(payload.title).replace("␣", " ")) if payload.title else "clearhead",
        style=asset("page.css"),
        script=asset("page.js"),
        source=' data-source="server"' if served else "",
        payload="" if served else b64encode(payload.to_bytes()).decode("ascii"),
    )


@cache
def policy(*, served: bool = False) -> str:
    """What the page may do: run its own script, and ask its server if it has one.

    Example:
        >>> policy(served=True).startswith("default-src 'none'; connect-src 'self'; script-src 'sha256-")
        True
    """
    connect = "connect-src 'self'; " if served else ""
    return (
        f"default-src 'none'; {connect}script-src {_hash(asset('page.js'))}; "
        f"style-src {_hash(asset('page.css'))}; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )


def write_page(path: str | os.PathLike[str], payload: Payload) -> Path:
    """Write the payload as a page, whole or not at all; returns its path.

    Raises:
        FileError: code `file.unwritable`, if the place cannot be written to.
    """
    content = page(payload)
    with replacing(path) as (name, target):
        Path(name).write_text(content, encoding="utf-8", newline="\n")
    return target


@cache
def asset(name: str) -> str:
    """A file of the front end, `page.js` or `page.css`, as it was bundled.

    Example:
        >>> asset("page.js").startswith("/* clearhead")
        True
    """
    return (resources("clearhead.drawing.page") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """How a policy names a script or a style."""
    return f"'sha256-{b64encode(sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
