"""One run of a recipe: a folder with its configuration, its metrics as they come, its checkpoints and its result."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..errors import InputError
from ..training import Checkpoints, Journal, NodeDrop, Pace, save, schedules
from .data import Batches, Data, load
from .interrupt import Interruption
from .machine import machine
from .networks import build
from .recipes import Recipe

CHECKPOINT_SECONDS = 60.0
Watch = Callable[["Progress"], None]


@dataclass(frozen=True)
class Progress:
    """Where a run is: `batch` of `batches` in an epoch, and the figures of the moment."""

    epoch: int
    epochs: int
    batch: int
    batches: int
    error: float
    units: int
    parameters: int
    seconds: float
    row: Mapping[str, Any] | None = None  # the line of metrics that ends an epoch


@dataclass
class _Tally:
    """Sums over the part of an epoch that is done."""

    epoch: int = 0
    batch: int = 0
    loss: float = 0.0
    wrong: int = 0
    seen: int = 0
    seconds: float = 0.0
    cutting: float = 0.0
    began: Tensor | None = field(default=None, repr=False)


def train(recipe: Recipe, folder: Path, data: Data | None = None, *, resume: bool = False, watch: Watch | None = None,
          data_dir: Path | None = None) -> dict[str, Any]:  # fmt: skip
    """Train as the recipe says and return the result, which is written to the folder, too.

    With `resume`, goes on from the last checkpoint, or returns the result of a run that has ended.
    """
    result = folder / "result.json"
    if resume and result.exists():
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return found
    if not resume and (folder / "config.json").exists():
        raise InputError(f"'{folder}' holds a run already; go on with it (--resume), or take another folder")
    run = Run(recipe, folder, data if data is not None else load(recipe.data, data_dir))
    if resume:
        run.resume()
    with Interruption() as interruption:
        for progress in run.steps():
            if watch is not None:
                watch(progress)
            if interruption.wanted:
                run.checkpoint()
                raise KeyboardInterrupt
    return run.finish()


class Run:
    """A recipe at work. `steps` trains and says after every batch where it is."""

    def __init__(self, recipe: Recipe, folder: Path, data: Data) -> None:
        self.recipe, self.folder, self.data = recipe, folder, data
        torch.manual_seed(recipe.seed)
        self.model = network(recipe, data)
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.dense = sum(p.numel() for p in self.model.parameters())
        generator = torch.Generator().manual_seed(recipe.seed)
        count = recipe.images or len(data.train_images)
        self.batches = Batches(
            data.train_images[:count], data.train_labels[:count], recipe.batch, generator=generator,
            shift=recipe.shift, mirror=recipe.mirror, channels_last=True,
        )  # fmt: skip
        per_epoch = len(self.batches)
        self.optimizer = optimizer(recipe, self.model)
        self.scheduler = LambdaLR(self.optimizer, rate(recipe, per_epoch))
        self.drop = NodeDrop(
            self.model, self.optimizer, example(data), lam=schedules.warm_up(recipe.lam, recipe.quiet * per_epoch),
            C=recipe.C, form=recipe.form, norm_form=recipe.norm_form, m=count_of(recipe.m),
            evidence=recipe.evidence,  # type: ignore[arg-type]
            batch_size=recipe.batch, on_collapse="allow", check_inputs=False,
        )  # fmt: skip
        self.units = sum(self.drop.widths.values())
        self.tally, self.pace = _Tally(), Pace(recipe.least, max(per_epoch, recipe.least))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(asdict(recipe), indent=1) + "\n", encoding="utf-8")
        self.journal = Journal(folder / "metrics.jsonl")
        self.checkpoints = Checkpoints(
            folder / "checkpoint", self.model, optimizer=self.optimizer, drop=self.drop, pace=self.pace,
            scheduler=self.scheduler, generator=generator, journal=self.journal,
        )  # fmt: skip
        self._written = time.monotonic()

    def resume(self) -> None:
        """Go on from the last checkpoint, if there is one."""
        state = self.checkpoints.resume()
        if state is not None:
            self.tally = _Tally(**state["tally"])

    def checkpoint(self) -> None:
        """Write everything, so that `resume` goes on from here."""
        state = {k: v for k, v in vars(self.tally).items() if v is not None}
        self.checkpoints.write(self.drop.step, {"tally": state})
        self._written = time.monotonic()

    def steps(self) -> Iterator[Progress]:
        """Train; one item per batch, and one with its metrics per epoch."""
        tally, epochs = self.tally, self.recipe.epochs
        if tally.epoch == 0 and tally.batch == 0 and self.journal.position == 0:
            self._note(None)
        while tally.epoch < epochs:
            yield from self._epoch()
            row = self._note(tally)
            tally.epoch, tally.batch, tally.loss, tally.wrong, tally.seen = tally.epoch + 1, 0, 0.0, 0, 0
            tally.began = None
            self.checkpoint()
            yield self._progress(row)

    def _epoch(self) -> Iterator[Progress]:
        tally, recipe = self.tally, self.recipe
        if tally.began is not None and self.batches.generator is not None:
            self.batches.generator.set_state(tally.began)
        batches = self.batches.epoch(tally.batch)
        tally.began = self.batches.began
        self.model.train()
        for images, labels in batches:
            start = time.perf_counter()
            logits = self.model(images)
            loss = nn.functional.cross_entropy(logits, labels)
            self.optimizer.zero_grad()
            (loss + self.drop.penalty()).backward()
            self.optimizer.step()
            self.scheduler.step()
            tally.batch += 1
            tally.loss += float(loss.detach()) * len(labels)
            tally.wrong += int((logits.detach().argmax(1) != labels).sum())
            tally.seen += len(labels)
            tally.seconds += time.perf_counter() - start
            if recipe.lam > 0 and tally.epoch >= recipe.quiet and self.pace.due():
                start = time.perf_counter()
                self.pace.saw(self.drop.drop() is not None)
                tally.cutting += time.perf_counter() - start
            if time.monotonic() - self._written > CHECKPOINT_SECONDS:
                self.checkpoint()
            yield self._progress()

    def _progress(self, row: Mapping[str, Any] | None = None) -> Progress:
        tally, widths = self.tally, self.drop.widths
        error = 100 * tally.wrong / max(tally.seen, 1)
        return Progress(
            tally.epoch, self.recipe.epochs, tally.batch, len(self.batches), error, sum(widths.values()),
            sum(p.numel() for p in self.model.parameters()), tally.seconds + tally.cutting, row,
        )  # fmt: skip

    def _note(self, tally: _Tally | None) -> dict[str, Any]:
        """Add a line to the metrics: the figures at the end of an epoch, or before the first."""
        logits = self.logits()
        row = {
            "epoch": 0 if tally is None else tally.epoch + 1,
            "step": self.drop.step,
            "train_loss": None if tally is None else tally.loss / tally.seen,
            "train_error": None if tally is None else 100 * tally.wrong / tally.seen,
            "test_error": self.error(logits),
            "units": sum(self.drop.widths.values()),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "widths": list(self.drop.widths.values()),
            "lr": self.scheduler.get_last_lr()[0],
            "seconds": 0.0 if tally is None else tally.seconds,
            "cutting": 0.0 if tally is None else tally.cutting,
        }
        self.journal.append(row)
        return row

    def logits(self) -> Tensor:
        """Of the whole test set, in eval mode."""
        self.model.eval()
        images, labels = self.data.test_images, self.data.test_labels
        with torch.no_grad():
            return torch.cat([self.model(x) for x, _ in Batches(images, labels, 500, channels_last=True)])

    def error(self, logits: Tensor) -> float:
        """Per cent of the test set."""
        return 100 * float((logits.argmax(1) != self.data.test_labels).double().mean())

    def finish(self) -> dict[str, Any]:
        """The last cut, measured on the test set; the model and the result, written."""
        before = self.logits()
        if self.recipe.lam > 0:
            self.drop.drop()
        after = self.logits()
        scale = max(float(before.abs().max()), 1e-30)
        rows = list(self.journal)
        result = {
            "recipe": asdict(self.recipe),
            "machine": machine(),
            "test_error": self.error(after),
            "test_error_before_cut": self.error(before),
            "predictions_changed": int((before.argmax(1) != after.argmax(1)).sum()),
            "logit_change": float((before - after).abs().max()) / scale,
            "eval_change": max((e.eval_change or 0.0 for e in self.drop.events), default=0.0),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "parameters_dense": self.dense,
            "units": sum(self.drop.widths.values()),
            "units_dense": self.units,
            "widths": self.drop.widths,
            "collapsed": list(self.drop.events[-1].collapsed) if self.drop.events else [],
            "seconds": rows[-1]["seconds"],
            "cutting": rows[-1]["cutting"],
            "epochs": [{k: v for k, v in row.items() if k not in ("step", "lr")} for row in rows],
        }
        save(self.model, self.folder / "model.safetensors")
        text = json.dumps(result) + "\n"
        temporary = self.folder / "result.json.tmp"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.folder / "result.json")
        return result


def network(recipe: Recipe, data: Data) -> nn.Module:
    """The recipe's network for these images, at full size."""
    channels, size = data.train_images.shape[1], data.train_images.shape[2]
    own = {"activation": recipe.activation, "init": recipe.init}
    options = {key: value for key, value in own.items() if value}
    return build(
        recipe.network, classes=data.classes, batch_norm=recipe.batch_norm, width=recipe.width,
        in_channels=channels, size=size, **options,
    )  # fmt: skip


