"""Whether two networks compute the same: in both modes, on random, corner and adversarial inputs, with gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import nodedrop as nd

from .zoo.blocks import WEIGHTED
from .zoo.planting import Entry, is_box

Inputs = tuple[Tensor, ...] | dict[str, Tensor]

OUTPUT_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
GRADIENT_TOLERANCE = 1e-9
INDEX = "index"
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


class NoDropout(TorchDispatchMode):
    """Dropout keeps every value: masks of networks of unlike widths cannot be compared."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name.startswith("aten.bernoulli_"):
            return args[0].fill_(1)
        if name.startswith("aten.bernoulli"):
            return torch.ones_like(args[0])
        if name == "aten.native_dropout.default":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        return func(*args, **(kwargs or {}))


RECTIFIERS = (
    torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, nn.functional.relu, nn.functional.relu6,
    nn.functional.hardtanh, nn.functional.threshold, nn.functional.hardswish, nn.functional.hardsigmoid,
    torch.clamp, Tensor.clamp, torch.clamp_min, Tensor.clamp_min,
)  # fmt: skip


class LeakyGradients(TorchFunctionMode):
    """Rectifiers compute what they always do, but let a tenth of the gradient through where they are flat.

    A dead unit has no gradient, so that plain ascent could never wake it; this way it is pushed towards firing.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in RECTIFIERS or not args[0].requires_grad:
            return func(*args, **kwargs)
        x = args[0].clone()
        leak = 0.1 * (x - x.detach())
        return func(*args, **kwargs) + leak


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Buffers are written to copies, so that the originals and any autograd graph stay valid; flags are put back."""
    flags = [(child, child.training) for child in model.modules()]
    originals = [dict(child._buffers) for child, _ in flags]
    copies = {id(buffer): buffer.clone() for buffer in model.buffers()}
    try:
        for child, _ in flags:
            child._buffers.update({name: copies.get(id(buffer)) for name, buffer in child._buffers.items()})
        yield
    finally:
        for (child, flag), buffers in zip(flags, originals, strict=True):
            child._buffers.update(buffers)
            child.training = flag


def leaves(out: Any) -> list[Tensor]:
    """All tensors of an output: a tensor, or containers and mappings of them."""
    if isinstance(out, Tensor):
        return [out]
    if isinstance(out, Mapping):
        return [tensor for value in out.values() for tensor in leaves(value)]
    if isinstance(out, list | tuple):
        return [tensor for value in out for tensor in leaves(value)]
    return []


def run(model: nn.Module, inputs: Inputs, mode: str) -> list[Tensor]:
    """All floating outputs in a mode; buffers stay as they were."""
    with undisturbed(model), NoDropout():
        model.train(mode == "train")
        out = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    return [tensor for tensor in leaves(out) if tensor.is_floating_point()]


def scales(runs: list[list[Tensor]]) -> list[float]:
    """The largest finite value of each output over several runs: at a single input a network may well be all zero."""
    largest = [[float(out[out.isfinite()].abs().max()) if out.isfinite().any() else 0.0 for out in run] for run in runs]
    return [max(column) for column in zip(*largest, strict=True)]


def difference(olds: list[Tensor], news: list[Tensor], scale: list[float]) -> float:
    """The largest difference of any output, relative to that output's scale."""
    worst = 0.0
    for old, new, size in zip(olds, news, scale, strict=True):
        assert old.shape == new.shape
        assert torch.equal(old.isfinite(), new.isfinite())
        gap = torch.where(old.isfinite(), (old - new).abs(), 0.0).detach().max()
        worst = max(worst, float(gap) / max(size, torch.finfo(old.dtype).tiny))
    return worst


def cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """Floating inputs in another precision."""
    return rebuilt(inputs, [v.to(dtype) if v.is_floating_point() else v for v in values(inputs)])


def values(inputs: Inputs) -> list[Tensor]:
    return list(inputs.values() if isinstance(inputs, dict) else inputs)


def rebuilt(inputs: Inputs, tensors: list[Tensor]) -> Inputs:
    """`inputs` with other tensors in their places."""
    return dict(zip(inputs, tensors, strict=True)) if isinstance(inputs, dict) else tuple(tensors)


