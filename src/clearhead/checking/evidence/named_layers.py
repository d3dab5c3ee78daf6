"""Query, key and value as the layers or matrices of these names give them, where no product was seen, as in a loop."""

from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from clearhead._common.foreign_names import is_output, role
from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.hypotheses.matching import Explanation, Trial, follows
from clearhead.checking.hypotheses.recipe import Setting
from clearhead.recording.thresholds import SUMS

_right: WeakKeyDictionary[TokensEvidence, Explanation | None] = WeakKeyDictionary()


def right_by_name(e: TokensEvidence) -> Explanation | None:
    """The definition, if it gives the whole output from query, key and value as their layers give them.

    What was recorded inside, as blocks whose softmax is rescaled later, then says nothing against it.
    """
    if e not in _right:
        trials = trials_by_name(e)
        asked = len(trials) > 1 and _goes_out(e)
        found = follows(trials, e.promised) if asked else None
        _right[e] = None if found is None else Explanation(True, *found)
    return _right[e]


def _goes_out(e: TokensEvidence) -> bool:
    """True if the output is that of the output projection, row by row and but for a bias, or there is none."""
    if e.recorded is None:
        return False
    recorder, output = e.recorded.recorder, e.recorded.output.double()
    for node in reversed(recorder.nodes):
        name = recorder.parameters.get(node.storages[1], "") if node.constant == 1 else ""
        if node.kind != "linear" or not is_output(name.removesuffix(".weight").rpartition(".")[2]):
            continue
        if node.output.numel() != output.numel():
            return False
        bias = output - node.output.double().reshape(output.shape)
        return float((bias - bias[..., :1, :]).abs().max()) <= SUMS * float(output.abs().max())
    return True


def trials_by_name(e: TokensEvidence) -> list[Trial]:
    """Two calls, as trials; none where the layers are not one each for query, key, value and at most the output."""
    if e.subject.module is None:
        return []
    tokens, x = e.feed.lengths[0], e.inputs[0]
    drawn: list[tuple[Tensor, ...]] = [
        (e.feed.draw(tokens, seed),) for seed in (e.seed, e.seed + 1)
    ]
    if isinstance(e, CrossEvidence):
        drawn = [e.inputs, tuple(each.flip(-1) for each in e.inputs)]
    found = [_trial(e, *each) for each in drawn if each[0].ndim == x.ndim]
    return [each for each in found if each is not None]


def _trial(e: TokensEvidence, x: Tensor, *beside: Tensor) -> Trial | None:
    seen = (None if beside else _called(e, x)) or _multiplied(e, x, *beside)
    if seen is None:
        return None
    heads, tokens, keys = e.num_heads or 1, x.shape[-2], seen[1].shape[-2]
    if any(each.shape[-1] % heads for each in seen):
        return None
    query, key, value, context = (
        e.batched(each).unflatten(-1, (heads, -1)).transpose(1, 2) for each in seen
    )
    setting = Setting(
        e.contract, len(query), heads, heads, tokens, keys, query.shape[3], value.shape[3]
    )
    return Trial(f"{tokens} tokens", setting, query, key, value, context)


def _multiplied(
    e: TokensEvidence, x: Tensor, *beside: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Query, key, value and context of a call, by what is multiplied with the parameters of these names."""
    recorded = e.record(x, *beside)
    if recorded is None:
        return None
    seen: dict[str, Tensor] = {}
    for node in recorded.recorder.nodes:
        if node.kind != "linear" or node.constant != 1:
            continue
        name = recorded.recorder.parameters.get(node.storages[1], "").removesuffix(".weight")
        own = "o" if is_output(name.rpartition(".")[2]) else role(name)
        if own not in ("q", "k", "v", "o") or own in seen:
            return None
        of = x if own in ("q", "o") or not beside else beside[0]
        rows = node.operands[0] if own == "o" else node.output
        if rows.shape[:-1].numel() != of.shape[:-1].numel():
            return None
        seen[own] = rows.reshape(*of.shape[:-1], -1).double()
    if not {"q", "k", "v"} <= set(seen):
        return None
    output = recorded.output.detach().double()
    context = seen.get("o", output)
    whole = context.shape[:-1] == x.shape[:-1]
    return (seen["q"], seen["k"], seen["v"], context) if whole else None


def weights_by_name(e: TokensEvidence) -> Tensor | None:
    """The weights of the first sample, (queries, keys, width), by a shift of one value at a time.

    None where the context is not linear in the value, or no product of its own could be told from it.
    """
    if isinstance(e, CrossEvidence) or e.subject.module is None or e.observed:
        return None
    x = e.feed.draw(e.feed.lengths[0], e.seed)
    tokens = x.shape[-2]
    still, all_moved = _called(e, x), _called(e, x, tuple(range(tokens)))
    if still is None or all_moved is None:
        return None
    moved = [_called(e, x, (token,)) for token in range(tokens)]
    found = [e.batched(each[3] - still[3])[0] for each in moved if each is not None]
    if len(found) < tokens:
        return None
    weights = torch.stack(found, 1)
    whole = e.batched(all_moved[3] - still[3])[0]
    return weights if torch.allclose(weights.sum(1), whole, atol=SUMS) else None


def _called(
    e: TokensEvidence, x: Tensor, shifted: Sequence[int] = ()
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Query, key, value and context of a call, with one added to the values of some tokens."""
    spare, seen = e.subject.spare(), dict[str, list[Tensor]]()
    layers = dict(_layers(spare.parts()))
    if not {"q", "k", "v"} <= set(layers) or None in layers:
        return None
    for name, layer in layers.items():

        def keep(
            _: nn.Module, given: tuple[Tensor, ...], made: Tensor, name: str = str(name)
        ) -> Tensor:
            if name == "v" and shifted:
                made = made.clone()
                made[..., shifted, :] += 1
            seen.setdefault(name, []).append((given[0] if name == "o" else made).detach().double())
            return made

        layer.register_forward_hook(keep)
    try:
        with torch.no_grad():
            output = spare(x).detach().double()
    except Exception:  # a layer may give something else than one tensor of all tokens
        return None
    if any(len(each) != 1 for each in seen.values()) or len(seen) != len(layers):
        return None
    query, key, value = (seen[name][0] for name in "qkv")
    context = seen["o"][0] if "o" in seen else output
    whole = all(each.shape[:-1] == x.shape[:-1] for each in (query, key, value, context))
    return (query, key, value, context) if whole else None


def _layers(parts: Iterator[nn.Module]) -> Iterator[tuple[str | None, nn.Module]]:
    """By its role each layer that has parameters of its own; None for one of another role, or a second one."""
    roles = set()
    for top in parts:
        for name, each in top.named_modules():
            if not name or not list(each.parameters(recurse=False)):
                continue
            own = role(name) if isinstance(each, nn.Linear) else None
            last = name.rpartition(".")[2]
            own = "o" if own is None and is_output(last) else own
            yield (own if own in ("q", "k", "v", "o") and own not in roles else None), each
            roles.add(own)
        return
