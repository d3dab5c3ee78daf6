"""What every subject is asked, however it is called: repetition, inputs, gradients, training."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clearhead.checking.contract import Contract
from clearhead.checking.notes import Notes
from clearhead.checking.probes import gradients, inputs, repeating
from clearhead.checking.reading import read
from clearhead.checking.subject import Subject

SAME = 1e-5
DRAWS = 150
DROPPING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def examine_repetition(
    subject: Subject, given: Sequence[Tensor], contract: Contract, notes: Notes
) -> bool:
    """Whether the same call gives the same; nothing else can be measured where it does not."""
    gap = repeating.changed(lambda: subject(*given))
    if gap <= SAME:
        return True
    measured = f"three equal calls differ by up to {gap:.3g} of the largest number"
    declared = bool(contract.dropout)
    if declared or has_dropout(subject):
        sentence = "dropout is active in eval mode: the same call twice gives two results"
        notes.found(
            "dropout.in-eval",
            sentence
            if declared
            else f"{sentence}. No dropout is declared, though it has a place "
            "for it: the second name, if what is drawn is none",
            measured,
            "F.dropout(x, p, training=self.training), dropout_p=self.dropout if self.training else "
            "0.0, or nn.Dropout, which knows the mode",
            () if declared else ("output.nondeterministic",),
        )
    else:
        notes.found(
            "output.nondeterministic",
            "the same call twice gives two results, and no dropout is declared",
            measured,
            "something is drawn at random, uninitialised (torch.empty), or kept from the last call",
        )
    return False


def has_dropout(subject: Subject) -> bool:
    """Whether a module has a place for dropout, by its parts or its attributes."""
    module = subject.module
    if module is None:
        return False
    return any(
        isinstance(part, DROPPING) or any("drop" in name for name in vars(part))
        for part in module.modules()
    )


def examine_inputs(
    subject: Subject,
    given: Sequence[Tensor],
    names: Sequence[str],
    notes: Notes,
    close: float = SAME,
) -> None:
    """Whether the inputs are left as they are, and may be views."""
    changed = [names[index] for index in inputs.written(subject.bare, given)]
    if changed:
        notes.found(
            "input.modified",
            f"the caller's {' and '.join(changed)} {'is' if len(changed) == 1 else 'are'} written to",
            "before ≠ after the call",
            "an operation in place (*=, +=, masked_fill_, div_) on an argument or on a view of it; "
            "write x = x * scale",
        )
        return
    notes.right("inputs untouched")
    gap, refused = inputs.strided(subject.bare, given)
    if gap > close:
        notes.found(
            "input.strided",
            "views of the same numbers, with other strides, give another result",
            f"differs by up to {gap:.3g} of the largest number",
            "as_strided, storage and raw pointers suppose contiguous tensors: call .contiguous() "
            "first, and reshape instead of view",
        )
    elif refused is not None:
        notes.tell(f"views with other strides are refused: {refused}")
    else:
        notes.right("strided views")


def examine_gradients(
    subject: Subject, given: Sequence[Tensor], names: Sequence[str], notes: Notes, seed: int
) -> None:
    """Whether the backward pass is that of the forward pass."""
    if subject.dtype != torch.float64:
        notes.skip("gradients: it does not run in float64")
        return
    floating = [
        (name, each.clone().requires_grad_())
        for name, each in zip(names, given, strict=True)
        if each.is_floating_point()
    ]
    rest = [each for each in given if not each.is_floating_point()]
    leaves = list(floating)
    if subject.module is not None and subject.copied:
        leaves += [
            (name, each)
            for name, each in subject.module.named_parameters()
            if each.requires_grad and each.dtype == torch.float64
        ]

    def run() -> Tensor:
        return subject(*(each for _, each in floating), *rest)

    if not run().isfinite().all():
        notes.skip("gradients: the output is not finite")
        return
    try:
        measured = gradients.measure(run, leaves, seed)
    except RuntimeError as error:
        if "inplace operation" in str(error):
            notes.found(
                "grad.blocked",
                "the backward pass fails: what it needs was overwritten",
                str(error).splitlines()[0],
                "use the operation that returns a new tensor",
            )
        else:
            notes.tell(f"the backward pass raises: {str(error).splitlines()[0]}")
        return
    blocked = [each for each in measured if each.state == "blocked"]
    wrong = [each for each in measured if each.state in ("wrong", "not finite")]
    if blocked:
        words = ", ".join(each.name for each in blocked)
        notes.found(
            "grad.blocked",
            f"no gradient reaches {words}",
            f"the output moves by {blocked[0].by_difference:.3g} with {blocked[0].name}, and "
            f"autograd says {blocked[0].by_autograd:.3g}",
            "look for .detach(), .data, torch.no_grad(), .item() or a tensor made anew from "
            "numbers on the way",
        )
    if wrong:
        notes.found(
            "grad.wrong",
            f"the gradient of {', '.join(each.name for each in wrong)} is not that of the output",
            f"along a direction the output moves by {wrong[0].by_difference:.6g}, autograd says "
            f"{wrong[0].by_autograd:.6g}",
            "the backward of a torch.autograd.Function or a hook is wrong, or part of the way is "
            "detached",
            follows_from="grad.blocked" if blocked else None,
        )
    if not blocked and not wrong:
        notes.right("gradients")


def examine_training(
    subject: Subject,
    given: Sequence[Tensor],
    constant: Sequence[Tensor] | None,
    contract: Contract,
    notes: Notes,
) -> None:
    """Dropout while training, if it is declared."""
    module = subject.module
    if contract.dropout is None:
        notes.skip("dropout not declared")
        return
    if module is None:
        notes.skip("dropout: a function has no training mode")
        return
    still = subject(*given).detach()
    if not still.isfinite().all():
        notes.skip("dropout: the output is not finite")
        return
    with subject.training(), torch.no_grad():
        drawn = repeating.draws(
            lambda: subject(*given),
            None if constant is None else lambda: subject(*constant),
            still,
            DRAWS,
        )
    if contract.dropout == 0:
        if drawn.varies:
            notes.found("output.nondeterministic", "training varies, with dropout=0 declared")
        return
    if not drawn.finite:
        notes.found(
            "dropout.on-scores",
            "training gives NaN: scores are dropped after they were hidden, and 0 · −∞ is NaN",
            f"of {DRAWS} calls in train mode some are not finite, in eval mode all are",
            "softmax first, dropout then: self.dropout(torch.softmax(scores, dim=-1))",
        )
    elif not drawn.varies:
        notes.found(
            "dropout.never",
            f"nothing is dropped while training, though dropout={contract.dropout} is declared",
            f"{DRAWS} calls in train mode are equal",
            "the probability is not handed on, or training=self.training is missing: "
            "self.dropout(weights)",
        )
    elif drawn.constant_varies is False:
        notes.found(
            "dropout.on-scores",
            "scores are dropped instead of weights: a dropped key keeps exp(0) of the weight",
            "with equal values the output never varies: the weights always sum to one",
            "softmax first, dropout then: self.dropout(torch.softmax(scores, dim=-1))",
        )
    else:
        _judge_mean(_draws_inside(subject, given) or drawn, contract.dropout, notes)


def _draws_inside(subject: Subject, given: Sequence[Tensor]) -> repeating.Draws | None:
    """The draws of the context, which no residual hides; None where it cannot be read."""
    ways = read(subject, given)
    name = ways[0].behind if ways else None
    if name is None or subject.module is None:
        return None
    seen: list[Tensor] = []
    layer = subject.module.get_submodule(name)
    hook = layer.register_forward_pre_hook(lambda part, args: seen.append(args[0].detach()))

    def run() -> Tensor:
        seen.clear()
        subject(*given)
        return seen[0]

    try:
        still = run()
        with subject.training(), torch.no_grad():
            return repeating.draws(run, None, still, DRAWS)
    finally:
        hook.remove()


def _judge_mean(drawn: repeating.Draws, dropout: float, notes: Notes) -> None:
    kept = 1 - dropout
    tolerance = max(4 * drawn.uncertain, 0.02)
    if abs(drawn.shrinks - kept) < tolerance < abs(drawn.shrinks - 1):
        notes.found(
            "dropout.unscaled",
            f"what is left after dropout is not scaled by 1/(1 − {dropout:g})",
            f"the mean of {DRAWS} draws is {drawn.shrinks:.3f} times the output without dropout",
            "F.dropout(weights, p) scales; a mask of one's own must be divided by 1 - p",
        )
    elif abs(drawn.shrinks - 1) < tolerance:
        notes.right("dropout")
    else:
        notes.tell(f"the mean over dropout is {drawn.shrinks:.3f} times the output without it")
