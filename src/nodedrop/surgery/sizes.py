"""Size attributes of modules, derived from the shapes their tensors have now."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from .transaction import Transaction

Sizes = Callable[[Any], dict[str, Any]]


def _linear(m: nn.Linear) -> dict[str, Any]:
    return {"out_features": m.weight.shape[0], "in_features": m.weight.shape[1]}


def _conv(m: nn.Conv2d) -> dict[str, Any]:
    return {"out_channels": m.weight.shape[0], "in_channels": m.weight.shape[1] * m.groups}


def _conv_transpose(m: nn.ConvTranspose2d) -> dict[str, Any]:
    return {"in_channels": m.weight.shape[0], "out_channels": m.weight.shape[1] * m.groups}


def _features(m: nn.BatchNorm2d) -> dict[str, Any]:
    known = [t for t in (m.weight, m.bias, m.running_mean) if t is not None]
    return {"num_features": known[0].shape[0]} if known else {}


def _normalised(m: nn.LayerNorm) -> dict[str, Any]:
    return {"normalized_shape": tuple(m.weight.shape)} if m.elementwise_affine else {}


def _embedding(m: nn.Embedding) -> dict[str, Any]:
    return {"embedding_dim": m.weight.shape[1]}


def _recurrent(m: nn.RNNBase) -> dict[str, Any]:
    return {"input_size": m.get_parameter("weight_ih_l0").shape[1]}


def _prelu(m: nn.PReLU) -> dict[str, Any]:
    return {"num_parameters": m.weight.shape[0]}


_BATCH_NORM = nn.modules.batchnorm._NormBase
_CONV_TRANSPOSE = nn.modules.conv._ConvTransposeNd

SIZES: list[tuple[type, Sizes]] = [
    (nn.Linear, _linear),
    (_CONV_TRANSPOSE, _conv_transpose),
    (nn.modules.conv._ConvNd, _conv),
    (_BATCH_NORM, _features),
    (nn.LayerNorm, _normalised),
    (nn.RMSNorm, _normalised),
    (nn.Embedding, _embedding),
    (nn.RNNBase, _recurrent),
    (nn.PReLU, _prelu),
]


# What the whole-number attributes are called that say how wide a module is; the same number may mean other things.
_WIDTH = re.compile(
    r"(^|_)(features?|channels?|dims?|planes|units|width|hidden|d_model|d_ff|nf|nx|embed(ding)?|size)($|_)"
)
_OTHER = re.compile(r"kernel|patch|window|vocab|batch|image|img|tile|seq|max|min|stride|pad|head|group|layers")


def _means_width(name: str) -> bool:
    """Whether an attribute's name says that it is a width.

    >>> list(filter(_means_width, ["out_features", "nf", "hidden_size", "kernel_size", "period", "max_size"]))
    ['out_features', 'nf', 'hidden_size']
    """
    return bool(_WIDTH.search(name)) and not _OTHER.search(name)


def update_sizes_(transaction: Transaction, module: nn.Module, changes: Mapping[int, int]) -> None:
    """Bring the size attributes of one module in line with its tensors.

    For a kind of module that is not known here, `changes` (old size to new size, where unambiguous) and their names
    tell which of its integer attributes are widths.
    """
    rule = next((sizes for kind, sizes in SIZES if isinstance(module, kind)), None)
    if rule is not None:
        wanted = rule(module)
    else:
        wanted = {n: changes[v] for n, v in vars(module).items() if type(v) is int and v in changes and _means_width(n)}
    for name, value in wanted.items():
        if getattr(module, name) != value:
            transaction.set_attribute(module, name, value)
