"""A KV cache for each layer of a model, passed to all of them as one object."""

import weakref
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor, nn

from clearhead._common.hints import with_hints
from clearhead.errors import ArgumentTypeError
from clearhead.layers.caches.cache import Cache
from clearhead.layers.caches.layout import row_index


@with_hints
class CacheBundle:
    """The caches of all layers of a model: each layer that gets the bundle uses its own cache.

    A cache is made when its layer is called for the first time, and is found by the layer itself, so
    that no two layers can share one or swap theirs. What is done to all of them is done to all or, if
    one of them refuses, to none. A layer that runs several times in one pass over a model, as where
    layers share their weights, takes bundles of its own, one for each time.

    Args:
        make: makes a cache: a class such as `GrowingCache`, or a function of the layer, such as
            `lambda layer: StaticCache(1024)`.

    Raises:
        ArgumentTypeError: code `cache.make`, for anything else.

    Example:
        >>> import torch, clearhead as ch
        >>> first, second = (ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal()) for _ in range(2))
        >>> caches = ch.layers.CacheBundle(ch.layers.GrowingCache)
        >>> x = torch.randn(1, 5, 8)
        >>> with torch.no_grad():
        ...     steps = [second(first(token, cache=caches), cache=caches) for token in x.split(1, dim=1)]
        ...     torch.allclose(torch.cat(steps, dim=1), second(first(x)), atol=1e-6)
        True
        >>> caches[first]
        <GrowingCache(), 5 tokens>
    """

    def __init__(self, make: type[Cache] | Callable[[nn.Module], Cache]) -> None:
        if not callable(make):
            raise _no_maker(type(make).__name__)
        self._make: Callable[..., Cache] = make
        self._caches: weakref.WeakKeyDictionary[nn.Module, Cache] = weakref.WeakKeyDictionary()

    def __getitem__(self, layer: nn.Module) -> Cache:
        """Return the cache of a layer, made if there is none yet.

        Raises:
            ArgumentTypeError: code `cache.make`, if `make` returns anything else.
        """
        cache = self._caches.get(layer)
        if cache is None:
            cache = self._make() if isinstance(self._make, type) else self._make(layer)
            if not isinstance(cache, Cache):
                raise _no_maker(f"one that makes {type(cache).__name__}")
            self._caches[layer] = cache
        return cache

    def __iter__(self) -> Iterator[Cache]:
        """Iterate over the caches that were made so far, in the order in which the layers were called."""
        return iter(self._caches.values())

    def __repr__(self) -> str:
        """Return the number of caches, and the different reprs among them, sorted."""
        return f"<CacheBundle of {len(self._caches)}: {', '.join(sorted(set(map(repr, self))))}>"

    @property
    def nbytes(self) -> int:
        """The memory of all stored keys and values, in bytes, empty slots included; 0 before the first call."""
        return sum(cache.nbytes for cache in self)

    def truncate(self, length: int | Sequence[int] | Tensor) -> None:
        """Call `Cache.truncate` on every cache, in place; if one raises, all are restored.

        Does nothing before the first call.
        """
        self._each(lambda cache: cache.truncate(length))

    def reorder(self, rows: Sequence[int] | Tensor) -> None:
        """Call `Cache.reorder` on every cache, in place; rows that one refuses raise its error before any is changed.

        A cache without tokens refuses any row. Does nothing if no cache was made.
        """
        for cache in self:
            # Rows change places in memory, which could not be undone.
            row_index(rows, 0 if cache._layout is None else cache._layout.batch)
        self._each(lambda cache: cache.reorder(rows))

    def reset(self) -> None:
        """Call `Cache.reset` on every cache, in place; the caches stay in the bundle."""
        self._each(Cache.reset)

    def fork(self) -> "CacheBundle":
        """Return a bundle for the same layers, with a fork of every cache.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
            >>> prompt = ch.layers.CacheBundle(ch.layers.GrowingCache)
            >>> with torch.no_grad():
            ...     _ = layer(torch.randn(1, 5, 8), cache=prompt)
            ...     answers = [prompt.fork(), prompt.fork()]
            ...     _ = [layer(torch.randn(1, 1, 8), cache=answer) for answer in answers]
            >>> prompt[layer], answers[0][layer]
            (<GrowingCache(), 5 tokens>, <GrowingCache(), 6 tokens>)
        """
        other = CacheBundle(self._make)
        for layer, cache in self._caches.items():
            other._caches[layer] = cache.fork()
        return other

    def _each(self, act: Callable[[Cache], object]) -> None:
        """Call `act` with every cache; if one call raises, restore the attributes of all caches and raise its error."""
        before = [(cache, cache._snapshot(0)) for cache in self]
        try:
            for cache in self:
                act(cache)
        except BaseException:
            for cache, state in before:
                vars(cache).update(state)
            raise


def _no_maker(got: str) -> ArgumentTypeError:
    """Return the ArgumentTypeError, code `cache.make`, for a `make` that does not make caches.

    `got` says what it is.
    """
    return ArgumentTypeError(
        "cache.make",
        f"make must be a class of caches, or a function from a layer to its cache; got {got}. Give arguments by a "
        "function: lambda layer: StaticCache(1024).",
    )
