"""The stages bound to one module, which is analysed and cut as often as wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from .analysis import Analysis
from .bounds import Interval, bound
from .bounds.domain import boxes
from .errors import CollapseError, CutError, InputError
from .intake import (
    Options,
    batch_of,
    differentiable,
    optimizers_of,
    probe,
    require_inside,
    require_running,
    same_tensors,
    samples_of,
    usable,
)
from .notes import notes_of
from .planning import Plan, Structure, account, disagreement, plan, shrink, structure
from .planning.plan import independent_groups
from .planning.reach import normalises_batches
from .proof import Certificate, Certificates, observe, prove
from .surgery import Transaction, change, compare, cut_, outputs, ran
from .tracing import Graph, Program, tensors_of, trace
from .tracing.undisturbed import undisturbed

OnCollapse = Literal["error", "keep", "allow"]
_Outputs = list[dict[str, list[Tensor]]]
_PARTIAL = "the model could only be traced in parts, and what else its code does with them is unknown (parts=True cuts)"


@dataclass(frozen=True)
class Outcome:
    """What a cut did."""

    analysis: Analysis
    difference: float = 0.0
    eval_change: float | None = None

    @property
    def removed(self) -> tuple[Certificate, ...]:
        """Certificates of the removed units, with the indices they had at first."""
        return self.analysis.removable

    @property
    def collapsed(self) -> tuple[str, ...]:
        """Layers of which one unit is left, and that one is dead."""
        kept = ((item, [unit for unit in item.units if unit.status != "removed"]) for item in self.analysis.accounts)
        alone = ((item, left[0].bound) for item, left in kept if item.activation and len(left) == 1)
        return tuple(item.layer for item, bound in alone if bound is not None and bound <= item.edge)


class Session:
    """A module with its program and structure. Cutting keeps them up to date.

    `agree` is called with a statement before anything is cut and again before it is final, and raises if another
    process that trains the same model says something else. `recorder` is told of a cut just before it is final.
    """

    def __init__(
        self,
        module: nn.Module,
        example_inputs: Any,
        options: Options,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        copies: Sequence[nn.Module] = (),
        agree: Callable[[str], None] | None = None,
    ) -> None:
        self._agree = agree if agree is not None else lambda statement: None
        self.recorder: Callable[[Plan, Outcome, Mapping[str, Tensor]], None] | None = None
        example_inputs = tree_map(differentiable, example_inputs)
        self.module, self.example_inputs, self.options = usable(module), example_inputs, options
        self.optimizers = optimizers_of(self.module, optimizer)
        self.copies = [same_tensors(self.module, item) for item in copies]
        kind = next(iter(tensors_of(self.module).values())).device.type
        # In another autocast state a cut would find other operators than were traced here; its cache may be stale.
        state = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), False
        self._casting = partial(torch.autocast, kind, *state)
        require_running(self.module, example_inputs)
        self.structure = structure(trace(self.module, example_inputs))
        require_inside(self.program.graphs[0], example_inputs, options.domain)
        self._proven: set[tuple[str, int]] = set()
        self._ran: list[Any] = []  # by the module as it was traced, or after its last cut
        self._probes = [example_inputs, probe(self.program.graphs[0], example_inputs, options.domain)]
        self._samples = options.samples if isinstance(options.samples, list) else [options.samples]
        self.blocked: dict[int, str] = {}
        self.origin = {(s.tensor, s.axis): list(range(s.labels.numel())) for s in self.structure.slots}

    @property
    def program(self) -> Program:
        """The graphs of the module as it is now."""
        return self.structure.program

    @property
    def in_parts(self) -> bool:
        """Whether a mode that certificates must cover was traced only in parts."""
        return any(graph.part for mode in self.options.modes for graph in self.program.in_mode(mode))

    @property
    def domain(self) -> dict[str, Interval]:
        """The declared box of every tensor input, by the name the model gives it."""
        graph = self.program.graphs[0]
        return {graph.by_name[name].target: box for name, box in boxes(graph, self.options.domain).items()}

    @property
    def batch_limit(self) -> int | None:
        """The largest batch that bounds in training mode hold for, if they depend on it."""
        return self.options.batch_size or (self.example_batch if self.options.evidence == "batch-proved" else None)

    @property
    def any_batch(self) -> bool:
        """Whether proofs must hold for batch norm in training mode with batches of any size."""
        free = self.options.evidence == "proved" and "train" in self.options.modes and self.options.batch_size is None
        return free and normalises_batches(self.program)

    @property
    def example_batch(self) -> int:
        """The first axis of the first input."""
        return batch_of(self.program.graphs[0])

    def certificates(self) -> list[Certificates]:
        """Certificates for every graph of the chosen modes, for the module and its copies."""
        return self._certificates(self.options, float(self.batch_limit or "inf"))

    def removable(self, options: Options) -> int:
        """How many units could go on other terms."""
        certificates = self._certificates(options, float(options.batch_size or "inf"))
        return self._analysis(certificates, self.plan(certificates)).count("removed")

    def _certificates(self, options: Options, limit: float) -> list[Certificates]:
        found = []
        for module in (self.module, *self.copies):
            tensors, memo = tensors_of(module), dict[Any, Any]()
            for graph in (graph for graph in self.program.graphs if set(graph.modes) & set(options.modes)):
                if options.evidence == "observed":
                    found.append(self._observed(module, graph))
                    continue
                bounds = bound(
                    graph, tensors, options.domain, batch_limit=limit, dtype=options.dtype, memo=memo,
                    linear=options.bounds == "linear", learning=options.learning,
                )  # fmt: skip
                found.append(prove(bounds, options.evidence))
        return found

    def _observed(self, module: nn.Module, graph: Graph) -> Certificates:
        samples = samples_of(graph, self.options.samples)
        try:
            with undisturbed(module):  # in train mode statistics are written and random numbers drawn
                return observe(graph, tensors_of(module), samples, learning=self.options.learning)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:300]
            raise InputError(
                f"the samples do not run through the model as it was traced with the example: {reason} (give batches "
                "with as many rows as the example has)"
            ) from None

    def plan(self, certificates: list[Certificates], blocked: Mapping[int, str] | None = None) -> Plan:
        """What can be cut on this evidence."""
        if self.in_parts and not self.options.parts:
            blocked = self.blocked = dict.fromkeys(torch.unique(self.structure.representative).tolist(), _PARTIAL)
        return plan(
            self.structure,
            certificates,
            blocked=self.blocked if blocked is None else blocked,
            learning=self.options.learning,
        )

    @property
    def refused(self) -> dict[str, str]:
        """Layers with units that could not be cut although they are dead, and why."""
        if not self.blocked:
            return {}
        rep = self.structure.representative
        pairs = ((layer.name, label) for layer in self.structure.layers for label in rep[layer.labels].tolist())
        return {name: self.blocked[label] for name, label in pairs if label in self.blocked}

    def analysis(self) -> Analysis:
        """Every unit accounted for; changes nothing."""
        certificates = self.certificates()
        return self._analysis(certificates, self.plan(certificates))

    def cut_(self, on_collapse: OnCollapse) -> Outcome:
        """Cut what can be cut, all or nothing, and follow with program and structure.

        What fails its check is pinned with the reason, and the rest tried again: another unit may then be the one that
        is kept of a layer. Every round pins something, so there is a last one.
        """
        with self._casting():
            try:
                return self._cut(on_collapse)
            finally:
                self._block_axes()

    def _cut(self, on_collapse: OnCollapse) -> Outcome:
        certificates, before = self.certificates(), None
        while True:
            proposal = self._proposal(certificates, on_collapse)
            self._agree(f"{int(proposal.removed.sum())} to go, set {proposal.digest}")
            if not proposal:
                return Outcome(self._analysis(certificates, proposal))
            if before is None:
                before = self._outputs()
                if self._proven and self._ran != ran(before):
                    self._trace_again()
                    certificates = self.certificates()
                    continue
            outcome = self._attempt(certificates, proposal, before)
            if isinstance(outcome, Outcome):
                return outcome
            self._block_failing_groups(certificates, proposal, before, outcome)

    def _proposal(self, certificates: list[Certificates], on_collapse: str) -> Plan:
        made = self.plan(certificates)
        if made.collapsed and on_collapse == "error":
            names = ", ".join(f"'{name}'" for name in made.collapsed)
            raise CollapseError(
                f"every unit of {names} can go, which would leave the layer empty and the output constant; the model "
                'is unchanged (on_collapse="keep", or --on-collapse keep, leaves one unit per layer)'
            )
        return made

    def _attempt(
        self, certificates: list[Certificates], proposal: Plan, before: _Outputs, *, final: bool = True
    ) -> Outcome | CutError:
        """Cut, check, and keep the cut if it is final; whatever goes wrong, everything is put back."""
        whole = {name: tensor.detach() for name, tensor in tensors_of(self.module).items()}
        with Transaction() as transaction:
            try:
                cut_(transaction, self.module, proposal, self.optimizers)
                for item in self.copies:
                    cut_(transaction, item, proposal)
                after = self._outputs()
                difference = max(compare(*pair, self.options.modes) for pair in zip(before, after, strict=True))
                smaller = self._followed(proposal, ran(before) == ran(after))
            except CutError as error:
                self._agree("the check of the cut fails")
                return error
            eval_change = None
            if self.options.evidence == "batch-proved":
                eval_change = max(change(o["eval"], n["eval"]) for o, n in zip(before, after, strict=True))
            outcome = Outcome(self._analysis(certificates, proposal), difference, eval_change)
            self._agree("the check of the cut passes")
            if final:
                self._record(proposal, outcome, whole)
                self._adopt(proposal, smaller)
                self._ran = ran(after)
                transaction.commit()
        return outcome

    def _record(self, proposal: Plan, outcome: Outcome, before: Mapping[str, Tensor]) -> None:
        """One process writes; if it cannot, none of them keeps the cut."""
        try:
            if self.recorder is not None:
                self.recorder(proposal, outcome, before)
        except Exception as error:
            self._agree(f"the cut cannot be recorded: {error}")
            raise
        self._agree("the cut is recorded")

    def _outputs(self) -> _Outputs:
        """Outputs on the example and on one more input drawn from the domain, in one of the modes if both compute the
        same; where eval mode is measured, on the samples, too."""
        alike = all(graph.both for graph in self.program.graphs) and self.options.evidence != "batch-proved"
        modes = self.options.modes[:1] if alike else ("eval", "train")
        found = outputs(self.module, self._probes, modes)
        if self.options.evidence == "batch-proved":
            found += outputs(self.module, [inputs for inputs in self._samples if inputs is not None], ("eval",))
        return found

    def _block_failing_groups(
        self, certificates: list[Certificates], proposal: Plan, before: _Outputs, failure: CutError
    ) -> None:
        """Find the groups that the model's own code does not allow to be cut (sizes written into it), by halves.

        If both halves of what fails pass by themselves, it is all of it together that does not.
        """
        everything = proposal.removed.nonzero().reshape(-1).tolist()

        def blame(groups: list[set[int]], failure: CutError) -> None:
            known, middle = len(self.blocked), len(groups) // 2
            for half in (groups[:middle], groups[middle:]) if middle else ():
                inside = set().union(*half)
                outside = {label: "tried by itself" for label in everything if label not in inside}
                alone = self.plan(certificates, {**self.blocked, **outside})
                error = self._attempt(certificates, alone, before, final=False)
                if isinstance(error, CutError):
                    blame(half, error)
            if len(self.blocked) == known:
                reason = f"the model's own code does not allow the cut: {failure}"
                self.blocked.update(dict.fromkeys(set().union(*groups), reason))

        blame(independent_groups(self.structure, proposal), failure)

    def _trace_again(self) -> None:
        """The module's code does something else than at the last cut: a number of its own has changed, or a hook."""
        reasons = self._blocked_slots()
        self.structure, self.blocked = structure(trace(self.module, self.example_inputs)), {}
        self._proven = set()
        self._block(reasons)

    def _followed(self, proposal: Plan, alike: bool) -> Structure:
        """The structure after a cut. A new trace must show what was predicted, since code may read its sizes: where an
        axis is cut for the first time, and where the passes before and after were not alike."""
        predicted = shrink(self.structure, proposal)
        if not self.in_parts and not (alike and proposal.axes <= self._proven):
            reason = disagreement(predicted, trace(self.module, self.example_inputs))
            if reason is not None:
                raise CutError(reason)
        return structure(predicted)

    def _adopt(self, proposal: Plan, smaller: Structure) -> None:
        """Structure, original indices and pins after a cut."""
        gone = proposal.removed[self.structure.representative]
        for slot in self.structure.slots:
            origin, dead = self.origin[slot.tensor, slot.axis], gone[slot.labels].reshape(-1).tolist()
            self.origin[slot.tensor, slot.axis] = [i for i, lost in zip(origin, dead, strict=True) if not lost]
        reasons = self._blocked_slots()
        self.structure, self.blocked = smaller, {}
        self._proven |= proposal.axes
        self._block(reasons)

    def state(self) -> dict[str, Any]:
        """What the weights do not tell: original indices, and axes that failed a check. Plain data."""
        origin = {_key(slot): kept for slot, kept in self._moved().items()}
        blocked = {_key(slot): reason for slot, reason in self._blocked_slots().items()}
        return {"origin": origin, "blocked": blocked, "proven": sorted(_key(slot) for slot in self._proven)}

    def _moved(self) -> dict[tuple[str, int], list[int]]:
        """Original indices along the tensor axes that were cut."""
        return {slot: kept for slot, kept in self.origin.items() if kept != list(range(len(kept)))}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave for a module of these widths."""
        own = {_key((slot.tensor, slot.axis)): slot for slot in self.structure.slots}
        for key, kept in state["origin"].items():
            if key not in own and len(kept) == 1:
                continue  # an axis of one unit has no slot
            if key not in own or own[key].labels.numel() != len(kept):
                raise InputError(
                    f"the state does not fit the model: it has {len(kept)} units for '{key}'; load its weights first"
                )
        self.origin |= {_place(key): list(kept) for key, kept in state["origin"].items()}
        self._proven |= {_place(key) for key in state["proven"]}
        if self._proven:
            with self._casting():
                self._ran = ran(self._outputs())
        self._block({_place(key): reason for key, reason in state["blocked"].items()})

    def _blocked_slots(self) -> dict[tuple[str, int], str]:
        """Tensor axes with labels that failed a check: they are left alone from now on."""
        found = {}
        for slot in self.structure.slots:
            for label in self.structure.representative[slot.labels].reshape(-1).tolist():
                if label in self.blocked:
                    found[slot.tensor, slot.axis] = self.blocked[label]
        return found

    def _block(self, reasons: Mapping[tuple[str, int], str]) -> None:
        """Leave whole axes alone."""
        for slot in self.structure.slots:
            reason = reasons.get((slot.tensor, slot.axis))
            if reason is not None:
                labels = self.structure.representative[slot.labels].reshape(-1).tolist()
                self.blocked.update(dict.fromkeys(labels, reason))

    def _block_axes(self) -> None:
        """What failed a check by itself speaks for its axes, and these for others that share their labels: what a
        state tells is then all there is."""
        known = 0
        while known < len(self.blocked):
            known = len(self.blocked)
            self._block(self._blocked_slots())

    def _analysis(self, certificates: list[Certificates], proposal: Plan) -> Analysis:
        accounts = account(self.structure, certificates, proposal, self.blocked, self.options.modes, self._moved())
        return Analysis(accounts, self.options.evidence, self.options.modes, notes_of(self, certificates, proposal))


def _key(slot: tuple[str, int]) -> str:
    """A tensor's axis as one word for a JSON file."""
    return f"{slot[0]}:{slot[1]}"


def _place(key: str) -> tuple[str, int]:
    """A tensor's axis out of such a word."""
    tensor, _, axis = key.rpartition(":")
    return tensor, int(axis)
