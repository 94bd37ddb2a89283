"""How commands are given a network: the folder of a run, or the user's own factory with weights and inputs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from .domains import domain_of, drawn, outside, part_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

SAMPLES, BATCH = 1000, 50

RunArgument = Annotated[Path | None, typer.Argument(help="Folder of a run that has ended.", metavar="[RUN]")]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="A network, package.module:factory or file.py:factory.")
]
WeightsOption = Annotated[
    Path | None, typer.Option("--weights", help="Its weights: safetensors, or a state_dict; the factory's if left out.")
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option("--example", metavar="N,N,…", help="Shape of an input, 2,3,32,32 or 2,16:int64; can be repeated."),
]
SamplesOption = Annotated[
    str | None, typer.Option("--samples", help="Inputs to run: a data set's name, module:factory, or a .npy file.")
]
BoundsOption = Annotated[str, typer.Option("--bounds", help="interval, or linear: finds more and takes longer.")]
BatchOption = Annotated[
    int | None,
    typer.Option(
        "--batch-size", min=1, help="The largest training batch; without it batch norm has a loose bound in train mode."
    ),
]
ModeOption = Annotated[str, typer.Option("--mode", help="What proofs must cover: both, train or eval.")]


# What torch says of inputs that are not what a network takes, and the option that makes them so.
_REMEDIES = {
    r"types: Long, Int; but got \S*Float|used as indices must be long|only applicable to index tensor": (
        "for token indices write --example 2,16:int64"
    ),
    r"missing \d+ required positional arguments?": "repeat --example, one per input",
}


def as_options(text: str) -> str:
    """What the library says of its arguments, in the words of the command line.

    >>> as_options("more can go, 5 with batch_size=2 and 5 with mode='eval'")
    'more can go, 5 with --batch-size 2 (give the largest batch you train with) and 5 with --mode eval'
    """
    text = re.sub(r"\bbatch_size=(\d+)", r"--batch-size \1 (give the largest batch you train with)", text)
    return re.sub(r"\bmode='(\w+)'", r"--mode \1", text)


def with_remedy(text: str) -> str:
    """An error about an example, and how to give another one if that is known."""
    found = [remedy for pattern, remedy in _REMEDIES.items() if re.search(pattern, text)]
    return "; ".join([text, *found])


@dataclass(frozen=True)
class Subject:
    """A network, inputs that it takes, and what lies between them."""

    name: str
    model: nn.Module
    example: tuple[Tensor, ...]
    domain: Any
    samples: Tensor | None = None
    labels: Tensor | None = None
    batch_size: int | None = None  # the largest training batch, if it is known


def subject_of(
    run: Path | None,
    model: str | None,
    weights: Path | None,
    domain: Sequence[str] | None,
    example: Sequence[str] | None,
    samples: str | None,
    data_dir: Path | None,
) -> Subject:
    """The network of a run's folder, or of the user's own factory."""
    if (run is None) == (model is None):
        raise InputError("name either the folder of a run or your own network, --model package.module:factory")
    if run is not None:
        if weights or domain or example or samples:
            raise InputError("a run knows its weights, domain and data; leave --weights, --domain and the like out")
        return _of_run(run, data_dir)
    assert model is not None
    return _of_factory(model, weights, domain_of(domain), example, samples, data_dir)


def _of_run(folder: Path, data_dir: Path | None) -> Subject:
    from ..experiments.making import data_of, network
    from ..experiments.making import example as images
    from ..experiments.recipes import Recipe, changed, domain_of
    from ..experiments.run import configuration
    from ..training import load

    if not folder.is_dir():
        raise InputError(f"there is no folder '{folder}'; name one that `nodedrop train` has written")
    stored = configuration(folder)
    if stored is None:
        raise InputError(f"'{folder}' holds no run; name a folder that `nodedrop train` has written")
    if not (folder / "model.safetensors").is_file():
        raise InputError(f"the run in '{folder}' has not ended; go on with: nodedrop train --resume --out {folder}")
    recipe = changed(Recipe(), stored)
    data = _read(recipe.data, lambda: data_of(recipe, data_dir))
    model = network(recipe, data)
    load(model, folder / "model.safetensors")
    samples = images(recipe, data, SAMPLES).contiguous()
    labels = None if data.text else data.test_labels[:SAMPLES]
    example, ends = (samples[:BATCH],), domain_of(recipe)
    return Subject(str(folder), model.eval(), example, ends, samples, labels, recipe.batch)


def _read(name: str, how: Callable[[], Any]) -> Any:
    """A data set, or how to get it: commands that only look at one have no --download."""
    from ..experiments.data import SOURCES

    try:
        return how()
    except InputError as error:
        if name not in SOURCES or not SOURCES[name].remotes:
            raise
        fetch = f"from nodedrop.experiments.data import load; load('{name}', download=True)"
        raise InputError(f'{error} (--data-dir names its folder; python -c "{fetch}" downloads it)') from None


def _of_factory(
    name: str,
    weights: Path | None,
    domain: Any,
    example: Sequence[str] | None,
    samples: str | None,
    data_dir: Path | None,
) -> Subject:
    from torch import nn

    from ..experiments.own import made
    from ..training import load

    model = made(name)
    if not isinstance(model, nn.Module):
        raise InputError(f"'{name}' must return an nn.Module, and returned a value of type {type(model).__name__}")
    if weights is not None:
        load(model, weights)
    rows, labels = (None, None) if samples is None else _samples(samples, part_of(domain, 0), data_dir)
    if example:
        inputs = tuple(input_of(text, part_of(domain, seed), seed) for seed, text in enumerate(example))
    elif rows is not None:
        inputs = (rows[:BATCH],)
    else:
        raise InputError("say what the network's input looks like, such as --example 2,3,32,32")
    if rows is not None and (len(inputs) > 1 or inputs[0].shape[1:] != rows.shape[1:]):
        shapes = " and ".join(str(tuple(value.shape)) for value in inputs)
        raise InputError(f"samples of shape {tuple(rows.shape)} do not fit the example of shape {shapes}")
    if rows is not None and rows.is_floating_point() and (how := outside(rows, part_of(domain, 0))) is not None:
        raise InputError(f"samples {how}; give the one they have, --domain LO,HI")
    return Subject(name, model.eval(), inputs, domain, rows, labels)


def input_of(text: str, domain: Any, seed: int = 0) -> Tensor:
    """An input of a shape: somewhere in the domain, or zeros for whole numbers, which are indices."""
    import torch

    sizes, _, kind = text.partition(":")
    try:
        shape = [int(word) for word in sizes.split(",")]
        dtype = getattr(torch, kind or "float32")
    except (ValueError, AttributeError):
        shape, dtype = [0], None
    if min(shape) < 1 or not isinstance(dtype, torch.dtype):
        raise InputError(f"--example needs a shape such as 2,3,32,32 or 2,16:int64, and got '{text}'")
    if not dtype.is_floating_point:
        return torch.zeros(shape, dtype=dtype)
    return drawn(shape, domain, seed).to(dtype)


def _samples(name: str, domain: Any, data_dir: Path | None) -> tuple[Tensor, Tensor | None]:
    """Inputs from a file, a data set or a factory; the bytes of images are scaled to the domain."""
    import numpy as np
    import torch

    from ..experiments.data import Data, load
    from ..experiments.making import example as images
    from ..experiments.own import is_own, made
    from ..experiments.recipes import Recipe

    if name.endswith(".npy"):
        try:
            found: Any = torch.from_numpy(np.load(name, allow_pickle=False))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"'{name}' cannot be read as an array: {str(error).splitlines()[0]}") from None
    else:
        found = made(name) if is_own(name) else _read(name, lambda: load(name, data_dir))
    if isinstance(found, Data):
        if not isinstance(domain, tuple):
            raise InputError(f"images of '{name}' are scaled to --domain LO,HI; for others give them as module:factory")
        scale = replace(Recipe(), domain=f"{domain[0]},{domain[1]}")
        labels = None if found.text else found.test_labels[:SAMPLES]
        return images(scale, found, SAMPLES).contiguous(), labels
    if not isinstance(found, torch.Tensor) or found.dim() < 2 or len(found) < 2:
        raise InputError(f"'{name}' must hold a tensor of two samples or more, one per row, or a data set")
    return found[:SAMPLES].float() if found.is_floating_point() else found[:SAMPLES], None
