"""One run of a recipe: a folder with its configuration, its metrics as they come, its checkpoints and its result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from ..errors import InputError
from ..ledger import LedgerFile
from ..training import Checkpoints, Journal, NodeDrop, Pace, save
from ..training.atomic import reason, replacing
from .data import Batches, Data
from .interrupt import Interruption
from .lock import locked
from .machine import machine
from .making import count_of, data_of, example, network, optimizer, pressure, rate, scaled, spared
from .memory import keep_memory
from .networks import ACTIVATIONS
from .recipes import Recipe, complete, domain_of, spares_of

CHECKPOINT_SECONDS = 60.0
Watch = Callable[["Progress"], None]
Stop = Callable[[], bool]


@dataclass(frozen=True)
class Progress:
    """Where a run is: `batch` of `batches` in an epoch, and the figures of the moment."""

    epoch: int
    epochs: int
    batch: int
    batches: int
    error: float
    test_error: float | None  # when last looked
    units: int
    parameters: int
    dense: int
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
    test_error: float | None = None
    began: Tensor | None = field(default=None, repr=False)


def train(recipe: Recipe, folder: Path, data: Data | None = None, *, resume: bool = False, watch: Watch | None = None,
          stop: Stop | None = None, data_dir: Path | None = None) -> dict[str, Any]:  # fmt: skip
    """Train as the recipe says and return the result, which is written to the folder, too.

    With `resume`, goes on from the last checkpoint, or returns the result of a run that has ended. Ctrl-C, or `stop`
    when it is true after a batch, write a checkpoint and raise KeyboardInterrupt.
    """
    found = finished(recipe, folder, resume)
    if found is not None:
        return found
    run = Run(recipe, folder, data if data is not None else data_of(recipe, data_dir))
    with locked(folder), Interruption() as interruption:
        found = finished(recipe, folder, resume)  # by another process, in the meantime
        if found is not None:
            return found
        run.open(resume)
        for progress in run.steps():
            if watch is not None:
                watch(progress)
            if interruption.wanted or (stop is not None and stop()):
                run.checkpoint()
                raise KeyboardInterrupt
        return run.finish()


def finished(recipe: Recipe, folder: Path, resume: bool = True) -> dict[str, Any] | None:
    """The result of a run that has ended. A folder with another run is an error, and without `resume` any run is."""
    stored = configuration(folder)
    if stored is None:
        return None
    if not resume:
        raise InputError(f"'{folder}' holds a run already; go on with it (--resume), or take another folder")
    wanted = asdict(recipe)
    for name in wanted:
        if stored.get(name) != wanted[name]:
            raise InputError(
                f"the run in '{folder}' has {name}={stored.get(name)}, not {wanted[name]}; take another folder"
            )
    try:
        found: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"'{folder / 'result.json'}' cannot be read: {reason(error)}; remove it to go on") from None
    return found


def configuration(folder: Path) -> dict[str, Any] | None:
    """The recipe's values of the run in a folder, if there is one."""
    try:
        stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"'{folder / 'config.json'}' cannot be read: {reason(error)}; take another folder") from None
    if not isinstance(stored, dict) or not {f.name for f in fields(Recipe)} >= set(stored):
        raise InputError(f"'{folder / 'config.json'}' is no configuration of a run; take another folder")
    return complete(stored)


