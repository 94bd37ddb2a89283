"""Trainers of others. Their callbacks say when; what is done then is here, and the same for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from inspect import signature
from operator import gt
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..errors import InputError
from ..spelling import near
from ..training import NodeDrop, load
from ..training.schedules import Schedule, check_lam


class Shrinking:
    """A NodeDrop inside a callback: built when training starts, cut at the end of an epoch or every so many steps."""

    def __init__(
        self,
        lam: float | Schedule = 1e-5,
        *,
        every: Literal["epoch"] | int = "epoch",
        example_inputs: Any = None,
        **options: Any,
    ) -> None:
        if every != "epoch" and not (type(every) is int and every >= 1):
            raise InputError(f"every must be 'epoch' or a number of steps from 1 on, not {every!r}")
        known = list(signature(NodeDrop).parameters)
        for name in (name for name in options if name not in known):
            raise InputError(f"there is no option '{name}'{near(name, known)}")
        if not callable(lam):
            check_lam(lam)
        super().__init__()
        self.lam, self.every, self.example_inputs, self.options = lam, every, example_inputs, options
        self.drop: NodeDrop | None = None

    def start(self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], example: Any, state: Any) -> None:
        """Build NodeDrop, to go on from a state if there is one."""
        self.drop = NodeDrop(model, optimizer, example, lam=self.lam, **self.options)
        if state is not None:
            self.drop.load_state_dict(state)

    def end(self, model: nn.Module) -> dict[str, Any] | None:
        """Let go of NodeDrop, so that another can take the model; its state, to go on from, if it was this model's."""
        drop, self.drop = self.drop, None
        return drop.state_dict() if drop is not None and drop.model is model else None

    def add_gradient(self, optimizer: Optimizer, scaler: Any = None) -> None:
        """Add the penalty's gradient to those an optimizer is about to use, once per step, whatever was accumulated.

        Gradients of scaled losses are unscaled first; where there are none, the step is skipped. It is no `backward()`,
        which would call the hooks by which a distributed model averages gradients.
        """
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        if self.drop is None or all(p.grad is None for p in parameters):
            return
        if scaler is not None:
            with suppress(RuntimeError):  # it has been done, to clip
                scaler.unscale_(optimizer)
        with torch.enable_grad():
            penalty = self.drop.penalty()
        if penalty.requires_grad:
            gradients = torch.autograd.grad(penalty, parameters, allow_unused=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def after_step(self) -> None:
        """Cut what is dead, if this is one of the steps to do it."""
        if self.drop is not None and self.every != "epoch" and self.drop.step % self.every == 0:
            self.drop.drop()

    def after_epoch(self) -> None:
        """Cut what is dead, if that is done once per epoch."""
        if self.drop is not None and self.every == "epoch":
            self.drop.drop()

    def measures(self) -> dict[str, float]:
        """What to log: units and parameters left, and λ."""
        if self.drop is None:
            return {}
        return {
            "nodedrop/units": sum(self.drop.widths.values()),
            "nodedrop/parameters": sum(p.numel() for p in self.drop.model.parameters()),
            "nodedrop/lam": self.drop.lam,
        }


def require_one_process(count: int) -> None:
    """The one place that decides whether trainers may use several processes."""
    if count > 1:
        raise InputError(f"NodeDropCallback works in one process, and the trainer uses {count}; train on one device")


def shrink_on_load(module: nn.Module) -> RemovableHandle:
    """Let a model's `load_state_dict` take what cuts have left: it shrinks to the shapes it finds, then loads."""
    handle: RemovableHandle = module.register_load_state_dict_pre_hook(_shrink)
    return handle


def _shrink(module: nn.Module, state: Mapping[str, Tensor], prefix: str, *_: Any) -> None:
    given = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    own = module.state_dict()
    pairs = [(value.shape, own[name].shape) for name, value in given.items() if isinstance(own.get(name), Tensor)]
    if any(len(there) == len(here) and any(map(gt, there, here)) for there, here in pairs):
        raise InputError(
            "the checkpoint is from before the model was cut, and wider; load it into a model that was built anew"
        )
    if any(there != here for there, here in pairs):
        load(module, given)
