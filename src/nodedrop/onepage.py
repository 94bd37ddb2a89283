"""A second checker, to be read in one sitting: is the smaller network the larger one without units that never fire?

It shares no code with the rest of nodedrop, and has rules for one cut of a network of layers, activations, pools, sums
and concatenations in single or double precision. Anything else is *not proved*, with what is missing.

**Claim.** If `check` says *proved*, then for every input in the ledger's box, in each of its modes, both modules return
the same but for the rounding of sums that have lost terms, each of which was 0; provided that no value overflows.

**Proof.** Both modules make the same calls. Wherever the first has a value A, the second has B = A[:, keep]: some
channels, which are the indices of axis 1, and all of each. Inputs and outputs keep all channels. Every rule below
carries this over, since it makes a channel from the same channels in both. Only a sum may lack channels that it had,
and each of those was 0 for every input, or all weights left that would meet it are 0.

**Lemma** (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). Compute ŝ = Σ wᵢxᵢ + b with unit
round-off u in any order, fused or not, so that no term is rounded more than k times: 2 more than there are products.
Then |ŝ − (Σ wᵢxᵢ + b)| ≤ γ·(Σ|wᵢ|·max|xᵢ| + |b|) + (2k + Σ|wᵢ| + Σ max|xᵢ|)·tiny with γ = k·u / (1 − k·u) and the least
normal number `tiny`, below which all may be flushed to 0. So for loᵢ ≤ xᵢ ≤ hiᵢ, ŝ ≤ Σ max(wᵢ·loᵢ, wᵢ·hiᵢ) + b + that
right side. If this is ≤ 0, an activation that is 0 up to 0 returns 0. If no term can be above 0, nor can ŝ.
"""

from __future__ import annotations

import copy
import json
import math
import warnings
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.fx.node import map_arg

Array = NDArray[Any]
Line = dict[str, Any]
Element = tuple[str, int]  # tensor:axis, and an index along it
INF, ERRORS = math.inf, (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True)
class Answer:
    """`status` is proved, refuted (a false ledger) or not proved."""

    status: str
    reason: str
    units: int = 0


class Stop(Exception):
    """Status and reason of an answer other than proved."""


def require(true: Any, what: str, status: str = "refuted") -> None:
    """What the ledger states must be so; what this checker needs, it must have a rule for."""
    if not true:
        raise Stop(status, what)


need = partial(require, status="not proved")


def check(before: nn.Module, after: nn.Module, example_inputs: Any, ledger: str | Path) -> Answer:
    """Derive all certificates of a ledger again; box, modes and arithmetic are those that it states."""
    try:
        header, cut, units = read_ledger(Path(ledger))
        old, new = tensors_of(before), tensors_of(after)
        walk = Walk(header, old, require_cut(header, cut, old, new))
        for mode in header["modes"]:
            walk.relate(read(before, example_inputs, mode), read(after, example_inputs, mode))
        require_units(header, cut, units, walk)
    except Stop as stop:
        return Answer(*stop.args)
    except ERRORS as error:
        return Answer("not proved", f"a part of the ledger cannot be read: {error!r}")
    terms = [f"{i['name']} in [{i['lo']}, {i['hi']}]"[:80] for i in header["inputs"]] + [" and ".join(header["modes"])]
    what = f"both compute the same, up to the rounding of sums; {len(units)} units removed; {'; '.join(terms)}"
    return Answer("proved", what, len(units))


# 1. The ledger, and what it states of tensors and units.

FIELDS = {
    "header": "arithmetic batch_size evidence fingerprint format inputs line model modes outputs prev tensors version",
    "cut": "after before cut difference folded groups line prev step tensors units witness",
    "unit": "at axis bound cut evidence index kind layer line margin modes prev step weight with",
    "input": "dtype hi lo name shape",
    "axis": "axis blocks original removed size tensor",
}


