"""What comes in from the caller, checked once at the edge: options, model, copies, optimizers, inputs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel
from torch.utils._pytree import tree_leaves, tree_map

from .bounds.domain import boxes, described
from .bounds.rounding import unit_roundoff
from .errors import CutError, InputError
from .proof import Evidence
from .surgery import outputs
from .tracing import Graph, split_inputs, tensors_of

_PRECISIONS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_NAMED = ", ".join(map(str, _PRECISIONS))

ModeChoice = Literal["both", "train", "eval"]
BoundsChoice = Literal["interval", "linear"]
_MODES: dict[str, tuple[Literal["eval", "train"], ...]] = {
    "both": ("eval", "train"),
    "train": ("train",),
    "eval": ("eval",),
}


@dataclass(frozen=True)
class Options:
    """What counts as evidence, and where. While the weights are `learning`, only what takes no part in it may go."""

    domain: Any = (0.0, 1.0)
    evidence: Evidence = "proved"
    mode: ModeChoice = "both"
    batch_size: int | None = None
    samples: Any = None
    dtype: torch.dtype | None = None
    learning: bool = False
    parts: bool = False
    bounds: BoundsChoice = "interval"

    def __post_init__(self) -> None:
        if self.evidence not in ("proved", "batch-proved", "observed"):
            raise InputError(f"evidence must be 'proved', 'batch-proved' or 'observed', not {self.evidence!r}")
        if self.mode not in _MODES:
            raise InputError(f"mode must be 'both', 'train' or 'eval', not {self.mode!r}")
        if self.bounds not in ("interval", "linear"):
            raise InputError(f"bounds must be 'interval' or 'linear', not {self.bounds!r}")
        size: object = self.batch_size
        if size is not None and not (type(size) is int and size >= 1):
            raise InputError(f"batch_size must be a whole number from 1 on, not {self.batch_size!r}")
        if self.dtype is not None and self.dtype not in _PRECISIONS:
            raise InputError(f"dtype must be what the forward pass computes in, one of {_NAMED}, not {self.dtype!r}")
        if self.evidence == "observed" and self.samples is None:
            raise InputError("evidence='observed' needs samples= (a batch of inputs, or a list of batches)")

    @property
    def modes(self) -> tuple[Literal["eval", "train"], ...]:
        """The modes that certificates must cover."""
        return ("train",) if self.evidence == "batch-proved" else _MODES[self.mode]


def usable(module: nn.Module) -> nn.Module:
    """The module itself, out of a compiled wrapper; an error if it cannot be analysed."""
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
    for path, child in module.named_modules():
        if isinstance(child, torch.fx.GraphModule) and "train" in vars(child):  # overridden, so as to refuse
            what = f"'{path}'" if path else "the model"
            raise InputError(f"{what} is the module of an exported program, of one mode; pass the nn.Module itself")
    tensors = tensors_of(module)
    if not tensors:
        raise InputError(f"{type(module).__name__} has no parameters")
    for name, tensor in tensors.items():
        _require_dense(f"'{name}'", tensor)
        if torch.nn.parameter.is_lazy(tensor):
            raise InputError(f"'{name}' is lazy and has no shape yet; run the model once first")
        if tensor.is_floating_point() and tensor.dtype not in _PRECISIONS:
            raise InputError(f"'{name}' is of type {tensor.dtype}, which nodedrop has no arithmetic for")
        if hasattr(tensor, "device_mesh"):
            raise InputError(f"'{name}' is sharded over devices (FSDP, tensor parallelism) and cannot be cut")
        if tensor.is_meta:
            raise InputError(f"'{name}' is on the meta device and has no values; load the weights first")
        if tensor.is_inference():
            raise InputError(
                f"'{name}' was made under torch.inference_mode() and cannot be changed; build the model outside it"
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"'{name}' contains NaN or infinite values; nothing can be proved about such a model")
    return module


def _require_dense(what: str, tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else f"sparse ({str(tensor.layout).removeprefix('torch.')})"
        raise InputError(f"{what} is a {kind} tensor, and bounds are those of dense ones; use `.to_dense()` of it")


def same_tensors(module: nn.Module, item: nn.Module) -> nn.Module:
    """A copy (EMA) with the same tensors as the module."""
    inner = item.module if isinstance(item, AveragedModel) else item
    own, other = tensors_of(module), tensors_of(inner)
    if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in other.items()}:
        raise InputError(f"the copy {type(item).__name__} does not have the tensors of the model")
    return inner


def optimizers_of(module: nn.Module, optimizer: Optimizer | Sequence[Optimizer] | None) -> list[Optimizer]:
    """The optimizers to carry along; each must hold parameters of the module."""
    several = isinstance(optimizer, Sequence) and not isinstance(optimizer, str)
    given: list[Any] = [] if optimizer is None else list(optimizer) if several else [optimizer]  # type: ignore[arg-type]
    own = {id(p) for p in module.parameters()}
    for item in given:
        if not isinstance(item, Optimizer):
            raise InputError(f"optimizer must be a torch.optim.Optimizer, not {type(item).__name__}")
        if {kind.__name__ for kind in type(item).__mro__} & {"LBFGS", "Adafactor", "ZeroRedundancyOptimizer"}:
            raise InputError(
                f"{type(item).__name__} keeps state that does not have its parameters' shapes and cannot be cut with "
                "them; train with SGD, Adam, AdamW, RMSprop, Adagrad or NAdam"
            )
        if not any(id(p) in own for group in item.param_groups for p in group["params"]):
            raise InputError(f"the {type(item).__name__} holds none of the model's parameters; build it on this model")
    return given


def tensor_inputs(example_inputs: Any) -> list[Tensor]:
    """The tensors among the inputs, in call order."""
    args, kwargs = split_inputs(example_inputs)
    found = [value for value in tree_leaves([*args, *kwargs.values()]) if isinstance(value, Tensor)]
    for place, tensor in enumerate(found):
        _require_dense(f"input {place} of the model", tensor)
    return found


def probe(graph: Graph, example_inputs: Any, domain: Any) -> Any:
    """Inputs like the example, but random within the domain; indices and unbounded inputs stay as they are."""
    if graph.part:
        return example_inputs
    declared = iter(boxes(graph, domain).values())
    generator = torch.Generator().manual_seed(0)

    def drawn(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        box = next(declared, None)
        finite = box is not None and bool(box.lo.isfinite().all()) and bool(box.hi.isfinite().all())
        if box is None or not finite or not value.is_floating_point():
            return value
        share = torch.rand(value.shape, generator=generator, dtype=torch.float64)
        return (box.lo + share * (box.hi - box.lo)).to(value)

    args, kwargs = split_inputs(example_inputs)
    if isinstance(example_inputs, Tensor):
        return drawn(example_inputs)
    return tree_map(drawn, dict(kwargs) if kwargs else tuple(args))


def fixed_inputs(module: nn.Module, example_inputs: Any) -> dict[str, Any]:
    """Inputs that are no tensors, by the names of the forward's parameters: a trace holds for their values alone."""
    args, kwargs = split_inputs(example_inputs)
    try:
        given = dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        given = {**{str(k): value for k, value in enumerate(args)}, **kwargs}
    return {name: value for name, value in given.items() if not any(isinstance(v, Tensor) for v in tree_leaves(value))}


