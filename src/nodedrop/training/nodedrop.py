"""The NodeDrop object: a penalty for the loss, and a cut whenever units have died."""

from __future__ import annotations

import math
import os
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from ..errors import CollapseError, CutError, InputError
from ..functional.spared import check_spare, pressed
from ..intake import Options, uncounted
from ..ledger import LedgerFile
from ..proof import Evidence
from ..session import OnCollapse, Outcome, Session
from ..tracing import tensors_of
from .cost import factors
from .events import DropEvent
from .inputs import InputWatch, odd_modes, require_modes
from .late import late
from .ranks import Ranks, unwrapped
from .refusals import ANY_BATCH, warn_refused
from .schedules import Schedule, check_lam, constant
from .targets import Target, choose, find_targets, nothing_left, require_names
from .terms import BatchCount, Penalties

_IN_USE: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class NodeDrop:
    """Shrinks a model while it trains.

    Add `penalty()` to the loss, call `drop()` now and then after the optimizer's step:

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> _ = nn.init.constant_(model[0].bias, 0.5)
    >>> _ = nn.init.constant_(model[0].bias[:3], -9.0)
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> drop = NodeDrop(model, optimizer, torch.rand(2, 4), lam=1e-5)
    >>> loss = model(torch.rand(16, 4)).square().mean() + drop.penalty()
    >>> loss.backward()
    >>> optimizer.step()
    >>> print(drop.drop())
    step 1: 3 units removed, 5 left, 37 parameters

    `lam` is a number (the paper's default is 1e-5) or a schedule from `nodedrop.training.schedules`; `lam_of` gives
    layers, by name or pattern, factors of their own, the last one that fits. `form` is the penalty of layers without
    batch norm, `norm_form` of those with; `m` says what batch norm's bound counts: "elements" (N·H·W, sound), "batch"
    (the paper's text), "channels" (its published code) or a number. `spare` is the share of each layer's units that the
    penalty leaves alone, those farthest from dying: the others go sooner, and the penalty alone never takes a layer's
    last unit (0 in the paper). A number above 1 is that of these units, so that all layers come to rest at one width;
    `spare_of` gives layers shares or numbers of their own, as `lam_of` does factors. `spare` may be a schedule, too.
    The number is rounded to a `multiple`, so that this width suits the hardware (1 in the paper, 8 suits most
    processors). `toll` puts more of the pressure where time is spent: each layer's λ is multiplied by what one of its
    units costs in multiply-adds, beside the mean of all layers, to this power (0 in the paper, 0.5 is a good start
    where speed counts). With `evidence="batch-proved"` units go as in the paper's NodeDrop-BN, and each event states
    how much eval-mode outputs changed on `example_inputs` and on `samples`, if given.

    `include` and `exclude` name layers, or patterns of them, that the penalty acts on; dead units of others go, too. Of
    a batch norm that layers share, each has its own rows, or the last of those that are added before it. Each
    `penalty()` counts one step: take one for each step of the optimizer.

    `dtype` is the precision of the forward pass where it is lower than the parameters', as under autocast: the proofs
    count its rounding. A layer that loses all its units is kept alive by one of them with a warning;
    `on_collapse="error"` stops instead, "allow" lets the network die, as the paper's does at large λ. Batches outside
    `domain` are an error (`check_inputs=False` turns the check off). Under DistributedDataParallel all processes cut
    together: each calls `drop()` at the same step, and waits for the others at most `timeout` seconds.

    `ledger` is a file for the certificates of all cuts; beside it `cuts/` keeps what `nodedrop verify` needs to derive
    them again. Where it ends is part of this object's state; the first process alone writes it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None,
        example_inputs: Any,
        *,
        lam: float | Schedule = 1e-5,
        C: float = 1.0,
        domain: Any = (0.0, 1.0),
        form: str = "paper",
        norm_form: str = "paper",
        m: BatchCount = "elements",
        spare: float | Schedule = 0.0,
        multiple: int = 1,
        toll: float = 0.0,
        evidence: Evidence = "proved",
        batch_size: int | None = None,
        dtype: torch.dtype | None = None,
        samples: Any = None,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        lam_of: Mapping[str, float] | None = None,
        spare_of: Mapping[str, float] | None = None,
        on_collapse: OnCollapse = "keep",
        copies: nn.Module | Sequence[nn.Module] = (),
        check_inputs: bool = True,
        timeout: float = 300.0,
        ledger: str | os.PathLike[str] | LedgerFile | None = None,
    ) -> None:
        self._schedule: Schedule = lam if callable(lam) else constant(lam)
        self._penalties = Penalties(C, form, norm_form, m, multiple)
        self._spare: Schedule = spare if callable(spare) else lambda step: spare
        if on_collapse not in ("keep", "error", "allow"):
            raise InputError(f"on_collapse must be 'keep', 'error' or 'allow', not {on_collapse!r}")
        if not 0 <= toll < math.inf:
            raise InputError(f"toll must be at least 0, not {toll}")
        self.on_collapse, self.toll = on_collapse, toll
        self.lam_of, self.spare_of = dict(lam_of or {}), dict(spare_of or {})
        if evidence == "batch-proved" and batch_size is None:
            raise InputError("evidence='batch-proved' needs batch_size=, the largest batch you will train with")
        _require_training_possible()
        inner, wrapper = unwrapped(model)
        if any(part in _IN_USE for part in inner.modules()) or any(inner in root.modules() for root in _IN_USE):
            raise InputError("this model, or a part of it, already has a NodeDrop; use that one, or close() it first")
        options = Options(
            domain, evidence, batch_size=batch_size, samples=samples, dtype=dtype, learning=True
        )
        self._ranks = None if wrapper is None else Ranks(wrapper, timeout)
        agree = None if self._ranks is None else self._ranks.agree
        same = [_plain(item) for item in ([copies] if isinstance(copies, nn.Module) else copies)]
        self._open = partial(Session, inner, example_inputs, options, optimizer, same, agree)
        self._session = self._open()
        self.ledger: LedgerFile | None = None
        if ledger is not None and (self._ranks is None or torch.distributed.get_rank() == 0):
            self.ledger = ledger if isinstance(ledger, LedgerFile) else LedgerFile(ledger)
            self.ledger.follow(self._session)
        if any(graph.part for graph in self._session.program.graphs):
            why = self._session.program.notes[0]
            raise InputError(f"the model cannot be traced as a whole, so nothing could be cut: {why}")
        self.model = self._session.module
        self._include, self._exclude = include, exclude
        self._batch = batch_size or self._session.example_batch
        self._refresh()
        require_names(self._session.structure, self._found, include, exclude)
        for target in choose([target for target in self._found if target.computed], include, exclude):
            warnings.warn(
                f"the weight '{target.weight}' goes through other computations (a parametrization, a mask) before it "
                "is used, so the penalty leaves it alone; remove the parametrization to have it act there",
                stacklevel=2,
            )
        if not self.targets:
            raise InputError(nothing_left(self._found))
        still = [target.layer for target in self.targets if not self._trained(target)]
        if len(still) == len(self.targets):
            raise InputError("every layer that NodeDrop could act on is frozen: requires_grad is False")
        frozen = f"the penalty does not move {', '.join(still)}: requires_grad is False" if still else None
        for words in (frozen, uncounted(self.model.parameters()) if evidence != "observed" else None):
            if words is not None:
                warnings.warn(words, stacklevel=2)
        self._require_layers("lam_of", self.lam_of)
        self._require_layers("spare_of", self.spare_of)
        for _, named, _, _ in self._terms:
            check_spare(self._spare(0) if named is None else named, multiple)
        self._watch = InputWatch(model, self._session.domain, batch_size, dtype) if check_inputs else None
        self._holds, self._owned, self._modes = True, False, odd_modes(self.model)
        _IN_USE.add(self.model)
        self.step, self._collapsed = 0, tuple[str, ...]()
        self.events: list[DropEvent] = []
        self._pending: weakref.WeakSet[_Token] = weakref.WeakSet()

    @property
    def lam(self) -> float:
        """λ at this step."""
        return check_lam(self._schedule(self.step))

    @property
    def widths(self) -> dict[str, int]:
        """Units now in each layer that the penalty acts on; a layer whose collapse was allowed has none."""
        tensors = tensors_of(self.model)
        gone = self._collapsed if self.on_collapse == "allow" else ()
        sizes = {t.layer: t.units(tensors[t.weight]) for t in self.targets}
        return {layer: 0 if layer in gone else size for layer, size in sizes.items()}

    @property
    def refused(self) -> dict[str, str]:
        """Layers with dead units that the model's own code does not allow to be cut, and why."""
        return self._session.refused

    def __repr__(self) -> str:
        widths = ", ".join(f"{layer}: {units}" for layer, units in self.widths.items())
        return f"NodeDrop(step {self.step}, λ = {self.lam:g}, units {widths})"

    def penalty(self) -> Tensor:
        """λ times the penalties of all layers, to be added to the loss; counts one step."""
        self._require_open()
        if self._watch is not None and self._watch.free:
            self._watch.check()
        lam, share = self.lam, self._spare(self.step)
        self.step += 1
        terms = []
        for factor, named, units, term in self._terms:
            spare = share if named is None else named
            if lam * factor > 0 and pressed(units, spare, self._penalties.multiple) > 0:  # at rest, it costs nothing
                terms.append(factor * late(term(spare=spare)))
        nothing = torch.zeros((), device=next(self.model.parameters()).device, requires_grad=True)
        total = lam * torch.stack(terms).sum() if terms else nothing
        token = _Token()
        self._pending.add(token)
        marked: Tensor = _Marked.apply(total, token)  # type: ignore[no-untyped-call]
        return marked

    def drop(self) -> DropEvent | None:
        """Cut what is dead now. Returns what went, or None."""
        self._require_open()
        if any(not token.taken for token in self._pending):
            raise CutError(
                "a penalty() waits for its backward(), and a cut would invalidate the graph in between; call drop() "
                "after optimizer.step(), and of a penalty that is only looked at keep .item() alone"
            )
        _require_training_possible()
        if self._parameters != _parameters(self.model):
            raise InputError(
                "the model's tensors changed shape or type, or were replaced, by other hands than this NodeDrop's; "
                "after loading, copying, compacting or casting a model make a new NodeDrop, or load this one's state "
                "with load_state_dict()"
            )
        self._warn_unowned()
        if self._watch is not None:
            self._watch.check()
            require_modes(self.model, self._modes)
        if self._ranks is not None:
            self._ranks.agree(f"drop() after step {self.step}")
            self._ranks.share_buffers()
        known, structure = self.refused, self._session.structure
        with nullcontext() if self.ledger is None else self.ledger.at(self.step):
            outcome = self._session.cut_(self.on_collapse)
        news = {layer: why for layer, why in self.refused.items() if layer not in known}
        warn_refused(news)
        if self._session.structure is not structure or news:
            self._refresh()
        if outcome.removed and self._ranks is not None:
            self._ranks.rebuild()
        collapsed = outcome.collapsed
        empty = [name for name in collapsed if name not in self._collapsed]
        self._collapsed = collapsed
        event = None
        if outcome.removed or (empty and self.on_collapse == "allow"):
            event = self._event(outcome)
            self.events.append(event)
        self._warn(empty)
        if event is None and self._session.any_batch:
            warnings.warn(ANY_BATCH, stacklevel=2)
        return event

    def _event(self, outcome: Outcome) -> DropEvent:
        sizes = sum(p.numel() for p in self.model.parameters()), sum(self.widths.values())
        return DropEvent(
            self.step, outcome.removed, *sizes, outcome.difference, outcome.eval_change, outcome.collapsed
        )

    def _warn(self, empty: list[str]) -> None:
        """Say once that the last unit of a layer is dead."""
        if empty and self.on_collapse == "error":
            name = empty[0]
            raise CollapseError(f"the last unit of layer '{name}' is dead, and the output constant; try a smaller λ")
        for name in empty if self.on_collapse == "keep" else ():
            warnings.warn(
                f"every unit of layer '{name}' is dead and one was kept; λ = {self.lam:g} is too large for it, try "
                f"λ = {self.lam / 10:g} or lam_of={{'{name}': 0.1}}",
                stacklevel=3,
            )

    def state_dict(self) -> dict[str, Any]:
        """Counters and history, as plain data; weights and optimizer state are saved by `nodedrop.save`."""
        events = [event.to_json() for event in self.events]
        own = {"step": self.step, "events": events, "collapsed": list(self._collapsed), **self._session.state()}
        return {**own, "ledger": None if self.ledger is None else self.ledger.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` gave, after the weights of that moment were loaded into the model."""
        if {*state, "ledger"} != set(self.state_dict()):  # older states have none
            raise InputError(f"this is no state of a NodeDrop: it holds {sorted(state)}")
        session, events = self._open(), [DropEvent.from_json(data) for data in state["events"]]
        if not set(self._session.state()["origin"]) <= set(state["origin"]):
            raise InputError(
                "this state is from before cuts that this NodeDrop has made since; build model and NodeDrop anew, and "
                "load weights and state of that time there"
            )
        session.restore(state)
        if self.ledger is not None:
            self.ledger.follow(session, state.get("ledger"))
        self._session, self.step, self._collapsed = session, int(state["step"]), tuple(state["collapsed"])
        self._refresh()
        if self._ranks is not None:
            self._ranks.rebuild()
        self.events = events

    def _refresh(self) -> None:
        tensors = tensors_of(self.model)
        self._found = find_targets(self._session.structure, self._session.blocked)
        able = [target for target in self._found if target.able]
        self.targets = choose(able, self._include, self._exclude)
        self._parameters = _parameters(self.model)
        domain = self._session.domain
        terms = (self._penalties.term(target, tensors, self._batch, domain) for target in self.targets)
        tolls = factors(self._session.structure, self.targets, self.toll)
        own = [self._factor(target) * toll for target, toll in zip(self.targets, tolls, strict=True)]
        named = [_last(self.spare_of, target) for target in self.targets]
        sizes = [len(target.pressed) for target in self.targets]
        self._terms = list(zip(own, named, sizes, terms, strict=True))

    def _factor(self, target: Target) -> float:
        found = _last(self.lam_of, target)
        if found is not None and not 0 <= found < math.inf:
            raise InputError(f"the factor of λ for layer '{target.layer}' must be at least 0 and finite, not {found}")
        return 1.0 if found is None else found

    def _require_layers(self, name: str, table: Mapping[str, float]) -> None:
        for pattern in table:
            if not any(fnmatchcase(target.layer, pattern) for target in self.targets):
                names = ", ".join(target.layer for target in self.targets)
                raise InputError(f"{name} names '{pattern}', and no layer that the penalty acts on does: {names}")

    def _require_open(self) -> None:
        if not getattr(self, "_holds", False):
            raise InputError("this NodeDrop was closed, and has let go of the model; make a new one")

    def _warn_unowned(self) -> None:
        """Say once what the penalty acts on and no optimizer moves. Groups may be added until the first look."""
        own = {id(p) for item in self._session.optimizers for group in item.param_groups for p in group["params"]}
        if self._owned or not own:
            return
        self._owned, tensors = True, tensors_of(self.model)
        pressed = (target for target in self.targets if self._trained(target))
        still = [t.layer for t in pressed if not any(id(tensors[name]) in own for name in t.parameters)]
        if still:
            warnings.warn(
                f"the penalty does not move {', '.join(still)}: the optimizer does not have their parameters",
                stacklevel=3,
            )

    def _trained(self, target: Target) -> bool:
        """Whether anything that the penalty acts on takes a gradient."""
        tensors = tensors_of(self.model)
        return any(tensors[name].requires_grad for name in target.parameters)

    def close(self) -> None:
        """Let go of the model, so that another NodeDrop can take it; the model stays as it is."""
        if vars(self).pop("_holds", False):  # once: another may have it by now
            _IN_USE.discard(self.model)
            if self._watch is not None:
                self._watch.close()

    __del__ = close


def _last(table: Mapping[str, float], target: Target) -> float | None:
    """What the last pattern that fits a layer says of it."""
    found = [value for pattern, value in table.items() if fnmatchcase(target.layer, pattern)]
    return found[-1] if found else None


def _parameters(model: nn.Module) -> list[tuple[int, tuple[int, ...], torch.dtype]]:
    return [(id(p), tuple(p.shape), p.dtype) for p in model.parameters()]


def _require_training_possible() -> None:
    """Refuse at once what would fail after a cut."""
    if torch.is_inference_mode_enabled():
        raise InputError("what is cut under torch.inference_mode() cannot be trained afterwards; do it outside")


def _plain(item: nn.Module) -> nn.Module:
    """A copy of the model out of compiled wrappers and averages."""
    if not isinstance(item, nn.Module):
        raise InputError(f"copies are modules that average the model, such as AveragedModel, not {type(item).__name__}")
    item = unwrapped(item)[0]
    return unwrapped(item.module)[0] if isinstance(item, AveragedModel) else item


class _Token:
    """Lives as long as the graph of one penalty, and knows whether its gradient has been taken."""

    taken = False


class _Marked(torch.autograd.Function):
    """The penalty itself; its node in the graph holds the token."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, token: _Token) -> Tensor:
        ctx.token = token
        return total.view_as(total)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.token.taken = True
        return gradients[0], None