def ends(inputs: Inputs, domain: Any) -> list[tuple[Tensor, Tensor] | None]:
    """The domain of each input written out to its shape; None for tokens."""
    if domain is None or is_box(domain):
        boxes = [domain] * len(inputs)
    else:
        boxes = [domain[key] for key in (inputs if isinstance(inputs, dict) else range(len(inputs)))]
    found: list[tuple[Tensor, Tensor] | None] = []
    for value, box in zip(values(inputs), boxes, strict=True):
        free = box is None or not value.is_floating_point()
        found.append(None if free else tuple(torch.as_tensor(e).to(value.dtype).expand_as(value) for e in box))
    return found


def corners(inputs: Inputs, domain: Any, generator: torch.Generator) -> Iterator[Inputs]:
    """The lowest and the highest corner, one with whole channels at an end, and one chosen element by element."""
    boxes = ends(inputs, domain)
    if not any(boxes):
        return

    def pick(chance: float, whole: bool) -> Inputs:
        chosen = []
        for value, box in zip(values(inputs), boxes, strict=True):
            shape = (*value.shape[:2], *[1 if whole else n for n in value.shape[2:]])
            high = torch.rand(shape, generator=generator) < chance
            chosen.append(value if box is None else torch.where(high, box[1], box[0]))
        return rebuilt(inputs, chosen)

    for chance, whole in ((0.0, True), (1.0, True), (0.5, True), (0.5, False)):
        yield pick(chance, whole)


def adversary(
    before: nn.Module, after: nn.Module, inputs: Inputs, domain: Any, mode: str, *, steps: int = 4
) -> Inputs:
    """Inputs inside the domain, moved by sign steps up a random functional of the output difference."""
    boxes = ends(inputs, domain)
    current = [value.detach().clone() for value in values(inputs)]
    weights: list[Tensor] = []
    for step in range(steps):
        moving = [v.requires_grad_() for v, box in zip(current, boxes, strict=True) if box is not None]
        with LeakyGradients():
            pair = [run(model, rebuilt(inputs, current), mode) for model in (before, after)]
        gaps = [old - new for old, new in zip(*pair, strict=True) if old.requires_grad]
        weights = weights or [torch.randn_like(gap) for gap in gaps]
        total = sum((gap.nan_to_num() * w).sum() for gap, w in zip(gaps, weights, strict=True))
        if not isinstance(total, Tensor):
            break
        slopes = iter(torch.autograd.grad(total, moving, allow_unused=True))
        for k, box in enumerate(boxes):
            if box is None or (slope := next(slopes)) is None:
                current[k] = current[k].detach()
                continue
            stride = (box[1] - box[0]) / (step + 2)
            current[k] = (current[k].detach() + stride * slope.sign()).clamp(*box)
    return rebuilt(inputs, [value.detach() for value in current])


def assert_same_outputs(before: nn.Module, after: nn.Module, entry: Entry, example: Inputs, seed: int = 1) -> None:
    """Both modes, on the example, random, corner and adversarial inputs of the entry."""
    dtype = next(p.dtype for p in before.parameters() if p.is_floating_point())
    generator = torch.Generator().manual_seed(seed)
    fixed: list[tuple[str, Inputs]] = [("example", example)]
    fixed += [("random", cast(entry.inputs(generator), dtype)) for _ in range(2)]
    fixed += [("corner", inputs) for inputs in corners(example, entry.domain, generator)]
    for mode in ("eval", "train"):
        tried = list(fixed)
        if any(ends(example, entry.domain)):
            tried += [("adversarial", adversary(before, after, inputs, entry.domain, mode)) for _, inputs in fixed[1:3]]
        with torch.no_grad():
            olds, news = ([run(model, inputs, mode) for _, inputs in tried] for model in (before, after))
        for (kind, _), old, new in zip(tried, olds, news, strict=True):
            gap = difference(old, new, scales(olds))
            assert gap <= OUTPUT_TOLERANCE[dtype], f"{mode} mode, {kind} input: outputs differ by {gap:.1e}"


