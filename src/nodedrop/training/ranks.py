"""Several processes that train one model: they cut the same units at the same step, or none of them does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import CutError, InputError


def unwrapped(model: nn.Module) -> tuple[nn.Module, DistributedDataParallel | None]:
    """The user's own module, out of compiled and distributed wrappers, and the distributed one if there is one."""
    wrapper = None
    while True:
        if isinstance(model, DistributedDataParallel):
            wrapper, model = model, model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model, wrapper


class Ranks:
    """The processes behind a DistributedDataParallel wrapper."""

    def __init__(self, wrapper: DistributedDataParallel, timeout: float) -> None:
        if getattr(wrapper, "static_graph", False):
            raise InputError(
                "DistributedDataParallel(static_graph=True) cannot follow a cut, which changes the graph; leave it out"
            )
        self.wrapper, self._timeout = wrapper, timedelta(seconds=timeout)
        members = dist.get_process_group_ranks(wrapper.process_group)
        self._members = members
        # Apart from the gradients' group, so that a process that is elsewhere is missed here, not confused with others.
        self._group: Any = dist.new_group(
            members, timeout=self._timeout, backend="gloo", use_local_synchronization=True
        )

    def agree(self, statement: str) -> None:
        """Return if every process says the same; otherwise an error on all of them, never a wait without end."""
        said: list[Any] = [None] * len(self._members)
        try:
            dist.monitored_barrier(self._group, self._timeout, wait_all_ranks=True)
            dist.all_gather_object(said, statement, group=self._group)
        except RuntimeError as error:
            raise CutError(
                f"another process did not come to drop() within {self._timeout.total_seconds():g} s; call it on every "
                f"process at the same step ({' '.join(str(error).split())[:200]})"
            ) from None
        if len(set(said)) > 1:
            where = "; ".join(f"process {rank}: {text}" for rank, text in zip(self._members, said, strict=True))
            raise CutError(f"the processes disagree, and nothing was cut: {where}")

    def share_buffers(self) -> None:
        """Give every process the buffers of the first, as the wrapper would before its next forward pass."""
        sharing = getattr(self.wrapper, "forward_sync_buffers", None)
        if sharing is None:
            sharing = self.wrapper.broadcast_buffers
        if not sharing:
            return
        with torch.no_grad():
            for buffer in self.wrapper.module.buffers():
                dist.broadcast(buffer, self._members[0], group=self.wrapper.process_group)

    def rebuild(self) -> None:
        """A new reducer for parameters of new shapes, in the wrapper that the training loop holds."""
        state = {k: v for k, v in vars(self.wrapper).items() if k not in ("reducer", "logger", "_comm_hooks")}
        hooks = list(getattr(self.wrapper, "_comm_hooks", ()))
        self.wrapper._comm_hooks = []
        self.wrapper.__setstate__(state)
        for hook, owner in hooks:
            self.wrapper.register_comm_hook(owner, hook)
