"""Files that rebuild their own widths: a cut model out, a freshly built original shrunk to it on the way in.

The file is plain safetensors. Its metadata holds one JSON document under "nodedrop":

    format, version, model      what wrote it
    sizes                       per module, the attributes that a cut may change
    optimizer                   if asked for: hyper-parameters and plain state; its tensors lie beside the weights
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import InputError
from ..surgery import Transaction
from ..surgery.sizes import SIZES, update_sizes_
from ..tracing import canonical_names, tensors_of

FORMAT, VERSION = "nodedrop model", 1
_KEY = "nodedrop"
_KINDS = tuple(kind for kind, _ in SIZES)
_WIDTHS = ("out_features", "out_channels", "num_features", "embedding_dim")
_SIZE_NAMES = (*_WIDTHS, "in_features", "in_channels", "groups", "normalized_shape", "input_size", "num_parameters")

File = str | os.PathLike[str]


@dataclass(frozen=True)
class _Saved:
    """What a file holds; of a bare state_dict, `sizes` is None."""

    where: str
    tensors: Mapping[str, Tensor]
    sizes: Mapping[str, Mapping[str, Any]] | None = None
    optimizer: Mapping[str, Any] | None = None
    optimizer_tensors: Mapping[str, Tensor] = field(default_factory=dict)


def save(model: nn.Module, path: File, *, optimizer: Optimizer | None = None) -> None:
    """Write a model, and if given its optimizer's state, to one safetensors file.

    The file appears complete or not at all: it is written under another name, flushed, then renamed.
    """
    module = _plain(model)
    for name, child in module.named_modules():
        if type(child).get_extra_state is not nn.Module.get_extra_state:
            raise InputError(f"'{name}' ({type(child).__name__}) has extra state, which is no tensor to be saved")
    tensors = tensors_of(module)
    sizes = {name: found for name, child in module.named_modules() if (found := _sizes(child))}
    document = {"format": FORMAT, "version": VERSION, "model": type(module).__name__, "sizes": sizes}
    if optimizer is not None:
        prefix = "optimizer."
        while any(name.startswith(prefix) for name in tensors):
            prefix = f"_{prefix}"
        document["optimizer"], state = _taken(optimizer, module, prefix)
        tensors.update(state)
    _write(_separate(tensors), {"format": "pt", _KEY: json.dumps(document)}, path)


def load(model: nn.Module, path: File | Mapping[str, Tensor], *, optimizer: Optimizer | None = None) -> None:
    """Bring a freshly built model to the widths and values of a file; all or nothing.

    >>> from tempfile import TemporaryDirectory
    >>> small = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))  # as cuts left it
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> with TemporaryDirectory() as folder:
    ...     save(small, f"{folder}/model.safetensors")
    ...     load(model, f"{folder}/model.safetensors")
    >>> model[0]
    Linear(in_features=4, out_features=5, bias=True)

    The file comes from `save`, from `torch.save(model.state_dict(), path)`, or is a state_dict itself; in the last two
    cases widths and groups follow from the shapes. Parameters stay the same objects, with their device and dtype. An
    optimizer must hold the parameters in the order they had when it was saved.
    """
    module = _plain(model)
    saved = _read(path)
    values = _matched(module, saved)
    state = None if optimizer is None else _state(optimizer, module, saved)
    tensors, before = tensors_of(module), {n: tuple(t.shape) for n, t in tensors_of(module).items()}
    with torch.no_grad(), Transaction() as transaction:
        for name, value in values.items():
            transaction.set_data(tensors[name], _like(tensors[name].data, value))
        _resize(transaction, module, before, saved)
        if optimizer is not None and state is not None:
            _restore(optimizer, state)
        transaction.commit()


def _plain(model: nn.Module) -> nn.Module:
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


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU, none in the memory of another."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        if value.data_ptr() in seen or value.untyped_storage().nbytes() != value.nbytes:
            value = value.clone()
        seen.add(value.data_ptr())
        found[name] = value
    return found


def _write(tensors: dict[str, Tensor], metadata: dict[str, str], path: File) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        save_file(tensors, temporary, metadata)
        temporary.chmod(mode)  # safetensors lets nobody but the owner read
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
        if os.name == "posix":  # the new name, too, should survive a power failure
            folder = os.open(target.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"'{target}' cannot be written: {_reason(error)}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _read(source: File | Mapping[str, Tensor]) -> _Saved:
    if isinstance(source, Mapping):
        return _bare(source, "the state_dict")
    try:
        path = Path(source)
        with path.open("rb") as file:
            start = file.read(9)
    except TypeError:
        raise InputError(f"expected a path or a state_dict, not {type(source).__name__}") from None
    except OSError as error:
        raise InputError(f"'{source}' cannot be read: {_reason(error)}") from None
    if start[8:] == b"{":
        return _read_safetensors(path)
    if start[:2] == b"PK" or start[:1] == b"\x80":
        return _read_state_dict(path)
    raise InputError(f"'{path}' is neither a safetensors file nor one written by torch.save")


def _read_safetensors(path: Path) -> _Saved:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            text = (file.metadata() or {}).get(_KEY)
    except (OSError, SafetensorError) as error:
        raise InputError(f"'{path}' is no complete safetensors file: {_reason(error)}") from None
    if text is None:
        return _bare(tensors, f"'{path}'")
    try:
        document = json.loads(text)
        known, version = document["format"] == FORMAT, document["version"]
        sizes, optimizer = {k: dict(v) for k, v in document["sizes"].items()}, document.get("optimizer")
        prefix = None if optimizer is None else str(optimizer["prefix"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"the metadata of '{path}' is damaged; write the file again with nodedrop.save") from None
    if not known or version != VERSION:
        raise InputError(f"'{path}' has version {version} of the format, and this nodedrop reads version {VERSION}")
    state = {name: tensors.pop(name) for name in list(tensors) if prefix is not None and name.startswith(prefix)}
    return _Saved(f"'{path}'", tensors, sizes, optimizer, state)


def _read_state_dict(path: Path) -> _Saved:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a foreign or damaged file makes of the reader
        raise InputError(
            f"'{path}' is damaged, or no state_dict ({type(error).__name__} in torch.load with weights_only=True); "
            "write it with nodedrop.save(model, path) or torch.save(model.state_dict(), path)"
        ) from None
    return _bare(found, f"'{path}'")


def _bare(found: Any, where: str) -> _Saved:
    if not isinstance(found, Mapping):
        raise InputError(f"{where} holds a {type(found).__name__}, and a state_dict was expected")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise InputError(
                f"{where} is no state_dict: it holds {name!r} of type {type(value).__name__}; "
                "if the state_dict lies inside, pass that part"
            )
    return _Saved(where, found)


def _matched(module: nn.Module, saved: _Saved) -> dict[str, Tensor]:
    """The saved tensor of every tensor of the model by its canonical name; an error unless all of them fit."""
    canonical, tensors, found = canonical_names(module), tensors_of(module), dict(saved.tensors)
    for prefix in ("_orig_mod.", "module."):  # of compiled and distributed wrappers
        if found and all(name.startswith(prefix) for name in found) and not found.keys() & canonical.keys():
            found = {name[len(prefix) :]: value for name, value in found.items()}
    needed = {*dict(module.named_parameters()), *(n for n in tensors if n in module.state_dict())}
    given = {canonical[name] for name in found if name in canonical}
    missing, unexpected = [n for n in tensors if n in needed - given], [n for n in found if n not in canonical]
    if missing or unexpected:
        parts = [f"it lacks {_few(missing)}"] if missing else []
        parts += [f"it holds {_few(unexpected)}, unknown to the model"] if unexpected else []
        raise InputError(f"{saved.where} does not come from {type(module).__name__}: {' and '.join(parts)}")
    values: dict[str, Tensor] = {}
    for name in (name for name in canonical if name in found):
        first = values.setdefault(canonical[name], value := found[name])
        if first.data_ptr() != value.data_ptr() and not torch.equal(first, value):
            raise InputError(f"the model ties '{name}' to '{canonical[name]}', but in {saved.where} they differ")
        problem = _misfit(tensors[canonical[name]], value)
        if problem and canonical[name] not in needed:
            del values[canonical[name]]  # a cache that the model makes anew
        elif problem:
            raise InputError(f"{saved.where} does not come from this model: '{name}' {problem}")
    return values


def _misfit(own: Tensor, value: Tensor) -> str | None:
    """Why a saved tensor cannot be what cuts left of the model's own one."""
    old, new = tuple(own.shape), tuple(value.shape)
    if len(old) != len(new):
        return f"has {len(new)} axes there, shape {new}, and {len(old)} in the model, shape {old}"
    if any(there > here for there, here in zip(new, old, strict=True)):
        return f"has shape {new} there, larger than the model's {old}, and a cut only makes smaller"
    if not torch.can_cast(value.dtype, own.dtype):
        return f"is of type {value.dtype} there and {own.dtype} in the model"
    return None


