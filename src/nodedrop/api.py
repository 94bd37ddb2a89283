"""The two calls that run the whole compiler: `analyze` looks, `compact_` cuts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .analysis import Analysis, Ledger
from .bounds import bound
from .bounds.domain import boxes
from .errors import CollapseError, CutError, InputError
from .planning import Plan, Structure, account, plan, structure
from .proof import Certificates, Evidence, observe, prove
from .surgery import Transaction, compare, cut_, outputs
from .tracing import Graph, Program, split_inputs, tensors_of, trace

ModeChoice = Literal["both", "train", "eval"]
_MODES: dict[str, tuple[str, ...]] = {"both": ("eval", "train"), "train": ("train",), "eval": ("eval",)}


@dataclass(frozen=True)
class Options:
    """What counts as evidence, and where."""

    domain: Any = (0.0, 1.0)
    evidence: Evidence = "proved"
    mode: ModeChoice = "both"
    batch_size: int | None = None
    samples: Any = None
    dtype: torch.dtype | None = None
    constants: bool = True
    unread: bool = True

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that certificates must cover."""
        return ("train",) if self.evidence == "batch-proved" else _MODES[self.mode]


def analyze(module: nn.Module, example_inputs: Any, domain: Any = (0.0, 1.0), **options: Any) -> Analysis:
    """Find every unit that can go without changing what the module computes. Changes nothing.

    `domain` is the box the inputs lie in: `(lo, hi)`, a `Box`, or one per input. `evidence` is "proved" (default),
    "batch-proved" (in training mode only, as the paper does with batch norm) or "observed" (on `samples`); `mode` says
    whether a proof must cover "both" train and eval mode (default) or one of them; `batch_size` declares the largest
    training batch, which batch norm's bound in training mode depends on; `dtype` is the lowest precision the module
    will run in, if lower than its parameters'.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> with torch.no_grad():
    ...     _ = net[0].weight.copy_(torch.tensor([[1.0, 1.0], [0.5, -1.0], [1.0, 2.0]]))
    ...     _ = net[0].bias.copy_(torch.tensor([0.0, -0.6, 0.0]))
    >>> [(c.layer, c.index) for c in analyze(net, torch.rand(4, 2)).removable]
    [('0', 1)]
    """
    chosen = _options(domain, options)
    module = _usable(module)
    program = _traced(module, example_inputs)
    _inside(program, example_inputs, chosen)
    found = structure(program)
    certificates = certify(program, module, chosen)
    proposal = plan(found, certificates, constants=chosen.constants, unread=chosen.unread)
    return _analysis(found, certificates, proposal, chosen, {})


def compact_(
    module: nn.Module,
    example_inputs: Any,
    domain: Any = (0.0, 1.0),
    *,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    on_collapse: Literal["error", "keep"] = "error",
    **options: Any,
) -> Ledger:
    """Remove every unit that `analyze` certifies, in place: parameters, buffers, sizes and optimizer state.

    All or nothing: the smaller module is compared with the original on the example, in train and eval mode, before
    anything is final. A cut that would leave a layer without units is an error, or with `on_collapse="keep"` leaves
    one unit.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> with torch.no_grad():
    ...     _ = net[0].weight.copy_(torch.tensor([[1.0, 1.0], [0.5, -1.0], [1.0, 2.0]]))
    ...     _ = net[0].bias.copy_(torch.tensor([0.0, -0.6, 0.0]))
    >>> ledger = compact_(net, torch.rand(4, 2))
    >>> net[0], ledger.parameters_before, ledger.parameters_after
    (Linear(in_features=2, out_features=2, bias=True), 13, 9)
    """
    chosen = _options(domain, options)
    if on_collapse not in ("error", "keep"):
        raise InputError(f"on_collapse must be 'error' or 'keep', not {on_collapse!r}")
    module = _usable(module)
    optimizers = _optimizers(module, optimizer)
    program = _traced(module, example_inputs)
    _inside(program, example_inputs, chosen)
    found = structure(program)
    certificates = certify(program, module, chosen)
    before = _parameter_count(module)
    proposal, blocked, difference = _settle(
        module, example_inputs, found, certificates, chosen, optimizers, on_collapse
    )
    analysis = _analysis(found, certificates, proposal, chosen, blocked)
    return Ledger(analysis, before, _parameter_count(module), difference)