class Run:
    """A recipe at work. `open` begins to write, `steps` trains and says after every batch where it is."""

    def __init__(self, recipe: Recipe, folder: Path, data: Data) -> None:
        self.recipe, self.folder, self.data = recipe, folder, data
        count = recipe.images or len(data.train_images)
        if count > len(data.train_images):
            raise InputError(f"images must be at most {len(data.train_images)}, all there are, not {count}")
        torch.manual_seed(recipe.seed)
        self.model = network(recipe, data)
        if recipe.part and any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.model.modules()):
            raise InputError("part must be 0 with batch norm, whose statistics are those of the whole batch")
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.generator = torch.Generator().manual_seed(recipe.seed)
        self.batches = Batches(
            data.train_images[:count], data.train_labels[:count], recipe.batch, generator=self.generator,
            shift=recipe.shift, mirror=recipe.mirror, channels_last=True,
        )  # fmt: skip
        per_epoch = len(self.batches)
        self.optimizer = optimizer(recipe, self.model)
        self.scheduler = LambdaLR(self.optimizer, rate(recipe, per_epoch))
        self.ledger = LedgerFile(folder / "ledger.jsonl")
        self.drop = NodeDrop(
            self.model, self.optimizer, example(recipe, data, 4),
            lam=pressure(recipe, per_epoch), C=recipe.C, domain=None if data.text else domain_of(recipe),
            form=recipe.form, norm_form=recipe.norm_form, m=count_of(recipe.m), spare=spared(recipe, per_epoch),
            spare_of=spares_of(recipe), multiple=recipe.multiple, toll=recipe.toll,
            evidence=recipe.evidence,  # type: ignore[arg-type]
            batch_size=recipe.batch, on_collapse="allow", check_inputs=False, ledger=self.ledger,
        )  # fmt: skip
        self._count()
        self.dense, self.units_dense = self.parameters, self.units
        self._begins = round(recipe.quiet * per_epoch) if recipe.lam else inf  # to look for dead units
        self.tally, self.pace = _Tally(), Pace(recipe.least, max(per_epoch, recipe.least))
        self._written = time.monotonic()

    def open(self, resume: bool = False) -> None:
        """Begin to write to the folder, or go on from its last checkpoint, if there is one."""
        keep_memory()
        text = json.dumps(asdict(self.recipe), indent=1) + "\n"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"the folder '{self.folder}' cannot be written to: {reason(error)}") from None
        with replacing(self.folder / "config.json") as path:
            path.write_text(text, encoding="utf-8")
        self.journal = Journal(self.folder / "metrics.jsonl")
        self.journal.rewind(0)
        self.checkpoints = Checkpoints(
            self.folder / "checkpoint", self.model, optimizer=self.optimizer, drop=self.drop, pace=self.pace,
            scheduler=self.scheduler, generator=self.generator, journal=self.journal, ledger=self.ledger,
        )  # fmt: skip
        state = self.checkpoints.resume() if resume else None
        if state is not None:
            self.tally = _Tally(**state["tally"])
            self._count()

    def checkpoint(self) -> None:
        """Write everything, so that `open` can go on from here."""
        state = {k: v for k, v in vars(self.tally).items() if v is not None}
        self.checkpoints.write(self.drop.step, {"tally": state})
        self._written = time.monotonic()

    def steps(self) -> Iterator[Progress]:
        """Train; one item per batch, and one more per epoch, with its metrics if the test set was looked at."""
        tally, recipe = self.tally, self.recipe
        if tally.epoch == 0 and tally.batch == 0 and self.journal.position == 0:
            self._note(None)
        while tally.epoch < recipe.epochs:
            yield from self._epoch()
            last = tally.epoch + 1 == recipe.epochs
            row = self._note(tally) if last or (tally.epoch + 1) % recipe.evaluate == 0 else None
            ended = self._progress(row)
            tally.epoch, tally.batch, tally.loss, tally.wrong, tally.seen = tally.epoch + 1, 0, 0.0, 0, 0
            tally.began = None
            yield ended

    def _epoch(self) -> Iterator[Progress]:
        tally = self.tally
        if tally.began is not None:
            self.generator.set_state(tally.began)
        batches = self.batches.epoch(tally.batch)
        tally.began = self.batches.began
        self.model.train()
        for images, labels in batches:
            start = time.perf_counter()
            self.optimizer.zero_grad()
            loss, wrong = self._backward(images, labels)
            self.optimizer.step()
            self.scheduler.step()
            tally.batch += 1
            tally.loss += loss * labels.numel()
            tally.wrong += wrong
            tally.seen += labels.numel()
            tally.seconds += time.perf_counter() - start
            if self.drop.step >= self._begins and self.pace.due():
                start = time.perf_counter()
                self.pace.saw(self._cut())
                tally.cutting += time.perf_counter() - start
            if time.monotonic() - self._written > CHECKPOINT_SECONDS:
                self.checkpoint()
            yield self._progress()

    def _backward(self, images: Tensor, labels: Tensor) -> tuple[float, int]:
        """The gradient of a batch, which may go through the network part by part; its loss, and how many are wrong."""
        part, recipe = self.recipe.part or len(images), self.recipe
        parts = list(zip(scaled(images, recipe).split(part), labels.split(part), strict=True))
        losses, wrong = [], []
        for number, (some, theirs) in enumerate(parts, 1):
            logits = self.model(some)
            loss = nn.functional.cross_entropy(logits, theirs) * (len(theirs) / len(labels))
            (loss + self.drop.penalty() if number == len(parts) else loss).backward()
            losses.append(loss.detach())
            wrong.append((logits.detach().argmax(1) != theirs).sum())
        return float(sum(losses)), int(sum(wrong))

    def _cut(self) -> float:
        """The share of the units that go."""
        before = max(self.units, 1)
        if self.drop.drop() is not None:
            self._count()
        return 1 - self.units / before

    def _count(self) -> None:
        self.widths = self.drop.widths
        self.units = sum(self.widths.values())
        self.parameters = sum(p.numel() for p in self.model.parameters())

    def _progress(self, row: Mapping[str, Any] | None = None) -> Progress:
        tally = self.tally
        return Progress(
            tally.epoch, self.recipe.epochs, tally.batch, len(self.batches), 100 * tally.wrong / max(tally.seen, 1),
            tally.test_error, self.units, self.parameters, self.dense, tally.seconds + tally.cutting, row,
        )  # fmt: skip

    def _note(self, tally: _Tally | None) -> dict[str, Any]:
        """Add a line to the metrics: the figures at the end of an epoch, or before the first."""
        logits = self.logits()
        self.tally.test_error = self.error(logits)
        row = {
            "epoch": 0 if tally is None else tally.epoch + 1,
            "step": self.drop.step,
            "train_loss": None if tally is None else tally.loss / tally.seen,
            "train_error": None if tally is None else 100 * tally.wrong / tally.seen,
            "test_error": self.tally.test_error,
            "test_loss": self.loss(logits),
            "units": self.units,
            "parameters": self.parameters,
            "widths": list(self.widths.values()),
            "lr": self.scheduler.get_last_lr()[0],
            "seconds": 0.0 if tally is None else tally.seconds,
            "cutting": 0.0 if tally is None else tally.cutting,
        }
        if tally is None:
            row["stuck"] = self.stuck()
        self.journal.append(row)
        return row

    def logits(self) -> Tensor:
        """Of the whole test set, in eval mode."""
        self.model.eval()
        images, labels = self.data.test_images, self.data.test_labels
        batches = Batches(images, labels, 500, channels_last=True)
        with torch.no_grad():
            return torch.cat([self.model(scaled(x, self.recipe)) for x, _ in batches])

    def error(self, logits: Tensor) -> float:
        """Per cent of the test set."""
        return 100 * float((logits.argmax(1) != self.data.test_labels).double().mean())

    def loss(self, logits: Tensor) -> float:
        """Mean cross-entropy on the test set; of a text, its exponential is the perplexity."""
        return float(nn.functional.cross_entropy(logits.double(), self.data.test_labels))

    def stuck(self) -> int:
        """Units that cannot learn: whose activation is flat wherever a thousand test images take it."""
        flat: list[Tensor] = []

        def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            with torch.enable_grad():
                here = inputs[0].detach().requires_grad_()
                (slope,) = torch.autograd.grad(type(module).forward(module, here).sum(), here)
            axis = 1 if slope.dim() == 4 else -1
            flat.append((slope == 0).movedim(axis, 0).flatten(1).all(1))

        kinds = tuple(type(make()) for make in ACTIVATIONS.values())
        hooks = [module.register_forward_hook(look) for module in self.model.modules() if isinstance(module, kinds)]
        self.model.eval()
        with torch.no_grad():
            self.model(example(self.recipe, self.data, 1000))
        for hook in hooks:
            hook.remove()
        return sum(int(layer.sum()) for layer in flat)

    def finish(self) -> dict[str, Any]:
        """The last cut, measured on the test set; the model and the result, written."""
        stuck = self.stuck()
        before = after = self.logits()
        start = time.perf_counter()
        removed = self._cut() if self.recipe.lam > 0 else 0.0
        cutting = time.perf_counter() - start
        if removed:
            after = self.logits()
        self.ledger.begin()
        scale = max(float(before.abs().max()), 1e-30)
        rows = list(self.journal)
        result = {
            "recipe": asdict(self.recipe),
            "machine": machine(),
            "test_error": self.error(after),
            "test_loss": self.loss(after),
            "test_error_before_cut": self.error(before),
            "predictions_changed": int((before.argmax(1) != after.argmax(1)).sum()),
            "cuts": len(self.drop.events),
            "cut_change": max((event.difference for event in self.drop.events), default=0.0),
            "logit_change": float((before - after).abs().max()) / scale,
            "eval_change": max((e.eval_change or 0.0 for e in self.drop.events), default=0.0),
            "parameters": self.parameters,
            "parameters_dense": self.dense,
            "units": self.units,
            "units_dense": self.units_dense,
            "stuck": stuck,
            "stuck_at_start": rows[0]["stuck"],
            "widths": self.widths,
            "collapsed": list(self.drop.events[-1].collapsed) if self.drop.events else [],
            "seconds": rows[-1]["seconds"],
            "cutting": rows[-1]["cutting"] + cutting,
            "epochs": [{k: v for k, v in row.items() if k not in ("step", "lr", "stuck")} for row in rows],
        }
        save(self.model, self.folder / "model.safetensors")
        with replacing(self.folder / "result.json") as path:
            path.write_text(json.dumps(result) + "\n", encoding="utf-8")
        return result
