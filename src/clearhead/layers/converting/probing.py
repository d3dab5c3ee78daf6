"""Run a copy of a module, and compare it with the layer of its weights.

A class of the user's may hide the future, or do anything else, in its forward. So a copy of it with
new random weights is run on a few tokens, in float64, and compared with an open layer and with a
causal one. If neither is equal, it is refused. What shows only on longer texts is not seen; so a
module with a window of that length or more is refused.
"""

import copy
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from clearhead._common.checks import as_int
from clearhead.layers.converting.fitting import build
from clearhead.layers.converting.reader import ModuleReader
from clearhead.layers.multi_head_attention import MultiHeadAttention
from clearhead.masks import causal
from clearhead.masks.base import Mask

BATCH, QUERIES, KEYS = 2, 5, 7
# Some modules compute their weights in float32 whatever the input; a difference that means something
# is larger by thousands.
CLOSE = 1e-5


def probe(reader: ModuleReader, read: Callable[[ModuleReader], None]) -> None:
    """Find the mask of a module by running a copy of it, or add the reason why it is refused.

    Args:
        reader: of a module without reasons against it.
        read: the function that read it; the copy is read in the same way.
    """
    module = reader.module
    try:
        twin = copy.deepcopy(module).to("cpu", torch.float64).eval()
    except (RuntimeError, TypeError) as error:
        reader.reasons.append(f"a copy of it could not be made to be run: {error}")
        return
    _forget_hooks(twin)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    again = ModuleReader(twin)
    read(again)
    sizes = [each.shape[-1] for each in twin.buffers() if each.ndim > 1]
    queries, keys = (min([tokens, *sizes]) for tokens in (QUERIES, KEYS))
    x = torch.randn(BATCH, queries, again.sizes["embed_dim"], generator=generator).double()
    context = torch.randn(BATCH, keys, again.sizes["context_dim"], generator=generator).double()
    windows = {name: as_int(value) for name, value in vars(module).items() if "window" in name}
    reader.reasons += [
        f"{name}={window}: a window does not show on the {queries} tokens that a copy is run on"
        for name, window in windows.items()
        if window is not None and window >= queries
    ]
    calls: list[tuple[Tensor, ...]] = [(x, context), (x[0], context[0])]
    if x.shape[2] == context.shape[2]:
        calls = [(x,), (x[0],), *calls]
    first_error = None
    for inputs in calls:
        try:
            theirs = _run(twin, inputs)
        # Whatever its author's code raises says that it is called in another way.
        except Exception as error:
            first_error = first_error or error
            continue
        _compare(reader, again, inputs, theirs)
        return
    reader.reasons.append(
        f"a copy of it could not be run on x of shape {tuple(calls[0][0].shape)}, to find what its "
        f"weights do not tell: {type(first_error).__name__}: {first_error}"
    )


def _forget_hooks(twin: nn.Module) -> None:
    """Remove hooks: those of the module must not be called for a copy."""
    for each in twin.modules():
        for name, hooks in vars(each).items():
            if "_hooks" in name and isinstance(hooks, dict):
                hooks.clear()


def _run(twin: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        output = twin(*inputs)
    output = output[0] if isinstance(output, tuple | list) else output
    if not isinstance(output, Tensor):
        raise TypeError(f"its output is a {type(output).__name__}")
    return output


def _compare(
    reader: ModuleReader, again: ModuleReader, inputs: tuple[Tensor, ...], theirs: Tensor
) -> None:
    masks: list[Mask | None] = [None, causal()]
    wrong = []
    for mask in masks:
        layer = build(again, MultiHeadAttention, mask).eval()
        with torch.no_grad():
            ours = layer(*inputs)
        if ours.shape != theirs.shape:
            reader.reasons.append(
                f"its output has shape {tuple(theirs.shape)}; by its weights it would be "
                f"{tuple(ours.shape)}"
            )
            return
        error = float((ours - theirs).abs().max())
        if error <= CLOSE * max(1.0, float(theirs.abs().max())):
            if mask is not None:
                reader.hide(mask, ", ".join(reader.triangles) or "forward")
            return
        wrong.append(error)
    reader.reasons.append(
        "its output is not that of its weights: a copy that was run on "
        f"{inputs[0].shape[-2]} tokens is off by {wrong[0]:.2g} from a layer without a mask, by "
        f"{wrong[1]:.2g} from a causal one"
    )
