"""Files that rebuild their own widths: a cut model out, a freshly built original shrunk to it on the way in.

The weights lie in a `container` under their own names. Its document holds, beside what the container needs,

    model       the class that wrote it
    sizes       per module, the attributes that a cut may change
    full        the shapes before any cut, of the tensors that have lost something since
    parts       what belongs to the model's training: an optimizer's state, and more in a checkpoint
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import InputError
from ..surgery import Transaction
from ..surgery.sizes import SIZES, Shape, changes, full_shapes, owners, remember_, shapes_of, update_sizes_
from ..tracing import canonical_names, tensors_of
from . import container, optimizers
from .atomic import reason

_KINDS = tuple(kind for kind, _ in SIZES)
_WIDTHS = ("out_features", "out_channels", "num_features", "embedding_dim")
_SIZE_NAMES = (*_WIDTHS, "in_features", "in_channels", "groups", "normalized_shape", "input_size", "num_parameters")
# Axes that no cut makes smaller, whatever a file says: kernels, and the rows of a table.
_KEPT = ((nn.modules.conv._ConvNd, slice(2, None)), (nn.Embedding | nn.EmbeddingBag, slice(0, 1)))

File = str | os.PathLike[str]


@dataclass(frozen=True)
class Saved:
    """A module as it was saved; of a bare state_dict, `sizes` and `full` are None, of an older file `full` is."""

    where: str
    tensors: Mapping[str, Tensor]
    sizes: Mapping[str, Mapping[str, Any]] | None = None
    full: Mapping[str, Shape] | None = None
    document: Mapping[str, Any] = field(default_factory=dict)


def save(model: nn.Module, path: File, *, optimizer: Optimizer | None = None) -> None:
    """Write a model, and if given its optimizer's state, to one safetensors file.

    The file appears complete or not at all: it is written under another name, flushed, then renamed.
    """
    module = plain(model)
    parts = {} if optimizer is None else {"optimizer": optimizers.taken(optimizer, [module])}
    write(path, module, {"parts": parts})


def load(
    model: nn.Module,
    path: File | Mapping[str, Tensor],
    *,
    optimizer: Optimizer | None = None,
    cut_elsewhere: bool = False,
) -> None:
    """Bring a freshly built model to the widths and values of a file; all or nothing.

    >>> from tempfile import TemporaryDirectory
    >>> from nodedrop import compact_
    >>> small, model = (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(2))
    >>> _ = nn.init.constant_(nn.init.constant_(small[0].bias, 9.0)[:3], -9.0)
    >>> _ = compact_(small, torch.rand(2, 4))
    >>> with TemporaryDirectory() as folder:
    ...     save(small, f"{folder}/model.safetensors")
    ...     load(model, f"{folder}/model.safetensors")
    >>> model[0]
    Linear(in_features=4, out_features=5, bias=True)

    The file comes from `save` or `Checkpoints`, from `torch.save(model.state_dict(), path)`, or is a state_dict itself;
    in the last two cases widths and groups follow from the shapes. Parameters stay the same objects, with their device
    and dtype. An optimizer must hold the parameters in the order they had when it was saved.

    A file of `save` knows which axes nodedrop has cut, and all others must be as long as the model's.
    `cut_elsewhere=True` takes one that other means have made smaller, on your word.
    """
    module = plain(model)
    saved = _unwrapped(read(path), module)
    if cut_elsewhere:
        saved = replace(saved, full=None)
    values = matched(module, saved)
    if saved.document.get("model", type(module).__name__) != type(module).__name__:
        warnings.warn(
            f"{saved.where} was written from a {saved.document['model']}, and {type(module).__name__} has tensors of "
            "the same names; make sure that it computes the same",
            stacklevel=2,
        )
    state = None
    if optimizer is not None:
        state = optimizers.fitting(optimizer, [module], saved.document.get("parts", {}).get("optimizer"), saved.where)
    with Transaction() as transaction:
        place(transaction, module, values, saved)
        if optimizer is not None and state is not None:
            optimizers.restore(optimizer, state)
        transaction.commit()


def write(path: File, module: nn.Module, document: Mapping[str, Any]) -> None:
    """Write a module, and a document of more."""
    own = described(module)
    container.write(Path(path), own.pop("tensors"), {"model": type(module).__name__, **own, **document})


def described(module: nn.Module) -> dict[str, Any]:
    """Tensors and sizes of a module, now and before any cut."""
    for name, child in module.named_modules():
        if type(child).get_extra_state is not nn.Module.get_extra_state:
            raise InputError(f"'{name}' ({type(child).__name__}) has extra state, which is no tensor to be saved")
    sizes = {name: found for name, child in module.named_modules() if (found := _sizes(child))}
    return {"tensors": tensors_of(module), "sizes": sizes, "full": full_shapes(module)}


def saved_as(where: str, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> Saved:
    """What `described` gave, out of a file."""
    full = document.get("full")
    shapes = None if full is None else {name: tuple(shape) for name, shape in full.items()}
    return Saved(where, tensors, document["sizes"], shapes, document)


def place(transaction: Transaction, module: nn.Module, values: Mapping[str, Tensor], saved: Saved) -> None:
    """Give a module the values that `matched` found for it, and their widths."""
    tensors, before = tensors_of(module), shapes_of(module)
    full = {**before, **full_shapes(module), **(saved.full or {})}
    with torch.no_grad():
        for name, value in values.items():
            transaction.set_data(tensors[name], _like(tensors[name].data, value))
    _resize(transaction, module, before, saved)
    after = shapes_of(module)
    for _, child, own in owners(module):
        remember_(transaction, child, {name: full[key] for name, key in own.items() if full[key] != after[key]})


def plain(model: nn.Module) -> nn.Module:
    """The module itself, out of a compiled wrapper."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the model must be an nn.Module, not {type(model).__name__}")
    module: nn.Module = getattr(model, "_orig_mod", model)
    if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise InputError(f"the model is wrapped in {type(module).__name__}; pass the wrapped model, `model.module`")
    for name, tensor in tensors_of(module).items():
        if torch.nn.parameter.is_lazy(tensor) or tensor.is_meta:
            raise InputError(f"'{name}' is lazy or on the meta device; build the model on a real one and run it once")
    return module


