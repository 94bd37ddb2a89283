"""A whole training run: every cut checked with what it kept of the weights of its moment, then the widths at the end.

Between cuts the weights move, and most are not kept. So each cut is checked on the program at its first widths, in
which what was removed before is not read by anything, and all weights that were not kept are unknown: the proof holds
whatever they were. At the end, the model at its last widths must compute the same as the one at its first widths in
which nothing reads what was removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from .check import Verdict, agreed_terms, boxes_of, growth_of, merged
from .claims import Ledger, Refuted, read_ledger, require_accounted, require_units, tensors_of
from .interval import Array, Value, known
from .pairs import Assumptions, Findings, NotProved
from .program import CannotRead, Program, read
from .relation import relate

Alive = dict[tuple[str, int], list[int]]


def verify_run(model: nn.Module, after: nn.Module, example_inputs: Any, ledger: Path, domain: Any = None) -> Verdict:
    """Check all cuts of a run. `model` has the widths of its start (its weights do not matter), `after` is its end."""
    modes: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    try:
        stated = read_ledger(ledger)
        modes, batch_size, dtype = agreed_terms(stated.header)
        boxes, said = boxes_of(example_inputs, domain, stated)
        given = Assumptions(boxes, growth_of(example_inputs, batch_size), dtype)
        sizes = {name: list(tensor.shape) for name, tensor in tensors_of(model).items()}
        alive = _first(sizes, stated)
        programs = [read(model, example_inputs, mode) for mode in modes]
        for cut, units in stated.cuts:
            require_accounted(cut, units)
            hints = _follow(cut, alive, sizes)
            facts = _witness(ledger.parent, cut, alive, sizes)
            _check(cut, units, programs, Assumptions(boxes, given.growth, dtype, facts), hints, stated)
            _shrink(cut, alive)
        _require_end(stated, after, alive)
        for mode, program in zip(modes, programs, strict=True):
            whole = replace(program, tensors=_embedded(program, after, alive))
            hints = {name: {} for name, _ in alive}
            for (name, axis), indices in alive.items():
                hints[name][axis] = np.array(indices, int)
            relate(whole, read(after, example_inputs, mode), given, hints)
    except Refuted as error:
        return Verdict("refuted", str(error), modes, said)
    except (NotProved, CannotRead) as error:
        return Verdict("not proved", str(error), modes, said)
    if stated.header["evidence"] == "observed":
        return Verdict("not proved", "the evidence is what was observed on samples, which proves nothing", modes, said)
    count = sum(len(units) for _, units in stated.cuts)
    reason = f"{len(stated.cuts)} cuts, {count} units, each without effect when it was made"
    return Verdict("proved", reason, modes, said, count)


def _first(shapes: Mapping[str, list[int]], stated: Ledger) -> Alive:
    """All indices of all axes, if the model has the tensors that the ledger begins with."""
    there = {name: item["shape"] for name, item in stated.header["tensors"].items()}
    if shapes != there:
        raise Refuted("the model has other tensors, or other widths, than the one that the ledger begins with")
    return {(name, axis): list(range(n)) for name, shape in shapes.items() for axis, n in enumerate(shape)}


def _follow(cut: Mapping[str, Any], alive: Alive, sizes: Mapping[str, list[int]]) -> dict[str, dict[int, Array]]:
    """What a cut leaves along each axis, by first indices; its own must be those that are left by now."""
    hints: dict[str, dict[int, Array]] = {}
    for item in cut["tensors"]:
        place = (item["tensor"], item["axis"])
        if item["blocks"] != 1:
            raise NotProved(f"cut {cut['cut']} removes parts of a convolution in groups, block by block")
        width = len(alive.get(place, ()))
        if width != item["size"] or not all(0 <= k < width for k in item["removed"]):
            raise Refuted(f"cut {cut['cut']} is of another width than the cuts before it left")
        if item["original"] != [alive[place][k] for k in item["removed"]]:
            raise Refuted(f"cut {cut['cut']} states other first indices than the cuts before it left")
        size = sizes[item["tensor"]][item["axis"]]
        hints.setdefault(item["tensor"], {})[item["axis"]] = np.setdiff1d(np.arange(size), item["original"])
    return hints


def _witness(folder: Path, cut: Mapping[str, Any], alive: Alive, shapes: Mapping[str, list[int]]) -> dict[str, Value]:
    """What a cut kept, at the places of the first widths; 0 where something was removed before."""
    from safetensors.numpy import load

    kept, found = cut["witness"], dict[str, Value]()
    if kept is None:
        raise NotProved(f"cut {cut['cut']} kept no weights; check it with the models before and after it")
    path = folder / str(kept["file"])
    if not path.resolve().is_relative_to(folder.resolve()) or not path.exists():
        raise NotProved(f"the weights that cut {cut['cut']} kept are missing: '{kept['file']}'")
    content = path.read_bytes()
    if sha256(content).hexdigest() != kept["sha256"]:
        raise Refuted(f"'{kept['file']}' is not what cut {cut['cut']} kept")
    gone = {(item["tensor"], item["axis"]): item["original"] for item in cut["tensors"]}
    for key, array in load(content).items():
        kind, _, name = key.partition("/")
        axis, _, name = name.partition("/") if kind == "removed" else ("", "", name)
        places = [alive.get((name, d), []) for d in range(array.ndim)]
        if kind == "removed":
            if axis != "0":
                continue  # columns: they make the cut reversible, no proof reads them
            places[0] = gone.get((name, 0), [])
        if name not in shapes or [len(p) for p in places] != list(array.shape):
            raise Refuted(f"'{kept['file']}' does not fit cut {cut['cut']}: '{name}' has shape {array.shape}")
        rows = kind == "removed" and array.ndim > 1
        shape = [len(places[0]), *shapes[name][1:]] if rows else shapes[name]
        wide = np.full(shape, np.nan if kind == "removed" and not rows else 0.0)
        spots = [np.arange(len(places[0])), *places[1:]] if rows else places
        wide[np.ix_(*map(np.array, spots))] = array
        found[name] = known(wide)
        if rows:
            found[name] = Value(wide, wide, tuple(shapes[name]), rows=np.array(places[0], int))
    return found


def _check(
    cut: Mapping[str, Any], units: Any, programs: list[Program], given: Assumptions, hints: Any, stated: Ledger
) -> None:
    """The units of one cut were without effect, and their certificates are what the weights give."""
    first = {
        f"{item['tensor']}:{item['axis']}": dict(zip(item["removed"], item["original"], strict=True))
        for item in cut["tensors"]
    }
    findings = Findings()
    try:
        for program in programs:
            findings = merged(findings, relate(program, program, given, hints))
    except NotProved as error:
        raise NotProved(f"cut {cut['cut']} at step {cut['step']}: {error}") from None
    moved = [{**u, "with": {k: [first[k][i] for i in v] for k, v in u["with"].items()}} for u in units]
    require_units(tuple(moved), findings, stated.header, run=True)


def _shrink(cut: Mapping[str, Any], alive: Alive) -> None:
    for item in cut["tensors"]:
        gone = set(item["removed"])
        place = (item["tensor"], item["axis"])
        alive[place] = [index for k, index in enumerate(alive[place]) if k not in gone]


def _require_end(stated: Ledger, after: nn.Module, alive: Alive) -> None:
    """The model at the end has the widths that the cuts left."""
    for name, tensor in tensors_of(after).items():
        left = [len(alive.get((name, d), ())) for d in range(tensor.dim())]
        if name not in stated.header["tensors"] or left != list(tensor.shape):
            raise Refuted(f"'{name}' of the model at the end has shape {tuple(tensor.shape)}, the cuts left {left}")


def _embedded(program: Program, after: nn.Module, alive: Alive) -> dict[str, torch.Tensor]:
    """The last tensors at the places of the first widths, 0 elsewhere."""
    found = dict(program.tensors)
    names = {id(t): name for name, t in tensors_of(after).items()}
    every = [*after.named_parameters(remove_duplicate=False), *after.named_buffers(remove_duplicate=False)]
    for name, tensor in every:
        first, old = names[id(tensor)], program.tensors[name]
        wide = torch.zeros(old.shape, dtype=tensor.dtype)
        places = [torch.tensor(alive[first, d]) for d in range(tensor.dim())]
        if places:
            wide[tuple(torch.meshgrid(*places, indexing="ij"))] = tensor.detach().cpu()
        else:
            wide.copy_(tensor.detach())
        found[name] = wide
    return found
