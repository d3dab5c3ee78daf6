"""The page on which a GPT reads what is typed."""

import pytest
import torch
from playwright.sync_api import expect

from docs.site.sentence import sentence_payload
from tests.browser.conftest import DESKTOP, PHONE, Opens
from tests.drawing.page.test_sentence import LETTERS, untrained


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_maps_and_letters_follow_what_is_typed(opens: Opens, size: dict[str, int]) -> None:
    torch.manual_seed(0)
    page = opens(sentence_payload(untrained(), LETTERS), size=size)
    letters, sentence = page.locator(".ch-letters button"), page.get_by_label("Your sentence")
    maps, status = page.locator(".ch-maps canvas"), page.locator(".ch-note[role=status]")
    sentence.fill("<b>hé</b>")
    expect(status).to_have_text("The model has never seen é, and skips it. ")
    expect(maps).to_have_count(16)
    assert maps.first.evaluate("map => [map.width, map.height]") == [8, 8]
    letters.nth(2).click()
    page.get_by_role("button", name="layer 1, head 2").click()
    expect(page.get_by_label("Heads")).to_contain_text("Layer 1, head 2: where > looks")
    expect(page.locator(".ch-bars li")).to_have_count(6)
    page.locator(".ch-next").click()
    expect(letters.nth(9)).to_be_attached()
    assert letters.all_inner_texts()[:8] == list("<b>h</b>")
    assert sentence.input_value().startswith("<b>hé</b>")
    sentence.fill("")
    expect(status).to_have_text("Type a letter that it knows.")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
