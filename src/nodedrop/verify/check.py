"""The verdict: proved, refuted or not proved."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from .claims import (
    Ledger,
    Refuted,
    fingerprint,
    kept_indices,
    read_ledger,
    require_accounted,
    require_cut,
    require_folded,
    require_groups,
    require_units,
    tensors_of,
)
from .interval import Array
from .pairs import Assumptions, Findings, NotProved
from .program import CannotRead, Program, read, split
from .relation import lasting, relate, require_lasting
from .search import Counterexample, search

Status = Literal["proved", "refuted", "not proved"]
CODES: dict[Status, int] = {"proved": 0, "refuted": 1, "not proved": 3}


@dataclass(frozen=True)
class Verdict:
    """What could be shown about two models, for which inputs and modes, and why not more."""

    status: Status
    reason: str
    modes: tuple[str, ...] = ()
    domain: tuple[str, ...] = ()
    units: int = 0
    unknown: tuple[str, ...] = ()
    counterexample: Counterexample | None = field(default=None, repr=False)

    @property
    def code(self) -> int:
        """The exit code: 0 proved, 1 refuted, 3 not proved."""
        return CODES[self.status]

    def to_json(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        shown = None if self.counterexample is None else self.counterexample.to_json()
        return {
            "verdict": self.status, "reason": self.reason, "modes": list(self.modes), "domain": list(self.domain),
            "units": self.units, "unknown_operators": list(self.unknown), "counterexample": shown,
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{self.status}: {self.reason}"]
        terms = {"modes": " and ".join(self.modes), "inputs": "; ".join(self.domain)}
        if any(terms.values()):
            lines.append("; ".join(f"{name}: {what}" for name, what in terms.items() if what))
        if self.counterexample is not None:
            lines.append(str(self.counterexample))
        if self.unknown and self.status != "proved":
            lines.append(f"operators without a rule here: {', '.join(self.unknown)}")
        return "\n".join(lines)


def check(
    before: nn.Module,
    after: nn.Module,
    example_inputs: Any,
    domain: Any,
    ledger: str | os.PathLike[str] | None,
    modes: Sequence[str],
    batch_size: int | None,
    dtype: torch.dtype | None,
    tries: int,
) -> Verdict:
    """What `nodedrop.verify` answers."""
    stated: Ledger | None = None
    boxes: dict[str, tuple[Array, Array]] | None = None
    said: tuple[str, ...] = ()
    try:
        if ledger is not None:
            stated = read_ledger(ledger)
            modes, batch_size, dtype = _agreed(stated.header, batch_size, dtype)
        if not modes or not set(modes) <= {"eval", "train"}:
            raise ValueError(f"modes are eval, train or both, not {list(modes)}")
        first, why = _read(before, example_inputs, modes)
        boxes, said = boxes_of(first[0].inputs if first else _given(example_inputs), domain, stated)
        said += () if dtype is None else (f"computed in {dtype} at least",)
        said += () if batch_size is None else (f"batches of {batch_size} at most",)
        if stated is not None:
            _require_models(stated, before, after)
        if why:
            raise NotProved(why)
        given = Assumptions(boxes, growth_of(example_inputs, batch_size), dtype)
        second = [read(after, example_inputs, mode) for mode in modes]
        findings = _related(first, second, given, stated)
    except Refuted as error:
        verdict = Verdict("refuted", str(error), tuple(modes), said)
        if ledger is None:
            return _hinted(verdict, before, after)
        alone = check(
            before, after, example_inputs, domain if boxes is None else boxes, None, _known(modes),
            batch_size, dtype, tries,
        )  # fmt: skip
        more = "the pair is proved without it" if alone.status == "proved" else alone.reason
        return replace(alone, status="refuted", reason=f"{error}; {more}", units=0)
    except (NotProved, CannotRead) as error:
        found = search(before, after, example_inputs, boxes or {}, modes, tries, first)
        why = str(error) if found is None else f"an input shows a difference; {error}"
        verdict = Verdict("not proved" if found is None else "refuted", why, tuple(modes), said, counterexample=found)
        return _hinted(verdict, before, after)
    if stated is not None and stated.header["evidence"] == "observed":
        why = "the ledger's evidence is what was observed on samples, which proves nothing"
        return Verdict("not proved", why, tuple(modes), said)
    count = sum(len(units) for _, units in stated.cuts) if stated is not None else len(findings.gone)
    reason = f"both compute the same, up to the rounding of sums; {count} units removed"
    return Verdict("proved", reason, tuple(modes), said, count, tuple(sorted(findings.unknown)))


def _related(
    first: Sequence[Program], second: Sequence[Program], given: Assumptions, stated: Ledger | None
) -> Findings:
    """What is found on the way through both modules in all modes, and is as the ledger states."""
    shapes = [output_shapes(program) for program in (first[0], second[0])]
    if shapes[0] != shapes[1]:
        raise Refuted(f"the outputs have the shapes {shapes[1]} in the second module, and {shapes[0]} in the first")
    if any(one.returned[0] != two.returned[0] for one, two in zip(first, second, strict=True)):
        raise Refuted("the second module returns its results in another form, or by other names, than the first")
    findings = Findings()
    cut, units = stated.cuts[0] if stated is not None and stated.cuts else (None, ())
    for one, two in zip(lasting(first), lasting(second), strict=True):
        findings = merged(findings, relate(one, two, given, {} if cut is None else kept_indices(cut)))
    require_lasting(findings)
    if stated is not None:
        if stated.header["outputs"] != shapes[0]:
            raise Refuted(f"the ledger states outputs of shapes {stated.header['outputs']}, and they are {shapes[0]}")
        require_units(units, findings, stated.header)
    if cut is not None:
        require_folded(cut, findings)
        require_groups(cut, first[0], second[0])
    return findings


def output_shapes(program: Program) -> list[list[int]]:
    """Of all tensors that a module returns."""
    results = [program.steps[place].results[0] for place in program.outputs]
    return [list(result[0]) for result in results if result is not None]


def _known(modes: Sequence[str]) -> tuple[str, ...]:
    """The modes that there are, of those stated."""
    return tuple(mode for mode in ("eval", "train") if mode in modes) or ("eval", "train")


def _hinted(verdict: Verdict, before: nn.Module, after: nn.Module) -> Verdict:
    """With a word on what may have gone wrong."""
    sizes = [sum(tensor.numel() for tensor in tensors_of(module).values()) for module in (before, after)]
    if sizes[0] >= sizes[1]:
        return verdict
    return replace(verdict, reason=f"{verdict.reason}; the second module is the larger one: are the two swapped?")


def _read(module: nn.Module, inputs: Any, modes: Sequence[str]) -> tuple[list[Program], str]:
    """A module in some modes, or why it cannot be read."""
    try:
        return [read(module, inputs, mode) for mode in modes], ""
    except CannotRead as error:
        return [], str(error)


def _given(inputs: Any) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """What goes in, of a module whose own names for it are not known."""
    args, kwargs = split(inputs)
    every = {**{str(k): v for k, v in enumerate(args)}, **kwargs}
    return {name: (tuple(v.shape), v.dtype) for name, v in every.items() if isinstance(v, Tensor)}


def merged(one: Findings, two: Findings) -> Findings:
    """The larger bounds, all reasons."""
    for mine, new in ((one.bounds, two.bounds), (one.sizes, two.sizes), (one.margins, two.margins)):
        for key, row in new.items():
            for index, number in row.items():
                mine.setdefault(key, {})[index] = max(mine.get(key, {}).get(index, -inf), number)
    for key, kinds in two.kinds.items():
        for index, kind in kinds.items():
            one.kinds.setdefault(key, {}).setdefault(index, set()).update(kind)
    for pair in two.leaders.items():
        one.tie(pair)
    for name, keeps in two.kept.items():
        one.kept.setdefault(name, []).extend(keeps)
    one.gone |= two.gone
    one.folded |= two.folded
    one.unknown |= two.unknown
    one.open |= two.open
    one.written |= two.written
    return one


def _agreed(
    header: Mapping[str, Any], batch_size: int | None, dtype: torch.dtype | None
) -> tuple[tuple[str, ...], int | None, torch.dtype | None]:
    """Modes, batch size and precision of a ledger; those that are given must be the same."""
    terms = agreed_terms(header)
    if batch_size not in (None, terms[1]) or dtype not in (None, terms[2]):
        raise Refuted(f"the ledger speaks of batches of {terms[1]} and computing in {terms[2]}, not of what is given")
    return terms


def _require_models(stated: Ledger, before: nn.Module, after: nn.Module) -> None:
    """The ledger speaks of these two models."""
    header, old, new = stated.header, tensors_of(before), tensors_of(after)
    if header["fingerprint"] != fingerprint(old):
        raise Refuted("the ledger speaks of another model: the fingerprint of the first one is not in its first line")
    if header["tensors"] != {n: {"shape": list(t.shape), "dtype": str(t.dtype)[6:]} for n, t in old.items()}:
        raise Refuted("the ledger states tensors of other shapes or types than the first model's")
    if len(stated.cuts) > 1:
        raise Refuted("the ledger has several cuts, between which the weights may have changed; check its run instead")
    for cut, units in stated.cuts:
        if cut["before"] != header["fingerprint"] or cut["after"] != fingerprint(new):
            raise Refuted("the ledger speaks of another model: the fingerprints of its cut are not those of the two")
        require_cut(cut, old, new)
        require_accounted(cut, units)
        if any(item["original"] != item["removed"] for item in cut["tensors"]):
            raise Refuted("the first cut states original indices that are not its own")
    if not stated.cuts and fingerprint(new) != header["fingerprint"]:
        raise Refuted("the ledger has no cut, and the models differ")


def agreed_terms(header: Mapping[str, Any]) -> tuple[tuple[str, ...], int | None, torch.dtype | None]:
    """Modes, batch size and lowest precision that a ledger states."""
    modes, terms = tuple(header["modes"]), header["arithmetic"]
    limits = ("train",) if header["evidence"] == "batch-proved" else ("eval", "train")
    if header["evidence"] not in ("proved", "batch-proved", "observed"):
        raise Refuted(f"the ledger states the evidence '{header['evidence']}', which there is none of")
    if not modes or not set(modes) <= set(limits) or len(set(modes)) < len(modes):
        raise Refuted(f"the ledger states the modes {list(modes)} for evidence '{header['evidence']}'")
    if header["batch_size"] is not None and header["batch_size"] < 1:
        raise Refuted(f"the ledger states batches of {header['batch_size']} at most")
    named = {item["dtype"] for item in header["tensors"].values()} | {terms["lowest"]} - {None}
    kinds = {name: kind for name in named if isinstance(kind := getattr(torch, name, None), torch.dtype)}
    if kinds.keys() != named:
        raise Refuted(f"the ledger states a type that there is none of, among {', '.join(sorted(named))}")
    true = {name: torch.finfo(kind).eps / 2 for name, kind in kinds.items() if kind.is_floating_point}
    if terms["unit_roundoff"] != true:
        raise Refuted(f"the ledger states the unit round-offs {terms['unit_roundoff']}, and they are {true}")
    return modes, header["batch_size"], kinds.get(terms["lowest"])


def growth_of(inputs: Any, batch_size: int | None) -> float:
    """How many times larger than the example's a training batch may be."""
    args, kwargs = split(inputs)
    sizes = [len(v) for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.dim()]
    return inf if batch_size is None or not sizes else max(batch_size / max(min(sizes), 1), 1.0)