def read_ledger(path: Path) -> tuple[Line, Line, list[Line]]:
    """Header, cut and units, if every line is well-formed and has the hash of the line before."""
    lines, last = list[Line](), "0" * 64
    for number, text in enumerate(path.read_bytes().splitlines(), 1):
        line = json.loads(text)
        again, stated = json.dumps(line).encode(), line.pop("hash")  # of a key that is told twice, one is left
        form = "header" if number == 1 else "cut" if number == 2 else "unit"
        need(line["line"] != "cut" or number < 3, "this checker reads one cut; for several, use nodedrop verify RUN")
        fine = again == text and line["line"] == form and sorted(line) == FIELDS[form].split()
        require(fine, f"line {number} of the ledger is none of its format")
        chained = line["prev"] == last and stated == sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()
        require(chained, f"line {number} of the ledger does not follow from the line before: one was changed or lost")
        last, lines = stated, [*lines, line]
    need(len(lines) > 1, "the ledger has no cut: nothing was removed")
    header, cut, *units = lines
    require((header["format"], header["version"]) == ("nodedrop ledger", 1), "this is no nodedrop ledger of version 1")
    fine = {(line["cut"], line["step"]) for line in (cut, *units)} == {(1, cut["step"])} and cut["units"] == len(units)
    require(fine, f"the ledger has one cut of {len(units)} units, and states something else")
    return header, cut, units


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, each of which must have one name."""
    every = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    need(len({id(tensor) for _, tensor in every}) == len(every), "there is no rule for a tensor that has two names")
    return {name: tensor.detach().cpu() for name, tensor in every}


def fingerprint(tensors: dict[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and all bits."""
    total = sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {str(tensor.dtype)[6:]} {','.join(map(str, tensor.shape))}\n".encode())
        total.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return total.hexdigest()


def require_cut(header: Line, cut: Line, old: dict[str, Tensor], new: dict[str, Tensor]) -> dict[str, list[Array]]:
    """What stays along each axis of each tensor. With no more than that, the first model's tensors are the second's."""
    modes, batch, terms = header["modes"], header["batch_size"], header["arithmetic"]
    told, true = (header["fingerprint"], cut["before"], cut["after"]), (fingerprint(old), fingerprint(new))
    require(told == (true[0], *true), "the ledger speaks of another model: its fingerprints are not those of the two")
    shapes = {name: {"shape": list(t.shape), "dtype": str(t.dtype)[6:]} for name, t in old.items()}
    require(header["tensors"] == shapes, "the ledger states tensors of other shapes or types than the first model's")
    fine = modes and sorted({*modes} & {"eval", "train"}) == sorted(modes) and (batch is None or batch > 0)
    require(fine, f"the ledger states the modes {modes} and batches of {batch}")
    need(header["evidence"] == "proved", f"evidence '{header['evidence']}' is no proof, and here only proofs count")
    real = {str(t.dtype)[6:]: torch.finfo(t.dtype).eps / 2 for t in old.values() if t.is_floating_point()}
    fine = terms["lowest"] is None and real.keys() <= {"float32", "float64"}
    need(fine, "there are no rules here for arithmetic other than that of float32 and float64")
    require(terms == {"lowest": None, "unit_roundoff": real}, f"the ledger states other unit round-offs than {real}")
    plain = not cut["groups"] and not cut["folded"] and all(item["blocks"] == 1 for item in cut["tensors"])
    need(plain, "there are no rules here for constants folded into biases, nor for cuts of groups")
    keep = {name: [np.arange(n) for n in tensor.shape] for name, tensor in old.items()}
    for item in cut["tensors"]:
        name, axis, gone = item["tensor"], item["axis"], item["removed"]
        fine = sorted(item) == FIELDS["axis"].split() and len(keep[name][axis]) == item["size"] and axis >= 0
        fine = fine and gone and gone == sorted({*gone} & {*range(item["size"])}) and gone == item["original"]
        require(fine, f"the ledger's cut of '{name}' along axis {axis} is impossible, or told twice")
        keep[name][axis] = np.setdiff1d(keep[name][axis], gone)
    for name, value in old.items():
        for axis, stays in enumerate(keep[name]):
            value = value.index_select(axis, torch.from_numpy(stays))
        same = fingerprint({name: value}) == fingerprint({name: new[name]})
        require(same, f"'{name}' after the cut is not '{name}' before it without what the ledger removes")
    return keep


