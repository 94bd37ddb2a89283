"""Inference of a compact network beside the dense one, and beside the ideal: dense time × share of multiply-adds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..experiments.networks import build
from ..export.extras import MissingExtraError
from ..training import NodeDrop
from ..training.atomic import reason
from .harness import Figure, Settings, Times, document, figure, installed, interleaved
from .steps import images, multiply_adds, parameters

BATCH, LIMIT = 256, 1.7
CALLS = 5  # batches in a row, as a server has them: the first one after another network's finds its memory elsewhere

Infer = Callable[[], object]


@dataclass(frozen=True)
class Subject:
    """A network by name, the widths that its layers are cut to, and the limit for a file or module of these."""

    network: str
    widths: tuple[int, ...]
    options: Mapping[str, Any]
    multiple: int = 1
    limit: float | None = None

    @property
    def title(self) -> str:
        width = self.options.get("width", 1.0)
        words = [self.network]
        words += [f"at width {width:g}"] if width != 1 else []
        words += ["with ReLU"] if self.options.get("activation") == "relu" else []
        return " ".join([*words, *([f"trained with multiple={self.multiple}"] if self.multiple > 1 else [])])


_VGG = {"width": 0.25, "activation": "relu"}

# What the whole runs of `run` and `cifar` leave, by their names: networks that have to be as fast as they are small.
RESULTS = {
    "run": Subject("mnist-dense320", (16, 16, 24, 24, 64), {"activation": "relu"}, 8, LIMIT),
    "cifar": Subject(
        "vgg16", (32, 32, 64, 48, 96, 80, 80, 96, 64, 64, 64, 64, 64, 64), {**_VGG, "width": 0.5}, 16, LIMIT
    ),
}
# What runs left that had no engine in mind: twelve epochs on CIFAR-10 at λ = 1e-4; three on MNIST at λ = 3e-3 with
# spare_of = "conv*=16,dense=64", spare = 1, multiple = 8 and fade = 0; three at λ = 1e-3.
OTHERS = (
    Subject("vgg16", (16, 16, 29, 31, 59, 42, 40, 67, 46, 49, 58, 65, 76, 71), _VGG),
    Subject("mnist-dense320", (16, 16, 16, 16, 64), {}, multiple=8),
    Subject("mnist-dense320", (18, 13, 21, 28, 87), {}),
)
SUBJECTS = (*RESULTS.values(), *OTHERS)


def run(settings: Settings) -> dict[str, Any]:
    """Eager, compiled and in ONNX Runtime, as far as they are there; what is missing is said."""
    torch.manual_seed(0)
    subjects = SUBJECTS if settings.record is None else (read(settings.record),)
    figures: list[Figure] = []
    missing: dict[str, str] = {}
    rows = [compared(subject, settings, figures, missing) for subject in subjects[: 1 if settings.quick else None]]
    return document("inference", settings, figures, networks=rows, missing=missing, used=installed("onnxruntime"))


def compared(subject: Subject, settings: Settings, figures: list[Figure], missing: dict[str, str]) -> dict[str, Any]:
    """Both sides of one network."""
    models = {"dense": build(subject.network, **subject.options), "compact": cut(subject)}
    batch = images(subject.network, 8 if settings.quick else BATCH)
    for model in models.values():
        model.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    adds = {side: multiply_adds(model, batch) for side, model in models.items()}
    times: dict[str, Times] = {}
    torch.compiler.reset()  # of all that was compiled before, torch keeps eight, and runs a ninth as it stands
    for number, (name, prepare) in enumerate(ENGINES.items()):
        settings.tell(f"{subject.title}, {name}", number / len(ENGINES))
        if name == "torch.compile" and settings.quick:
            missing[name] = "left out, since compiling takes longer than a quick look may"
            continue
        try:
            with torch.no_grad():
                sides = {side: prepare(model, batch) for side, model in models.items()}
                times[name] = interleaved(sides, settings.rounds, calls=1 if settings.quick else CALLS)
        except Unavailable as error:
            missing[name] = str(error)
            continue
        title = f"{subject.title}, {name}, batch {len(batch)}"
        share = adds["compact"] / adds["dense"]
        figures.append(beside(title, times[name], share, None if name == AS_CUT else subject.limit))
    counts = {side: parameters(model) for side, model in models.items()}
    made = {"network": subject.network, "options": dict(subject.options), "widths": list(subject.widths)}
    return {"title": subject.title, **made, "multiply_adds": adds, "parameters": counts, "seconds": times}


def beside(title: str, times: Times, share: float, limit: float | None) -> Figure:
    """The compact network beside its ideal."""
    pairs = zip(times["compact"], times["dense"], strict=True)
    ideal = [compact / (dense * share) for compact, dense in pairs]
    return figure(f"{title}: time of the compact network ÷ (dense time × its share of multiply-adds)", ideal, limit)


def read(path: Path) -> Subject:
    """The network and the widths of a run, from its result."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        recipe, widths = record["recipe"], tuple(record["widths"].values())
        options = {name: recipe[name] for name in ("width", "batch_norm")}
        options |= {"activation": recipe["activation"]} if recipe.get("activation") else {}
        return Subject(recipe["network"], widths, options, recipe.get("multiple", 1), LIMIT)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"'{path}' is no result of a run: {reason(error)}; give its result.json") from None