def gradients(model: nn.Module, inputs: Inputs, mode: str) -> dict[str, Tensor]:
    """Of the sum of all outputs times fixed random weights, for every parameter that has one."""
    model.zero_grad()
    generator = torch.Generator().manual_seed(3)
    outputs = run(model, inputs, mode)
    sum((torch.randn(out.shape, generator=generator).to(out) * out).sum() for out in outputs).backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def assert_same_gradients(before: nn.Module, after: nn.Module, inputs: Inputs, index: Mapping[str, Tensor]) -> None:
    """Every surviving weight has the gradient that it had; `index` says where it was."""
    for mode in ("eval", "train"):
        olds, news = gradients(before, inputs, mode), gradients(after, inputs, mode)
        assert olds.keys() == news.keys()
        largest = max(float(old.abs().max()) for old in olds.values())
        for name, new in news.items():
            old = olds[name].flatten()[index[name]]
            scale = max(float(old.abs().max()), 1e-3 * largest)
            gap = float((old - new.flatten()).abs().max()) / scale
            assert gap <= GRADIENT_TOLERANCE, f"{mode} mode: gradient of {name} differs by {gap:.1e}"


def prepared_optimizer(model: nn.Module, inputs: Inputs) -> Optimizer:
    """Adam with the state of one step, and each parameter's own flat index as one more tensor of its state.

    The index goes through the same cut as the state and tells afterwards where every surviving weight was.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    for name, gradient in gradients(model, inputs, "train").items():
        model.get_parameter(name).grad = gradient
    optimizer.step()
    optimizer.zero_grad()
    for parameter in model.parameters():
        numbers = torch.arange(parameter.numel(), dtype=torch.float64)
        optimizer.state[parameter][INDEX] = numbers.reshape(parameter.shape)
    return optimizer


def state_of(model: nn.Module, optimizer: Optimizer) -> dict[str, dict[str, Tensor]]:
    """Copies of every parameter's optimizer state."""
    return {
        name: {key: value.clone() for key, value in optimizer.state[p].items()} for name, p in model.named_parameters()
    }


def taken_indices(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Where the weights of each parameter were before the cut; takes the index out of the optimizer's state."""
    return {name: optimizer.state[p].pop(INDEX).flatten().long() for name, p in model.named_parameters()}


def removed_units(ledger: nd.Ledger) -> dict[str, set[int]]:
    """Removed units per layer."""
    found: dict[str, set[int]] = {}
    for certificate in ledger.removed:
        found.setdefault(certificate.layer, set()).add(certificate.index)
    return found


def widths(model: nn.Module) -> dict[str, int]:
    """Units of every module that has some, each weight once. A weight tied to an embedding is the embedding's."""
    found: dict[str, int] = {}
    seen, tables = {id(m.weight) for m in model.modules() if isinstance(m, EMBEDDINGS)}, set[int]()
    for path, module in model.named_modules():
        if isinstance(module, EMBEDDINGS) and id(module.weight) not in tables:
            tables.add(id(module.weight))
            found[path] = module.embedding_dim
        elif isinstance(module, (*WEIGHTED, nn.Bilinear)) and id(module.weight) not in seen:
            seen.add(id(module.weight))
            found[path] = int(module.out_channels if hasattr(module, "out_channels") else module.out_features)
        elif isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
            found[f"{path}.in_proj_weight"] = len(module.in_proj_weight)
        elif isinstance(module, nn.RNNBase):
            states = [name for name, _ in module.named_parameters() if name.startswith("weight_hh_")]
            found |= {f"{path}.{name.removeprefix('weight_hh_')}": module.hidden_size for name in states}
    return found


def assert_accounted(ledger: nd.Ledger, before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Every unit once, removed, alive or pinned with a reason; the layers are now as wide as what stayed."""
    analysis = ledger.analysis
    bare = [len(account.units) for account in analysis.accounts if account.layer not in before]
    all_units = sum(before.values()) + sum(bare)
    assert sum(analysis.count(status) for status in ("removed", "alive", "pinned")) == all_units
    assert len(ledger.removed) == analysis.count("removed")
    accounts = {account.layer: account for account in analysis.accounts}
    assert len(accounts) == len(analysis.accounts)
    missing = sorted(set(before) - set(accounts))
    assert not missing, f"not accounted for: {missing}"
    for layer, width in before.items():
        assert [unit.index for unit in accounts[layer].units] == list(range(width)), layer
        assert after[layer] == width - accounts[layer].count("removed"), layer
    for unit in analysis.units:
        assert bool(unit.reason) == (unit.status == "pinned"), unit
        assert (unit.certificate is not None) == (unit.status == "removed"), unit
