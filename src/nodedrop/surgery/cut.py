"""Apply a plan to a module and its optimizers, in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from ..errors import CutError, InputError
from ..planning import Cut, Folding, Plan
from ..tracing.graph import tensors_of
from .sizes import Shape, changes, full_shapes, owners, remember_, shapes_of, update_sizes_
from .transaction import Transaction


def cut_(transaction: Transaction, module: nn.Module, plan: Plan, optimizers: Sequence[Optimizer] = ()) -> None:
    """Fold constants, slice tensors and optimizer state, update sizes; everything recorded in the transaction."""
    tensors, before = tensors_of(module), shapes_of(module)
    _require_own_memory(tensors, {*(cut.tensor for cut in plan.cuts), *(folding.bias for folding in plan.foldings)})
    with torch.no_grad():
        for folding in plan.foldings:
            _fold(transaction, tensors, folding)
        by_tensor: dict[str, list[Cut]] = {}
        for cut in plan.cuts:
            by_tensor.setdefault(cut.tensor, []).append(cut)
        for name, cuts in by_tensor.items():
            _slice_everywhere(transaction, tensors[name], name, cuts, optimizers)
    _resize(transaction, module, plan, before)


def _require_own_memory(tensors: dict[str, Tensor], touched: set[str]) -> None:
    """A tensor that is about to change must not be seen through another one, which would stay as it was."""
    storages: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        storages.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
    for names in storages.values():
        for name in touched & set(names):
            other = next((n for n in names if n != name and _overlap(tensors[name], tensors[n])), None)
            if other is not None:
                raise CutError(f"'{name}' shares its memory with '{other}'; register one Parameter under both names")


def _overlap(first: Tensor, second: Tensor) -> bool:
    """Whether the memory of two tensors of one storage may overlap."""
    (a, b), (c, d) = _span(first), _span(second)
    return a < d and c < b


def _span(tensor: Tensor) -> tuple[int, int]:
    """First byte of a tensor within its storage, and the byte after its last."""
    start = int(tensor.storage_offset())
    last = sum((int(n) - 1) * int(step) for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    end = start + last + 1 if tensor.numel() else start
    return start * tensor.element_size(), end * tensor.element_size()


def _fold(transaction: Transaction, tensors: dict[str, Tensor], folding: Folding) -> None:
    weight, bias = tensors[folding.weight].data.double(), tensors[folding.bias].data
    picked = weight.index_select(folding.axis, folding.index.to(weight.device))
    per_index = picked.movedim(folding.axis, -1)
    if per_index.dim() > 2:  # kernel positions: every one of them sees the constant
        per_index = per_index.flatten(1, -2).sum(1)
    shift = per_index @ folding.constant.to(weight.device)
    moved = (bias.double() + shift).to(bias.dtype)
    transaction.set_data(tensors[folding.bias], moved, tensors[folding.bias].grad)


def _slice_everywhere(
    transaction: Transaction, tensor: Tensor, name: str, cuts: list[Cut], optimizers: Sequence[Optimizer]
) -> None:
    before = tensor.shape
    for cut in cuts:
        if cut.size != before[cut.axis]:
            raise CutError(f"'{name}' has size {before[cut.axis]} along axis {cut.axis}, the plan expects {cut.size}")
    gradient = None if tensor.grad is None else sliced(tensor.grad, cuts)
    transaction.set_data(tensor, sliced(tensor.data, cuts), gradient)
    for optimizer in optimizers:
        for key, value in list(optimizer.state.get(tensor, {}).items()):
            carry = partial(_carried, cuts, name, before, f"{type(optimizer).__name__} keeps '{key}'")
            transaction.set_state(optimizer, tensor, key, tree_map_only(Tensor, carry, value))


def _carried(cuts: list[Cut], name: str, before: torch.Size, what: str, state: Tensor) -> Tensor:
    """A tensor of an optimizer's state after the cuts; one of a single element is a counter."""
    if state.numel() <= 1:
        return state
    if state.shape != before:
        raise InputError(
            f"{what} of shape {tuple(state.shape)} for '{name}', which has shape {tuple(before)}: nodedrop can carry "
            "only state of the parameter's own shape along"
        )
    return sliced(state, cuts)


def sliced(tensor: Tensor, cuts: Sequence[Cut]) -> Tensor:
    """A tensor after all its cuts, in memory of its own; block-wise ones first, while the blocks are whole."""
    if tensor.is_sparse:  # the gradient of an embedding
        return sliced(tensor.to_dense(), cuts).to_sparse(tensor.sparse_dim())
    whole, layout = tensor, _memory_format(tensor)
    for cut in sorted(cuts, key=lambda c: c.keep.dim(), reverse=True):
        keep = cut.keep.to(tensor.device)
        tensor = tensor.index_select(cut.axis, keep) if keep.dim() == 1 else _blockwise(tensor, cut, keep)
    fresh = tensor is not whole and layout is torch.contiguous_format and tensor.is_contiguous()
    return tensor if fresh else tensor.clone(memory_format=layout)


def _memory_format(tensor: Tensor) -> torch.memory_format:
    """By the strides themselves: with one input per unit, torch calls either layout contiguous."""
    plain = torch.empty(tensor.shape, device="meta").stride()
    if tensor.dim() == 4 and tensor.stride() != plain and tensor.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    return torch.contiguous_format


def _blockwise(tensor: Tensor, cut: Cut, keep: Tensor) -> Tensor:
    """Each block of the first axis keeps its own indices of the second; blocks about to go keep any."""
    rows = cut.rows.tolist() if cut.rows is not None else list(range(len(keep)))
    chosen = {row: keep[k] for k, row in enumerate(rows)}
    anything = torch.arange(keep.shape[1], device=tensor.device)
    blocks = tensor.chunk(cut.blocks, 0)
    return torch.cat([block.index_select(1, chosen.get(k, anything)) for k, block in enumerate(blocks)])


def _resize(transaction: Transaction, module: nn.Module, plan: Plan, before: Mapping[str, Shape]) -> None:
    after, full = shapes_of(module), {**before, **full_shapes(module)}
    for path, child, own in owners(module):
        for name in set(own.values()) & set(plan.groups):
            if hasattr(child, "groups"):
                transaction.set_attribute(child, "groups", plan.groups[name])
        if path in plan.sizes and getattr(child, "num_features", plan.sizes[path]) != plan.sizes[path]:
            transaction.set_attribute(child, "num_features", plan.sizes[path])
        if any(before[name] != after[name] for name in own.values()):
            update_sizes_(transaction, child, changes((before[name], after[name]) for name in own.values()))
        remember_(transaction, child, {name: full[key] for name, key in own.items() if full[key] != after[key]})
