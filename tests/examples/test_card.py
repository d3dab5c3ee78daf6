import torch
from matplotlib import pyplot
from matplotlib.text import Annotation

import clearhead as ch
from tests.examples.loading import example

WORDS = ["the", "cat", "sat", "since", "it", "slept"]


def test_it_says_the_link_and_draws_an_arc_to_each_key_that_gets_some() -> None:
    script = example("card")
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in "ab"))
    with torch.no_grad(), ch.watch(model) as seen:
        model(torch.randn(1, len(WORDS), 8))
    figure = script.card(seen, WORDS, "it", "cat")
    weights = [seen[layer][0, :, 4].reshape(2, -1) for layer in range(2)]
    share, layer, head = max(
        (float(row[1]), layer, head)
        for layer in range(2)
        for head, row in enumerate(weights[layer])
    )
    assert figure.get_suptitle() == f"“it” gives {share:.0%} of its attention to “cat”"
    assert figure.texts[1].get_text() == f"{layer}, head {head}"
    text, grid = figure.axes[:2]
    row = weights[layer][head]
    arcs = [each for each in text.texts if isinstance(each, Annotation)]
    assert len(arcs) == int((row >= script.LEAST).sum())
    assert [each.get_text() for each in text.texts if each.get_text() in WORDS] == WORDS
    assert grid.images[0].get_array().max() == float(seen[layer][0, head].max())
    pyplot.close(figure)
