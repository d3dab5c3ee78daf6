"""The screens of `clearhead show`: a model, one of its layers, or one of its heads."""

from collections.abc import Callable
from functools import cache
from itertools import zip_longest

from clearhead.drawing.labels import fit, label, names
from clearhead.drawing.terminal.heat_maps import HeatMap
from clearhead.drawing.terminal.shading import Console, Text, percent
from clearhead.drawing.terminal.terminal import LayerTable, Links, Overview, Printer
from clearhead.drawing.terminal.word_links import (
    Choice,
    LayerHeads,
    head_to_show,
    heads_of,
    which_are_words,
)
from clearhead.integrations.text_models import Reading, check_place
from clearhead.matrix.head_view import HeadMaps, HeadView
from clearhead.matrix.links import Link, pairs_of_words, strongest_links
from clearhead.reading.written_tokens import Writes
from clearhead.watching.finding import links_of_heads

TOKENS = 60
LINKS_OF_MODEL = 8
LINKS_OF_HEAD = 6


class Screens(Printer):
    """Prints the attention of a model on a text or a picture.

    Args:
        console: to print to.
        reading: the tokens and the matrices.

    Example:
        >>> import io
        >>> from clearhead.integrations import huggingface
        >>> console = Console(file=io.StringIO(), width=80)
        >>> screens = Screens(console, huggingface.load().read("The cat sat."))
        >>> screens.head(layer=0, head=2)
        >>> "cat → the" in console.file.getvalue()
        True
    """

    def __init__(self, console: Console, reading: Reading) -> None:
        super().__init__(console)
        self._reading = reading
        self._words = which_are_words(reading.tokens, reading.special)
        self._names = names(reading.tokens)
        self._heads = cache(self._heads_of)

    def check(self, layer: int | None, head: int | None) -> None:
        """Raise SelectionError if there is no such layer or head; None, and a head without a layer, are not checked.

        Raises:
            SelectionError: codes `show.layer`, `show.head`.
        """
        check_place(layer, head, [each.shape[1] for each in self._reading.matrices])

    def title(self, name: str, part: str) -> None:
        """Print the model, the part of it that ran ("" for all), and the first 60 tokens that it read."""
        heads = [each.shape[1] for each in self._reading.matrices]
        self._title(name, part, heads, self._reading.tokens, TOKENS)

    def show(self, layer: int | None, head: int | None) -> Choice:
        """Print a head, the heads of a layer where `head` is None, or all layers where `layer` is None.

        Returns:
            The head to look at first.
        """
        if layer is None:
            return self.model()
        if head is None:
            head = self.layer(layer)
        else:
            self.head(layer, head)
        return Choice(layer, head, None)

    def model(self) -> Choice:
        """Print every head of every layer, the strongest links, and one head over the tokens.

        Returns:
            That head, and the link that it is shown for; None if there are no two words.
        """
        layers = [self._heads(place) for place in range(len(self._reading.matrices))]
        self._heading("How focused each head is, in %")
        self._print(Overview(layers))
        self._heading("The strongest links between words, one per head")
        found = [(i, link) for i, each in enumerate(layers) for link in each.strongest if link]
        found.sort(key=lambda pair: -pair[1].weight)
        self._links(found[:LINKS_OF_MODEL], with_heads=True)
        choice = head_to_show(layers)
        self._heading(f"Layer {choice.layer}, head {choice.head}")
        self._print(Text(f"chosen {choice.reason}{self._named(choice.link)}", "dim"))
        self._map(choice.layer, choice.head)
        return choice

    def find(self, query: int | None, key: int | None) -> tuple[int, int]:
        """Print the heads by a weight, strongest first, and the first of them over the tokens.

        The weight is from a query to a key. If the key is None, it is the largest weight of the query; if the query is
        None, the largest weight to the key. One of them must be given, and one head have finite weights.

        Returns:
            Layer and number of that head.
        """
        found: list[tuple[int, Link]] = []
        for layer, matrix in enumerate(self._reading.matrices):
            for link in links_of_heads("", matrix, query, key):
                found.append((layer, Link(*link[1:])))
        found.sort(key=lambda pair: -pair[1].weight)
        ends = [None if at is None else self._names[at] for at in (query, key)]
        if None in ends:
            side = f"of {ends[0]}" if key is None else f"to {ends[1]}"
            self._heading(f"The heads by their strongest link {side}")
        else:
            self._heading(f"The heads in which {ends[0]} attends to {ends[1]}")
        self._links(found[:LINKS_OF_MODEL], with_heads=True)
        layer, link = found[0]
        self._heading(f"Layer {layer}, head {link.head}", self._reading.layers[layer])
        self._map(layer, link.head)
        return layer, link.head

    def layer(self, layer: int) -> int:
        """Print the heads of a layer and the strongest link of each; return the number of the head to look at first."""
        heads = self._heads(layer)
        self._heading(f"Layer {layer}", self._reading.layers[layer])
        self._print(Text(str(LayerTable(heads.rows))))
        self._heading("The strongest link of each head between words")
        self._links([(layer, link) for link in heads.strongest if link], with_heads=True)
        return head_to_show([heads]).head

    def head(self, layer: int, head: int) -> None:
        """Print one head over the tokens, its numbers, and its strongest links."""
        heads = self._heads(layer)
        row = heads.rows[head]
        self._heading(f"Layer {layer}, head {head}", self._reading.layers[layer])
        self._map(layer, head)
        self._print(Text())
        self._print(
            Text(
                f"entropy {row.entropy:.2f} nats, focus {percent(heads.focus[head])}; "
                f"mean distance {row.distance:.1f} tokens"
            )
        )
        self._print(
            Text(
                f"of the attention, {percent(row.first or 0.0)} goes to the first token, "
                f"{percent(row.previous or 0.0)} to the one before it, "
                f"{percent(heads.special[head])} to special tokens"
            )
        )
        self._heading("Its strongest links between words")
        weights = self._maps(layer, head).shares[0]
        allowed = pairs_of_words(self._words).to(weights.device)
        links = strongest_links(weights, allowed, LINKS_OF_HEAD)
        self._links([(layer, link) for link in links], with_heads=False)

    def writes(
        self, layer: int, head: int, query: int, found: Writes, word: Callable[[int], str]
    ) -> None:
        """Print the tokens whose logits a head raises most at a query, and those that it lowers most.

        Args:
            layer: the number of the layer.
            head: the number of the head in the layer.
            query: the position of the logits.
            found: what the heads write, in the same run.
            word: what a token of the vocabulary is called.
        """
        self._heading(f"What layer {layer}, head {head} writes at {self._names[query]}")
        remark = "logits that it adds, above their mean over all tokens"
        self._print(Text(remark, "dim"))
        rows = found.of(self._reading.layers[layer], head=head)
        sides = [
            [(label(word(row.token)), row.above) for row in side if row.query == query]
            for side in (rows.raised, rows.lowered)
        ]
        self._print(Text(f"{'raises':30}lowers", "dim"))
        for pairs in zip_longest(*sides):
            cells = ["" if each is None else f"{each[1]:8.4f}  {each[0]}" for each in pairs]
            self._print(Text(f"{fit(cells[0], 29)} {cells[1]}".rstrip()))

    def _heads_of(self, layer: int) -> LayerHeads:
        """Return the heads of a layer, with their links between words; computes the weights of the layer."""
        return heads_of(self._reading.matrices[layer], self._reading.special, self._words)

    def _maps(self, layer: int, head: int) -> HeadMaps:
        """Return the weights of a head with its hidden pairs."""
        return HeadView(self._reading.matrices[layer], heads=[head]).exact()

    def _map(self, layer: int, head: int) -> None:
        """Print the heat map of a head."""
        maps = self._maps(layer, head)
        visible = None if maps.visible is None else maps.visible[0]
        self._print(HeatMap(maps.shares[0], self._reading.tokens, visible=visible))

    def _links(self, found: list[tuple[int, Link]], *, with_heads: bool) -> None:
        """Print a table of (layer, link), with layers and heads if `with_heads`; a remark if there are none."""
        if not found:
            self._print(Text("none: there are no two words", "dim"))
            return
        layers = [layer for layer, _ in found] if with_heads else None
        self._print(Links([link for _, link in found], self._reading.tokens, layers))

    def _named(self, link: Link | None) -> str:
        """Return a link in words, after a colon; "" for None."""
        if link is None:
            return ""
        return f": {self._names[link.query]} → {self._names[link.key]} {link.weight:.2f}"
