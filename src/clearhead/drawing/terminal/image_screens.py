"""The screens of `clearhead show --image`: where the heads of a model look in a picture."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clearhead.drawing.terminal.screens import Screens
from clearhead.drawing.terminal.shading import (
    Console,
    ConsoleOptions,
    Padding,
    Text,
    cell_text,
    largest,
    legend,
    percent,
    remark,
    text_line,
)
from clearhead.drawing.terminal.terminal import HeadTable, Overview
from clearhead.drawing.terminal.word_links import Choice
from clearhead.integrations.image_models import ImageReading
from clearhead.matrix.pooling import block_sums

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class PatchMap:
    """The attention that the patches of a picture get, each at its place.

    Args:
        shares: (rows, columns), shares of one.
        whose: what looks.

    Example:
        >>> console = Console(width=40, no_color=True, force_terminal=False)
        >>> with console.capture() as printed:
        ...     console.print(PatchMap(torch.tensor([[0.0, 0.25], [0.5, 0.0]]), "[CLS]"))
        >>> printed.get().splitlines()[1]
        '██  '
    """

    shares: Tensor
    whose: str

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Text | Padding]:
        # A cell of a terminal is twice as high as wide.
        fold = max(1, math.ceil(2 * self.shares.shape[1] / options.max_width))
        shares = block_sums(block_sums(self.shares, fold).mT, fold).mT
        # Most patches get little, so brightness grows with the root.
        top = math.sqrt(largest(shares))
        for row in shares.clamp(min=0).sqrt().tolist():
            line = text_line("")
            for value in row:
                line.append_text(cell_text(value, top, 2, console))
            yield line
        words = f"{percent(top * top)} of the attention of {self.whose}, by its square root"
        yield from legend(words, console, options)
        if fold > 1:
            yield remark(f"a cell is {fold} × {fold} patches")


class ImageScreens(Screens):
    """Prints the attention of a model that saw a picture.

    Args:
        console: to print to.
        reading: the patches and the matrices.

    Example:
        >>> issubclass(ImageScreens, Screens)
        True
    """

    def __init__(self, console: Console, reading: ImageReading) -> None:
        super().__init__(console, reading)
        self._pixels, self._grid, self._skip = reading.pixels, reading.grid, reading.skip

    def title(self, name: str, *, encoder_only: bool = False) -> None:
        """Print the model, and the grid of patches that it saw."""
        (rows, columns), (_, height, width) = self._grid, self._pixels.shape
        before = f"{' '.join(self._reading.tokens[: self._skip])} and " if self._skip else ""
        heads = [each.shape[1] for each in self._reading.matrices]
        self._title(name, "its part for pictures only" if encoder_only else "", heads)
        self._print(
            Text(f"{before}{rows} × {columns} patches of {height} × {width} pixels", "italic")
        )

    def model(self) -> Choice:
        """Print every head of every layer, and where one of the last layer looks."""
        layers = [self._heads(place) for place in range(len(self._reading.matrices))]
        self._heading("How focused each head is, in %")
        self._print(Overview(layers))
        layer = len(layers) - 1
        head = self._most_focused(layer)
        self._heading(f"Layer {layer}, head {head}")
        self._print(
            Text("chosen as the head of the last layer that attends to the fewest patches", "dim")
        )
        self._print(self._patches(layer, head))
        return Choice(layer, head, None)

    def layer(self, layer: int) -> int:
        """Print the heads of a layer, a line each, and where the most focused of them looks."""
        self._heading(f"Layer {layer}", self._reading.layers[layer])
        self._print(HeadTable(self._heads(layer), self._reading.tokens))
        head = self._most_focused(layer)
        self._heading(f"Layer {layer}, head {head}")
        self._print(self._patches(layer, head))
        return head

    def head(self, layer: int, head: int) -> None:
        """Print where one head looks."""
        self._heading(f"Layer {layer}, head {head}", self._reading.layers[layer])
        self._print(self._patches(layer, head))

    def picture(self, layer: int, head: int) -> "Axes":
        """Draw over the picture where the head looks.

        Raises:
            MissingExtraError: if matplotlib is not installed.
        """
        from clearhead.drawing.figures.png_files import photo_picture

        title = f"layer {layer}, head {head}: the attention of {self._whose}"
        return photo_picture(self._pixels, self._looks(layer, head), title=title)

    def _most_focused(self, layer: int) -> int:
        heads = range(self._reading.matrices[layer].num_heads)
        spread = [float(torch.special.entr(self._looks(layer, head)).sum()) for head in heads]
        return spread.index(min(spread))

    def _patches(self, layer: int, head: int) -> PatchMap:
        return PatchMap(self._looks(layer, head), self._whose)

    def _looks(self, layer: int, head: int) -> Tensor:
        """The weights of the first token on the patches, (rows, columns); where every token is a patch, the
        mean over all of them."""
        rows, columns = self._grid
        weights = self._reading.matrices[layer][0, head, : 1 if self._skip else None]
        return weights.mean(dim=0)[self._skip :].unflatten(0, (rows, columns))

    @property
    def _whose(self) -> str:
        return self._reading.tokens[0] if self._skip else "a patch, on average"