def require_inside(graph: Graph, example_inputs: Any, domain: Any) -> None:
    """The domain must be sound, and the example must lie in it, for the proofs speak of nothing else."""
    declared, values = boxes(graph, domain), tensor_inputs(example_inputs)
    if graph.part or len(values) != len(declared):
        return
    for (name, box), value in zip(declared.items(), values, strict=True):
        place = f"the example for input '{graph.by_name[name].target}'"
        if value.is_floating_point() and value.dtype not in _PRECISIONS:
            raise InputError(f"{place} is of type {value.dtype}, and must be of {_NAMED}; cast it before the model")
        if value.numel() == 0 or (value.is_floating_point() and not bool(value.isfinite().all())):
            raise InputError(f"{place} is empty, NaN or infinite")
        exact = value.detach().cpu()
        if value.is_complex() or not bool(((exact.double() < box.lo) | (exact.double() > box.hi)).any()):
            continue
        ends = float(exact.min()), float(exact.max())
        whose = "default" if described(box) == "[0, 1]" else "declared"
        raise InputError(
            f"{place} has values from {ends[0]:.6g} to {ends[1]:.6g}, outside the {whose} domain {described(box)}; "
            f"give the domain your data really has, a pair or a Box: domain={_around(*ends, value.dtype)} holds this "
            "example"
        )