def require_units(header: Line, cut: Line, units: list[Line], walk: Walk) -> None:
    """Each unit that sums lack is told once, with all that goes with it, and kinds and bounds are those found."""
    gone = {(f"{item['tensor']}:{item['axis']}", index) for item in cut["tensors"] for index in item["removed"]}
    owns = [(f"{unit['weight']}:{unit['axis']}", unit["at"]) for unit in units]
    told = [{(key, index) for key, indices in unit["with"].items() for index in indices} for unit in units]
    fine = len(gone & {*owns}) == len(owns) and gone == set[Element]().union(*told)
    require(fine, "a unit is told twice or was not cut, or elements were cut for which no unit accounts")
    need({*owns} == walk.kinds.keys(), "the units of the ledger are not all those that sums were seen to lack")
    for own, unit, mine in zip(owns, units, told, strict=True):
        who, stated, weight = f"unit {unit['index']} of '{unit['layer']}'", unit["bound"], unit["weight"]
        fine = unit["layer"] in (weight, weight.rpartition(".")[0]) and (unit["margin"] or 0) >= 0
        fine &= (unit["index"], unit["evidence"], unit["modes"]) == (own[1], header["evidence"], header["modes"])
        require(fine, f"{who} is not made by '{weight}', or had another index, margin, evidence or modes")
        fine = mine & walk.ties.keys() == walk.ties[own] and unit["kind"] != "constant"  # no call meets the others
        need(fine, f"{who} is a constant, or told with what does not go with it")
        kinds = set[str]().union(*(walk.kinds.get(element, ()) for element in walk.ties[own]))
        require(unit["kind"] in kinds, f"{who} is said to be {unit['kind']}, and is {' and '.join(sorted(kinds))}")
        derived, size = walk.bounds.get(own, (INF, INF)) if unit["kind"] == "dead" else (INF, INF)
        slack = 2.0**-16 * size + 1e-12
        most = derived + slack if derived > 0 else min(derived + slack, 0.0)  # a bound above the edge proves nothing
        fine = stated is None if derived == INF else stated is not None and derived - slack <= stated <= most
        require(fine, f"{who} states a bound of {stated}, and its weights give {derived:.6g}")


# 2. Both modules in step, and the rules.


@dataclass(frozen=True)
class Value:
    """By channel: lo ≤ x ≤ hi, and its units, each with whether its activation is still to come. `keep` are left."""

    lo: Array
    hi: Array
    units: list[set[tuple[str, int, bool]]]
    keep: Array
    shape: tuple[int, ...] = ()


def read(module: nn.Module, inputs: Any, mode: str) -> Any:
    """A forward pass as `torch.export` tells it: calls of torch's operators, one after the other."""
    named = dict(inputs) if isinstance(inputs, dict) else {}
    args = () if named else tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(copy.deepcopy(module).train(mode == "train"), args, named, strict=False)
    except Exception as error:
        raise Stop("not proved", f"torch.export cannot read the module in {mode} mode: {error}"[:300]) from error


def ends(out: Tensor, w: Any, lo: Any, hi: Any, b: Any, k: int = 0) -> tuple[Array, Array]:
    """Both ends of Σ wᵢxᵢ + b in the arithmetic of `out`, for arrays [channels, terms]."""
    k = k or np.broadcast(w, lo).shape[1] + 2
    rows = list(zip(*np.broadcast_arrays(w, lo, hi), np.broadcast_to(b, out.shape[1]), strict=False))
    least, most = ([_most(out, s * w, lo, hi, s * float(b), k) for w, lo, hi, b in rows] for s in (-1, 1))
    return -np.array(least), np.array(most)


def _most(out: Tensor, w: Array, lo: Array, hi: Array, b: float, k: int) -> float:
    """The lemma's bound. Products and their sum are rounded upward; size and margin are off by less than 2⁻²⁰."""
    kind, terms = torch.finfo(out.dtype), np.maximum(w * lo, w * hi)
    far, ku = np.maximum(np.abs(lo), np.abs(hi)), k * kind.eps / 2
    size, small = float((np.abs(w) * far).sum()) + abs(b), (2 * k + float((np.abs(w) + far).sum())) * kind.tiny
    margin = (ku / (1 - ku) * size + small) * (1 + 2.0**-20) if ku < 1 else INF
    if not size + margin <= kind.max:  # a partial sum may overflow
        return INF
    total = math.nextafter(math.fsum([*np.nextafter(terms, INF).tolist(), b, margin]), INF)
    return total if terms.max(initial=b) > 0 else min(total, 0.0)