def example(data: Data) -> Tensor:
    """Two images of the shape that training will use."""
    return data.test_images[:2].float().div(255).contiguous(memory_format=torch.channels_last)


def count_of(m: str) -> Any:
    """Batch norm's count: a word, or a number."""
    return m if m in ("elements", "batch", "channels") else float(m)


def optimizer(recipe: Recipe, model: nn.Module) -> Optimizer:
    """The recipe's optimizer over all parameters."""
    parameters, lr, decay = model.parameters(), recipe.lr, recipe.weight_decay
    if recipe.optimizer == "adam":
        return torch.optim.Adam(parameters, lr, weight_decay=decay, fused=True)
    if recipe.optimizer in ("sgd", "nesterov"):
        nesterov = recipe.optimizer == "nesterov"
        return torch.optim.SGD(parameters, lr, recipe.momentum, weight_decay=decay, nesterov=nesterov, fused=True)
    raise InputError(f"there is no optimizer '{recipe.optimizer}'; there are adam, sgd, nesterov")


def rate(recipe: Recipe, per_epoch: int) -> Callable[[int], float]:
    """The learning rate's factor at each step."""
    if recipe.decay == "cosine":
        total = recipe.epochs * per_epoch
        return lambda step: 0.5 * (1 + math.cos(math.pi * min(step / total, 1.0)))
    try:
        places = [int(word) * per_epoch for word in recipe.decay.split(",") if word]
    except ValueError:
        raise InputError(f"decay must be 'cosine' or epochs such as '80,130', not '{recipe.decay}'") from None
    return lambda step: 0.1 ** sum(step >= place for place in places)
