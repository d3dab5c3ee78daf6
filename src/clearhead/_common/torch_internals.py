"""The private parts of PyTorch, and public ones that answer slowly; each use has a test.

A part that a version of PyTorch no longer has is refused by its name where it is first used.
"""

import sys
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from clearhead.errors import UnsupportedError


def private(path: str) -> Any:
    """Return a private part of PyTorch by its path below `torch`, with dots.

    Raises:
        UnsupportedError: code `torch.private`, where this version of PyTorch does not have it.

    Example:
        >>> private("_C.gone")
        Traceback (most recent call last):
        ...
        clearhead.errors.UnsupportedError: [torch.private] torch._C.gone must be there; PyTorch ... no longer has it.
    """
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    if found is None:
        raise UnsupportedError(
            "torch.private",
            f"torch.{path} must be there; PyTorch {torch.__version__} no longer has it.",
        )
    return found


is_jit_tracing = private("jit.is_tracing")
is_jit_tracing_here = private("_C._is_tracing")
"""The same in a third of the time; torch.compile cannot read it."""
get_unwrapped = private("_C._functorch.get_unwrapped")
is_functorch_wrapped_tensor = private("_C._functorch.is_functorch_wrapped_tensor")
is_inside_functorch = private("_C._are_functorch_transforms_active")
"""True inside torch.func and vmap, also for tensors that are not transformed: no autograd.Function of
one's own runs there."""

safe_softmax = private("_safe_softmax")
"""`torch.softmax`, with 0 for a row whose scores are all −∞, which sends no gradient, in 2.10 to 2.15."""

is_profiled = private("_C._autograd._profiler_enabled")
"""True while a profiler records this thread, and no other that it starts."""

use_count = private("Tensor._use_count")
"""The number of references to a tensor in C++."""

set_grad_enabled = private("_C._set_grad_enabled")
"""As `torch.set_grad_enabled`, in one step that nothing interrupts."""


class DispatchMode(TorchDispatchMode):
    """A mode that sees every operation, and whose own code torch.compile leaves alone.

    PyTorch sees to that itself by importing the compiler, which takes two seconds; only where somebody else has
    imported it can there be anything to leave alone.

    Private: `TorchDispatchMode._should_skip_dynamo` and `torch._disable_dynamo`, in 2.13.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False always: PyTorch would otherwise disable torch.compile inside the mode."""
        return False

    def __enter__(self) -> Self:
        """Start the mode and return it; its own code is hidden from torch.compile if that was imported."""
        if "torch._dynamo" in sys.modules:
            dispatch = private("_disable_dynamo")(type(self).__torch_dispatch__)
            vars(self)["__torch_dispatch__"] = dispatch.__get__(self)
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        """End the mode; an error of the block is not suppressed."""
        super().__exit__(*raised)
        vars(self).pop("__torch_dispatch__", None)


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return `torch.broadcast_shapes(…)` of at least one shape, without its import of sympy, which takes half a second.

    Raises:
        RuntimeError: for shapes that do not go together.

    Example:
        >>> broadcast_shape((2, 1, 4), (3, 1))
        (2, 3, 4)
    """
    found = [1] * max(map(len, shapes))
    for shape in shapes:
        for place, size in enumerate(reversed(shape), 1):
            if size != 1 and found[-place] not in (1, size):
                raise RuntimeError(f"{shapes} do not go together")
            found[-place] = size if size != 1 else found[-place]
    return tuple(found)


def unravelled(index: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Return `torch.unravel_index(…)` for three axes, whose first call would import sympy; the range is not checked.

    Example:
        >>> unravelled(torch.tensor([0, 5, 23]), (2, 3, 4))
        (tensor([0, 0, 1]), tensor([0, 1, 2]), tensor([0, 1, 3]))
    """
    _, rows, columns = shape
    row = index // columns
    return row // rows, row % rows, index % columns


