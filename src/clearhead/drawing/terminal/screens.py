"""What `clearhead show` prints: a model, one of its layers, or one of its heads."""

from functools import cache
from typing import TYPE_CHECKING

from torch import Tensor

from clearhead.drawing.labels import label
from clearhead.drawing.terminal.summary import (
    LayerSummary,
    Link,
    head_to_show,
    pairs_of_words,
    strongest_links,
    summarise,
    which_are_words,
)
from clearhead.drawing.terminal.terminal import Console, HeadTable, HeatMap, Links, Overview, Text
from clearhead.integrations.text_models import TextReading, check_place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOKENS = 60
LINKS_OF_MODEL = 8
LINKS_OF_HEAD = 6


class Screens:
    """Prints what a model made of a text.

    Args:
        console: where to.
        reading: what the model made of the text.

    Example:
        >>> import io
        >>> from clearhead.integrations import huggingface
        >>> console = Console(file=io.StringIO(), width=80)
        >>> screens = Screens(console, huggingface.load().read("The cat sat."))
        >>> screens.head(layer=0, head=2)
        >>> "cat → the" in console.file.getvalue()
        True
    """

    def __init__(self, console: Console, reading: TextReading) -> None:
        self._console = console
        self._reading = reading
        self._words = which_are_words(reading.tokens, reading.special)
        self._summary = cache(self._summarise)

    def check(self, layer: int | None, head: int | None) -> None:
        """Refuse a layer or a head that is not there.

        Raises:
            SelectionError: codes `show.layer`, `show.head`.
        """
        check_place(layer, head, [each.shape[1] for each in self._reading.matrices])

    def title(self, name: str, *, encoder_only: bool = False) -> None:
        """Which model it is, and the tokens that it read."""
        reading, layers = self._reading, len(self._reading.matrices)
        heads = " or ".join(map(str, sorted({each.shape[1] for each in reading.matrices})))
        part = " (its encoder only)" if encoder_only else ""
        size = f": {layers} layers × {heads} heads, {len(reading.tokens)} tokens"
        self._print(Text.assemble((label(name), "bold"), part, size))
        more = len(reading.tokens) - TOKENS
        tokens = " ".join(map(label, reading.tokens[:TOKENS]))
        self._print(Text(tokens + (f" … and {more} more" if more > 0 else ""), "italic"))

    def model(self) -> tuple[int, int]:
        """Every head of every layer, the strongest links, and one head over the tokens.

        Returns:
            Layer and number of that head.
        """
        layers = [self._summary(place) for place in range(len(self._reading.matrices))]
        self._heading("How focused each head is, in %")
        self._print(Overview(layers))
        self._heading("The strongest links between words, one per head")
        found = [(i, link) for i, each in enumerate(layers) for link in each.strongest if link]
        found.sort(key=lambda pair: -pair[1].weight)
        self._links(found[:LINKS_OF_MODEL], with_heads=True)
        choice = head_to_show(layers)
        self._heading(f"Layer {choice.layer}, head {choice.head}")
        self._print(Text(f"shown for {choice.reason}{self._named(choice.link)}", "dim"))
        self._map(choice.layer, choice.head)
        return choice.layer, choice.head

    def layer(self, layer: int) -> int:
        """The heads of a layer, a line each; returns the one to look at first."""
        numbers = self._summary(layer)
        self._heading(f"Layer {layer}", self._reading.layers[layer])
        self._print(HeadTable(numbers, self._reading.tokens))
        return head_to_show([numbers]).head

    def head(self, layer: int, head: int) -> None:
        """One head over the tokens, its numbers, and its strongest links."""
        numbers = self._summary(layer)
        self._heading(f"Layer {layer}, head {head}", self._reading.layers[layer])
        self._map(layer, head)
        self._print(Text())
        self._print(
            Text(
                f"entropy {float(numbers.entropy[head]):.2f} nats, "
                f"focus {_percent(numbers.focus[head])}; "
                f"mean distance {float(numbers.distance[head]):.1f} tokens"
            )
        )
        self._print(
            Text(
                f"of the attention, {_percent(numbers.first[head])} goes to the first token, "
                f"{_percent(numbers.itself[head])} to the token itself,\n"
                f"{_percent(numbers.previous[head])} to the one before it, "
                f"{_percent(numbers.special[head])} to special tokens"
            )
        )
        self._heading("Its strongest links between words")
        weights = self._weights(layer, head)
        allowed = pairs_of_words(self._words).to(weights.device)
        links = strongest_links(weights, allowed, LINKS_OF_HEAD)
        self._links([(layer, link) for link in links], with_heads=False)

    def picture(self, layer: int, head: int) -> "Axes":
        """The head as a picture.

        Raises:
            MissingExtraError: if matplotlib is not installed.
        """
        from clearhead.drawing.figures.static import head_picture

        return head_picture(
            self._weights(layer, head),
            self._reading.tokens,
            title=f"layer {layer}, head {head}",
            visible=self._summary(layer).visible,
        )

    def _summarise(self, layer: int) -> LayerSummary:
        return summarise(self._reading.matrices[layer], self._reading.special, self._words)

    def _weights(self, layer: int, head: int) -> Tensor:
        return self._reading.matrices[layer][0, head]

    def _print(self, what: object) -> None:
        self._console.print(what)

    def _heading(self, heading: str, remark: str = "") -> None:
        self._print(Text())
        self._print(Text.assemble((heading, "bold"), (f"   {remark}" if remark else "", "dim")))

    def _map(self, layer: int, head: int) -> None:
        visible = self._summary(layer).visible
        self._print(HeatMap(self._weights(layer, head), self._reading.tokens, visible=visible))

    def _links(self, found: list[tuple[int, Link]], *, with_heads: bool) -> None:
        if not found:
            self._print(Text("none: there are no two words", "dim"))
            return
        layers = [layer for layer, _ in found] if with_heads else None
        self._print(Links([link for _, link in found], self._reading.tokens, layers))

    def _named(self, link: Link | None) -> str:
        if link is None:
            return ""
        query, key = (label(self._reading.tokens[place]) for place in (link.query, link.key))
        return f": {query} → {key} {link.weight:.2f}"


def _percent(share: Tensor) -> str:
    return f"{float(share) * 100:.0f} %"
