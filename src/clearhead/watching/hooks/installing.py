"""The hooks of every way of attending, installed once for all that use them."""

import threading
from collections.abc import Callable

from clearhead.watching.hooks import multi_head_attention, own, sdpa, transformers

HOOKS = (own, sdpa, multi_head_attention, transformers)

_lock = threading.Lock()
_users: list[object] = []
_restorers: list[Callable[[], None]] = []


def install() -> Callable[[], None]:
    """Install the hooks, unless they are; returns a function that ends it with the last user.

    Example:
        >>> import torch
        >>> original = torch.nn.functional.scaled_dot_product_attention
        >>> end, other = install(), install()
        >>> end()
        >>> torch.nn.functional.scaled_dot_product_attention is original
        False
        >>> other()
        >>> torch.nn.functional.scaled_dot_product_attention is original
        True
    """
    user = object()
    with _lock:
        if not _users:
            _restorers.extend(each.install() for each in HOOKS)
        _users.append(user)

    def end() -> None:
        with _lock:
            _users.remove(user)
            while not _users and _restorers:
                _restorers.pop()()

    return end
