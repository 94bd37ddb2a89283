"""Size attributes of modules, derived from the shapes their tensors have now; and the shapes they had at first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from ..tracing.graph import canonical_names, tensors_of
from .transaction import Transaction

Shape = tuple[int, ...]
Sizes = Callable[[Any], dict[str, Any]]
_FULL = "_nodedrop_full"  # in a module that was cut: its own tensors' shapes before; copies and pickles take it along


def _linear(m: nn.Linear) -> dict[str, Any]:
    return {"out_features": m.weight.shape[0], "in_features": m.weight.shape[1]}


def _conv(m: nn.Conv2d) -> dict[str, Any]:
    return {"out_channels": m.weight.shape[0], "in_channels": m.weight.shape[1] * m.groups}


def _conv_transpose(m: nn.ConvTranspose2d) -> dict[str, Any]:
    return {"in_channels": m.weight.shape[0], "out_channels": m.weight.shape[1] * m.groups}


def _features(m: nn.BatchNorm2d) -> dict[str, Any]:
    known = [t for t in (m.weight, m.bias, m.running_mean) if t is not None]
    return {"num_features": known[0].shape[0]} if known else {}


def _normalised(m: nn.LayerNorm) -> dict[str, Any]:
    return {"normalized_shape": tuple(m.weight.shape)} if m.elementwise_affine else {}


def _embedding(m: nn.Embedding) -> dict[str, Any]:
    return {"embedding_dim": m.weight.shape[1]}


def _recurrent(m: nn.RNNBase) -> dict[str, Any]:
    return {"input_size": m.get_parameter("weight_ih_l0").shape[1]}


def _prelu(m: nn.PReLU) -> dict[str, Any]:
    return {"num_parameters": m.weight.shape[0]}


_BATCH_NORM = nn.modules.batchnorm._NormBase
_CONV_TRANSPOSE = nn.modules.conv._ConvTransposeNd

SIZES: list[tuple[type, Sizes]] = [
    (nn.Linear, _linear),
    (_CONV_TRANSPOSE, _conv_transpose),
    (nn.modules.conv._ConvNd, _conv),
    (_BATCH_NORM, _features),
    (nn.LayerNorm, _normalised),
    (nn.RMSNorm, _normalised),
    (nn.Embedding, _embedding),
    (nn.RNNBase, _recurrent),
    (nn.PReLU, _prelu),
]


# What the whole-number attributes are called that say how wide a module is; the same number may mean other things.
_WIDTH = re.compile(
    r"(^|_)(features?|channels?|dims?|planes|units|width|hidden|d_model|d_ff|nf|nx|embed(ding)?|size)($|_)"
)
_OTHER = re.compile(r"kernel|patch|window|vocab|batch|image|img|tile|seq|max|min|stride|pad|head|group|layers")


def _means_width(name: str) -> bool:
    """Whether an attribute's name says that it is a width.

    >>> list(filter(_means_width, ["out_features", "nf", "hidden_size", "kernel_size", "period", "max_size"]))
    ['out_features', 'nf', 'hidden_size']
    """
    return bool(_WIDTH.search(name)) and not _OTHER.search(name)


def update_sizes_(transaction: Transaction, module: nn.Module, changes: Mapping[int, int]) -> None:
    """Bring the size attributes of one module in line with its tensors.

    For a kind of module that is not known here, `changes` (old size to new size, where unambiguous) and their names
    tell which of its integer attributes are widths.
    """
    rule = next((sizes for kind, sizes in SIZES if isinstance(module, kind)), None)
    if rule is not None:
        wanted = rule(module)
    else:
        wanted = {n: changes[v] for n, v in vars(module).items() if type(v) is int and v in changes and _means_width(n)}
    for name, value in wanted.items():
        if getattr(module, name) != value:
            transaction.set_attribute(module, name, value)


def shapes_of(module: nn.Module) -> dict[str, Shape]:
    """The shapes of all tensors."""
    return {name: tuple(tensor.shape) for name, tensor in tensors_of(module).items()}


def full_shapes(module: nn.Module) -> dict[str, Shape]:
    """The shapes before any cut, of the tensors that have lost something since."""
    canonical, now, found = canonical_names(module), shapes_of(module), dict[str, Shape]()
    for path, child in module.named_modules():
        for name, full in vars(child).get(_FULL, {}).items():
            own = canonical.get(f"{path}.{name}" if path else name)
            if own is not None and _within(now[own], full):  # someone may have replaced the tensor since
                found[own] = full
    return found


def _within(small: Shape, large: Shape) -> bool:
    return len(small) == len(large) and all(a <= b for a, b in zip(small, large, strict=True))


def owners(module: nn.Module) -> Iterator[tuple[str, nn.Module, dict[str, str]]]:
    """Every module by its path, with its tensors, their parametrizations included: own name to canonical name."""
    canonical = canonical_names(module)
    for path, child in module.named_modules():
        start = f"{path}." if path else ""
        own = [name for name, tensor in (*child._parameters.items(), *child._buffers.items()) if tensor is not None]
        if "parametrizations" in child._modules:
            own += [name.removeprefix(start) for name in canonical if name.startswith(f"{start}parametrizations.")]
        yield path, child, {name: canonical[start + name] for name in own}


def remember_(transaction: Transaction, child: nn.Module, full: Mapping[str, Shape]) -> None:
    """Let a module know the shapes, by own names, that its tensors had before any cut."""
    if vars(child).get(_FULL, {}) != full:
        transaction.set_attribute(child, _FULL, dict(full))


def changes(shapes: Iterable[tuple[Shape, Shape]]) -> dict[int, int]:
    """Old to new size of the axes cut, where an old size became just one new size."""
    found: dict[int, set[int]] = {}
    for old, new in shapes:
        for a, b in zip(old, new, strict=True):
            if a != b:
                found.setdefault(a, set()).add(b)
    return {old: new.pop() for old, new in found.items() if len(new) == 1}
