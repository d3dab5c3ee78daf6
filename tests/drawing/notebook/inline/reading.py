"""The output of a notebook cell, read back."""

import base64
import re
import zlib
from html.parser import HTMLParser

import torch
from torch import Tensor

ALLOWED = {"div", "span", "b", "code", "img", "table", "thead", "tbody", "tr", "th", "td"}
EMPTY = {"img"}


class Markup(HTMLParser):
    """Its elements and its text; complains about what does not close, or should not be there."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.words: list[str] = []
        self.images: list[dict[str, str]] = []
        self.styles: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED, f"<{tag}> would not show everywhere"
        named = {name: value or "" for name, value in attrs}
        assert not [name for name in named if name.startswith("on")]
        self.styles.append(named.get("style", ""))
        if tag == "img":
            assert named["src"].startswith("data:image/png;base64,")
            assert named["alt"]
            self.images.append(named)
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def pixels(source: str) -> Tensor:
    """The places in the table of colours of a picture, (height, width)."""
    data = base64.b64decode(source.partition(",")[2])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        name, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        check = int.from_bytes(data[at + 8 + size : at + 12 + size], "big")
        assert check == zlib.crc32(name + content)
        chunks[name] = content
        at += 12 + size
    width, height = (int.from_bytes(chunks[b"IHDR"][n : n + 4], "big") for n in (0, 4))
    lines = torch.frombuffer(bytearray(zlib.decompress(chunks[b"IDAT"])), dtype=torch.uint8)
    lines = lines.view(height, width + 1)
    assert not lines[:, 0].any()
    return lines[:, 1:]
