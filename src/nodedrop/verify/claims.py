"""A ledger as it is read: lines whose chain is whole, and the checks of what they state against two sets of tensors."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .interval import Array
from .pairs import KINDS, Findings, NotProved
from .program import Program, Ref

FIELDS: dict[str, dict[str, Any]] = {
    "header": {"format": str, "version": int, "fingerprint": str, "inputs": list, "outputs": list, "modes": list,
               "evidence": str, "batch_size": (int, type(None)), "arithmetic": dict, "tensors": dict, "model": str},
    "cut": {"cut": int, "step": int, "tensors": list, "groups": dict, "folded": list, "before": str, "after": str,
            "witness": (dict, type(None)), "units": int, "difference": (int, float)},
    "unit": {"cut": int, "step": int, "layer": str, "weight": str, "axis": int, "index": int, "at": int, "kind": str,
             "evidence": str, "modes": list, "bound": (int, float, type(None)), "margin": (int, float, type(None)),
             "with": dict},
}  # fmt: skip


PARTS: dict[tuple[str, str], dict[str, Any]] = {
    ("header", "inputs"): {"name": str, "shape": list, "dtype": str, "lo": object, "hi": object},
    ("header", "tensors"): {"shape": list, "dtype": str},
    ("header", "arithmetic"): {"lowest": (str, type(None)), "unit_roundoff": dict},
    ("cut", "tensors"): {"tensor": str, "axis": int, "size": int, "blocks": int, "removed": list, "original": list},
    ("cut", "witness"): {"file": str, "sha256": str},
}


Element = tuple[tuple[str, int], int]  # tensor and axis, and an index along it


class Refuted(Exception):
    """Something that is stated is not so."""


@dataclass(frozen=True)
class Ledger:
    """The header, and each cut with its units."""

    header: Mapping[str, Any]
    cuts: tuple[tuple[Mapping[str, Any], tuple[Mapping[str, Any], ...]], ...]


def read_ledger(path: str | os.PathLike[str]) -> Ledger:
    """Read a ledger; a line that states something else, or was lost, added or moved, breaks the chain."""
    lines: list[dict[str, Any]] = []
    last = "0" * 64
    for number, text in enumerate(Path(path).read_bytes().splitlines(), 1):
        try:
            line = json.loads(
                text, parse_constant=_number, parse_float=_number, parse_int=_integer, object_pairs_hook=_object
            )
            stated = line.pop("hash")
            kind = FIELDS["header" if number == 1 else line["line"]]
            shaped = all(_is(line[name], types) for name, types in kind.items()) and _whole(line)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Refuted(f"line {number} of the ledger is none of its format") from None
        found = sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()
        if not shaped or set(line) != {*kind, "line", "prev"} or (line["line"] == "header") != (number == 1):
            raise Refuted(f"line {number} of the ledger is none of its format")
        if line["prev"] != last or found != stated:
            raise Refuted(f"line {number} of the ledger does not follow from the line before: one was changed or lost")
        last = stated
        lines.append(line)
    if not lines or lines[0]["format"] != "nodedrop ledger" or lines[0]["version"] != 1:
        raise Refuted("this is no nodedrop ledger of version 1")
    return Ledger(lines[0], _grouped(lines[1:]))


def _number(word: str) -> float:
    """A real number; infinity and NaN are none in JSON."""
    if not isfinite(number := float(word)):
        raise ValueError(word)
    return number


def _integer(word: str) -> int:
    """A whole number that an index can be."""
    if abs(number := int(word)) >= 2**63:
        raise ValueError(word)
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object that tells each key once: of two, the hash would be of the last one."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key is told twice")
    return found


def _is(value: Any, types: Any) -> bool:
    """Whether a value is of a type; a truth value is no number."""
    return isinstance(value, types) and (types is object or not isinstance(value, bool))


def _whole(line: Mapping[str, Any]) -> bool:
    """Whether all parts of a line have their fields."""
    for (kind, name), fields in PARTS.items():
        part = line[name] if line["line"] == kind else None
        if name in ("witness", "arithmetic"):
            part = [] if part is None else [part]
        for item in part.values() if isinstance(part, Mapping) else part or ():
            if set(item) != set(fields) or not all(_is(item[field], types) for field, types in fields.items()):
                return False
            if not all(_is(k, int) for field, types in fields.items() if types is list for k in item[field]):
                return False
    kind = line["line"]
    if kind == "header":
        lists, words = line["outputs"], line["modes"]
    elif kind == "cut":
        lists, words = [list(line["groups"].values())], line["folded"]
    else:
        lists, words = line["with"].values(), line["modes"]
    if not all(isinstance(indices, list) and all(_is(k, int) for k in indices) for indices in lists):
        return False
    blocks = [item["blocks"] for item in line["tensors"]] if kind == "cut" else []
    sound = min(blocks, default=1) > 0 and (line.get("margin") or 0) >= 0
    return sound and all(isinstance(word, str) for word in words)


def _grouped(lines: list[dict[str, Any]]) -> tuple[Any, ...]:
    cuts: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for line in lines:
        if line["line"] == "cut":
            cuts.append((line, []))
        elif not cuts:
            raise Refuted("the ledger has a unit that belongs to no cut")
        else:
            cuts[-1][1].append(line)
    for number, (cut, units) in enumerate(cuts, 1):
        if cut["cut"] != number or len(units) != cut["units"] or any(unit["cut"] != number for unit in units):
            raise Refuted(f"cut {number} states {cut['units']} units and has {len(units)}, or is another cut")
        if any(unit["step"] != cut["step"] for unit in units):
            raise Refuted(f"cut {number} and its units are of different steps")
    for (one, _), (two, _) in pairwise(cuts):
        if two["step"] < one["step"]:
            raise Refuted(f"cut {two['cut']} was made before cut {one['cut']}")
    return tuple((cut, tuple(units)) for cut, units in cuts)


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, each under its first name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over name, type, shape and bytes of each tensor, by name."""
    total = sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {str(value.dtype)[6:]} {','.join(map(str, value.shape))}\n".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return total.hexdigest()


