"""What a user could do instead of NodeDrop, each a procedure that trains a network and makes it small."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from .. import functional
from ..activations import SoftClampedReLU
from ..errors import InputError
from ..experiments import making
from ..experiments.data import Batches, Data
from ..experiments.recipes import Recipe, baseline
from ..experiments.run import Run
from ..training import NodeDrop
from .steps import multiply_adds, parameters

STEPS = 400  # in which Torch-Pruning goes from the whole network to nothing, as its own examples do
# Of its sparsity learning, by trials. With groups and one seed its own default ended best, beside 5e-4, 5e-3 and 5e-2
# with the importance of its examples; with slimming, two seeds and 10,000 parameters 2e-3 did, beside 5e-4, 5e-3, 2e-2
# and 5e-2.
GROUPS, SLIMMING = 1e-4, 2e-3
MOST = 0.95  # of a layer that it may remove, or a layer would vanish

Tell = Callable[[float], None]
Addition = Callable[[int], Tensor]
Work = Callable[[], object]


@dataclass(frozen=True)
class Outcome:
    """Seconds are those of training steps and of removal; loading and tests are left out alike.

    `before` and `after` are test errors right before and right after units were removed, `error` the one at the end.
    """

    seconds: float
    parameters: int
    multiply_adds: int
    before: float | None
    after: float | None
    error: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class Trainer:
    """A network, trained in phases, each with its own decay of the learning rate."""

    def __init__(self, made: Recipe, data: Data, tell: Tell) -> None:
        torch.manual_seed(made.seed)
        self.made, self.data, self.tell = made, data, tell
        self.model = making.network(made, data)
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        count = made.images or len(data.train_images)
        self.batches = Batches(
            data.train_images[:count], data.train_labels[:count], made.batch, channels_last=True, shift=made.shift,
            mirror=made.mirror, generator=torch.Generator().manual_seed(made.seed),
        )  # fmt: skip
        self.seconds, self._done = 0.0, 0

    def train(self, epochs: int, addition: Addition | None = None, regularise: Work | None = None) -> None:
        """Some epochs; `addition` to the loss at each step, `regularise` changes gradients."""
        phase = replace(self.made, epochs=epochs)
        optimizer = making.optimizer(phase, self.model)
        scheduler = LambdaLR(optimizer, making.rate(phase, len(self.batches)))
        for epoch in range(epochs):
            self.tell(self._done / self.made.epochs)
            self.model.train()
            for number, (images, labels) in enumerate(self.batches):
                start = time.perf_counter()
                loss = nn.functional.cross_entropy(self.model(images), labels)
                if addition is not None:
                    loss = loss + addition(epoch * len(self.batches) + number)
                optimizer.zero_grad()
                loss.backward()
                if regularise is not None:
                    regularise()
                optimizer.step()
                scheduler.step()
                self.seconds += time.perf_counter() - start
            self._done += 1

    def timed(self, work: Work) -> None:
        """Work that counts."""
        start = time.perf_counter()
        work()
        self.seconds += time.perf_counter() - start

    def error(self) -> float:
        """Per cent of the test set."""
        self.model.eval()
        batches = Batches(self.data.test_images, self.data.test_labels, 500, channels_last=True)
        with torch.no_grad():
            wrong = sum(int((self.model(images).argmax(1) != labels).sum()) for images, labels in batches)
        return 100 * wrong / len(self.data.test_labels)

    def outcome(self, before: float | None = None, after: float | None = None) -> Outcome:
        """What there is at the end."""
        adds = multiply_adds(self.model.eval(), making.example(self.made, self.data))
        return Outcome(self.seconds, parameters(self.model), adds, before, after, self.error())


def dense(made: Recipe, data: Data, tell: Tell) -> Outcome:
    """The plain ReLU network, for comparison."""
    trainer = Trainer(baseline(made), data, tell)
    trainer.train(made.epochs)
    return trainer.outcome()


def nodedrop(made: Recipe, data: Data, tell: Tell) -> Outcome:
    """This package."""
    with TemporaryDirectory() as folder:
        item = Run(replace(made, evaluate=made.epochs), Path(folder), data)
        item.open()
        for progress in item.steps():
            if progress.batch == progress.batches:
                tell((progress.epoch + 1) / progress.epochs)
        result = item.finish()
    adds = multiply_adds(item.model.eval(), making.example(made, data))
    before, after = result["test_error_before_cut"], result["test_error"]
    return Outcome(result["seconds"] + result["cutting"], item.parameters, adds, before, after, after)


class Chain(nn.Module):
    """SoftClampedReLU as a chain of torch operators, left to autograd."""

    def forward(self, v: Tensor) -> Tensor:
        return torch.relu(1 - nn.functional.softplus(1 - v, beta=10.0))


def paper(made: Recipe, data: Data, tell: Tell, *, lam: float) -> Outcome:
    """The paper's procedure done plainly: activation and penalty by autograd, units removed once, at the end."""
    made = replace(made, lam=lam, spare=0.0, spare_of="", multiple=1, toll=0.0)
    trainer = Trainer(made, data, tell)
    model = trainer.model
    names = [name for name, part in model.named_children() if isinstance(part, SoftClampedReLU)]
    layers: list[Any] = [part for name, part in model.named_children() if f"{name}_act" in names]
    for name in names:
        setattr(model, name, Chain())
    pressure = making.pressure(made, len(trainer.batches))

    def penalty(step: int) -> Tensor:
        terms = [functional.penalty(layer.weight, layer.bias, C=made.C, form=made.form) for layer in layers]
        return pressure(step) * torch.stack(terms).sum()

    trainer.train(made.epochs, penalty)
    before = trainer.error()
    for name in names:
        setattr(model, name, SoftClampedReLU())
    trainer.timed(lambda: NodeDrop(model, None, making.example(made, data), lam=0.0, on_collapse="allow").drop())
    return trainer.outcome(before, trainer.error())


def torch_pruning(made: Recipe, data: Data, tell: Tell, *, target: int, slimming: bool = False) -> Outcome:
    """Train, train towards sparsity, prune to as many parameters as NodeDrop reached, train what is left.

    `slimming` takes the scale of batch norm for a unit's importance and puts its L1 norm under pressure.
    """
    try:
        tp: Any = import_module("torch_pruning")
    except ImportError:
        raise InputError("torch-pruning is not installed; pip install 'nodedrop[bench]'") from None
    trainer = Trainer(baseline(made), data, tell)
    model = trainer.model
    third = max(made.epochs // 3, 1)
    trainer.train(max(made.epochs - 2 * third, 1))
    common: Mapping[str, Any] = {
        "global_pruning": True, "pruning_ratio": 1.0, "max_pruning_ratio": MOST, "iterative_steps": STEPS,
        "ignored_layers": [model.head], "reg": SLIMMING if slimming else GROUPS,
    }  # fmt: skip
    importance = tp.importance.BNScaleImportance() if slimming else tp.importance.GroupMagnitudeImportance()
    kind = tp.pruner.BNScalePruner if slimming else tp.pruner.GroupNormPruner
    pruner = kind(model, making.example(made, data), importance, **common)
    trainer.train(third, regularise=lambda: pruner.regularize(model))
    before = trainer.error()

    def prune() -> None:
        for _ in range(STEPS):
            if parameters(model) <= target:
                break
            pruner.step()

    trainer.timed(prune)
    after = trainer.error()
    trainer.train(third)
    return trainer.outcome(before, after)