def _like(own: Tensor, value: Tensor) -> Tensor:
    """The value with device, dtype and memory format of the tensor it replaces."""
    return torch.empty_like(own[tuple(slice(n) for n in value.shape)]).copy_(value)


def _resize(transaction: Transaction, module: nn.Module, before: Mapping[str, tuple[int, ...]], saved: _Saved) -> None:
    """Bring sizes and groups in line: from the document if there is one, else from what happened to the shapes."""
    canonical, after = canonical_names(module), {n: tuple(t.shape) for n, t in tensors_of(module).items()}
    widths: dict[int, int] = {}
    for path, child in module.named_modules():
        start = f"{path}." if path else ""
        tensors = (*child._parameters.items(), *child._buffers.items())
        own = {canonical[start + name] for name, tensor in tensors if tensor is not None}
        if hasattr(child, "parametrizations"):
            own |= {name for name in after if name.startswith(f"{start}parametrizations.")}
        changed = any(before[name] != after[name] for name in own)
        if saved.sizes is not None:
            if changed or isinstance(child, _KINDS):
                _assign(transaction, child, saved.sizes.get(path, {}))
            continue
        old = {name: size for name in _WIDTHS if type(size := vars(child).get(name)) is int}
        weight = canonical.get(f"{start}weight")
        if changed and isinstance(child, nn.modules.conv._ConvNd) and weight is not None:
            inputs = 0 if child.transposed else widths.get(child.in_channels, 0)
            groups = _groups(f"'{path}' in {saved.where}", child.groups, before[weight], after[weight], inputs)
            transaction.set_attribute(child, "groups", groups)
        if changed:
            update_sizes_(transaction, child, _changes((before[name], after[name]) for name in own))
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