class Walk:
    """Both modules, call by call. By unit, `bounds` are the most that can enter its activation, with the size of that,
    and `kinds` what it was where a sum lacks it. `ties` are elements that go together. Methods with `out` are rules."""

    def __init__(self, header: Line, tensors: dict[str, Tensor], keep: dict[str, list[Array]]) -> None:
        self.header, self.tensors, self.keep, self.where = header, tensors, keep, ""
        self.bounds: dict[Element, tuple[float, float]] = {}
        self.kinds, self.ties = dict[Element, set[str]](), dict[Element, set[Element]]()

    @np.errstate(all="ignore")  # ends may be infinite
    def relate(self, first: Any, second: Any) -> None:
        """B = A[:, keep], from inputs to outputs."""
        signatures = (program.graph_signature.input_specs for program in (first, second))
        leaves, others = ({spec.arg.name: (spec.kind, spec.target) for spec in specs} for specs in signatures)
        same = leaves == others and first.call_spec == second.call_spec
        need(same and len(first.graph.nodes) == len(second.graph.nodes), "the two modules do not make the same calls")
        inputs = [name for name, (kind, _) in leaves.items() if kind is InputKind.USER_INPUT]
        require([i["name"] for i in self.header["inputs"]] == inputs, f"the ledger names other inputs than {inputs}")
        values, twins = dict[Any, Any](), dict[Any, Any]()
        for a, b in zip(first.graph.nodes, second.graph.nodes, strict=True):
            path = [item[0] for item in a.meta.get("nn_module_stack", {}).values()]
            self.where, op, twins[b] = f"{a.target} in '{path[-1] if path else ''}'", str(a.target), a
            args, theirs = (a.args, a.kwargs), map_arg((b.args, b.kwargs), twins.get)
            if RULES.get(op) == "reshape":  # sizes may differ; the shape that comes out is looked at
                args, theirs = a.args[:1], theirs[0][:1]
            need((a.op, op, args) == (b.op, str(b.target), theirs), f"{self.where} differs in the second module")
            args, kwargs = map_arg((a.args, a.kwargs), values.get)
            out, other = a.meta.get("val"), b.meta.get("val")
            if a.op == "placeholder" and leaves[op][0] in (InputKind.PARAMETER, InputKind.BUFFER):
                values[a] = leaves[op][1]
            elif a.op != "output":
                rule = "input" if op in inputs else RULES.get(op, "")
                fine = isinstance(out, Tensor) and out.dim() > 1 and out.dtype in (torch.float32, torch.float64)
                need(rule and fine, f"there is no rule for {self.where}")
                try:
                    values[a] = x = replace(getattr(self, rule)(out, *args or (op,), **kwargs), shape=tuple(out.shape))
                except ERRORS as error:
                    raise Stop("not proved", f"there is no rule for such a use of {self.where}: {error}") from error
                shape = (out.shape[0], len(x.keep), *out.shape[2:])
                fine = len(x.lo) == out.shape[1] and (tuple(other.shape), other.dtype) == (shape, out.dtype)
                need(fine, f"there is no rule for the shape or type that {self.where} results in")
        need(all(isinstance(x, Value) and len(x.keep) == len(x.lo) for x in args[0]), "an output lacks channels")
        require(str(self.header["outputs"]) == str([list(x.shape) for x in args[0]]), "the ledger states other outputs")

    def numbers(self, name: str, axis: int, keep: Array, units: list[set[tuple[str, int, bool]]]) -> Array:
        """A tensor that along an axis has lost just what it meets, with those units, and is whole along positions."""
        array: Array = self.tensors[name].double().numpy()
        whole = [len(stays) for stays in self.keep[name][2:]] == list(array.shape[2:]) and np.isfinite(array).all()
        fine = whole and np.array_equal(self.keep[name][axis], keep)
        need(fine, f"{self.where}: '{name}' has lost other channels than it meets, or is not finite")
        for index in np.setdiff1d(np.arange(len(units)), keep).tolist():
            mine = ((f"{name}:{axis}", index), *((key, at) for key, at, _ in units[index]))
            *less, most = sorted((self.ties.setdefault(element, {element}) for element in mine), key=len)
            most.update(*less)
            self.ties |= dict.fromkeys([element for group in less for element in group], most)
        return array

    def input(self, out: Tensor, name: str) -> Value:
        line, rest = next(i for i in self.header["inputs"] if i["name"] == name), (0, *range(2, out.dim()))
        fine = (line["shape"], line["dtype"]) == (list(out.shape), str(out.dtype)[6:])
        require(fine and sorted(line) == FIELDS["input"].split(), f"the ledger states another input '{name}'")
        box = [np.array(end if line[key] is None else line[key], object) for key, end in (("lo", -INF), ("hi", INF))]
        fine = all({*map(type, end.flat)} <= {int, float} and (end.ndim != 1 or out.dim() == 2) for end in box)
        need(fine, f"there is no rule for such a box of '{name}', or it has no numbers")
        lo, hi = (np.broadcast_to(end.astype(float), out.shape) for end in box)
        require((lo <= hi).all(), f"the ledger's box of '{name}' is empty")
        return Value(lo.min(rest), hi.max(rest), [set() for _ in range(out.shape[1])], np.arange(out.shape[1]))

    def sum(self, out: Tensor, x: Value, weight: str, bias: Any = None, _: Any = 1, pad: Any = 0, *rest: Any) -> Value:
        """A linear layer or convolution, where channels may vanish. Windows that reach over the border read zeros."""
        w, rows = self.numbers(weight, 1, x.keep, x.units), self.keep[weight][0]
        units = [{(f"{weight}:0", row, True)} for row in range(len(w))]
        b = 0.0 if bias is None else self.numbers(bias, 0, rows, units)
        need(rest[1:] in ((), (1,)) and w.ndim == len(x.shape), f"there is no rule for groups or axes of {self.where}")
        for index in sorted({*range(len(x.lo))} - {*x.keep.tolist()}):
            dead, gone = x.lo[index] == x.hi[index] == 0, sorted((key, at) for key, at, _ in x.units[index])
            what = f"{self.where} reads {gone}, which was removed and may be as large as {x.hi[index]:.4g}"
            need(dead or not w[rows, index].any(), what)
            for unit in gone:
                self.kinds.setdefault(unit, set()).add("dead" if dead else "unread")
        padded = pad != "valid" if isinstance(pad, str) else np.any(pad)
        lo, hi = np.repeat((np.minimum(x.lo, 0), np.maximum(x.hi, 0)) if padded else (x.lo, x.hi), w[0, 0].size, 1)
        return Value(*ends(out, w.reshape(len(w), -1), lo, hi, b), units, rows)

    def norm(self, out: Tensor, x: Value, *args: Any) -> Value:
        """Batch norm by running statistics, s·(x − m) + b, of 16 roundings at most. A factor of 0 leaves b as it is."""
        need(not args[4], f"there is no rule for the statistics of a batch: {self.where}")
        given = zip(args[:4], (1.0, 0.0, 0.0, 1.0), strict=True)  # numbers, and what stands for those that are missing
        g, b, m, v = (np.full(len(x.lo), d) if n is None else self.numbers(n, 0, x.keep, x.units) for n, d in given)
        small, s = 2.0**64 * torch.finfo(out.dtype).tiny, g / np.sqrt(v + args[6])
        fine = (v >= 0).all() and (v + args[6] > small).all() and (np.abs([g, m, s]) < 2.0**40).all()
        need(fine, f"there is no rule for such extreme numbers: {self.where}")
        lo, hi = ends(out, s[:, None], np.stack([x.lo, -m], 1), np.stack([x.hi, -m], 1), b, 16)
        spare = small * (1 + np.abs(m) + np.maximum(np.abs(x.lo), np.abs(x.hi)))  # what was flushed meets 2⁴⁰ or x − m
        return replace(x, lo=np.where(g == 0, b, lo - spare), hi=np.where(g == 0, b, hi + spare))

    def clip(self, out: Tensor, x: Value, *limits: float | None) -> Value:
        """min(most, max(least, x)), with an operator's own limits where none are given."""
        limits += LIMITS.get(self.where.split()[0], (0.0, INF))[len(limits) :]
        low, high = (end if limit is None else limit for limit, end in zip(limits, (-INF, INF), strict=True))
        exact = all(torch.tensor(end, dtype=out.dtype).item() == end for end in (low, high))
        need(exact, f"there is no rule for limits that are rounded: {self.where}")
        lo, hi = (np.minimum(np.maximum(end, low), high) for end in (x.lo, x.hi))
        return self.active(x, lo, hi) if low == 0 else replace(x, lo=lo, hi=hi)

    def soft(self, out: Tensor, x: Value, beta: float) -> Value:
        """SoftClampedReLU, max(0, 1 − log(1 + exp(β(1 − v)))/β): 0 up to 0, and off by 32 u of it at most."""
        need(1e-3 <= beta <= 1e6, f"there is no rule for a slope of {beta}: {self.where}")
        lo, hi = (np.minimum(v, 1) - np.log1p(np.exp(-beta * np.abs(1 - v))) / beta for v in (x.lo, x.hi))
        off, noise = 16 * torch.finfo(out.dtype).eps, 2.0**-48 * (1 + 1 / beta)  # that of kernels, and ours
        hi = np.where(x.hi <= 0, 0, np.clip(hi * (1 + off) + noise, 0, 1))
        return self.active(x, np.clip(lo * (1 - off) - noise, 0, 1), hi)

    def active(self, x: Value, lo: Array, hi: Array) -> Value:
        """Behind an activation that is 0 up to 0, which is where units have their bounds."""
        for low, top, units in zip(x.lo.tolist(), x.hi.tolist(), x.units, strict=True):
            for key, at in ((key, at) for key, at, waits in units if waits):
                self.bounds[key, at] = max(self.bounds.get((key, at), (-INF, 0.0)), (top, max(abs(low), abs(top))))
        return replace(x, lo=lo, hi=hi, units=[{(key, at, False) for key, at, _ in units} for units in x.units])

    def pool(self, out: Tensor, x: Value, window: Any, stride: Any = (), pad: Any = 0, *rest: Any) -> Value:
        """A maximum, or a mean of n at most, among them zeros around the image."""
        largest, adaptive = (self.where.startswith(f"aten.{kind}") for kind in ("max", "adaptive"))
        fine = np.all(np.array(rest[:1]) == 1) if largest else len(rest) < 3  # no dilation; no divisor of its own
        need(fine and len(x.shape) == len(window) + 2, f"there is no rule for such a use of {self.where}")
        n = math.prod(x.shape[2:] if adaptive else window)
        lo, hi = (np.minimum(x.lo, 0), np.maximum(x.hi, 0)) if np.any(pad) else (x.lo, x.hi)
        lo, hi = ends(out, n, lo[:, None], hi[:, None], 0.0, n + 4)
        return x if largest else replace(x, lo=lo / n, hi=hi / n)

    def add(self, out: Tensor, x: Value, y: Value, alpha: float = 1) -> Value:
        need(alpha == 1 and x.shape == y.shape and np.array_equal(x.keep, y.keep), f"there is no rule for {self.where}")
        lo, hi = ends(out, 1.0, np.stack([x.lo, y.lo], 1), np.stack([x.hi, y.hi], 1), 0.0)
        return replace(x, lo=lo, hi=hi, units=[one | two for one, two in zip(x.units, y.units, strict=True)])

    def cat(self, out: Tensor, parts: list[Value], dim: int = 0) -> Value:
        need(dim in (1, 1 - out.dim()), f"there is no rule for {self.where} along axis {dim}")
        starts = np.cumsum([0, *(len(x.lo) for x in parts)])
        keep = np.concatenate([x.keep + start for x, start in zip(parts, starts, strict=False)])
        lo, hi = np.concatenate([x.lo for x in parts]), np.concatenate([x.hi for x in parts])
        return Value(lo, hi, [units for x in parts for units in x.units], keep)

    def reshape(self, out: Tensor, x: Value, *sizes: Any) -> Value:
        """Each position of a channel becomes a channel."""
        n = math.prod(x.shape[2:])
        need(out.shape == (x.shape[0], x.shape[1] * n), f"there is no rule for the shape that {self.where} makes")
        keep = (x.keep[:, None] * n + np.arange(n)).reshape(-1)
        return Value(np.repeat(x.lo, n), np.repeat(x.hi, n), [units for units in x.units for _ in range(n)], keep)

    def dropout(self, out: Tensor, x: Value, p: float = 0.0, train: bool = False, **kwargs: Any) -> Value:
        """Dropout, or a copy, which drops nothing."""
        lo, hi = np.minimum(x.lo, 0)[:, None], np.maximum(x.hi, 0)[:, None]
        lo, hi = ends(out, 1 / (1 - p), lo, hi, 0.0, 8) if train and p else (x.lo, x.hi)
        return replace(x, lo=lo, hi=hi)


LIMITS = {"aten.hardtanh.default": (-1.0, 1.0), "aten.relu6.default": (0.0, 6.0)}
RULES = {
    "aten.linear.default": "sum", **{f"aten.conv{n}d.{form}": "sum" for n in (1, 2) for form in ("default", "padding")},
    **{f"aten.{kind}_pool{n}d.default": "pool" for kind in ("max", "avg", "adaptive_avg") for n in (1, 2)},
    **{f"aten.{name}.default": "dropout" for name in ("dropout", "feature_dropout", "clone", "detach", "contiguous")},
    "aten.flatten.using_ints": "reshape", "aten.view.default": "reshape", "aten.reshape.default": "reshape",
    **{f"aten.{name}.default": "clip" for name in ("relu", "relu6", "hardtanh", "clamp")}, "aten.add.Tensor": "add",
    "aten.batch_norm.default": "norm", "nodedrop.soft_clamped_relu.default": "soft", "aten.cat.default": "cat",
}  # fmt: skip
