"""A whole training run: every cut checked with what it kept of the weights of its moment, then the widths at the end.

Between cuts the weights move, and most are not kept. So each cut is checked on the program at its first widths, in
which what was removed before is not read by anything, and all weights that were not kept are unknown: the proof holds
whatever they were. At the end, the model at its last widths must compute the same as the one at its first widths in
which nothing reads what was removed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .alive import Lives, require_dead
from .check import Verdict, agreed_terms, boxes_of, growth_of, merged
from .claims import Ledger, Refuted, fingerprint, read_ledger, require_accounted, require_units, tensors_of
from .interval import known
from .kept import facts_of
from .left import Left, groups_read
from .pairs import ZERO, Assumptions, Findings, NotProved
from .program import CannotRead, Program, read
from .relation import lasting, relate, require_lasting


def verify_run(model: nn.Module, after: nn.Module, example_inputs: Any, ledger: Path, domain: Any = None) -> Verdict:
    """Check all cuts of a run. `model` has the widths of its start (its weights do not matter), `after` is its end."""
    modes: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    try:
        stated = read_ledger(ledger)
        modes, batch_size, dtype = agreed_terms(stated.header)
        programs = lasting(read(model, example_inputs, mode) for mode in modes)
        boxes, said = boxes_of(programs[0].inputs, domain, stated)
        given = Assumptions(boxes, growth_of(example_inputs, batch_size), dtype)
        sizes = {name: list(tensor.shape) for name, tensor in tensors_of(model).items()}
        if sizes != {name: item["shape"] for name, item in stated.header["tensors"].items()}:
            raise Refuted("the model has other tensors, or other widths, than the one that the ledger begins with")
        first = left = Left.all(sizes, groups_read(programs[0]))
        for cut, units in stated.cuts:
            require_accounted(cut, units)
            rest = left.without(cut)
            facts = facts_of(ledger.parent, cut, left, rest)
            _check(cut, units, programs, Assumptions(boxes, given.growth, dtype, facts), left.hints(rest), stated)
            left = rest
        _require_states(stated, after)
        _require_end(stated, after, left)
        found, ends = Findings(), lasting(read(after, example_inputs, mode) for mode in modes)
        for program, end in zip(programs, ends, strict=True):
            whole = replace(program, tensors=_embedded(program, after, left))
            found = merged(found, relate(whole, end, given, first.hints(left)))
        require_lasting(found)
    except Lives as error:
        return Verdict("refuted", str(error), modes, said, counterexample=error.shown)
    except Refuted as error:
        return Verdict("refuted", str(error), modes, said)
    except (NotProved, CannotRead) as error:
        return Verdict("not proved", str(error), modes, said)
    if stated.header["evidence"] == "observed":
        return Verdict("not proved", "the evidence is what was observed on samples, which proves nothing", modes, said)
    count = sum(len(units) for _, units in stated.cuts)
    reason = f"{len(stated.cuts)} cuts, {count} units, each without effect when it was made"
    return Verdict("proved", reason, modes, said, count)


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
            fixed = {n: t for n, t in program.tensors.items() if n not in stated.header["tensors"]}  # part of the code
            facts = {**{n: known(t.double().numpy()) for n, t in fixed.items()}, **(given.known or {})}
            findings = merged(findings, relate(program, program, replace(given, known=facts), hints))
        require_lasting(findings)
    except NotProved as error:
        for mode, program in zip(stated.header["modes"], programs, strict=True):
            require_dead(units, program, given, mode)
        raise NotProved(f"cut {cut['cut']} at step {cut['step']}: {error}") from None
    _require_below(units, programs, findings)
    moved = [{**u, "with": {k: [first[k][i] for i in v] for k, v in u["with"].items()}} for u in units]
    require_units(tuple(moved), findings, stated.header, run=True)


def _require_below(units: Any, programs: list[Program], found: Findings) -> None:
    """No unit that is dead at its own activation states a bound with which it would not be. Others go with a unit that
    reads them, and is dead."""
    edges = [ZERO[s.op](s.args) for program in programs for s in program.steps if s.op in ZERO]
    most = max((edge for edge in edges if edge is not None), default=0.0)
    for unit in units:
        own = found.bounds.get((unit["weight"], unit["axis"]), {}).get(unit["index"], -inf)
        if unit["kind"] == "dead" and unit["bound"] is not None and unit["bound"] > most >= own:
            raise Refuted(f"unit {unit['index']} of '{unit['layer']}' is said to be dead, bounded by {unit['bound']}")


def _require_states(stated: Ledger, after: nn.Module) -> None:
    """Fingerprints are such, and models of different widths have different ones."""
    states: dict[str, int] = {stated.header["fingerprint"]: 0}
    for number, (cut, _) in enumerate(stated.cuts):
        if cut["step"] < 0:
            raise Refuted(f"cut {cut['cut']} states the step {cut['step']}")
        for told, widths in ((cut["before"], number), (cut["after"], number + 1)):
            if states.setdefault(told, widths) != widths:
                raise Refuted(f"cut {cut['cut']} states the fingerprint of a model of other widths")
    if strange := [told for told in states if not re.fullmatch("[0-9a-f]{64}", told)]:
        raise Refuted(f"'{strange[0]}' is no fingerprint")
    if states.get(fingerprint(tensors_of(after)), len(stated.cuts)) != len(stated.cuts):
        raise Refuted("the model at the end has the fingerprint of a model of other widths")


def _require_end(stated: Ledger, after: nn.Module, left: Left) -> None:
    """The model at the end has the widths that the cuts left."""
    for name, tensor in tensors_of(after).items():
        there = left.shape(name) if name in stated.header["tensors"] else None
        if there != tuple(tensor.shape):
            raise Refuted(f"'{name}' of the model at the end has shape {tuple(tensor.shape)}, the cuts left {there}")


def _embedded(program: Program, after: nn.Module, left: Left) -> dict[str, torch.Tensor]:
    """The last tensors at the places of the first widths, 0 elsewhere."""
    found = dict(program.tensors)
    for name, tensor in tensors_of(after).items():
        wide = torch.zeros(program.tensors[name].shape, dtype=tensor.dtype)
        wide[tuple(map(torch.from_numpy, left.places(name)))] = tensor.detach().cpu()
        found[name] = wide
    return found
