"""The query, key and value inside a module, where its projections can be read.

Layers are known by their names (W_query, q_proj, to_q, c_attn, …); hooks on a copy take what they
give. What goes into the layer after them, if there is one, is the context of all heads.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from clearhead.conformance.subject import Subject

AFFIXES = re.compile(r"proj(ection)?|linear|lin$|weights?|^w(?=[qkv])|^to|^fc|layer|dense|matrix|^w$")
ROLES = {
    "q": "q", "query": "q", "queries": "q", "qs": "q",
    "k": "k", "key": "k", "keys": "k", "ks": "k",
    "v": "v", "value": "v", "values": "v", "vs": "v", "val": "v",
    "qkv": "qkv", "cattn": "qkv", "queryvaluekey": "qkv", "querykeyvalue": "qkv",
    "kv": "kv", "keyvalue": "kv",
}  # fmt: skip
NORMS = {"qnorm": "q", "knorm": "k", "normq": "q", "normk": "k", "querynorm": "q", "keynorm": "k"}


def role(name: str) -> str | None:
    """What a layer of this name makes: q, k, v, qkv, kv; None for any other."""
    words = [part for part in name.split(".") if not part.isdigit()]
    if not words:
        return None
    last = re.sub(r"[^a-z]", "", words[-1].lower())
    if last in ROLES:
        return ROLES[last]
    return ROLES.get(AFFIXES.sub("", last)) or ROLES.get(AFFIXES.sub("", AFFIXES.sub("", last)))


@dataclass
class Reading:
    """What was seen inside one call: the projections by role, in order, and the context."""

    by_role: dict[str, list[Tensor]] = field(default_factory=dict)
    fed: dict[str, list[Tensor]] = field(default_factory=dict)
    normed: dict[str, Tensor] = field(default_factory=dict)
    context: Tensor | None = None
    output: Tensor | None = None
    finish: Callable[[Tensor], Tensor] | None = None
    plain: bool = True


def read(subject: Subject, inputs: Sequence[Tensor]) -> Reading | None:
    """Run the module once and take down its projections; None if there are none to be known."""
    module = subject.module
    if module is None:
        return None
    if isinstance(module, nn.MultiheadAttention):
        return _read_multi_head(subject, module, inputs)
    reading, known, after = Reading(), set[str](), []
    hooks = []

    def take(name: str, which: str) -> Callable[..., None]:
        def hook(part: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            reading.by_role.setdefault(which, []).append(output.detach())
            reading.fed.setdefault(which, []).append(args[0].detach())

        return hook

    for name, part in module.named_modules():
        if not name or any(True for _ in part.children()):
            continue
        which = role(name)
        norm = NORMS.get(re.sub(r"[^a-z]", "", name.split(".")[-1].lower()))
        weight = getattr(part, "weight", None)
        if norm is not None:
            hooks.append(part.register_forward_hook(_kept_norm(reading, norm)))
        elif which is not None and isinstance(weight, Tensor) and weight.ndim == 2:
            known.add(name)
            hooks.append(part.register_forward_hook(take(name, which)))
        elif isinstance(weight, Tensor) and weight.ndim == 2:
            hooks.append(
                part.register_forward_hook(
                    lambda part, args, output: after.append(args[0].detach())
                )
            )
        elif weight is not None:
            reading.plain = False
    owners = _owners(module)
    for name, (owner, which, parameter) in owners.items():
        known.add(name)
        hooks.append(owner.register_forward_hook(_projecting(reading, which, parameter)))
    try:
        reading.output = subject(*inputs).detach()
    finally:
        for hook in hooks:
            hook.remove()
    if not {"q", "k", "v"} <= set(reading.by_role) and not _fused(reading):
        return None
    width = sum(each.shape[-1] for each in reading.by_role.get("v", []))
    tokens = inputs[0].shape[-2]
    for context in after:
        # The layer after the heads takes what all of them give.
        if context.numel() % tokens == 0 and context.shape[-1] >= width > 0 or _fused(reading):
            reading.context = context
            break
    others = [
        name
        for name, parameter in module.named_parameters()
        if name.rpartition(".")[0] not in known and name not in known and parameter.ndim != 1
    ]
    reading.plain &= len(others) <= 1 and not any(
        word in name for name, _ in module.named_buffers() for word in ("alibi", "rel", "inv", "cos", "bias")
    )
    return reading


def _fused(reading: Reading) -> bool:
    return "qkv" in reading.by_role or {"q", "kv"} <= set(reading.by_role)


def _kept_norm(reading: Reading, which: str) -> Callable[..., None]:
    def hook(part: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        reading.normed[which] = output.detach()

    return hook


def _owners(module: nn.Module) -> dict[str, tuple[nn.Module, str, Tensor]]:
    """Projections that are bare parameters, with the module whose input they project."""
    found = {}
    for prefix, part in module.named_modules():
        for name, parameter in part.named_parameters(recurse=False):
            which = role(name)
            if which is not None and parameter.ndim in (2, 3):
                found[f"{prefix}.{name}" if prefix else name] = (part, which, parameter)
    return found


def _projecting(reading: Reading, which: str, parameter: Tensor) -> Callable[..., None]:
    def hook(part: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        source = args[1] if which != "q" and len(args) > 1 and args[1].is_floating_point() else args[0]
        weight = parameter.detach()
        if weight.ndim == 3:
            projected = [source @ each for each in weight]
        elif weight.shape[0] == source.shape[-1]:
            projected = [source @ weight]
        else:
            projected = [source @ weight.mT]
        reading.by_role.setdefault(which, []).extend(each.detach() for each in projected)
        reading.fed.setdefault(which, []).extend(source.detach() for _ in projected)

    return hook


def _read_multi_head(
    subject: Subject, module: nn.MultiheadAttention, inputs: Sequence[Tensor]
) -> Reading:
    """nn.MultiheadAttention works with its parameters and calls no layer."""
    x = inputs[0]
    context = inputs[1] if subject.takes == "x,context" else x
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    reading = Reading()
    for which, source, weight, bias in zip("qkv", (x, context, context), weights, biases, strict=True):
        projected = torch.nn.functional.linear(source, weight, bias)
        reading.by_role[which] = [projected.detach()]
        reading.fed[which] = [source]
    out = module.out_proj
    reading.finish = lambda found: torch.nn.functional.linear(found, out.weight, out.bias).detach()
    reading.output = subject(*inputs).detach()
    return reading