def cut(subject: Subject) -> nn.Module:
    """The network cut to these widths by NodeDrop: its first units are made alive, the others dead."""
    model = build(subject.network, **subject.options)
    drop = NodeDrop(model, None, images(subject.network, 2), lam=0.0)
    if len(drop.widths) != len(subject.widths):
        raise InputError(f"{subject.network} has {len(drop.widths)} layers, and there are {len(subject.widths)} widths")
    layers = dict(model.named_modules())
    with torch.no_grad():
        for (name, size), width in zip(drop.widths.items(), subject.widths, strict=True):
            if not 1 <= width <= size:
                raise InputError(f"layer {name} has {size} units, and cannot be cut to {width}")
            kill(layers, name, width)
    drop.drop()
    if tuple(drop.widths.values()) != tuple(subject.widths):
        raise AssertionError(f"the cut left {drop.widths}, not {subject.widths}")
    return model


def kill(layers: Mapping[str, nn.Module], name: str, width: int) -> None:
    """Units from `width` on can never fire, those before can."""
    layer: Any = layers.get(f"{name}_norm", layers[name])
    layer.bias.fill_(1.0)
    layer.weight[width:], layer.bias[width:] = 0.0, -1.0


class Unavailable(Exception):
    """An engine is not there, and why."""


def eager(model: nn.Module, batch: Tensor) -> Infer:
    """As it stands."""
    return lambda: model(batch)


def compiled(model: nn.Module, batch: Tensor) -> Infer:
    """Compiled as a whole, for this batch size and these weights; what torch would run as it stands is an error."""
    made: Callable[[Tensor], Tensor] = torch.compile(model, dynamic=False, fullgraph=True, options={"freezing": True})
    try:
        made(batch)
    except RuntimeError as error:
        if "compiler" not in str(error).lower():
            raise
        raise Unavailable(f"there is no C++ compiler: {reason(error)}") from None
    return lambda: made(batch)


def onnx_runtime(model: nn.Module, batch: Tensor, **options: int) -> Infer:
    """Exported, with as many threads as torch has."""
    from ..export.onnx import opened, write_onnx

    contiguous = batch.contiguous()
    try:
        with TemporaryDirectory() as folder:
            session = opened(write_onnx(model, [contiguous], Path(folder) / "model.onnx", **options).path)
    except MissingExtraError as error:
        raise Unavailable(str(error)) from None
    given = {session.get_inputs()[0].name: contiguous.numpy()}
    return lambda: session.run(None, given)


# To show what an export fills widths up for; nobody needs to take it.
AS_CUT = "ONNX Runtime with widths as cut"
ENGINES: dict[str, Callable[[nn.Module, Tensor], Infer]] = {
    "eager": eager,
    "torch.compile": compiled,
    "ONNX Runtime": onnx_runtime,
    AS_CUT: partial(onnx_runtime, multiple=1),
}
