"""The user's own networks and data, named as `package.module:factory` or `folder/file.py:factory`."""

from __future__ import annotations

import copy
import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError, NodeDropError
from .data import Data


def is_own(name: str) -> bool:
    """Whether a name is one of a factory, and none of the package's own."""
    return ":" in name


def own_network(name: str, example: Tensor, classes: int, data: str) -> nn.Module:
    """Call a factory of networks, and see that the network turns such images into one logit per class."""
    hint = "" if is_own(data) else f" ({data}, unless --data names other data)"
    model = made(name)
    if not isinstance(model, nn.Module):
        raise InputError(f"'{name}' must return an nn.Module, and returned {_kind(model)}")
    mode = model.training
    try:
        with torch.no_grad():
            logits = model.eval()(example)
    except Exception as error:
        shape = "×".join(map(str, example.shape[1:]))
        raise InputError(f"the network of '{name}' cannot read images of {shape}{hint}: {_said(error)}") from None
    model.train(mode)
    if not isinstance(logits, Tensor) or logits.shape != (len(example), classes):
        got = f"a tensor of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else _kind(logits)
        raise InputError(
            f"the network of '{name}' must return {classes} logits per image, one per class of the data{hint}, and for "
            f"{len(example)} images it returned {got}"
        )
    return model


def own_data(name: str) -> Data:
    """Call a factory of data."""
    data = made(name)
    if not isinstance(data, Data):
        raise InputError(f"'{name}' must return a nodedrop.experiments.data.Data, and returned {_kind(data)}")
    for which, images, labels in (
        ("train", data.train_images, data.train_labels),
        ("test", data.test_images, data.test_labels),
    ):
        if images.dtype != torch.uint8 or images.dim() != 4 or labels.shape != images.shape[:1] or not len(images):
            raise InputError(
                f"the {which} images of '{name}' must be bytes of four axes (sample, channel, row, column) with as "
                f"many labels, and are {images.dtype} of shape {tuple(images.shape)} with {len(labels)} labels"
            )
        if labels.dtype != torch.int64 or not 0 <= int(labels.min()) <= int(labels.max()) < data.classes:
            raise InputError(f"the {which} labels of '{name}' must be whole numbers (int64) below {data.classes}")
    return data


def find(name: str) -> Callable[[], Any]:
    """The factory of a name, or of copies of a network; modules are looked for in the working folder, too."""
    module, _, path = name.rpartition(":")
    if not module or not path:
        raise InputError(f"'{name}' must have the form package.module:factory, or folder/file.py:factory")
    found: Any = _imported(module, name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise InputError(f"the module of '{name}' has no '{part}'; name a function that takes no arguments")
        found = getattr(found, part)
    if isinstance(found, nn.Module):  # each call gives a network of its own, as a factory's does
        return partial(copy.deepcopy, found)
    if not callable(found):
        raise InputError(f"'{name}' is {_kind(found)}; name a function that takes no arguments")
    factory: Callable[[], Any] = found
    return factory


def _imported(module: str, name: str) -> ModuleType:
    """A module by its name or its file; what lies beside a file can be imported by it."""
    file = Path(module).resolve() if module.endswith(".py") else None
    if file is not None and not file.is_file():
        raise InputError(f"there is no file '{module}', which '{name}' names")
    folder = os.getcwd() if file is None else str(file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = importlib.import_module(module if file is None else file.stem)
    except Exception as error:
        raise InputError(f"the module of '{name}' cannot be imported: {_said(error)}") from None
    if file is not None and Path(found.__file__ or "").resolve() != file:
        raise InputError(f"'{module}' has the name of another module, {found.__file__ or 'built in'}; rename the file")
    return found


def made(name: str) -> Any:
    factory = find(name)
    try:
        return factory()
    except NodeDropError:
        raise
    except Exception as error:
        raise InputError(f"'{name}()' failed: {_said(error)}") from None


def _kind(value: Any) -> str:
    return f"a value of type {type(value).__name__}"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error) or 'no reason given').splitlines()[0]}"
