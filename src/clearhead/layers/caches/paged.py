"""Pages of memory that rows of any length share (Kwon et al., 2023, https://arxiv.org/abs/2309.06180)."""

from typing import Any

import torch
from torch import Tensor

from clearhead._common.checks import check_sizes
from clearhead._common.hints import with_hints
from clearhead.errors import TooLargeError
from clearhead.layers.caches.base import Cache
from clearhead.layers.caches.layout import Layout, empty_columns, positions_from_valid
from clearhead.masks.base import Mask
from clearhead.masks.full import full
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

    _MEMORY = "_pools"

    def __init__(self, page_len: int, *, num_pages: int | None = None) -> None:
        super().__init__()
        check_sizes(page_len=page_len, num_pages=1 if num_pages is None else num_pages)
        self.page_len = page_len
        self.num_pages = num_pages
        self._forget()

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
        return sum(users > 0 for users in self._users[1:])

    @property
    def positions(self) -> Tensor:
        held, counts, alike = self._held()
        if alike:
            return torch.arange(held.shape[1] + self._new, device=self._device)
        assert self._new_valid is not None
        new = counts + positions_from_valid(self._new_valid)
        return torch.cat([torch.minimum(held, counts), new], dim=1)

    def mask(self) -> Mask:
        held, counts, alike = self._held()
        if alike:
            return full()
        assert self._new_valid is not None
        return padding(torch.cat([held < counts, self._new_valid], dim=1))

    @property
    def in_order(self) -> bool:
        return self._held()[2]

    @property
    def nbytes(self) -> int:
        return sum(pool.nbytes for pool in self._pools)

    def _held(self) -> tuple[Tensor, Tensor, bool]:
        """Columns of the tokens held before the new ones, (1, columns); their number in each row,
        (batch, 1); and True if nothing is hidden."""
        device = self._device
        alike = len(set(self._before)) <= 1 and self._new_valid is None
        if not alike and self._new_valid is None:
            rows = len(self._before)
            self._new_valid = torch.ones(rows, self._new, dtype=torch.bool, device=device)
        held = torch.arange(max(self._before, default=0), device=device)[None]
        return held, torch.tensor(self._before, device=device)[:, None], alike

    def _start(self, layout: Layout) -> None:
        self._tables = [[] for _ in range(layout.batch)]
        self._lengths = [0] * layout.batch
        self._make_pool(layout, 1 if self.num_pages is None else 1 + self.num_pages)

    def _forget(self) -> None:
        # (num_kv_heads, pages · page_len, width). Page 0 belongs to no row, and stays empty.
        self._pools: tuple[Tensor, ...] = ()
        # The number of rows that hold each page, and the pages that none does.
        self._users: list[int] = []
        self._free: list[int] = []
        # For each row its pages, in order, and its real tokens.
        self._tables: list[list[int]] = []
        self._lengths: list[int] = []
        # Which columns were real, (batch, seen), on the CPU; None as long as all of them were.
        self._valid: Tensor | None = None
        # What the last `append` returned: tokens held before of each row, and the new ones.
        self._before: list[int] = []
        self._new = 0
        self._new_valid: Tensor | None = None

    def _snapshot(self, new: int) -> dict[str, Any]:
        return super()._snapshot(new) | self._apart()

    def _apart(self) -> dict[str, Any]:
        return {
            "_users": [*self._users],
            "_free": [*self._free],
            "_tables": [[*table] for table in self._tables],
        }

    def _moved(self, layout: Layout) -> dict[str, Any]:
        pools = tuple(pool.to(layout.device, layout.dtype) for pool in self._pools)
        valid = None if self._new_valid is None else self._new_valid.to(layout.device)
        return {"_pools": pools, "_new_valid": valid}

    def _make_pool(self, layout: Layout, pages: int) -> None:
        """Move what the pool holds to one of `pages` pages."""
        pools = []
        for index, width in enumerate((layout.head_dim, layout.value_head_dim)):
            shape = (layout.num_kv_heads, pages * self.page_len, width)
            pool = layout.allocate(*shape, zeros=True)
            if self._pools:
                pool[:, : self._pools[index].shape[1]] = self._pools[index]
            pools.append(pool)
        self._pools = tuple(pools)
        self._free = [*range(pages - 1, max(0, len(self._users) - 1), -1), *self._free]
        self._users += [0] * (pages - len(self._users))

    def _check_room(self, batch: int, new: int, valid: Tensor | None) -> None:
        if self.num_pages is None:
            return
        tables = self._tables or [[] for _ in range(batch)]
        lengths = self._lengths or [0] * batch
        wanted = self._wanted(tables, lengths, _real(batch, new, valid))
        there = len(self._free) if self._users else self.num_pages
        if wanted > there:
            raise TooLargeError(
                "cache.full",
                f"the cache has num_pages={self.num_pages} of page_len={self.page_len} tokens, "
                f"{there} of them free; {sum(_real(batch, new, valid))} more tokens want {wanted}.",
            )

    def _wanted(self, tables: list[list[int]], lengths: list[int], real: list[int]) -> int:
        """Number of free pages that it takes to append these real tokens to each row."""
        wanted = 0
        users = list(self._users)
        for table, length, more in zip(tables, lengths, real, strict=True):
            wanted += max(0, -(-(length + more) // self.page_len) - len(table))
            if more and length % self.page_len and users[table[-1]] > 1:
                users[table[-1]] -= 1
                wanted += 1
        return wanted

    def _add(self, key: Tensor, value: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        assert self._layout is not None
        batch, _, new, _ = key.shape
        real = _real(batch, new, valid)
        wanted = self._wanted(self._tables, self._lengths, real)
        if wanted > len(self._free):
            self._make_pool(self._layout, 2 * (len(self._users) + wanted))
        for row, more in enumerate(real):
            self._make_room(row, more)
        if valid is not None or self._valid is not None:
            self._record_valid(batch, new, valid)
        self._before, self._lengths = (
            self._lengths,
            [length + more for length, more in zip(self._lengths, real, strict=True)],
        )
        self._new, self._new_valid = new, valid
        held, counts, alike = self._held()
        pages = self._pages(key.device)
        offset = torch.arange(new, device=key.device)
        offset = offset if valid is None else positions_from_valid(valid)
        position = (counts + offset).expand(batch, new)
        place = self._place(pages, position)
        for pool, given in zip(self._pools, (key, value), strict=True):
            heads_first = given.transpose(0, 1)
            if valid is None:
                pool.index_copy_(1, place.flatten(), heads_first.flatten(1, 2))
            else:
                pool.index_copy_(1, place[valid], heads_first[:, valid])
        if held.shape[1] == 0:
            return key, value
        older = self._place(pages, held.expand(batch, -1))
        if not alike:
            older = older.where(held < counts, 0)
            place = place if valid is None else place.where(valid, 0)
        places = torch.cat([older, place], dim=1)
        keys, values = (
            pool.index_select(1, places.flatten()).unflatten(1, places.shape).transpose(0, 1)
            for pool in self._pools
        )
        return keys, values

    def _make_room(self, row: int, more: int) -> None:
        """Give a row the pages for `more` tokens, and copy a shared one that it writes to."""
        table, length = self._tables[row], self._lengths[row]
        if more and length % self.page_len and self._users[table[-1]] > 1:
            shared = table[-1]
            table[-1] = self._page()
            self._users[shared] -= 1
            for pool in self._pools:
                pages = pool.unflatten(1, (-1, self.page_len))
                pages[:, table[-1]] = pages[:, shared]
        while len(table) * self.page_len < length + more:
            table.append(self._page())

    def _page(self) -> int:
        page = self._free.pop()
        self._users[page] = 1
        return page

    def _release(self, page: int) -> None:
        self._users[page] -= 1
        if self._users[page] == 0:
            self._free.append(page)

    def _pages(self, device: torch.device) -> Tensor:
        """The pages of each row, (batch, pages), padded with page 0."""
        longest = max(1, *(len(table) for table in self._tables))
        return torch.tensor(
            [table + [0] * (longest - len(table)) for table in self._tables], device=device
        )

    def _place(self, pages: Tensor, position: Tensor) -> Tensor:
        """The columns of the pool with the tokens of these positions, (batch, tokens)."""
        page = (position // self.page_len).clamp(max=pages.shape[1] - 1)
        return pages.gather(1, page) * self.page_len + position % self.page_len

    def _record_valid(self, batch: int, new: int, valid: Tensor | None) -> None:
        """Record which columns were real, for `truncate`."""
        known = self._valid
        if known is None:
            known = torch.ones(batch, self._seen, dtype=torch.bool, device="cpu")
        every = torch.ones(batch, new, dtype=torch.bool, device="cpu")
        more = every if valid is None else valid.cpu()
        self._valid = torch.cat([known, more], dim=1)

    def _counts(self) -> int | Tensor:
        if self._valid is None:
            return self._seen
        assert self._layout is not None
        return torch.tensor(self._lengths, device=self._layout.device)

    def _cut(self, length: int) -> None:
        if self._valid is None:
            self._lengths = [length] * len(self._lengths)
        else:
            self._valid = self._valid[:, :length] if length else None
            kept = [] if self._valid is None else self._valid.sum(-1).tolist()
            self._lengths = kept or [0] * len(self._lengths)
        self._trim()

    def _cut_rows(self, lengths: Tensor, longest: int) -> None:
        lengths = lengths.cpu()
        kept = torch.arange(longest, device="cpu") < lengths[:, None]
        self._valid = kept if self._valid is None else self._valid[:, :longest] & kept
        self._lengths = self._valid.sum(-1).tolist()
        self._trim()

    def _empty(self) -> int:
        return 0 if self._valid is None else empty_columns(self._valid)

    def _shift(self, free: int) -> None:
        assert self._valid is not None
        self._valid = self._valid[:, free:].clone()

    def _trim(self) -> None:
        """Release the pages that no token is in any more."""
        for table, tokens in zip(self._tables, self._lengths, strict=True):
            while (len(table) - 1) * self.page_len >= tokens and table:
                self._release(table.pop())
        self._forget_new()

    def _take(self, rows: Tensor) -> None:
        old = self._tables
        chosen = rows.tolist()
        self._tables = [list(old[row]) for row in chosen]
        self._lengths = [self._lengths[row] for row in chosen]
        # First take all, so that no page is released in between.
        for table in self._tables:
            for page in table:
                self._users[page] += 1
        for table in old:
            for page in table:
                self._release(page)
        if self._valid is not None:
            self._valid = self._valid[rows.cpu()]
        self._forget_new()

    def _forget_new(self) -> None:
        """Let positions and mask be those of the tokens held, until the next ones come."""
        self._before, self._new, self._new_valid = self._lengths, 0, None


def _real(batch: int, new: int, valid: Tensor | None) -> list[int]:
    """Number of real ones among the new tokens of each row."""
    return [new] * batch if valid is None else valid.sum(-1).tolist()