def _sizes(child: nn.Module) -> dict[str, Any]:
    """Attributes that a cut may change: known ones, or any integer of a kind of module that is not known."""
    if isinstance(child, _KINDS):
        return {name: getattr(child, name) for name in _SIZE_NAMES if hasattr(child, name)}
    owns = any(t is not None for t in (*child._parameters.values(), *child._buffers.values()))
    return {name: value for name, value in vars(child).items() if owns and type(value) is int and name[0] != "_"}


def read(source: File | Mapping[str, Tensor]) -> Saved:
    """What a file or a state_dict holds."""
    if isinstance(source, Mapping):
        return _bare(source, "the state_dict")
    try:
        path = Path(source)
        with path.open("rb") as file:
            start = file.read(9)
    except TypeError:
        raise InputError(f"expected a path or a state_dict, not {type(source).__name__}") from None
    except OSError as error:
        raise InputError(f"'{source}' cannot be read: {reason(error)}") from None
    if start[8:] == b"{":
        return read_safetensors(path)
    if start[:2] == b"PK" or start[:1] == b"\x80":
        return _read_state_dict(path)
    raise InputError(f"'{path}' is neither a safetensors file nor one written by torch.save")


def read_safetensors(path: Path) -> Saved:
    """What a file holds that `write` or some other program wrote."""
    tensors, document = container.read(path)
    return _bare(tensors, f"'{path}'") if document is None else saved_as(f"'{path}'", tensors, document)


def _read_state_dict(path: Path) -> Saved:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a foreign or damaged file makes of the reader
        raise InputError(
            f"'{path}' is damaged, or no state_dict ({type(error).__name__} in torch.load with weights_only=True); "
            "write it with nodedrop.save(model, path) or torch.save(model.state_dict(), path)"
        ) from None
    return _bare(found, f"'{path}'")


def _bare(found: Any, where: str) -> Saved:
    if not isinstance(found, Mapping):
        raise InputError(f"{where} holds a {type(found).__name__}, and a state_dict was expected")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise InputError(
                f"{where} is no state_dict: it holds {name!r} of type {type(value).__name__}; "
                "if the state_dict lies inside, give that part alone"
            )
    return Saved(where, found)


def _unwrapped(saved: Saved, module: nn.Module) -> Saved:
    """Names without the prefix of a compiled or distributed wrapper, if the model is in none."""
    own = canonical_names(module).keys()
    for prefix in ("_orig_mod.", "module."):
        names = saved.tensors.keys()
        if names and all(name.startswith(prefix) for name in names) and not names & own:
            parts: dict[str, Any] = {"tensors": saved.tensors, "sizes": saved.sizes, "full": saved.full}
            for key, part in parts.items():
                parts[key] = part and {name.removeprefix(prefix): value for name, value in part.items()}
            saved = replace(saved, **parts)
    return saved


def matched(module: nn.Module, saved: Saved) -> dict[str, Tensor]:
    """The saved tensor of every tensor of the model by its canonical name; an error unless all of them fit."""
    canonical, tensors, found = canonical_names(module), tensors_of(module), saved.tensors
    needed = {*dict(module.named_parameters()), *(n for n in tensors if n in module.state_dict())}
    given = {canonical[name] for name in found if name in canonical}
    missing, unexpected = [n for n in tensors if n in needed - given], [n for n in found if n not in canonical]
    if missing or unexpected:
        parts = [f"it lacks {_few(missing)}"] if missing else []
        parts += [f"it holds {_few(unexpected)}, unknown to the model"] if unexpected else []
        raise InputError(f"{saved.where} does not come from {type(module).__name__}: {' and '.join(parts)}")
    values, kept = dict[str, Tensor](), _kept_axes(module, saved)
    for name in (name for name in canonical if name in found):
        first = values.setdefault(canonical[name], value := found[name])
        if first.data_ptr() != value.data_ptr() and not torch.equal(first, value):
            raise InputError(f"the model ties '{name}' to '{canonical[name]}', but in {saved.where} they differ")
        problem = _misfit(tensors[canonical[name]], value, kept.get(canonical[name], ()), saved.full is not None)
        if problem and canonical[name] not in needed:
            del values[canonical[name]]  # a cache that the model makes anew
        elif problem:
            raise InputError(f"{saved.where} does not fit this model: '{name}' {problem}")
    return values


