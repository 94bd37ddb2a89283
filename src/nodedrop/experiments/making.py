"""What a recipe says, as objects: data, network, optimizer, λ and learning rate over the steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import InputError
from ..training import schedules
from .data import Data, load
from .networks import NETWORKS, build
from .own import is_own, own_data, own_network
from .recipes import Recipe, domain_of

SHARP = 10  # how much harder the few units that are still to go are pressed once all others rest


def data_of(recipe: Recipe, data_dir: Path | None = None) -> Data:
    """The recipe's data, or the user's own."""
    return own_data(recipe.data) if is_own(recipe.data) else load(recipe.data, data_dir)


def network(recipe: Recipe, data: Data) -> nn.Module:
    """The recipe's network for this data, at full size."""
    if is_own(recipe.network):
        return own_network(recipe.network, example(recipe, data), data.classes, recipe.data)
    read, given = NETWORKS[recipe.network].reads, "texts" if data.text else "images"
    if read != given:
        raise InputError(f"the network {recipe.network} reads {read}, and {data.name} holds {given}")
    if data.text and recipe.batch_norm:
        raise InputError(f"the network {recipe.network} has no batch norm; leave batch_norm out")
    return network_for(recipe, data.train_images.shape, data.classes)


def network_for(recipe: Recipe, shape: Sequence[int], classes: int) -> nn.Module:
    """The package's network that a recipe names, for inputs of a shape, sample × channel × row × column or × place."""
    channels, size = shape[1:3] if len(shape) == 4 else (1, shape[1])
    own = {"activation": recipe.activation, "init": recipe.init}
    return build(
        recipe.network, classes=classes, batch_norm=recipe.batch_norm, width=recipe.width, in_channels=channels,
        size=size, **{key: value for key, value in own.items() if value},
    )  # fmt: skip


def example(recipe: Recipe, data: Data, count: int = 2) -> Tensor:
    """Some images, or passages of a text, as training will use them."""
    if data.text:
        return data.test_images[:count].long()
    images = data.test_images[:count].float().div(255).contiguous(memory_format=torch.channels_last)
    return scaled(images, recipe)


def scaled(images: Tensor, recipe: Recipe) -> Tensor:
    """Images in [0, 1], brought to the recipe's domain."""
    lo, hi = domain_of(recipe)
    kept = (lo, hi) == (0, 1) or not images.is_floating_point()
    return images if kept else images.mul(hi - lo).add_(lo).clamp_(lo, hi)


def count_of(m: str) -> Any:
    """Batch norm's count: a word, or a number."""
    return m if m in ("elements", "batch", "channels") else float(m)


def optimizer(recipe: Recipe, model: nn.Module) -> Optimizer:
    """The recipe's optimizer over all parameters."""
    parameters, lr, decay = model.parameters(), recipe.lr, recipe.weight_decay
    if recipe.optimizer == "adam":
        return torch.optim.Adam(parameters, lr, weight_decay=decay, fused=True)
    nesterov = recipe.optimizer == "nesterov"
    return torch.optim.SGD(parameters, lr, recipe.momentum, weight_decay=decay, nesterov=nesterov, fused=True)


def pressure(recipe: Recipe, per_epoch: int) -> schedules.Schedule:
    """λ at each step; in `rest` it acts on the few units beyond a multiple or `spare_of`, which are to go soon."""
    quiet, total = round(recipe.quiet * per_epoch), round((recipe.epochs - recipe.rest) * per_epoch)
    if recipe.fade and recipe.lam:
        fading = round(recipe.fade * total)
        hold = max(total - fading - quiet, 0)
        rate = schedules.anneal(recipe.lam, recipe.lam / 100, fading, after=quiet, hold=hold)
    else:
        rate = schedules.warm_up(recipe.lam, quiet)
    then = SHARP * recipe.lam if recipe.multiple > 1 or recipe.spare_of else 0.0
    return schedules.until(rate, total, then) if recipe.rest else rate


def spared(recipe: Recipe, per_epoch: int) -> schedules.Schedule:
    """What is spared at each step, `spare_of` aside: in `rest` all units but those beyond a multiple."""
    return schedules.until(lambda step: recipe.spare, round((recipe.epochs - recipe.rest) * per_epoch), then=1.0)


def rate(recipe: Recipe, per_epoch: int) -> Callable[[int], float]:
    """The learning rate's factor at each step."""
    if recipe.decay == "cosine":
        total = recipe.epochs * per_epoch
        return lambda step: 0.5 * (1 + math.cos(math.pi * min(step / total, 1.0)))
    places = [int(word) * per_epoch for word in recipe.decay.split(",") if word]
    return lambda step: 0.1 ** sum(step >= place for place in places)
