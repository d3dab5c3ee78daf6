"""Pages of memory that rows of any length share (Kwon et al., 2023, https://arxiv.org/abs/2309.06180)."""

from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.checks import check_sizes
from clearhead._common.hints import with_hints
from clearhead.errors import TooLargeError
from clearhead.layers.caches.cache import Cache
from clearhead.layers.caches.layout import Layout, positions_from_valid
from clearhead.masks.padding import padding


@with_hints
class PagedCache(Cache):
    """A KV cache whose rows take pages of memory from one pool, as many as their real tokens fill.

    Padding takes no memory. After `reorder`, rows that come from one row share its pages, until
    they write to them. `append` returns a copy, gathered from the pages: the tokens held, then the
    new ones; but the first tokens are returned as they are.

    Args:
        page_len: tokens that a page holds.
        num_pages: pages of the pool; None doubles the pool when it is empty.

    Raises:
        ArgumentTypeError, ArgumentError: codes `argument.type` and `argument.size`, for a size below
            1.

    Example:
        >>> import torch
        >>> from clearhead.layers.caches import PagedCache
        >>> cache = PagedCache(4)
        >>> valid = torch.arange(9) < torch.tensor([[9], [2]])
        >>> _ = cache.append(torch.randn(2, 1, 9, 8), torch.randn(2, 1, 9, 8), valid=valid)
        >>> cache.pages_used  # 3 for 9 tokens, 1 for 2
        4
    """

    def __init__(self, page_len: int, *, num_pages: int | None = None) -> None:
        super().__init__()
        check_sizes(page_len=page_len, num_pages=1 if num_pages is None else num_pages)
        self.page_len = page_len
        self.num_pages = num_pages

    def describe(self) -> str:
        pages = "" if self.num_pages is None else f", num_pages={self.num_pages}"
        return f"PagedCache({self.page_len}{pages})"

    @property
    def pages_used(self) -> int:
        """Number of pages that hold tokens of a row.

        Example:
            >>> from clearhead.layers.caches import PagedCache
            >>> PagedCache(16).pages_used
            0
        """
        return int((self._pages.unique() > 0).sum())

    def _forget(self) -> None:
        super()._forget()
        # On the CPU: the pages of each row, in order, (batch, pages), and its real tokens, (batch,).
        # Page 0 stands where there is none: it belongs to no row, and stays empty.
        self._pages = torch.zeros(0, 1, dtype=torch.int64, device="cpu")
        self._lengths = torch.zeros(0, dtype=torch.int64, device="cpu")

    def _start(self, layout: Layout) -> None:
        self._pages = self._pages.new_zeros(layout.batch, 1)
        self._lengths = self._lengths.new_zeros(layout.batch)
        self._make_pool(layout, 1 + (self.num_pages or 0))

    def _make_pool(self, layout: Layout, pages: int) -> None:
        """Move what the pool holds to one of `pages` pages, (1, num_kv_heads, slots, width)."""
        self._grow(layout._replace(batch=1), pages * self.page_len)

    def _check_room(self, batch: int, new: int, valid: Tensor | None) -> None:
        if self.num_pages is None:
            return
        real = _count(batch, new, valid)
        more, copied = self._wanted(real)
        wanted = int((more + copied).sum())
        there = self.num_pages - self.pages_used
        if wanted > there:
            raise TooLargeError(
                "cache.full",
                f"the cache has num_pages={self.num_pages} of page_len={self.page_len} tokens, "
                f"{there} of them free; {int(real.sum())} more tokens want {wanted}.",
            )

    def _wanted(self, real: Tensor) -> tuple[Tensor, Tensor]:
        """Return the number of pages that each row needs for `real` more tokens, and 1 where it also needs a copy of
        a shared page that it continues; both (batch,)."""
        # Before the first tokens there is no row yet.
        lengths = self._lengths if len(self._lengths) else torch.zeros_like(real)
        pages = self._pages if len(self._pages) else self._pages.new_zeros(len(real), 1)
        goes_on = (real > 0) & (lengths % self.page_len > 0)
        # The page of each row (down) where another goes on (across).
        there = pages[:, (lengths // self.page_len).clamp(max=pages.shape[1] - 1)]
        page = there.diagonal()
        # Of the rows that go on in one page all but the last take another.
        earlier = ((page[:, None] == page) & goes_on[:, None]).triu(1).sum(0)
        copied = goes_on & ((there == page).sum(0) - earlier > 1)
        return self._filled(lengths + real) - self._filled(lengths), copied.long()

    def _filled(self, tokens: Tensor) -> Tensor:
        """Return the number of pages that hold `tokens` tokens; the last one may be partly full."""
        return -(-tokens // self.page_len)

    def _add(self, key: Tensor, value: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        batch, _, new, _ = key.shape
        held, real = self._real(), _count(batch, new, valid)
        pages = self._take_pages(real).to(key.device)
        self._lengths = self._lengths + real
        if valid is None and isinstance(held, int):
            self._shown = None
            places = self._places(pages, torch.arange(held + new, device=key.device)[None])
        else:
            assert self._layout is not None
            every = self._layout.every
            before = every(held) if isinstance(held, int) else held
            shown = torch.cat([before, every(new) if valid is None else valid], dim=1)
            positions = positions_from_valid(shown)
            places = self._places(pages, positions).where(shown, 0)
            self._shown = positions, padding(shown)
        older = places.shape[1] - new
        for pool, given in zip(self._stores, self._encode(key, value), strict=True):
            # Padding leaves page 0 empty.
            kept = given if valid is None else given.masked_fill(~valid[:, None, :, None], 0)
            pool[0].index_copy_(1, places[:, older:].flatten(), kept.transpose(0, 1).flatten(1, 2))
        if older == 0:
            return key, value
        return self._decode(
            [
                pool[0].index_select(1, places.flatten()).unflatten(1, places.shape).transpose(0, 1)
                for pool in self._stores
            ]
        )

    def _take_pages(self, real: Tensor) -> Tensor:
        """Return the pages of each row, (batch, pages), with space for `real` more tokens."""
        assert self._layout is not None
        more, copied = self._wanted(real)
        wanted = int((more + copied).sum())
        if wanted:
            held = self._filled(self._lengths)[:, None]
            room = max(0, int((held[:, 0] + more).max()) - self._pages.shape[1])
            pages = nn.functional.pad(self._pages, (0, room))
            # Of each row the last page, if it is copied, and those after it.
            index = torch.arange(pages.shape[1], device="cpu")
            taken = (index >= held - copied[:, None]) & (index < held + more[:, None])
            pool = self._stores[0].shape[2] // self.page_len
            free = (pages.flatten().bincount(minlength=pool)[1:] == 0).nonzero()[:, 0] + 1
            if wanted > len(free):
                grown = 2 * (pool + wanted)
                self._make_pool(self._layout, grown)
                free = torch.cat([free, torch.arange(pool, grown, device="cpu")])
            before, self._pages = pages[taken], pages.masked_scatter(taken, free[:wanted])
            for store in self._stores:
                parts = store[0].unflatten(1, (-1, self.page_len))
                parts[:, free[:wanted][before > 0]] = parts[:, before[before > 0]]
        return self._pages

    def _places(self, pages: Tensor, positions: Tensor) -> Tensor:
        """The slots of the pool with the tokens of these positions, (batch or 1, tokens)."""
        page = (positions // self.page_len).clamp(max=pages.shape[1] - 1)
        first = pages.gather(1, page.expand(len(pages), -1)) * self.page_len
        return first + positions % self.page_len

    def _real(self) -> int | Tensor:
        """Return the number of tokens that all rows have, or which columns are real, bool, (batch, longest)."""
        longest = int(self._lengths.max()) if len(self._lengths) else 0
        if (self._lengths == longest).all():
            return longest
        columns = torch.arange(longest, device=self._device)
        return columns < self._lengths.to(columns.device)[:, None]

    def _cut(self, counts: int | Tensor, lengths: Tensor) -> None:
        self._lengths = torch.as_tensor(counts).cpu().expand(len(self._pages))
        first = torch.arange(self._pages.shape[1], device="cpu") * self.page_len
        self._pages = self._pages.where(first < self._lengths[:, None], 0)

    def _take(self, rows: Tensor) -> None:
        """Keep the given rows of the batch, in this order."""
        rows = rows.cpu()
        self._pages, self._lengths = self._pages[rows], self._lengths[rows]

    def _moved(self, layout: Layout) -> dict[str, Any]:
        return super()._moved(layout) | {"_pages": self._pages, "_lengths": self._lengths}


def _count(batch: int, new: int, valid: Tensor | None) -> Tensor:
    """Number of real ones among the new tokens of each row, on the CPU."""
    if valid is None:
        return torch.full((batch,), new, device="cpu")
    return valid.sum(-1).cpu()
