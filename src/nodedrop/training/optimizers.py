"""An optimizer's state, by the names of the parameters it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import InputError
from .packing import pack


def taken(optimizer: Optimizer, modules: Sequence[nn.Module]) -> dict[str, Any]:
    """The state of an optimizer, to be packed."""
    names, kind, state = _names(optimizer, modules), type(optimizer).__name__, optimizer.state_dict()
    try:
        pack(state, {})
    except InputError as error:
        raise InputError(f"the state of {kind} cannot be saved as plain data: {error}") from None
    return {"class": kind, "names": names, "state": state}


def fitting(
    optimizer: Optimizer, modules: Sequence[nn.Module], saved: Mapping[str, Any] | None, where: str
) -> dict[str, Any]:
    """A saved state, if it is one of this optimizer."""
    names, kind = _names(optimizer, modules), type(optimizer).__name__
    if saved is None:
        raise InputError(f"{where} holds no optimizer state; write it with nodedrop.save(…, optimizer=optimizer)")
    if saved["class"] != kind:
        raise InputError(f"{where} holds the state of {saved['class']}, and the optimizer is {kind}")
    if saved["names"] != names:
        raise InputError(
            f"the {kind} in {where} holds other parameters, in {len(saved['names'])} groups, or holds them in another "
            f"order than this one with {len(names)}; build it as it was built for the saved run"
        )
    state: dict[str, Any] = saved["state"]
    return state


def restore(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load an optimizer's state, or leave it as it was."""
    before = {"state": optimizer.state, "param_groups": optimizer.param_groups}
    try:
        optimizer.load_state_dict(state)
    except BaseException:
        optimizer.__dict__.update(before)
        raise
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                # fused optimizers walk through memory: state must lie there as the parameter does
                values[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _names(optimizer: Optimizer, modules: Sequence[nn.Module]) -> list[list[str | None]]:
    """The names of an optimizer's parameters, group by group."""
    if not isinstance(optimizer, Optimizer):
        raise InputError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
    known = {id(parameter): name for module in modules for name, parameter in module.named_parameters()}
    names = [[known.get(id(parameter)) for parameter in group["params"]] for group in optimizer.param_groups]
    if not any(name is not None for group in names for name in group):
        raise InputError(f"the {type(optimizer).__name__} holds none of the model's parameters; build it on this model")
    return names