def compiler_rules() -> Any:
    """Return the cached function that lists the PyTorch functions known to torch.compile, by name.

    None until torch.compile has called it.

    Private: `torch._dynamo.trace_rules.get_torch_obj_rule_map`, in 2.6 to 2.13.

    Example:
        >>> rules = compiler_rules()
        >>> rules is None or callable(rules.cache_clear)
        True
    """
    rules = getattr(sys.modules.get("torch._dynamo.trace_rules"), "get_torch_obj_rule_map", None)
    return None if rules is None or not rules.cache_info().currsize else rules


def is_compiled(module: nn.Module) -> bool:
    """Return True for a module whose call torch.compile has compiled.

    Example:
        >>> from torch import nn
        >>> is_compiled(nn.Identity())
        False
    """
    return (
        getattr(module, "_compiled_call_impl", None) is not None
        or type(module).__name__ == "OptimizedModule"
        or hasattr(vars(module).get("forward"), "_torchdynamo_orig_callable")
    )


def in_backward() -> bool:
    """Return True while a backward pass runs in this thread.

    Example:
        >>> in_backward()
        False
    """
    return private("_C._current_graph_task_id")() != -1


def is_autocast(tensor: Tensor) -> bool:
    """Return True if autocast is on where a tensor is; the meta device has none.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     is_autocast(torch.ones(1)), is_autocast(torch.ones(1, device="meta"))
        (True, False)
    """
    # PyTorch makes the name of a device at each request.
    device = "cpu" if tensor.is_cpu else tensor.device.type
    return device != "meta" and torch.is_autocast_enabled(device)


def is_transformed(tensor: Tensor) -> bool:
    """Return True for a tensor that a transformation of torch.func, such as vmap, has wrapped; it holds no numbers.

    False for any other tensor inside a transformation.

    Example:
        >>> torch.vmap(lambda row: print(is_transformed(row)) or row)(torch.ones(1, 2))
        True
        tensor([[1., 1.]])
    """
    return is_functorch_wrapped_tensor(tensor)


def argument_names(operation: str) -> tuple[str, ...]:
    """Return the names of the arguments of an `aten` operation of PyTorch in C++, in their order.

    Raises UnsupportedError, code `torch.private`, if there is no such operation.

    Example:
        >>> argument_names("_native_multi_head_attention")[:5]
        ('query', 'key', 'value', 'embed_dim', 'num_head')
    """
    return tuple(each.name for each in private(f"ops.aten.{operation}.default._schema").arguments)


def modes_are_active() -> bool:
    """Return True where this thread has a mode that sees or changes operations, such as a default device.

    Private: `torch._C._len_torch_function_stack` and `torch._C._len_torch_dispatch_stack`, in 2.6 to 2.13.

    Example:
        >>> with torch.device("cpu"):
        ...     modes_are_active()
        True
    """
    functions = private("_C._len_torch_function_stack")()
    return bool(functions or private("_C._len_torch_dispatch_stack")())


# Of attention: transformations, and the operators behind scaled_dot_product_attention and softmax.


def is_plain(tensor: Tensor) -> bool:
    """Return True for a Tensor or Parameter, not of a subclass, if nothing traces or transforms operations on it.

    torch.func transforms operations even on a tensor that is not wrapped itself.

    Example:
        >>> is_plain(torch.ones(2))
        True
    """
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and not is_tracing()
        and not is_inside_functorch()
    )


def can_read_now(tensor: Tensor) -> bool:
    """Return True for a CPU tensor whose values can be read at once: nothing traces it, and no device is synchronised.

    False for all that `is_plain` refuses.

    Example:
        >>> can_read_now(torch.ones(2)), can_read_now(torch.ones(2, device="meta"))
        (True, False)
    """
    return tensor.is_cpu and is_plain(tensor)


def is_capturing(tensor: Tensor) -> bool:
    """Return True while a CUDA graph is being captured on the device of a tensor.

    Example:
        >>> is_capturing(torch.ones(2))
        False
    """
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def is_tracing() -> bool:
    """Return True inside torch.compile, torch.export and torch.jit.trace.

    They record operations to run them later, and would record a value that is read as a constant.

    Example:
        >>> is_tracing()
        False
    """
    return torch.compiler.is_compiling() or is_jit_tracing_here()


