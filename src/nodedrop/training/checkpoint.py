"""Checkpoints: a run killed at any moment goes on as if nothing had happened."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import InputError
from ..ledger import LedgerFile
from ..surgery import Transaction
from . import optimizers
from .atomic import SUFFIX, reason
from .files import File, Saved, described, matched, place, plain, read_safetensors, saved_as, write
from .journal import Journal

_NAME = re.compile(r"step-(\d{8,})\.safetensors")


class Checkpoints:
    """The last few states of a training run, in a folder.

    Build everything as for a new run, then resume:

    >>> from tempfile import TemporaryDirectory
    >>> def run(folder, steps):
    ...     _ = torch.manual_seed(0)
    ...     model = nn.Linear(2, 1)
    ...     optimizer = torch.optim.Adam(model.parameters())
    ...     checkpoints = Checkpoints(folder, model, optimizer=optimizer)
    ...     start = checkpoints.resume() or {"step": 0, "losses": []}
    ...     losses = start["losses"]
    ...     for step in range(start["step"], steps):
    ...         loss = model(torch.rand(4, 2)).square().mean()
    ...         optimizer.zero_grad()
    ...         loss.backward()
    ...         optimizer.step()
    ...         losses.append(loss.item())
    ...         checkpoints.write(step + 1, {"losses": losses})
    ...     return losses
    >>> with TemporaryDirectory() as one, TemporaryDirectory() as two:
    ...     _ = run(one, 3)  # and there it was killed
    ...     run(one, 6) == run(two, 6)
    True

    `parts` are whatever else the run consists of, by names of your choice: optimizers, the NodeDrop object,
    schedulers, GradScaler and all that has `state_dict` and `load_state_dict`; copies of the model (EMA) and other
    modules; `torch.Generator`s; `Journal`s. The states of the global random generators (torch, CUDA, Python, NumPy)
    are always among it. Gradients are not: write between optimizer steps.

    Each checkpoint is one file that `nodedrop.load` reads too, complete or not there, with a digest by which it is
    recognised if a single bit is wrong. The last `keep` stay.
    """

    def __init__(self, folder: File, model: nn.Module, *, keep: int = 2, **parts: Any) -> None:
        if type(keep) is not int or keep < 1:
            raise InputError(f"keep must be a whole number from 1 on, not {keep!r}")
        self.folder, self.keep, self._model = Path(folder), keep, plain(model)
        self._parts = {name: plain(part) if isinstance(part, nn.Module) else part for name, part in parts.items()}
        for name, part in self._parts.items():
            if not isinstance(part, torch.Generator) and not hasattr(part, "load_state_dict"):
                raise InputError(f"'{name}' is a {type(part).__name__}, which has no state_dict and load_state_dict")
        self._modules = [self._model, *(part for part in self._parts.values() if isinstance(part, nn.Module))]
        self._refused: set[Path] = set()

    def write(self, step: int, state: Mapping[str, Any] | None = None) -> Path:
        """Write everything as it is now, with plain data and tensors of your own; then remove what is too old."""
        if type(step) is not int or step < 0:
            raise InputError(f"step must be a whole number from 0 on, not {step!r}")
        self._clear()
        later = [path for path in self._files() if _step(path) > step and path not in self._refused]
        if later:
            raise InputError(
                f"'{self.folder}' holds a checkpoint of step {_step(later[-1])}, later than step {step}; call resume() "
                "first to go on with that run, or take another folder for this one"
            )
        path = self.folder / f"step-{step:08d}.safetensors"
        run = {"step": step, "state": dict(state or {}), "random": _random_state()}
        parts = {name: self._taken(part) for name, part in self._parts.items()}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write(path, self._model, {"run": run, "parts": parts})
            self._refused.discard(path)
            good = [path for path in self._files() if path not in self._refused]
            for old in self._files():
                if _step(old) < _step(good[-self.keep :][0]):
                    old.unlink()
        except OSError as error:
            raise InputError(f"the folder '{self.folder}' cannot be written to: {reason(error)}") from None
        return path

    def resume(self) -> dict[str, Any] | None:
        """Bring everything to the newest good checkpoint and return its state, with the step; None if there is none.

        Bad ones are passed over with a warning. The model may be as large as it was at first, or as it is there.
        """
        self._clear()
        problems: dict[Path, str] = {}
        for path in reversed(self._files()):
            try:
                state = self._load(path)
            except InputError as error:
                problems[path] = str(error)
                continue
            self._refused = set(problems)
            for problem in problems.values():
                warnings.warn(f"a checkpoint was passed over: {problem}", stacklevel=2)
            return state
        if problems:
            newest = next(iter(problems.values()))
            raise InputError(f"no checkpoint in '{self.folder}' can be used, of {len(problems)}; the newest: {newest}")
        for part in self._parts.values():
            if isinstance(part, Journal):
                part.rewind(0)
            ledger = getattr(part, "ledger", part)
            if isinstance(ledger, LedgerFile):
                ledger.restart()
        return None

    def _load(self, path: Path) -> dict[str, Any]:
        """Bring everything to one checkpoint, or leave everything as it is."""
        saved = read_safetensors(path)
        run, stored = self._described(saved)
        modules, others = [(self._model, matched(self._model, saved), saved)], []
        for name, part in self._parts.items():
            where = f"'{name}' in {saved.where}"
            if isinstance(part, nn.Module):
                own = saved_as(where, stored[name]["tensors"], stored[name])
                modules.append((part, matched(part, own), own))
            elif isinstance(part, Optimizer):
                others.append((part, optimizers.fitting(part, self._modules, stored[name], saved.where), where))
            else:
                others.append((part, stored[name]["state"], where))
        with ExitStack() as undo:
            undo.callback(_set_random_state, _random_state())
            for part, _, where in others:
                undo.callback(_give, part, _state(part), where)
            transaction = undo.enter_context(Transaction())
            for module, values, own in modules:
                place(transaction, module, values, own)
            for part, state, where in others:
                _give(part, state, where)
            _set_random_state(run["random"])
            undo.pop_all()  # nothing is to be undone
        return {**run["state"], "step": run["step"]}

    def _described(self, saved: Saved) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a file says about the run and its parts, which must be those of this run."""
        run, stored = saved.document.get("run"), saved.document.get("parts", {})
        if run is None:
            raise InputError(f"{saved.where} is no checkpoint of a run")
        there = {name: part["class"] for name, part in stored.items()}
        here = {name: type(part).__name__ for name, part in self._parts.items()}
        if there != here:
            parts = [", ".join(f"{name} ({kind})" for name, kind in of.items()) or "no parts" for of in (there, here)]
            raise InputError(f"{saved.where} is of another run, it has {parts[0]}, and this run has {parts[1]}")
        return run, stored

    def _taken(self, part: Any) -> dict[str, Any]:
        if isinstance(part, Optimizer):
            return optimizers.taken(part, self._modules)
        if isinstance(part, nn.Module):
            return {"class": type(part).__name__, **described(part)}
        return {"class": type(part).__name__, "state": _state(part)}

    def _files(self) -> list[Path]:
        """The checkpoints, from old to new."""
        try:
            return sorted((p for p in self.folder.iterdir() if _NAME.fullmatch(p.name)), key=_step)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(f"the folder '{self.folder}' cannot be read: {reason(error)}") from None

    def _clear(self) -> None:
        """Remove what a killed write has left, under our own temporary name or under that of safetensors."""
        for pattern in (f".step-*{SUFFIX}", ".tmp??????"):
            for path in self.folder.glob(pattern):
                with suppress(OSError):
                    path.unlink()


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def _state(part: Any) -> Any:
    return part.get_state() if isinstance(part, torch.Generator) else part.state_dict()


def _give(part: Any, state: Any, where: str) -> None:
    """Give a part its state back."""
    try:
        if isinstance(part, torch.Generator):
            part.set_state(state)
        elif isinstance(part, Optimizer):
            optimizers.restore(part, state)
        else:
            part.load_state_dict(state)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise InputError(f"the state of {where} does not fit: {reason(error)}") from None


def _random_state() -> dict[str, Any]:
    """The state of every global random generator."""
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "torch": torch.get_rng_state(),
        "cuda": devices,
        "python": random.getstate(),
        "numpy": np.random.get_state(),
    }


def _set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    for device, own in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(own, device)
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