def _changes(shapes: Iterable[tuple[tuple[int, ...], tuple[int, ...]]]) -> dict[int, int]:
    """Old to new size of the axes cut, where an old size became just one new size."""
    found: dict[int, set[int]] = {}
    for old, new in shapes:
        for a, b in zip(old, new, strict=True):
            if a != b:
                found.setdefault(a, set()).add(b)
    return {old: new.pop() for old, new in found.items() if len(new) == 1}


def _taken(optimizer: Optimizer, module: nn.Module, prefix: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """An optimizer's state as a JSON document, and its tensors by name."""
    names = _parameter_names(optimizer, module)
    state, tensors, plain = optimizer.state_dict(), {}, {}
    parts = {f"group{k}": group for k, group in enumerate(state["param_groups"])} | state["state"]
    for owner, values in parts.items():
        if not isinstance(values, Mapping):
            raise InputError(f"{type(optimizer).__name__} keeps {owner!r} outside its parameters, which is not saved")
        tensors.update({f"{prefix}{owner}.{key}": v for key, v in values.items() if isinstance(v, Tensor)})
        plain[str(owner)] = {key: v for key, v in values.items() if not isinstance(v, Tensor) and key != "params"}
    document = {"prefix": prefix, "class": type(optimizer).__name__, "names": names, "state": plain}
    try:
        json.dumps(document)
    except (TypeError, ValueError) as error:
        raise InputError(f"the state of {type(optimizer).__name__} cannot be saved as plain data: {error}") from None
    return document, tensors


def _parameter_names(optimizer: Optimizer, module: nn.Module) -> list[list[str | None]]:
    """The names of an optimizer's parameters, group by group."""
    if not isinstance(optimizer, Optimizer):
        raise InputError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
    known = {id(parameter): name for name, parameter in module.named_parameters()}
    names = [[known.get(id(parameter)) for parameter in group["params"]] for group in optimizer.param_groups]
    if not any(name is not None for group in names for name in group):
        raise InputError(f"the {type(optimizer).__name__} holds none of the model's parameters; build it on this model")
    return names


def _state(optimizer: Optimizer, module: nn.Module, saved: _Saved) -> dict[str, Any]:
    """A saved optimizer state in the form that `load_state_dict` takes."""
    names = _parameter_names(optimizer, module)
    if (document := saved.optimizer) is None:
        raise InputError(f"{saved.where} holds no optimizer state; write it with nodedrop.save(…, optimizer=optimizer)")
    try:
        parts = {owner: dict(values) for owner, values in document["state"].items()}
        for name, tensor in saved.optimizer_tensors.items():
            owner, key = name[len(document["prefix"]) :].split(".", 1)
            parts[owner][key] = tensor.clone()
        kind, groups = document["class"], [parts.pop(f"group{k}") for k in range(len(document["names"]))]
        state = {int(index): values for index, values in parts.items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(f"the optimizer state in {saved.where} is damaged") from None
    if kind != type(optimizer).__name__:
        raise InputError(f"{saved.where} holds the state of {kind}, and the optimizer is {type(optimizer).__name__}")
    if document["names"] != names:
        raise InputError(
            f"the {kind} in {saved.where} holds other parameters, in {len(groups)} groups, or holds them in another "
            f"order than this one with {len(names)}; build it as it was built for the saved run"
        )
    numbers = count()
    for group, own in zip(groups, optimizer.param_groups, strict=True):
        group.update({k: tuple(v) for k, v in group.items() if isinstance(v, list) and isinstance(own.get(k), tuple)})
        group["params"] = [next(numbers) for _ in own["params"]]
    return {"state": state, "param_groups": groups}


def _restore(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load an optimizer's state, or leave it as it was."""
    before = {"state": optimizer.state, "param_groups": optimizer.param_groups}
    try:
        optimizer.load_state_dict(state)
    except BaseException:
        optimizer.__dict__.update(before)
        raise


def _few(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _reason(error: BaseException) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