def _around(lo: float, hi: float, dtype: torch.dtype) -> str:
    """A domain that holds some values, in round numbers: pixels have all of theirs."""
    if dtype is torch.uint8:
        return "(0, 255)"
    step = 10.0 ** (floor(log10(max(abs(lo), abs(hi)) or 1.0)) - 1)
    return f"({floor(lo / step) * step:.4g}, {ceil(hi / step) * step:.4g})"


def differentiable(value: Any) -> Any:
    """A tensor that was made under `torch.inference_mode()` as one that autograd takes; all else as it is."""
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value


def require_running(module: nn.Module, example_inputs: Any) -> None:
    """The exporter alone would accept some examples that the module does not."""
    shapes = [tuple(value.shape) for value in tensor_inputs(example_inputs)]
    try:
        outputs(module, [example_inputs])
    except CutError as error:
        raise InputError(f"the model does not run on the example inputs of shape {shapes}: {error}") from None


def samples_of(graph: Graph, samples: Any) -> list[dict[str, Any]]:
    """Batches of inputs by the names of the graph's input nodes; each is of the example's shape but for its length."""
    batches, nodes = samples if isinstance(samples, list) else [samples], [n for n in graph.inputs if n.is_tensor]
    found = [tensor_inputs(batch) for batch in batches]
    expected = [node.shape[1:] for node in nodes]
    for tensors in found or [[]]:
        if [tuple(value.shape[1:]) for value in tensors] != expected or not all(value.numel() for value in tensors):
            raise InputError(
                f"samples must be one batch, or a list of batches, with the inputs of the example, of shapes "
                f"{[node.shape for node in nodes]} with any number of rows; a batch has "
                f"{[tuple(value.shape) for value in tensors]}"
            )
    return [dict(zip((node.name for node in nodes), tensors, strict=True)) for tensors in found]


def batch_of(graph: Graph) -> int:
    """The first axis of the first input."""
    shapes = [node.shape for node in graph.inputs if node.is_tensor and node.shape]
    return shapes[0][0] if shapes else 1


def uncounted(tensors: Iterable[Tensor]) -> str | None:
    """Arithmetic that torch, as it is set up, may use for float32, and that proofs do not count; None without any."""
    kinds = {tensor.device.type for tensor in tensors if tensor.dtype == torch.float32}
    if kinds and torch.get_float32_matmul_precision() != "highest":
        remedy = "torch.set_float32_matmul_precision('highest')"
        return f"sums of float32 may be computed more coarsely than proofs count, unless you call {remedy}"
    if "cuda" in kinds and _convolves_in_tf32():
        remedy = "torch.backends.cudnn.allow_tf32 = False"
        return f"convolutions of float32 may be computed in TF32, which proofs do not count, unless you set {remedy}"
    return None


def too_long(weights: Mapping[str, Tensor], dtype: torch.dtype | None) -> str | None:
    """Sums with so many terms that their rounding may be as large as they are, whatever the bias; None without any."""
    coarse = {}
    for name, weight in weights.items():
        kind = max((weight.dtype, dtype or weight.dtype), key=unit_roundoff)
        if weight.numel() / len(weight) * unit_roundoff(kind) >= 0.5:
            coarse[name] = kind
    if not coarse:
        return None
    return (
        f"nothing can be proved of {', '.join(coarse)}: sums of so many terms, if they are accumulated in "
        f"{next(iter(coarse.values()))}, may be off by as much as they are"
    )


def _convolves_in_tf32() -> bool:
    setting = getattr(torch.backends.cudnn, "conv", None)  # not in every torch
    return bool(torch.backends.cudnn.allow_tf32 if setting is None else setting.fp32_precision == "tf32")
