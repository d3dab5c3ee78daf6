"""Evidence of what takes tokens: the attentions inside, who moves whom, other lengths."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.evidence.base import Recorded
from clearhead.checking.evidence.decoding import DecodingEvidence
from clearhead.checking.evidence.feeding_tokens import FedEvidence
from clearhead.checking.evidence.grouping import Group, grouped
from clearhead.checking.evidence.half_precision import Halved, lost_by_plain, measure_halves
from clearhead.checking.evidence.projecting import Sides, sides_by_name, sides_by_tags
from clearhead.checking.evidence.splitting import Splitting, root_node, splitting
from clearhead.checking.hypotheses.edits import edits, fitted, of_context
from clearhead.checking.hypotheses.head_edits import TOKENS, VALUES
from clearhead.checking.hypotheses.matching import Explanation, Trial, explain, window_of
from clearhead.checking.hypotheses.recipe import RIGHT, StageEdit, right_visible
from clearhead.checking.subject.embedding import Embedded, Steps
from clearhead.checking.subject.subject import prepare
from clearhead.checking.thresholds import FOLDED_NUMBERS, LARGE
from clearhead.recording.provenance import Dependency, Provenance, provenance
from clearhead.recording.weighing import weigh

# What the edits of a layer are about, whose scores follow the definition.
LAYER = ("heads", "rope", "law", "parameter")


def of_heads(contract: Contract, masked: bool) -> list[StageEdit]:
    """Return the edits about the split, the groups or the merge of heads that are possible under a contract."""
    found = edits(contract, given=False, masked=masked)
    return [each for each in found if each.noun == "heads"]


# Rotations that are looked for where none is declared.
ROTATIONS = tuple(
    {"base": base, "layout": layout}
    for base in (10000.0, 500000.0, 1000000.0)
    for layout in ("half", "interleaved")
)


@dataclass(frozen=True, eq=False)
class TokensEvidence(FedEvidence):
    """Evidence of f(x), and of f(x, mask)."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """The width of a token, "d_in", and the number of heads, "num_heads", 1 if it is unknown."""
        return {"d_in": self.feed.width, "num_heads": self.num_heads or 1}

    @property
    def num_heads(self) -> int | None:
        """Return the number of heads; None if it is unknown."""
        seen = self.splittings[0].num_heads if self.splittings else None
        return self.feed.num_heads or seen

    @cached_property
    def dependency(self) -> Dependency:
        """Return which outputs depend on which tokens, with the operands of the products."""
        return self.measured(self.subject, self.inputs[0], self.observed)

    @cached_property
    def leaks(self) -> list[int] | None:
        """The indices of the outputs that a NaN in the last token reaches, though they do not depend on it.

        None if all depend on it.
        """
        measured, x = self.dependency, self.batched(self.inputs[0])
        token = x.shape[1] - 1
        blind = ~measured.moves[:, token] & ~measured.broken
        if not blind.any():
            return None
        spoilt = x.clone()
        spoilt[:, token] = torch.nan
        output = self.batching(self.subject.spare())(spoilt).detach()
        return (~output[-1].isfinite().all(-1) & blind).nonzero().flatten().tolist()

    @cached_property
    def sources(self) -> tuple[Provenance | None, ...]:
        """Return the provenance of the rows of each attention in `observed`; None for one as in `provenance`."""
        return tuple(provenance(each, [self.dependency]) for each in self.observed)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Return the attentions grouped by layer; heads that are computed one by one belong together."""
        batch = self.batched(self.inputs[0]).shape[0]
        return grouped(self.observed, self.sources, batch)

    @cached_property
    def splittings(self) -> tuple[Splitting, ...]:
        """Return the split and the merge of heads of each group; AssertionError for groups without a record."""
        found = []
        for each in self.groups:
            assert self.recorded is not None
            seen = self.recorded.recorder, self.recorded.output
            found.append(splitting(*seen, each))
        return tuple(found)

    @cached_property
    def promised(self) -> Contract:
        """Return the contract, with the window that was inferred from the dependencies, if there is one.

        It is causal too if that window has no keys ahead.
        """
        window = self._window
        if window is None:
            return self.contract
        return replace(self.contract, window=window, causal=window[1] == 0 or self.contract.causal)

    @property
    def inside(self) -> Contract:
        """Return `promised` without rotation and key heads: the contract of heads that are split and rotated."""
        return replace(self.promised, rope=None, num_kv_heads=None)

    @property
    def _window(self) -> tuple[int, int] | None:
        """Return the (back, ahead) window of the dependencies; None if declared, absent, or against causality."""
        measured = self.dependency
        if self.contract.local or measured.broken.any():
            return None
        window = window_of(measured.moves)
        return None if window is not None and self.contract.causal and window[1] else window

    @cached_property
    def trials(self) -> list[Trial]:
        """Return the trials of the first group, one for each call; [] if nothing attends."""
        return self.group_trials(0) if self.groups else []

    @property
    def calls(self) -> list[Recorded]:
        """Return the records of the first call and of another one, without those that failed."""
        return [each for each in (self.recorded, self.other) if each is not None]

    def _alike(self) -> list[Recorded]:
        """Return the records in `calls` with as many attentions as the first."""
        return [each for each in self.calls if len(each.attentions) == len(self.observed)]

    def group_trials(self, index: int) -> list[Trial]:
        """Return the trials of a group, one for each call with as many attentions, if the group makes a trial of it."""
        group = self.groups[index]
        made = [
            group.trial(recorded.attentions, self.inside, self.feed.width)
            for recorded in self._alike()
        ]
        return [each for each in made if each is not None]

    @cached_property
    def steps(self) -> DecodingEvidence | None:
        """Return evidence of the model that decodes with its cache; None if it is not causal or has no cache."""
        model = self.given.run
        if not self.contract.causal or not isinstance(model, Embedded) or model.cache is None:
            return None
        subject = prepare(Steps(model), "decode", None, self.contract, self.seed)
        return DecodingEvidence(subject, self.contract, self.seed)

    @cached_property
    def explanations(self) -> list[Explanation]:
        """Return the explanation of each group of heads."""
        return [self._explained(index) for index in range(len(self.groups))]

    def _explained(self, index: int) -> Explanation:
        """Return the explanation of the attention inside a group of heads, from its trials."""
        trials, weighed = self.group_trials(index), weigh(self.groups[index].heads[0])

        def table(contract: Contract) -> list[StageEdit]:
            """Return the edits inside the heads under a contract, with the measured ones."""
            seen = [right_visible(each.under(contract).setting) for each in trials]
            masked, numbers = not all(map(Tensor.all, seen)), fitted(weighed.scale, weighed)
            return edits(contract, given=False, masked=masked, whole=False, numbers=numbers)

        return explain(trials, trials[0].setting.contract, table)

    @property
    def explained(self) -> Explanation | None:
        """Return the explanation of the first group; None if nothing attends."""
        return self.explanations[0] if self.explanations else None

    @cached_property
    def spread(self) -> tuple[float, float, float] | None:
        """Return the standard deviations of the query and key matrices of the first group, and of PyTorch's default.

        None if query or key has no matrix of its own, or one with too few numbers; AssertionError without a record.
        """
        assert self.recorded is not None
        found = []
        for which in (0, 1):
            node = root_node(self.recorded.recorder, self.groups[0].attentions[0], which)
            if node is None or node.kind != "linear" or node.constant is None:
                return None
            matrix = node.operands[node.constant]
            if matrix.ndim != 2 or matrix.numel() < FOLDED_NUMBERS:
                return None
            found.append((matrix.std().item(), matrix.shape[0 if node.constant == 1 else 1]))
        return found[0][0], found[1][0], (3 * found[0][1]) ** -0.5

    @cached_property
    def projected(self) -> frozenset[str]:
        """The names of the parameters that project the query, key or value of any attention; "" for other tensors.

        Empty if the first call was not recorded.
        """
        if self.recorded is None:
            return frozenset()
        recorder = self.recorded.recorder
        roots = [root_node(recorder, each, which) for each in self.observed for which in range(3)]
        return frozenset(
            recorder.parameters.get(node.storages[node.constant], "")
            for node in roots
            if node is not None and node.constant is not None
        )

    @cached_property
    def layers(self) -> tuple[Explanation | None, ...]:
        """The explanation of each group's layer, from its projections to the reader of its contexts.

        None for a group whose projections or reader were not found, or whose widths do not divide into heads.
        """
        return tuple(map(self._layer, range(len(self.groups))))

    @cached_property
    def layer_by_name(self) -> Explanation | None:
        """Return the explanation of the layer from parameters named as projections.

        None if these are not found or do not fit.
        """
        found = [list(self._named_sides(each)) for each in self.calls]
        return self._explained_sides(found, self.num_heads or 1, whole=True)

    def _named_sides(self, recorded: Recorded) -> Iterator[Sides]:
        """Yield the sides of the layer in one call, by parameter names; nothing if they are not found."""
        nodes = recorded.recorder.nodes
        inputs = [self.batched(each.output) for each in nodes if each.kind == "input"]
        if inputs:
            output = self.batched(recorded.output)
            yield from sides_by_name(recorded, output, inputs[0], inputs[-1])

    @cached_property
    def ends(self) -> tuple[Explanation | None, ...]:
        """Return the explanation of each group from the multiplied query and key and the projected value on.

        None as in `_end`.
        """
        return tuple(map(self._end, range(len(self.groups))))

    def _end(self, index: int) -> Explanation | None:
        """Return the explanation from the multiplied query and key and the projected value on.

        None if the attention inside is wrong, its samples are unknown, or the projected value or reader is not found.
        """
        inside = self.explanations[index]
        if not inside.right or self.groups[index].arranged is None:
            return None
        multiplied = self.group_trials(index)
        for ways in zip(*self._calls_of(index)[: len(multiplied)], strict=False):
            made = [
                sides.end(each.under(inside.contract))
                for sides, each in zip(ways, multiplied, strict=False)
            ]
            trials = [each for each in made if each is not None]
            if trials and len(trials) == len(made):
                table = [*TOKENS, *VALUES, *of_context(trials)]
                found = explain(trials, inside.contract, lambda _, rows=table: rows)
                return replace(found, trials=tuple(trials))
        return None

    def layer_sides(self, index: int, recorded: Recorded) -> list[Sides]:
        """Return the sides of the layer of a group in one call, once for each order that its projections allow.

        [] if unknown.
        """
        same = [recorded.attentions[each] for each in self.groups[index].indices]
        batch = 1 if self.feed.plain else recorded.output.shape[0]
        return list(sides_by_tags(recorded, same, batch))

    def _calls_of(self, index: int) -> list[list[Sides]]:
        """Return the possible sides of a group's layer, for each call with the same number of attentions."""
        return [self.layer_sides(index, each) for each in self._alike()]

    def _layer(self, index: int) -> Explanation | None:
        """Return the explanation of a group's layer, projections included.

        None if its sides are not found or do not fit.
        """
        found = self._calls_of(index)
        dim = self.groups[index].attentions[0].query.shape[-1]
        width = next((sides.query.shape[-1] for ways in found for sides in ways), dim)
        num_heads = self.contract.num_heads or self.feed.num_heads or width // dim
        return self._explained_sides(found, num_heads, whole=False)

    def _explained_sides(
        self, calls: Sequence[Sequence[Sides]], num_heads: int, *, whole: bool
    ) -> Explanation | None:
        """Return the first known explanation of a layer's sides, else the first unknown one; None if no sides fit.

        `calls` holds for each call its possible sides. An undeclared rotation is tried as well. `whole`: with edits of
        the scores too.
        """
        trials: tuple[Trial, ...] = ()

        def table(contract: Contract) -> list[StageEdit]:
            """Return the edits of a layer under a contract.

            All if `whole`, else those about heads, laws and rotation.
            """
            found = edits(contract, given=False, masked=whole)
            return [
                *(
                    each
                    for each in found
                    if whole or each.noun in LAYER or "rotate" in each.changes
                ),
                *of_context([each.under(contract) for each in trials]),
            ]

        first = None
        for ways in zip(*calls, strict=False):
            made = [sides.trial(self.promised, num_heads) for sides in ways]
            trials = tuple(each for each in made if each is not None)
            if not trials or len(trials) < len(made):
                continue
            found = replace(explain(trials, self.promised, table), trials=trials)
            if found.known:
                return found
            first = first or found
            for rope in ROTATIONS if self.contract.rope is None else ():
                turned = replace(self.promised, rope=rope)
                found = explain(trials, turned, lambda each: of_heads(each, whole))
                if found.known:
                    return replace(found, trials=trials)
        return first

    @cached_property
    def halves(self) -> list[tuple[torch.dtype, str, Halved]]:
        """The errors in other dtypes, as (dtype, "usual" or "large" scores, errors).

        For declared dtypes, else for float32 if exp is taken of plain scores; [] if neither, or nothing attends.
        """
        declared = self.contract.dtypes
        # An exponential of the scores as they are overflows in the usual precision too.
        asked = declared or (torch.float32,) * self.plain_exp
        if not asked or not self.trials or self.explained is None:
            return []
        usual, case = self.inputs[0], self.trials[0]
        measured = []
        for dtype in asked:
            run = self.subject.within(dtype)
            large = usual
            # Projections with a bias do not scale with the input, hence a second step.
            for _ in range(2):
                recorded = self.record(large)
                if recorded is None or not recorded.attentions:
                    break
                scores = recorded.attentions[0].scores * RIGHT.scale(case.setting)
                above = (scores - scores.mean(-1, keepdim=True)).max().item()
                size = max(min(scores.max().item(), above), 1e-6)
                large = (
                    large
                    * (LARGE[dtype if dtype == torch.float32 else torch.float16] / size) ** 0.5
                )
            for x, what in ((usual, "usual"), (large, "large")):
                recorded = self.record(x)
                if recorded is None or not recorded.attentions:
                    continue
                made = self.groups[0].trial(
                    recorded.attentions, self.explained.contract, self.feed.width
                )
                if made is None:
                    continue
                plain = partial(lost_by_plain, made.query, made.key, made.value, made.setting)
                target = self.subject(x).detach().double()
                measured.append((dtype, what, measure_halves(run, plain, (x,), target, dtype)))
        return measured

    @cached_property
    def returned(self) -> Any:
        """Return the second item of the tuple that the subject returns, or None."""
        return self.subject.spare().whole(*self.inputs)[1]
