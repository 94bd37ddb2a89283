"""Two programs in step: every value of the second is the first's value without some of its elements.

A value of the program before is related to its counterpart by indices along each axis: B = A[np.ix_(*keep)]. Each
operator must carry the relation over. The one place where elements vanish is a sum, and there each missing term must
be 0 for all inputs of the domain: because the element is 0, because the weights that stay do not read it, or because
it is a constant that the bias after the cut contains. If the outputs are related by keeping everything, both programs
compute the same, up to the rounding of shorter sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch

from . import sums as _sums  # noqa: F401  (registers its rules)
from .arrays import MOVES, alike, compact, grid, keeps_rows, refs, run, told, whole
from .calls import RULES, Call, axes_of
from .casts import met
from .interval import INF, Array, Value, between, known, unbounded
from .layers import convolution, lost, product, recurrent
from .pairs import (
    ALONG,
    EACH,
    INNER,
    PER_CHANNEL,
    PRODUCTS,
    RECURRENT,
    REDUCTIONS,
    STATISTICS,
    Assumptions,
    Findings,
    Keep,
    Leaf,
    NotProved,
    Pair,
    Pairs,
    arithmetic,
    axes_left,
    mask_of,
    matched_units,
)
from .program import Program, Ref, Step
from .rounding import note_rounding
from .tags import meet, tags_after, tags_of, units_at
from .ties import note_ties

Hints = Mapping[str, Mapping[int, Array]]


def relate(before: Program, after: Program, given: Assumptions, hints: Hints) -> Findings:
    """Walk both programs; raises NotProved where the relation breaks."""
    ends = [(program.returned, program.written, program.counts) for program in (before, after)]
    if ends[0] != ends[1] or [s.op for s in before.steps] != [s.op for s in after.steps]:
        raise NotProved("the two modules do not make the same calls in the same order")
    walk = Walk(before, after, given, hints)
    for place in range(len(before.steps)):
        try:
            walk.values.append(walk.step(place))
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise NotProved(f"{walk.place} is used in a way that cannot be followed here: {error}") from error
    walk.place = "the output"
    for place in before.outputs:
        for pair in walk.values[place]:
            walk.require(walk.settled(pair))
    for name, place in before.written.items():
        walk.place = f"what is written to '{name}'"
        walk.findings.kept.setdefault(name, []).append(walk.settled(walk.values[place][0]).keep)
    walk.findings.written.update(before.written, before.counts)
    return walk.findings


def lasting(programs: Iterable[Program]) -> list[Program]:
    """One module in several modes. What one of them overwrites none can rely on, but for the statistics of norms, which
    are those given: evaluation is about a model as it is."""
    listed = list(programs)
    norms = [(p, ref) for p in listed for s in p.steps for n in STATISTICS if isinstance(ref := s.args.get(n), Ref)]
    given = {program.steps[ref.place].args.get("name") for program, ref in norms}
    names = {name for program in listed for name in (*program.written, *program.counts)} - given

    def told(step: Step) -> Step:
        return replace(step, op="changing") if step.op == "tensor" and step.args["name"] in names else step

    return [replace(program, steps=tuple(map(told, program.steps))) for program in listed]


def require_lasting(found: Findings) -> None:
    """What a pass of any mode overwrites is read by the next one, in any mode, as it was written."""
    for name in sorted(found.written & found.kept.keys()):
        told = {None if keep is None else tuple(tuple(axis.tolist()) for axis in keep) for keep in found.kept[name]}
        if None in told or len(told) > 1:
            raise NotProved(f"what is written to '{name}' has lost other elements than what was read there")


class Walk:
    """Both programs, as far as they have been read."""

    def __init__(self, before: Program, after: Program, given: Assumptions, hints: Hints) -> None:
        self.before, self.after, self.given, self.hints = before, after, given, hints
        self.values: list[list[Pair]] = []
        self.findings, self.place = Findings(), "the start"
        self.leaves = dict[str, Pair]()

    def step(self, place: int) -> list[Pair]:
        """The pairs that one call results in."""
        a, b = self.before.steps[place], self.after.steps[place]
        if a.op in ("tensor", "changing", "input"):
            return [self.input(a, b) if a.op == "input" else self.leaf(a, b)]
        self.place = f"{a.op}{a.where}"
        kinds = [[None if result is None else result[1] for result in step.results] for step in (a, b)]
        if refs(a.args) != refs(b.args) or kinds[0] != kinds[1] or None in kinds[0]:
            raise NotProved(f"{self.place} reads or results in something else in the second module")
        if a.op == "getitem":
            self.same(a, b)
            return [self.values[a.args["0"].place][int(a.args["1"])]]
        if a.op in MOVES:
            return self.moved(a, b)
        pairs, keep = self.related(a, b, {n: self.values[v.place][0] for n, v in a.args.items() if isinstance(v, Ref)})
        if tuple(map(len, keep)) != b.results[0][0] and self.given.known is None:  # type: ignore[index]
            raise NotProved(f"{self.place} has another shape in the second module")
        value = self.bounded(a, pairs)
        meet(self.findings, a, pairs)
        call = self.call(a)
        tagged = replace(value, tags=tags_after(call, a, pairs, value))
        note_ties(self.findings, call, a, pairs, tagged, keep)
        if self.given.known is None:
            note_rounding(self.findings, call, a, pairs, tagged)
        pair = Pair(tagged, keep, None, max(call.arithmetic.u, 2.0**-53))
        others = [(k, result[0]) for k, result in enumerate(a.results) if k and result is not None]
        return [pair, *(self.beside(a, k, shape, pair) for k, shape in others)]

    @staticmethod
    def beside(a: Step, k: int, shape: tuple[int, ...], main: Pair) -> Pair:
        """Another result: a mask of the first one's shape, statistics per channel, a state; others are not known."""
        if shape == main.value.shape and a.op not in RECURRENT:
            return Pair(unbounded(shape), main.keep)
        if a.op in RECURRENT:  # the last state is one of those returned, a cell is not
            ends = (float(main.value.lo.min()), float(main.value.hi.max())) if k == 1 else (-INF, INF)
            return Pair(between(*ends, shape), tuple(np.arange(n) for n in shape))
        channels = "batch_norm" in a.op and shape == main.value.shape[1:2]
        return Pair(unbounded(shape), main.keep[1:2] if channels else tuple(np.zeros(0, int) for _ in shape))

    def leaf(self, a: Step, b: Step) -> Pair:
        """A tensor of both modules, by its name."""
        name = a.args["name"]
        if name != b.args["name"] or name not in self.before.tensors or name not in self.after.tensors:
            raise NotProved(f"the tensor '{name}' is not in both modules")
        if a.results[0][1] != b.results[0][1]:  # type: ignore[index]
            raise NotProved(f"the tensor '{name}' is of another type in the second module")
        if self.given.known is not None:
            nothing = np.zeros(0)
            value = self.given.known.get(name, unbounded(a.results[0][0]))  # type: ignore[index]
            value = replace(value, tags=tags_of(name, value.shape)) if a.op == "tensor" else unbounded(value.shape)
            return Pair(value, (), Leaf(name, nothing, nothing, stated=True))
        if name not in self.leaves:
            tensors = [p.tensors[name].detach().cpu() for p in (self.before, self.after)]
            if any(tensor.is_complex() for tensor in tensors):
                raise NotProved(f"there is no rule for the complex tensor '{name}'")
            old, new = ((t.double() if t.is_floating_point() else t).numpy() for t in tensors)
            # what the pass overwrites has another value in the next one
            value = known(old.astype(float), tags_of(name, old.shape)) if a.op == "tensor" else unbounded(old.shape)
            self.leaves[name] = Pair(value, (), Leaf(name, old, new))
        return self.leaves[name]

    def input(self, a: Step, b: Step) -> Pair:
        """An input, in its box."""
        if a.results != b.results or a.results[0] is None or a.args["name"] not in self.given.boxes:
            raise NotProved("the modules take other inputs")
        lo, hi = self.given.boxes[a.args["name"]]
        return Pair(Value(lo, hi, a.results[0][0]), tuple(np.arange(n) for n in a.results[0][0]))

    def settled(
        self, pair: Pair, wanted: Mapping[int, Array] | None = None, bias: Pair | None = None, signed: bool = True
    ) -> Pair:
        """A value with the wanted indices. Those of a leaf that nobody wants are the stated ones, or are found by
        comparing numbers, also of a bias; whatever they are, the second module's numbers must be the first's there.
        The sign of a zero is not told by a sum that it is a term or a weight of."""
        if pair.leaf is None:
            if any(not np.array_equal(pair.keep[axis], keep) for axis, keep in (wanted or {}).items()):
                raise NotProved(f"{self.place}: values that meet have lost different elements")
            return pair
        if pair.leaf.stated:
            given = self.hints.get(pair.leaf.name, {})
            if INNER in given:
                raise NotProved(f"{self.place} reads '{pair.leaf.name}', of whose groups different parts were removed")
            keep = tuple(given.get(d, np.arange(n)) for d, n in enumerate(pair.value.shape))
            self.findings.note_kept(pair, keep)
            return self.settled(replace(pair, keep=keep, leaf=None), wanted)
        leaf, sizes = pair.leaf, pair.leaf.before.shape
        axes = {d: keep for d, keep in self.hints.get(leaf.name, {}).items() if d != INNER} | dict(wanted or {})
        axes |= {d: np.arange(n) for d, n in enumerate(sizes) if d not in axes and n == leaf.after.shape[d]}
        loose = [d for d in range(len(sizes)) if d not in axes]
        if len(loose) == 1:
            others = leaf.before[np.ix_(*(axes.get(d, np.arange(n)) for d, n in enumerate(sizes)))]
            there, here = np.moveaxis(others, loose[0], 0), np.moveaxis(leaf.after, loose[0], 0)
            axes[loose[0]] = matched_units(there, here, None if bias is None else bias.leaf)
        keep = tuple(axes.get(d, np.zeros(0, int)) for d in range(len(sizes)))
        if not alike(leaf.before[np.ix_(*keep)] if keep else leaf.before, leaf.after, signed):
            raise NotProved(f"{self.place}: '{leaf.name}' of the second module is not the first's without some units")
        self.findings.note_kept(pair, keep)
        return replace(pair, keep=keep)

    def require(self, pair: Pair, axes: Iterable[int] | None = None) -> None:
        """Nothing may be missing along some axes, or all."""
        for axis in range(len(pair.value.shape)) if axes is None else axes:
            if not whole(pair.keep[axis], pair.value.shape[axis]):
                raise NotProved(f"{self.place} needs all elements along axis {axis}, and some were removed")

    def same(self, a: Step, b: Step, but: str = "") -> None:
        """What is no tensor must be the same for both."""
        first, second = (told({k: v for k, v in s.args.items() if k != but}) for s in (a, b))
        if first != second:
            raise NotProved(f"{self.place} has other arguments in the second module")

    def related(self, a: Step, b: Step, pairs: Pairs) -> tuple[Pairs, Keep]:
        """Operands with settled indices, and the indices of the result."""
        name = a.op.split(".")[0]
        if a.op in PRODUCTS:
            return product(self, a, b, pairs)
        if a.op in RECURRENT:
            return recurrent(self, a, b, pairs)
        if "conv" in a.op and a.op in RULES:
            return convolution(self, a, b, pairs)
        self.same(a, b)
        if a.op in EACH:
            return self.each(a, pairs)
        first = next((n for n in ("input", "self") if n in pairs), "")
        if first and (ALONG.fullmatch(name) or PER_CHANNEL.fullmatch(name)):
            return self.along(a, name, pairs, first)
        if a.op == "embedding.default":
            table, index = self.settled(pairs["weight"]), self.settled(pairs["indices"])
            self.require(index)
            self.require(table, [0])
            self.findings.gone.update(frozenset([u]) for k in lost(table, 1) for u in units_at(table.value, 1, k))
            return {"weight": table, "indices": index}, (*index.keep, table.keep[1])
        return self.untouched(a, b, pairs)

    def untouched(self, a: Step, b: Step, pairs: Pairs) -> tuple[Pairs, Keep]:
        """An operator that is not known here computes the same if it reads the same."""
        self.findings.unknown |= {a.op} - set(RULES)
        if not callable(a.run) or a.results != b.results:
            raise NotProved(f"{self.place} reads or results in something else in the second module")
        if "as_strided" in a.op:  # what lies there beside its operand may be gone
            raise NotProved(f"{self.place} reads memory, of which nothing is known")
        self.same(a, b)
        for place in refs(a.args):
            for pair in self.values[place]:
                self.require(self.settled(pair))
        settled = {name: self.settled(pair) for name, pair in pairs.items()}
        return settled, tuple(np.arange(n) for n in a.results[0][0])  # type: ignore[index]

    def each(self, a: Step, pairs: Pairs) -> tuple[Pairs, Keep]:
        """Elements meet one by one: operands must have kept the same ones along every axis they share."""
        shape = a.results[0][0]  # type: ignore[index]
        keep: dict[int, Array] = {}
        found: Pairs = {}
        for name, pair in sorted(pairs.items(), key=lambda item: item[1].leaf is not None):
            lead = len(shape) - len(pair.value.shape)
            wide = [d for d, n in enumerate(pair.value.shape) if n > 1]
            found[name] = self.settled(pair, {d: keep[d + lead] for d in wide if d + lead in keep})
            keep |= {d + lead: found[name].keep[d] for d in wide}
        return found, tuple(keep.get(d, np.arange(n)) for d, n in enumerate(shape))

    def along(self, a: Step, name: str, pairs: Pairs, first: str) -> tuple[Pairs, Keep]:
        """Operators that work along some axes, of which nothing may be missing; per channel, all but that one."""
        main = self.settled(pairs[first])
        rank, shape = len(main.keep), a.results[0][0]  # type: ignore[index]
        others: Pairs = {}
        windows = next((int(c) for c in name if c.isdigit()), 0) if "norm" not in name else 0
        if windows:
            axes = list(range(rank - windows, rank))
            keep = (*main.keep[:-windows], *(np.arange(n) for n in shape[-windows:]))
            others = self.wholes(pairs, first)
        elif PER_CHANNEL.fullmatch(name):
            axes, keep = [d for d in range(rank) if d != 1], main.keep
            for word, pair in pairs.items():
                if word != first:
                    size = pair.value.shape[0] if pair.value.shape else 0
                    others[word] = self.settled(pair, {0: main.keep[1]} if size == main.value.shape[1] else None)
                    if word in STATISTICS and pair.leaf is not None:  # which training overwrites, and tells nobody
                        self.findings.written.add(pair.leaf.name)
        else:
            length = len(a.args.get("normalized_shape", ()))
            axes = list(range(rank - length, rank)) if length else list(axes_of(a.args, rank))
            keep = main.keep
            others = self.wholes(pairs, first)
            if "pad" in name:
                keep = tuple(np.arange(shape[d]) if d in axes else k for d, k in enumerate(keep))
            if name in REDUCTIONS:
                kept = [np.arange(1) if d in axes else k for d, k in enumerate(keep)]
                keep = tuple(k for d, k in enumerate(kept) if a.args.get("keepdim") or d not in axes)
        self.require(main, axes)
        return {**others, first: main}, keep

    def wholes(self, pairs: Pairs, first: str) -> Pairs:
        """Operands beside the first one, of which nothing may be missing."""
        found = {word: self.settled(pair) for word, pair in pairs.items() if word != first}
        for pair in found.values():
            self.require(pair)
        return found

    def call(self, a: Step) -> Call:
        """What a rule must know about a use of its operator."""
        shape, dtype = a.results[0]  # type: ignore[misc]
        epsilon, lowest = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0, self.given.lowest
        types = tuple(d for d in (dtype, lowest) if d is not None and d.is_floating_point)
        types += () if types == (torch.float64,) else (torch.float32,)  # in which halves are computed with
        last = any(self.before.steps[place].last for place in refs(a.args))
        return Call(a.op, shape, arithmetic(dtype, lowest), self.given.growth, lowest is not None, epsilon, types, last)

    def bounded(self, a: Step, pairs: Mapping[str, Pair]) -> Value:
        """The interval of a call's first result."""
        call = self.call(a)
        listed = any(isinstance(v, list) and refs(v) for v in a.args.values())
        if a.op not in RULES or (listed and a.op not in (*RECURRENT, "index.Tensor")):
            return unbounded(call.shape)
        if not a.results[0][1].is_floating_point:  # type: ignore[index]
            return unbounded(call.shape)  # whole numbers wrap around
        layer = a.op == "linear.default" or "conv" in a.op or "norm" in a.op
        partly = ("weight", "bias", "running_mean", "running_var") if layer else ("self",) * (a.op == "addmm.default")
        values = {n: p.value if n in partly else p.value.sure for n, p in pairs.items()}
        for name, operand in a.args.items():
            if name in values and isinstance(operand, Ref):
                kinds = [step.results[0][1] for step in (self.before.steps[operand.place], a)]  # type: ignore[index]
                values[name] = met(values[name], kinds[0], kinds[1], self.given.lowest)
        if "norm" in a.op and any(v.rows is not None for v in values.values()):
            return unbounded(call.shape)
        args = {n: values[n] if n in pairs else v for n, v in a.args.items()}
        with np.errstate(all="ignore"):
            found = RULES[a.op](call, args)
        if np.isnan(found.lo).any() or np.isnan(found.hi).any():
            lo, hi = np.where(np.isnan(found.lo), -INF, found.lo), np.where(np.isnan(found.hi), INF, found.hi)
            return replace(found, lo=lo, hi=hi)
        return found

    def moved(self, a: Step, b: Step) -> list[Pair]:
        """An operator that only moves elements is run as it is: on intervals, on units, and on indices."""
        if a.args.get("memory_format") != b.args.get("memory_format"):
            raise NotProved(f"{self.place} leaves another order in memory in the second module")
        operands = [self.settled(self.values[place][0]) for place in refs(a.args)]
        kinds = [self.before.steps[place].results[0][1] for place in refs(a.args)]  # type: ignore[index]
        same = all(kind == a.results[0][1] for kind in kinds)  # type: ignore[index]
        values = [p.value.sure if same else replace(unbounded(p.value.shape), tags=p.value.tags) for p in operands]
        ends = np.cumsum([0] + [int(np.prod(v.shape)) for v in values]).tolist()
        numbers = [np.arange(ends[k], ends[k + 1]).reshape(v.shape) for k, v in enumerate(values)]
        origins = run(a, numbers)
        if self.given.known is None:
            lefts = run(b, [n[np.ix_(*p.keep)] if p.keep else n for n, p in zip(numbers, operands, strict=True)])
        else:
            masks = run(a, [mask_of(p.keep, p.value.shape) for p in operands])
            lefts = [o[np.ix_(*axes_left(m))] if o.ndim else o for o, m in zip(origins, masks, strict=True)]
            if any(int(mask.sum()) != left.size for mask, left in zip(masks, lefts, strict=True)):
                raise NotProved(f"{self.place} leaves something that is no whole tensor")
        exact = all(v.exact for v in values)
        lows = run(a, [np.broadcast_to(v.lo, v.shape) for v in values])
        highs = lows if exact else run(a, [np.broadcast_to(v.hi, v.shape) for v in values])
        tags = {}
        for key in dict.fromkeys(key for v in values for key, _ in v.tags):
            each = [dict(v.tags).get(key, np.full((1,) * len(v.shape), -1)) for v in values]
            tags[key] = run(a, [np.broadcast_to(t, v.shape) for t, v in zip(each, values, strict=True)])
        found = []
        for k, (origin, left) in enumerate(zip(origins, lefts, strict=True)):
            keep = grid(origin, left)
            if keep is None:
                raise NotProved(f"{self.place} brings elements to other places in the second module")
            lo, hi = (lows[k], lows[k]) if exact else np.broadcast_arrays(compact(lows[k]), compact(highs[k]))
            value = Value(lo, hi, origin.shape, tags=tuple((key, compact(t[k])) for key, t in tags.items()))
            if len(values) == 1 and values[0].shape and keeps_rows(origin, values[0].shape[-1]):
                value = replace(value, ball=values[0].ball, mix=values[0].mix)
            found.append(Pair(value, keep, None, max((p.u for p in operands), default=2.0**-53)))
        return found
