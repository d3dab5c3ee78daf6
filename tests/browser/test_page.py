"""Any page, in a real browser."""

import torch

from clearhead.drawing.page.payload import Payload
from tests.browser.conftest import Opens


def test_a_page_of_an_unknown_kind_says_so(opens: Opens) -> None:
    page = opens(Payload("sculpture", "a page", {}, {"numbers": torch.zeros(3)}))
    assert page.get_by_role("alert").inner_text() == "No view draws the kind sculpture."