def certify(program: Program, module: nn.Module, options: Options) -> list[Certificates]:
    """Certificates for every graph of the chosen modes."""
    tensors = tensors_of(module)
    graphs = [graph for mode in options.modes for graph in program.in_mode(mode)]  # type: ignore[arg-type]
    if options.evidence == "observed":
        return [observe(graph, tensors, _samples(graph, options.samples)) for graph in graphs]
    found = []
    memo: dict[Any, Any] = {}
    for graph in graphs:
        limit = float(options.batch_size or (_batch_of(graph) if options.evidence == "batch-proved" else "inf"))
        bounds = bound(graph, tensors, options.domain, batch_limit=limit, dtype=options.dtype, memo=memo)
        found.append(prove(bounds, options.evidence))
    return found


def _settle(
    module: nn.Module,
    example_inputs: Any,
    found: Structure,
    certificates: list[Certificates],
    options: Options,
    optimizers: Sequence[Optimizer],
    on_collapse: str,
) -> tuple[Plan, dict[int, str], float]:
    """Cut what can be cut. Groups whose cut fails the check (sizes written into the model's code) are pinned."""
    blocked: dict[int, str] = {}
    before = outputs(module, example_inputs)
    modes = options.modes

    def attempt(proposal: Plan) -> tuple[float, CutError | None]:
        with Transaction() as transaction:
            try:
                cut_(transaction, module, proposal, optimizers)
                difference = compare(before, outputs(module, example_inputs), modes)
            except CutError as error:
                return 0.0, error
            transaction.commit()
        return difference, None

    def propose() -> Plan:
        made = plan(found, certificates, blocked=blocked, constants=options.constants, unread=options.unread)
        if made.collapsed and on_collapse == "error":
            names = ", ".join(f"'{name}'" for name in made.collapsed)
            raise CollapseError(
                f"every unit of {names} can go, which would leave the layer empty and the output constant; the model "
                'is unchanged (on_collapse="keep" leaves one unit per layer)'
            )
        return made

    proposal = propose()
    if not proposal:
        return proposal, blocked, 0.0
    difference, error = attempt(proposal)
    if error is None:
        return proposal, blocked, difference
    for group in _independent_groups(found, proposal):
        everything = proposal.removed.nonzero().reshape(-1).tolist()
        outside = {label: "tried by itself" for label in everything if label not in group}
        alone = plan(
            found, certificates, blocked={**blocked, **outside}, constants=options.constants, unread=options.unread
        )
        failure = _dry_run(module, example_inputs, alone, optimizers, before, modes)
        if failure is not None:
            blocked.update(dict.fromkeys(group, f"the model's own code does not allow the cut: {failure}"))
    proposal = propose()
    if not proposal:
        return proposal, blocked, 0.0
    difference, error = attempt(proposal)
    if error is not None:
        raise CutError(f"the cut failed its check and was rolled back, the model is unchanged: {error}")
    return proposal, blocked, difference


def _dry_run(
    module: nn.Module, example_inputs: Any, proposal: Plan, optimizers: Sequence[Optimizer], before: Any, modes: Any
) -> CutError | None:
    with Transaction() as transaction:
        try:
            cut_(transaction, module, proposal, optimizers)
            compare(before, outputs(module, example_inputs), modes)
        except CutError as error:
            return error
    return None


def _independent_groups(found: Structure, proposal: Plan) -> list[set[int]]:
    """Removed labels, split into sets that share no tensor axis."""
    groups: list[set[int]] = []
    for slot in found.slots:
        owners = found.representative[slot.labels].reshape(-1)
        mine = set(owners[proposal.removed[owners]].tolist())
        if not mine:
            continue
        joined = [group for group in groups if group & mine]
        groups = [group for group in groups if not group & mine]
        groups.append(mine.union(*joined))
    return groups


def _analysis(
    found: Structure, certificates: list[Certificates], proposal: Plan, options: Options, blocked: Mapping[int, str]
) -> Analysis:
    notes = list(found.program.notes)
    unknown = {
        f"{node.op}{' at ' + node.where if node.where else ''}"
        for c in certificates
        for node in (c.graph.by_name[name] for name in c.unknown)
    }
    notes += [f"no rule for {name}: its result is taken as unbounded" for name in sorted(unknown)]
    if options.batch_size is not None and "train" in options.modes:
        notes.append(f"in train mode this holds for batches of at most {options.batch_size}")
    if proposal.collapsed:
        notes.append(f"one unit was kept in {', '.join(proposal.collapsed)}, where all could go")
    return Analysis(
        account(found, certificates, proposal, blocked), options.evidence, options.modes, tuple(notes)
    )