def boxes_of(
    inputs: Mapping[str, tuple[tuple[int, ...], torch.dtype]], domain: Any, stated: Ledger | None
) -> tuple[dict[str, tuple[Array, Array]], tuple[str, ...]]:
    """Lower and upper ends of every tensor input, as declared; whole numbers are indices and have none."""
    if stated is not None:
        lines = {line["name"]: line for line in stated.header["inputs"]}
        if len(lines) < len(stated.header["inputs"]):
            raise Refuted("the ledger speaks of an input twice")
        told = {name: (tuple(line["shape"]), str(line["dtype"])) for name, line in lines.items()}
        if told != {name: (shape, str(kind)[6:]) for name, (shape, kind) in inputs.items()}:
            shapes = [f"{name} {shape} {kind}" for name, (shape, kind) in told.items()]
            raise Refuted(f"the ledger speaks of the inputs {', '.join(shapes)}, not of those given")
        own = {name: _box(lines[name]["lo"], lines[name]["hi"], shape) for name, (shape, _) in inputs.items()}
    if domain is not None or stated is None:
        given = _declared((0.0, 1.0) if domain is None else domain, inputs)
        if stated is not None and not all(
            np.array_equal(np.broadcast_to(a, shape), np.broadcast_to(b, shape))
            for name, (shape, _) in inputs.items()
            for a, b in zip(own[name], given[name], strict=True)
        ):
            raise Refuted("the ledger speaks of another domain than the one given")
        own = given
    words = ["×".join(map(str, shape)) for shape, _ in inputs.values()]
    return own, tuple(f"[{lo.min():g}, {hi.max():g}], {w}" for (lo, hi), w in zip(own.values(), words, strict=True))