def is_exporting() -> bool:
    """Return True inside torch.export and torch.jit.trace, whose results outlive the traced objects.

    Private: `torch.compiler._is_exporting_flag`, which `torch.compiler.is_exporting` returns, in 2.6 to
    2.15; in 2.10 Dynamo takes a call of that one for True whatever it compiles for.

    Example:
        >>> is_exporting()
        False
    """
    return torch.compiler._is_exporting_flag or is_jit_tracing()


def is_exporting_to_onnx() -> bool:
    """Return True inside torch.onnx.export.

    `torch.onnx` is imported by its first use, which takes a quarter of a second, so it is used only during an export.

    Example:
        >>> is_exporting_to_onnx()
        False
    """
    return is_exporting() and torch.onnx.is_in_onnx_export()


def is_concrete(tensor: Tensor) -> bool:
    """Return True if a tensor holds numbers: not on the meta device, nor under FakeTensorMode.

    Private: `torch._subclasses.fake_tensor.FakeTensor`, in 2.6 to 2.13.

    Example:
        >>> is_concrete(torch.ones(2)), is_concrete(torch.ones(2, device="meta"))
        (True, False)
    """
    return not tensor.is_meta and not isinstance(tensor, FakeTensor)


def can_be_read(tensor: Tensor) -> bool:
    """Return True if a tensor holds numbers that can be read: nothing traces it, and torch.func does not transform it.

    Example:
        >>> can_be_read(torch.ones(2)), can_be_read(torch.ones(2, device="meta"))
        (True, False)
    """
    return is_concrete(tensor) and not (is_tracing() or is_transformed(tensor))


def is_forward_mode() -> bool:
    """Return True inside `forward_ad.dual_level()`, where tensors may have tangents.

    Private: `forward_ad._current_level`, −1 outside of any level, in 2.6 to 2.13 and before. What is
    public, to unpack a tensor, costs some microseconds for each.
    """
    return forward_ad._current_level >= 0


def has_tangent(tensor: Tensor) -> bool:
    """Return True if a tensor has, or may have, a forward-mode tangent.

    A tensor that two nested transformations of torch.func wrap, as for a Hessian, always may.

    Private: `torch._C._functorch.get_unwrapped`, in 2.6 to 2.13 and before.
    """
    if forward_ad.unpack_dual(tensor).tangent is not None:
        return True
    inner = get_unwrapped(tensor) if is_functorch_wrapped_tensor(tensor) else tensor
    return inner is not tensor and is_functorch_wrapped_tensor(inner)


def flash_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the context and the logsumexp, (batch, heads, query_len), of PyTorch's flash attention on the CPU.

    `attn_mask` is added to the scores; None hides nothing. `is_causal` hides later keys, counted from the first one.

    Private: `aten::_scaled_dot_product_flash_attention_for_cpu`, which
    `F.scaled_dot_product_attention` calls and which alone gives the logsumexp, in 2.6 to 2.13.
    """
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )


def flash_cpu_backward(
    grad_context: Tensor,
    tensors: tuple[Tensor, Tensor, Tensor],
    results: tuple[Tensor, Tensor],
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value of `flash_cpu`.

    Private: `aten::_scaled_dot_product_flash_attention_for_cpu_backward`, in 2.6 to 2.13.

    Args:
        grad_context: the gradient of the context.
        tensors: query, key and value.
        results: the context and the logsumexp.
        attn_mask: as in the forward pass.
        is_causal: as in the forward pass.
        scale: as in the forward pass.
    """
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_context, *tensors, *results, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )


def softmax_backward_(grads: Tensor, weights: Tensor) -> Tensor:
    """Turn gradients of weights into those of their scores, in place, and return them; softmax is over the last axis.

    Private: `aten::_softmax_backward_data.out`, the backward of `torch.softmax`, in 2.6 to 2.13.

    Example:
        >>> softmax_backward_(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]]))
        tensor([[ 0.2500, -0.2500]])
    """
    return torch.ops.aten._softmax_backward_data.out(
        grads, weights, grads.ndim - 1, grads.dtype, grad_input=grads
    )