def _options(domain: Any, options: Mapping[str, Any]) -> Options:
    try:
        chosen = Options(domain=domain, **options)
    except TypeError:
        strange = sorted(set(options) - set(Options.__dataclass_fields__))
        known = ", ".join(name for name in Options.__dataclass_fields__ if name != "domain")
        raise InputError(f"unknown option '{strange[0]}'; there are {known}") from None
    if chosen.evidence not in ("proved", "batch-proved", "observed"):
        raise InputError(f"evidence must be 'proved', 'batch-proved' or 'observed', not {chosen.evidence!r}")
    if chosen.mode not in _MODES:
        raise InputError(f"mode must be 'both', 'train' or 'eval', not {chosen.mode!r}")
    if chosen.batch_size is not None and chosen.batch_size < 1:
        raise InputError(f"batch_size must be at least 1, not {chosen.batch_size}")
    if chosen.evidence == "observed" and chosen.samples is None:
        raise InputError("evidence='observed' needs samples= (a batch of inputs, or a list of batches)")
    return chosen


def _usable(module: nn.Module) -> nn.Module:
    if not isinstance(module, nn.Module):
        raise InputError(f"the model must be an nn.Module, not {type(module).__name__}")
    module = getattr(module, "_orig_mod", module)
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError(
            "the model is a scripted or frozen TorchScript module, whose weights cannot be cut; "
            "pass the original nn.Module"
        )
    if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise InputError(f"the model is wrapped in {type(module).__name__}; pass the wrapped model, `model.module`")
    tensors = tensors_of(module)
    if not tensors:
        raise InputError(f"{type(module).__name__} has no parameters")
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise InputError(f"'{name}' is on the meta device and has no values; load the weights first")
        if tensor.is_inference():
            raise InputError(
                f"'{name}' was made under torch.inference_mode() and cannot be changed; build the model outside it"
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"'{name}' contains NaN or infinite values; nothing can be proved about such a model")
    return module


def _traced(module: nn.Module, example_inputs: Any) -> Program:
    """The program of a module that runs on the example: the exporter alone would accept some that do not."""
    try:
        outputs(module, example_inputs)
    except CutError as error:
        shapes = [tuple(v.shape) for v in _tensor_inputs(example_inputs)]
        raise InputError(f"the model does not run on the example inputs of shape {shapes}: {error}") from None
    return trace(module, example_inputs)


def _tensor_inputs(example_inputs: Any) -> list[Tensor]:
    args, kwargs = split_inputs(example_inputs)
    return [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]


def _inside(program: Program, example_inputs: Any, options: Options) -> None:
    """The domain must be sound, and the example must lie in it, for the proofs speak of nothing else."""
    graph = program.graphs[0]
    declared = boxes(graph, options.domain)
    values = _tensor_inputs(example_inputs)
    if graph.part or len(values) != len(declared):
        return
    for (name, interval), value in zip(declared.items(), values, strict=True):
        if not value.is_floating_point():
            continue
        outside = (value.double().cpu() < interval.lo) | (value.double().cpu() > interval.hi)
        if bool(outside.any()):
            raise InputError(
                f"the example for input '{graph.by_name[name].target}' has values from {float(value.min()):.4g} to "
                f"{float(value.max()):.4g}, outside the declared domain; give the domain your data really has, "
                "for instance domain=(-3.0, 3.0) or a Box"
            )


def _optimizers(module: nn.Module, optimizer: Optimizer | Sequence[Optimizer] | None) -> list[Optimizer]:
    given = [] if optimizer is None else [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    own = {id(p) for p in module.parameters()}
    for item in given:
        if not isinstance(item, Optimizer):
            raise InputError(f"optimizer must be a torch.optim.Optimizer, not {type(item).__name__}")
        if not any(id(p) in own for group in item.param_groups for p in group["params"]):
            raise InputError(f"the {type(item).__name__} holds none of the model's parameters; build it on this model")
    return given


def _samples(graph: Graph, samples: Any) -> list[Mapping[str, Any]]:
    batches = samples if isinstance(samples, list) else [samples]
    return [dict(zip((n.name for n in graph.inputs), _tensor_inputs(batch), strict=True)) for batch in batches]


def _batch_of(graph: Graph) -> int:
    shapes = [node.shape for node in graph.inputs if node.is_tensor and node.shape]
    return shapes[0][0] if shapes else 1


def _parameter_count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