def _declared(
    domain: Any, inputs: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
) -> dict[str, tuple[Array, Array]]:
    """`(lo, hi)` for all floating inputs, or one such pair, or None, per input, by name or in order."""
    each: dict[str, Any]
    if isinstance(domain, Mapping):
        if strange := sorted(set(domain) - set(inputs)):
            raise Refuted(f"the domain names the input '{strange[0]}', and the inputs are {', '.join(inputs)}")
        each = {name: domain.get(name) for name in inputs}
    elif _is_pair(domain):
        each = {n: domain if d.is_floating_point or d is torch.uint8 else None for n, (_, d) in inputs.items()}
    elif len(domain) == len(inputs):
        each = dict(zip(inputs, domain, strict=True))
    else:
        raise Refuted(f"the domain has {len(domain)} entries, and there are {len(inputs)} inputs")
    found = {}
    for name, item in each.items():
        ends = (item.lo, item.hi) if hasattr(item, "lo") else (None, None) if item is None else item
        lo, hi = (None if end is None else np.asarray(end, float).tolist() for end in ends)
        found[name] = _box(lo, hi, inputs[name][0])
    return found


def _is_pair(item: Any) -> bool:
    """Whether this is the domain of an input, and not a list of such."""
    if hasattr(item, "lo"):
        return True
    return len(item) == 2 and not any(x is None or hasattr(x, "lo") or isinstance(x, list | tuple) for x in item)


def _box(lo: Any, hi: Any, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Both ends as arrays that broadcast against the input."""
    low, high = _end(lo, -inf, shape), _end(hi, inf, shape)
    if not (low <= high).all():
        raise Refuted("the domain is no box of the inputs: a lower end lies above the upper one")
    return low, high


def _end(value: Any, missing: float, shape: tuple[int, ...]) -> Array:
    """Numbers that broadcast against an input, or one for each of its channels; a truth value or a text is none."""
    array = np.array(missing if value is None else value, dtype=object)
    if not {*map(type, array.flat)} <= {int, float, type(None)}:
        raise Refuted("the domain is no box of the inputs: its ends are no numbers")
    array = np.where(array == None, missing, array).astype(float)  # noqa: E711
    if array.ndim == 1 and len(shape) > 2 and len(array) == shape[1]:
        array = array.reshape(-1, *(1,) * (len(shape) - 2))
    array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    if np.isnan(array).any() or len(array.shape) > len(shape) or not all(map(_fits, array.shape, shape)):
        raise Refuted("the domain is no box of the inputs: its ends have another shape")
    return array


def _fits(size: int, whole: int) -> bool:
    """Whether an axis broadcasts to a size."""
    return size in (1, whole)
