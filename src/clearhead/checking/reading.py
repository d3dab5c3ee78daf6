"""The query, key and value inside a module, where its projections can be read.

Layers are known by their names (W_query, q_proj, to_q, c_attn, …); hooks on a copy take what they
give. What goes into the layer after them, if there is one, is the context of all heads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

import torch
from torch import Tensor, nn

from clearhead._common.foreign_names import is_output, normed_role, role
from clearhead.checking.subject import Subject


@dataclass
class Reading:
    """What was seen inside one call.

    `by_role`: what the projections gave, by role and in order; `fed`: what went into them;
    `normed`: query and key after a norm; `context`: what goes into the layer behind the heads;
    `finish`: what is done to the context where no layer was seen; `plain`: nothing but projections
    has weights; `layers`: every layer with a matrix: its name, what went in, what came out;
    `behind`: the layer behind the heads.
    """

    by_role: dict[str, list[Tensor]] = field(default_factory=dict)
    fed: dict[str, list[Tensor]] = field(default_factory=dict)
    normed: dict[str, Tensor] = field(default_factory=dict)
    context: Tensor | None = None
    output: Tensor | None = None
    finish: Callable[[Tensor], Tensor] | None = None
    plain: bool = True
    layers: list[tuple[str, Tensor, Tensor, Tensor]] = field(default_factory=list)
    matrices: dict[str, Tensor] = field(default_factory=dict)
    behind: str | None = None

    def guesses(self) -> list["Reading"]:
        """Readings of a module whose names say nothing: its first three layers, in any order."""
        if not self.layers:
            return []
        fed = self.layers[0][1]
        first = [
            each for each in self.layers if each[1].shape == fed.shape and torch.equal(each[1], fed)
        ]
        later = [each for each in self.layers if not any(each is other for other in first)]
        context = later[0][1] if later else None
        self.behind = later[0][0] if later else None
        ways = []
        if len(first) == 3:
            for order in permutations(first):
                roles = {which: [made] for which, (_, _, made, _) in zip("qkv", order, strict=True)}
                matrices = {which: each[3] for which, each in zip("qkv", order, strict=True)}
                ways.append(
                    replace(
                        self,
                        by_role=roles,
                        fed={which: [fed] for which in "qkv"},
                        context=context,
                        matrices=matrices,
                    )
                )
        elif len(first) == 1 and first[0][2].shape[-1] % 3 == 0:
            roles = {"qkv": [first[0][2]]}
            ways.append(replace(self, by_role=roles, fed={"qkv": [fed]}, context=context))
        return ways


def read(subject: Subject, inputs: Sequence[Tensor]) -> list[Reading]:
    """Run the module once and take down its projections: every way to read them, none for none."""
    module = subject.module
    if module is None:
        return []
    if isinstance(module, nn.MultiheadAttention):
        return [_read_multi_head(subject, module, inputs)]
    reading, known = Reading(), set[str]()
    hooks = []
    for name, part in module.named_modules():
        weight = getattr(part, "weight", None)
        if not name or any(True for _ in part.children()) or not isinstance(weight, Tensor):
            continue
        norm = normed_role(name)
        if isinstance(part, nn.Embedding):
            continue
        if norm is not None:
            hooks.append(part.register_forward_hook(_kept_norm(reading, norm)))
        elif weight.ndim == 2:
            known.add(name)
            hooks.append(part.register_forward_hook(_kept_layer(reading, name, weight)))
    for name, (owner, which, parameter) in _owners(module).items():
        known.add(name)
        hooks.append(owner.register_forward_hook(_projecting(reading, which, parameter)))
    outs = _bare_outs(module)
    known |= set(outs) | _before_heads(module)
    try:
        reading.output = subject(*inputs).detach()
    finally:
        for hook in hooks:
            hook.remove()
    reading.plain = not reading.normed and not any(
        name not in known and name.rpartition(".")[0] not in known
        for name, _ in module.named_parameters()
    )
    words = ("alibi", "rel", "inv_freq", "rope", "rotary", "cos", "bias", "sink", "pos")
    reading.plain &= not any(word in name for name, _ in module.named_buffers() for word in words)
    own = [name for name in vars(module) if not name.startswith("_")]
    reading.plain &= not any(word in name.lower() for name in own for word in words)
    reading.layers = [
        (name, _in_batches(fed, inputs), _in_batches(made, inputs), weight)
        for name, fed, made, weight in reading.layers
    ]
    return [
        way
        for found in _by_names(reading, inputs[0].shape[-2])
        for way in _behind_bare(found, list(outs.values()))
    ]


def _before_heads(module: nn.Module) -> set[str]:
    """Norms: what goes into the projections is read behind them."""
    return {name for name, part in module.named_modules() if "norm" in type(part).__name__.lower()}


def _bare_outs(module: nn.Module) -> dict[str, Tensor]:
    """Bare parameters that are named as the projection behind the heads is."""
    found = {}
    for prefix, part in module.named_modules():
        for name, parameter in part.named_parameters(recurse=False):
            if is_output(name) and parameter.ndim in (2, 3):
                found[f"{prefix}.{name}" if prefix else name] = parameter.detach()
    return found


def _behind_bare(reading: Reading, outs: Sequence[Tensor]) -> list[Reading]:
    """The ways to take the context out of the output, where a bare parameter projects it."""
    if len(outs) != 1 or reading.context is not None or reading.output is None:
        return [reading]
    (out,) = outs
    matrices = [out.flatten(0, 1)] if out.ndim == 3 else [out, out.mT]
    ways = []
    for matrix in matrices:
        if matrix.shape[1] == reading.output.shape[-1]:
            context = reading.output @ torch.linalg.pinv(matrix)
            if torch.allclose(context @ matrix, reading.output):
                ways.append(replace(reading, context=context))
    return [*ways, reading]


def _in_batches(tensor: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """(batch, len, width), where a layer was fed (len, batch, width), or all samples as rows."""
    shapes = [given.shape[:2] for given in inputs if given.ndim == 3]
    if (
        tensor.ndim == 3
        and tensor.shape[:2] not in shapes
        and tensor.transpose(0, 1).shape[:2] in shapes
    ):
        return tensor.transpose(0, 1)
    for given in inputs:
        if tensor.ndim == 2 and given.ndim == 3 and len(tensor) == given[..., 0].numel():
            return tensor.unflatten(0, given.shape[:2])
    return tensor


def _by_names(reading: Reading, tokens: int) -> list[Reading]:
    """The reading by the names of the layers, else the guesses."""
    later = []
    for name, fed, made, matrix in reading.layers:
        which = role(name)
        if which is None:
            later.append((name, fed))
            continue
        reading.by_role.setdefault(which, []).append(made)
        reading.fed.setdefault(which, []).append(fed)
        reading.matrices.setdefault(which, matrix)
    if not {"q", "k", "v"} <= set(reading.by_role) and not _fused(reading):
        return reading.guesses()
    width = sum(each.shape[-1] for each in reading.by_role.get("v", []))
    for index, (name, context) in enumerate(later):
        # The layer behind the heads takes what all of them give. One before it may do anything.
        reading.plain &= index == 0
        if _fused(reading) or (context.numel() % tokens == 0 and context.shape[-1] >= width):
            reading.context, reading.behind = context, name
            break
    return [reading]


def _fused(reading: Reading) -> bool:
    return "qkv" in reading.by_role or {"q", "kv"} <= set(reading.by_role)


def _kept_layer(reading: Reading, name: str, weight: Tensor) -> Callable[..., None]:
    def hook(part: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        for other, fed, _, _ in reading.layers:
            if other == name and fed.shape == args[0].shape and torch.equal(fed, args[0]):
                return
        # Copies: what a layer gave may be scaled in place, as in fairseq.
        given, made = args[0].detach().clone(), output.detach().clone()
        reading.layers.append((name, given, made, weight.detach()))

    return hook


def _kept_norm(reading: Reading, which: str) -> Callable[..., None]:
    def hook(part: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        reading.normed[which] = output.detach().clone()

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
    def hook(part: nn.Module, args: Sequence[Tensor], output: Tensor) -> None:
        source, *others = args
        if which != "q" and others and others[0].is_floating_point():
            source = others[0]
        weight = parameter.detach()
        if weight.ndim == 3 and weight.shape[-2] == source.shape[-1]:
            projected = [source @ each for each in weight]
        elif weight.ndim == 3:
            projected = [source @ weight.flatten(1)]
        elif weight.shape[0] == source.shape[-1]:
            projected = [source @ weight]
        else:
            projected = [source @ weight.mT]
        reading.matrices.setdefault(which, weight)
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
    reading = Reading(plain=module.bias_k is None and not module.add_zero_attn)
    for which, source, weight, bias in zip(
        "qkv", (x, context, context), weights, biases, strict=True
    ):
        projected = torch.nn.functional.linear(source, weight, bias)
        reading.by_role[which] = [projected.detach()]
        reading.fed[which] = [source]
        reading.matrices[which] = weight.detach()
    out = module.out_proj
    reading.finish = lambda found: torch.nn.functional.linear(found, out.weight, out.bias).detach()
    reading.output = subject(*inputs).detach()
    return reading