def groups_of(program: Program) -> dict[str, int]:
    """In how many groups convolutions read their kernels."""
    found: dict[str, int] = {}
    for step in program.steps:
        weight = step.args.get("weight")
        if "conv" in step.op and isinstance(weight, Ref) and program.steps[weight.place].op == "tensor":
            found[program.steps[weight.place].args["name"]] = int(step.args["groups"])
    return found


def kept_indices(cut: Mapping[str, Any], key: str = "removed") -> dict[str, dict[int, Array]]:
    """What a cut leaves of each tensor's axes that it cuts as a whole."""
    found: dict[str, dict[int, Array]] = {}
    for item in cut["tensors"]:
        if item["blocks"] == 1:
            keep = np.setdiff1d(np.arange(item["size"]), np.array(item[key], int))
            found.setdefault(item["tensor"], {})[item["axis"]] = keep
    return found


def require_cut(cut: Mapping[str, Any], before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    """The tensors after a cut are those before it without what the cut names, bit for bit, but for folded biases."""
    if set(before) != set(after):
        raise Refuted(f"the tensors {sorted(set(before) ^ set(after))[:3]} are not in both models")
    items: dict[str, list[Mapping[str, Any]]] = {}
    for item in cut["tensors"]:
        items.setdefault(item["tensor"], []).append(item)
    if strange := set(items) - set(before):
        raise Refuted(f"the ledger cuts '{min(strange)}', which the model does not have")
    for name, tensor in before.items():
        value = tensor.detach().cpu()
        for item in sorted(items.get(name, []), key=lambda i: -i["blocks"]):
            value = _sliced(name, value, item)
        there = after[name].detach().cpu()
        if value.dtype != there.dtype or value.shape != there.shape:
            shapes = tuple(there.shape), tuple(value.shape)
            raise Refuted(f"'{name}' has shape {shapes[0]} after the cut, and {shapes[1]} by the ledger")
        if name not in cut["folded"] and not torch.equal(value, there):
            raise Refuted(f"'{name}' after the cut is not '{name}' before it without what the ledger removes")


def _sliced(name: str, value: Tensor, item: Mapping[str, Any]) -> Tensor:
    axis, size, blocks, gone = item["axis"], item["size"], item["blocks"], item["removed"]
    if not (0 <= axis < value.dim() and len(set(gone)) == len(gone) and all(0 <= k < size * blocks for k in gone)):
        raise Refuted(f"the cut of '{name}' is impossible")
    if value.shape[axis] != size or (blocks > 1 and (axis != 1 or value.shape[0] % blocks)):
        raise Refuted(f"'{name}' has shape {tuple(value.shape)}, which the ledger's cut does not fit")
    stays = torch.ones(blocks, size, dtype=torch.bool)
    stays.view(-1)[gone] = False
    if blocks == 1:
        return value.index_select(axis, stays[0].nonzero().reshape(-1))
    most = int(stays.sum(1).max())
    parts = []
    for block, mask in zip(value.chunk(blocks, 0), stays, strict=True):
        kept = mask.nonzero().reshape(-1) if mask.any() else torch.arange(most)  # a block that goes as a whole
        if len(kept) != most:
            raise Refuted(f"the cut of '{name}' leaves blocks of different size")
        parts.append(block.index_select(1, kept))
    return torch.cat(parts)


def require_accounted(cut: Mapping[str, Any], units: tuple[Mapping[str, Any], ...]) -> None:
    """Every element that goes belongs to a unit, every unit goes, and none is told twice."""
    gone: dict[str, dict[int, int]] = {}
    for item in cut["tensors"]:
        key = f"{item['tensor']}:{item['axis']}"
        lost = item["removed"]
        if key in gone or len(item["original"]) != len(lost) or sorted(set(lost)) != lost:
            raise Refuted(f"the cut of '{key}' is told twice, or its first indices are not those of its elements")
        gone[key] = dict(zip(lost, item["original"], strict=True))
    told: dict[str, set[int]] = {name: set() for name in gone}
    seen = set()
    for unit in units:
        name, place = (unit["layer"], unit["index"]), f"{unit['weight']}:{unit['axis']}"
        if name in seen or unit["at"] not in unit["with"].get(place, ()):
            raise Refuted(f"unit {unit['index']} of '{unit['layer']}' is told twice, or was not cut")
        if gone.get(place, {}).get(unit["at"]) != unit["index"]:
            raise Refuted(f"unit {unit['index']} of '{unit['layer']}' had another index at first")
        seen.add(name)
        for key, indices in unit["with"].items():
            if key not in gone or not set(indices) <= set(gone[key]):
                raise Refuted(f"unit {unit['index']} of '{unit['layer']}' took elements of '{key}' that were not cut")
            told[key] |= set(indices)
    for item in cut["tensors"]:
        key = f"{item['tensor']}:{item['axis']}"
        if missing := set(gone[key]) - told[key]:
            raise Refuted(f"element {min(missing)} of '{key}' was cut, and no unit of the ledger accounts for it")


def require_folded(cut: Mapping[str, Any], found: Findings) -> None:
    """Biases that a cut says constants were added to read something constant that is gone, and no other number."""
    if len(set(cut["folded"])) < len(cut["folded"]) or not set(cut["folded"]) <= found.folded:
        raise Refuted(f"the ledger folds constants into {cut['folded']}, and they went into {sorted(found.folded)}")


def require_groups(cut: Mapping[str, Any], before: Program, after: Program) -> None:
    """Numbers of groups that a cut states are those that convolutions have; others have not changed."""
    old, new = groups_of(before), groups_of(after)
    changed = {name: number for name, number in new.items() if number != old.get(name)}
    if not changed.items() <= cut["groups"].items() <= new.items():
        raise Refuted(f"the ledger states the groups {cut['groups']}, and those that changed are {changed}")


def require_units(
    units: tuple[Mapping[str, Any], ...], found: Findings, header: Mapping[str, Any], *, run: bool = False
) -> None:
    """Bounds and kinds that units state are those that follow from the weights. In a run, of which more may be known
    here than a unit's own certificate uses, its bound may lie above."""
    key = "index" if run else "at"
    _require_lines(units, [((unit["weight"], unit["axis"]), unit[key]) for unit in units], found)
    loose, made = found.loose(), set[Element]().union(*found.gone)
    for unit in units:
        who, place = f"unit {unit['index']} of '{unit['layer']}'", (unit["weight"], unit["axis"])
        if unit["weight"] != unit["layer"] and unit["weight"].rpartition(".")[0] != unit["layer"]:
            raise Refuted(f"{who} is made by '{unit['weight']}', which is no tensor of that layer")
        if unit["evidence"] != header["evidence"] or unit["modes"] != header["modes"]:
            raise Refuted(f"{who} states evidence or modes other than the ledger's first line")
        _require_together(who, unit, (place, unit[key]), found, loose)
        kinds = _kinds(unit, found)
        if not kinds:
            raise NotProved(f"{who} cannot be followed to where it is read")
        if unit["kind"] not in kinds:
            raise Refuted(f"{who} is said to be {unit['kind']}, and is {' or '.join(sorted(kinds))}")
        stated = unit["bound"]
        own = unit[key] in found.bounds.get(place, {})
        bounds, sizes = (_of_unit(numbers, unit, place, unit[key]) for numbers in (found.bounds, found.sizes))
        bounds = bounds[:1] if run and own else bounds
        derived = min(bounds, key=lambda b: abs(b - (stated or 0)), default=None)
        size = max(sizes[:1] if own else sizes, default=inf)
        silent = stated is None and (not own or (place, unit[key]) not in made)  # none told, of what no layer makes
        if unit["kind"] == "unread" or derived is None or not isfinite(derived) or silent:
            if stated is not None and not run:
                raise Refuted(f"{who} states a bound of {stated:.6g}, and has none")
            continue
        slack = 2.0**-16 * (size if isfinite(size) else abs(derived)) + 1e-12
        rounding = found.margins.get(place, {}).get(unit[key], 0.0)
        above = slack + min(unit["margin"] or 0.0, rounding)  # terms that are 0 may have been counted as rounded
        if stated is None or stated < derived - slack or (stated > derived + above and not run):
            raise Refuted(f"{who} states a bound of {stated}, and its weights give {derived:.6g}")


def _require_lines(units: tuple[Mapping[str, Any], ...], owns: list[Element], found: Findings) -> None:
    """Every unit that a layer no longer makes has one line. Another line is about elements that belong to no unit."""
    times, made = Counter(owns), set[Element]().union(*found.gone)
    for names in sorted(map(sorted, found.gone)):
        if not any(times[name] for name in names):
            (tensor, _), index = names[0]
            raise Refuted(f"unit {index} of '{tensor}' was cut, and the ledger has no line for it")
        times.update({name: sum(times[other] for other in names) - times[name] for name in names})
    theirs = {found.leader(name) for name in made} - found.loose() - found.coarse()
    lines = Counter((name, index) for unit in units for name, indices in unit["with"].items() for index in indices)
    for unit, own in zip(units, owns, strict=True):
        shared = any(lines[name, index] > 1 for name, indices in unit["with"].items() for index in indices)
        if times[own] > 1 or (own not in made and (shared or found.leader(own) in theirs)):
            raise Refuted(f"unit {unit['index']} of '{unit['layer']}' is told twice, or is none that a layer makes")


def _require_together(
    who: str, unit: Mapping[str, Any], own: Element, found: Findings, loose: set[Element | None]
) -> None:
    """What is told with a unit meets it somewhere, as far as elements can be followed."""
    mine = found.leader(own)
    for name, indices in unit["with"].items() if mine not in loose else ():
        tensor, _, axis = name.rpartition(":")
        for index in indices:
            other = found.leader(((tensor, int(axis)), index))
            if other != mine and other not in loose:
                raise Refuted(f"{who} is told with element {index} of '{name}', which does not go with it")


def _of_unit(
    numbers: Mapping[tuple[str, int], Mapping[int, float]], unit: Mapping[str, Any], place: tuple[str, int], at: int
) -> list[float]:
    """A number of a unit, and those of what went with it, of its gate, say, that are not below its own."""
    own = numbers.get(place, {}).get(at, -inf)
    found = [own] if own > -inf else []
    for name, indices in unit["with"].items():
        tensor, _, axis = name.rpartition(":")
        row = numbers.get((tensor, int(axis)), {})
        found += [row[index] for index in indices if index in row and row[index] >= own]
    return found


def _kinds(unit: Mapping[str, Any], found: Findings) -> set[str]:
    """What a unit, with all that went with it, may be said to be; nothing if nobody was seen to read it.

    At each place where it is read the first of KINDS counts that is true there, and of all places the last. Places
    where nothing is left that reads may be left out: a reader may have gone with it. What is constant and not read
    either may be called both.
    """
    reads = set()
    for name, indices in unit["with"].items():
        tensor, _, axis = name.rpartition(":")
        row = found.kinds.get((tensor, int(axis)), {})
        reads |= {true for index in indices for true in row.get(index, ())}
    told = [places for places in (reads, {true for true in reads if any(true[:2])}) if places]
    kinds = {KINDS[max(true.index(True) for true in places)] for places in told}
    both = "constant" in kinds and any(true[2] and not true[0] for true in reads)
    return kinds | {"unread"} if both else kinds