def _kept_axes(module: nn.Module, saved: Saved) -> dict[str, Sequence[int]]:
    """Axes of the tensors that have lost nothing; where a file does not say, kernels and the rows of tables."""
    found: dict[str, Sequence[int]] = {}
    if saved.full is None:
        for _, child, own in owners(module):
            for axes in (axes for kind, axes in _KEPT if isinstance(child, kind)):
                found.update({name: range(tensors_of(module)[name].dim())[axes] for name in own.values()})
        return found
    canonical = canonical_names(module)
    for name, shape in ((name, tuple(value.shape)) for name, value in saved.tensors.items()):
        full = saved.full.get(name, shape)
        found[canonical[name]] = [axis for axis, (a, b) in enumerate(zip(shape, full, strict=False)) if a == b]
    return found


def _misfit(own: Tensor, value: Tensor, kept: Sequence[int], told: bool) -> str | None:
    """Why a saved tensor cannot be what cuts left of the model's own one, of which these axes were never cut."""
    old, new = tuple(own.shape), tuple(value.shape)
    if len(old) != len(new):
        return f"has {len(new)} axes there, shape {new}, and {len(old)} in the model, shape {old}"
    if any(there > here for there, here in zip(new, old, strict=True)):
        return (
            f"has shape {new} there, larger than the model's {old}, and a cut only makes smaller; if the file is from "
            "before a cut, load it into a model built anew"
        )
    for axis in (axis for axis in kept if new[axis] != old[axis]):
        problem = f"has shape {new} there and {old} in the model, and no cut of nodedrop's made axis {axis} smaller"
        return f"{problem}; if other means did, use nodedrop.load(…, cut_elsewhere=True)" if told else problem
    if not torch.can_cast(value.dtype, own.dtype):
        return f"is of type {value.dtype} there and {own.dtype} in the model"
    return None


def _like(own: Tensor, value: Tensor) -> Tensor:
    """The value with device, dtype and memory format of the tensor it replaces."""
    return torch.empty_like(own[tuple(slice(n) for n in value.shape)]).copy_(value)


def _resize(transaction: Transaction, module: nn.Module, before: Mapping[str, Shape], saved: Saved) -> None:
    """Bring sizes and groups in line: from the document if there is one, else from what happened to the shapes."""
    after, widths = shapes_of(module), dict[int, int]()
    for path, child, names in owners(module):
        own = set(names.values())
        changed = any(before[name] != after[name] for name in own)
        if saved.sizes is not None:
            if changed or isinstance(child, _KINDS):
                _assign(transaction, child, saved.sizes.get(path, {}))
            continue
        old = {name: size for name in _WIDTHS if type(size := vars(child).get(name)) is int}
        weight = names.get("weight")
        if changed and isinstance(child, nn.modules.conv._ConvNd) and weight is not None:
            inputs = 0 if child.transposed else widths.get(child.in_channels, 0)
            groups = _groups(f"'{path}' in {saved.where}", child.groups, before[weight], after[weight], inputs)
            transaction.set_attribute(child, "groups", groups)
        if changed:
            update_sizes_(transaction, child, changes((before[name], after[name]) for name in own))
        elif not own and isinstance(child, nn.modules.batchnorm._NormBase) and child.num_features in widths:
            # Without tensors of its own, a norm follows the last layer before it that was as wide.
            transaction.set_attribute(child, "num_features", widths[child.num_features])
        widths.update({size: getattr(child, name) for name, size in old.items()})


def _assign(transaction: Transaction, child: nn.Module, sizes: Mapping[str, Any]) -> None:
    """Set the sizes that differ; anything but an integer or a tuple of them is no size."""
    for name, value in sizes.items():
        value = tuple(value) if isinstance(value, list) else value
        current = vars(child).get(name)
        if type(current) is type(value) and type(value) in (int, tuple) and current != value:
            transaction.set_attribute(child, name, value)


def _groups(what: str, groups: int, old: tuple[int, ...], new: tuple[int, ...], inputs: int) -> int:
    """Groups after a cut, which took whole groups or as many units of each; if both fit, the inputs left decide."""
    each = old[0] // groups  # axis 0 is made of all groups, of a transposed convolution too
    whole, even = new[0] // each if new[0] % each == 0 else 0, groups if new[0] % groups == 0 else 0
    found = [n for n in ((whole, even) if old[1] == 1 else (even, whole)) if n]
    if not found:
        raise InputError(
            f"the weight of {what} has {new[0]} of {old[0]} rows, from which it does not follow how many of its "
            f"{groups} groups are left; write the file with nodedrop.save, which stores that"
        )
    return next((n for n in found if n * new[1] == inputs), found[0])


def _few(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
