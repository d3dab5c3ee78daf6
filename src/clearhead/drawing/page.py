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

from clearhead.drawing.labels import label
from clearhead.drawing.payload import Payload
from clearhead.files import replacing

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
<script id="clearhead-payload" type="application/octet-stream;base64">{payload}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def page(payload: Payload) -> str:
    """The payload as a page of HTML, which opens without a network.

    Example:
        >>> from clearhead.drawing.payload import Payload
        >>> html = page(Payload("heads", "<script>", {}, {}))
        >>> html[:15], "<title>&lt;script&gt;</title>" in html
        ('<!doctype html>', True)
    """
    script, style = asset("page.js"), asset("page.css")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return PAGE.format(
        policy=policy,
        title=escape(label(payload.title)) if payload.title else "clearhead",
        style=style,
        script=script,
        payload=b64encode(payload.to_bytes()).decode("ascii"),
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
    return (resources("clearhead.drawing") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """How a policy names a script or a style."""
    return f"'sha256-{b64encode(sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
