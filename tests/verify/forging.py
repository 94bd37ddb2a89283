"""Forged ledgers: a true one, changed in a way that makes it state something else.

Chains are mended after the change, unless the forgery is of the chain: whoever changes a line can compute hashes.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from nodedrop.ledger import line_hash

Lines = list[dict[str, Any]]
Forgery = Callable[[Lines, random.Random], str]


def mended(lines: Lines) -> Lines:
    """Lines with a chain that is whole."""
    last = "0" * 64
    for line in lines:
        line["prev"] = last
        last = line["hash"] = line_hash(line)
    return lines


def read(path: Path) -> Lines:
    return [json.loads(text) for text in path.read_text().splitlines()]


def write(path: Path, lines: Lines) -> Path:
    path.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
    return path


def _units(lines: Lines) -> Lines:
    return [line for line in lines if line["line"] == "unit"]


def _cut(lines: Lines) -> dict[str, Any]:
    return next(line for line in lines if line["line"] == "cut")


def merge(lines: Lines) -> None:
    """One line for two units: the ledger counts one too few."""
    other = lines.pop(3)
    lines[2]["with"] = {key: sorted(lines[2]["with"][key] + other["with"][key]) for key in other["with"]}
    lines[1]["units"] -= 1


def swap(lines: Lines) -> None:
    """Each of two units is told with the bias of the other."""
    one, two = lines[2]["with"], lines[3]["with"]
    one["0.bias:0"], two["0.bias:0"] = two["0.bias:0"], one["0.bias:0"]


def borrow(lines: Lines) -> None:
    """A unit that fires, and which nobody reads, is called dead, by an element of one that is."""
    alive, dead = (next(unit for unit in lines[2:] if unit["kind"] == kind) for kind in ("unread", "dead"))
    alive["with"] = {key: sorted(indices + dead["with"].get(key, [])) for key, indices in alive["with"].items()}
    alive.update(kind="dead", bound=9.0)


def bound(lines: Lines, rng: random.Random) -> str:
    unit = rng.choice([u for u in _units(lines) if u["bound"] is not None])
    true = unit["bound"]
    unit["bound"] = rng.choice([true * 0.5 - 0.01, true * 2 - 0.01, -1e9, -1e-3 * rng.random(), None])
    return "a bound was edited"


def margin(lines: Lines, rng: random.Random) -> str:
    unit = rng.choice([u for u in _units(lines) if u["margin"] is not None])
    unit["margin"] = rng.choice([-1.0, -1e6, -unit["margin"] - 1e-9])
    return "a margin was edited"


def kind(lines: Lines, rng: random.Random) -> str:
    unit = rng.choice(_units(lines))
    unit["kind"] = rng.choice([k for k in ("dead", "constant", "unread") if k != unit["kind"]])
    unit["bound"] = None if unit["kind"] == "unread" else unit["bound"]
    return "a unit is said to have gone for another reason"


def swapped(lines: Lines, rng: random.Random) -> str:
    """The unit says it is another one, which stayed."""
    cut, unit = _cut(lines), rng.choice(_units(lines))
    key = f"{unit['weight']}:{unit['axis']}"
    size = next(i["size"] for i in cut["tensors"] if f"{i['tensor']}:{i['axis']}" == key)
    gone = next(i["removed"] for i in cut["tensors"] if f"{i['tensor']}:{i['axis']}" == key)
    other = rng.choice([k for k in range(size) if k not in gone])
    mine = unit["at"]
    unit["at"] = unit["index"] = other
    unit["with"][key] = [other if k == mine else k for k in unit["with"][key]]
    if rng.random() < 0.5:  # in the cut as well
        for item in cut["tensors"]:
            if f"{item['tensor']}:{item['axis']}" == key:
                item["removed"] = item["original"] = sorted(other if k == mine else k for k in item["removed"])
    return "a unit was swapped"


def renumbered(lines: Lines, rng: random.Random) -> str:
    unit = rng.choice(_units(lines))
    unit["index"] += rng.choice([1, 2, 100])
    return "a unit has another index"


def dropped(lines: Lines, rng: random.Random) -> str:
    lines.remove(rng.choice(_units(lines)))
    if rng.random() < 0.5:
        _cut(lines)["units"] -= 1
    return "a line was dropped"


def doubled(lines: Lines, rng: random.Random) -> str:
    lines.append(copy.deepcopy(rng.choice(_units(lines))))
    _cut(lines)["units"] += 1
    return "a line was told twice"


def invented(lines: Lines, rng: random.Random) -> str:
    made = copy.deepcopy(rng.choice(_units(lines)))
    made["index"] += 1000
    lines.append(made)
    _cut(lines)["units"] += 1
    return "a unit was invented"


def domain(lines: Lines, rng: random.Random) -> str:
    box = lines[0]["inputs"][0]
    box["lo"], box["hi"] = rng.choice([(0.25, 0.5), (-1.0, 1.0), (0.0, 0.5), (0.0, 2.0), (None, None)])
    return "the domain was changed"


def fingerprint(lines: Lines, rng: random.Random) -> str:
    line, name = rng.choice([(lines[0], "fingerprint"), (_cut(lines), "before"), (_cut(lines), "after")])
    line[name] = "".join(rng.choice("0123456789abcdef") for _ in range(64))
    return "a fingerprint is stale"


def rounding(lines: Lines, rng: random.Random) -> str:
    table = lines[0]["arithmetic"]["unit_roundoff"]
    name = rng.choice(list(table))
    table[name] *= rng.choice([0.0, 0.5, 2.0])
    return "the unit round-off was changed"


def evidence(lines: Lines, rng: random.Random) -> str:
    rng.choice([lines[0], rng.choice(_units(lines))])["evidence"] = rng.choice(["observed", "batch-proved", "certain"])
    return "the evidence was changed"


def axis(lines: Lines, rng: random.Random) -> str:
    item = rng.choice(_cut(lines)["tensors"])
    name = rng.choice(["axis", "size", "tensor", "removed", "blocks"])
    item[name] = {"axis": item["axis"] + 1, "size": item["size"] + 1, "tensor": "nobody.weight",
                  "removed": item["removed"][:-1], "blocks": 2}[name]  # fmt: skip
    return "a tensor's cut was changed"


def folded(lines: Lines, rng: random.Random) -> str:
    """All kinds of numbers may differ where a constant was folded in; here none was."""
    return "a unit's elements were given to another" if _give(lines, rng) else bound(lines, rng)


def _give(lines: Lines, rng: random.Random) -> bool:
    units = _units(lines)
    one, two = rng.sample(units, 2) if len(units) > 1 else (units[0], units[0])
    if one["with"].keys() != two["with"].keys() or one is two:
        return False
    one["bound"], two["bound"] = two["bound"], one["bound"]
    one["at"], two["at"] = two["at"], one["at"]
    return True


def shape(lines: Lines, rng: random.Random) -> str:
    lines[0]["inputs"][0]["shape"][0] += rng.choice([1, 5])
    return "the inputs have another shape"


MENDED: tuple[Forgery, ...] = (
    bound, margin, kind, swapped, renumbered, dropped, doubled, invented, domain, fingerprint, rounding, evidence, axis,
    folded, shape,
)  # fmt: skip


def broken(lines: Lines, rng: random.Random) -> str:
    """A change of which the chain tells."""
    how = rng.randrange(4)
    spot = rng.randrange(1, len(lines))
    if how == 0:
        del lines[spot]
        return "a line is missing" if spot < len(lines) else "the last line is missing"
    if how == 1 and len(lines) > 2:
        other = rng.choice([k for k in range(1, len(lines)) if k != spot])
        lines[spot], lines[other] = lines[other], lines[spot]
        return "lines were reordered"
    if how == 2:
        lines[spot]["step"] += rng.randrange(1, 1000)
        return "a step was edited"
    lines[spot]["hash"] = lines[spot]["hash"][::-1]
    return "a hash was edited"


def forgeries(lines: Lines, count: int, seed: int) -> Iterator[tuple[str, Lines]]:
    """So many different forged ledgers, each with what was done to it; one in five leaves a chain that is broken."""
    rng, kinds = random.Random(seed), cycle(MENDED)
    told = {json.dumps(lines)}
    while len(told) <= count:
        forged = copy.deepcopy(lines)
        if len(told) % 5 == 0:
            what = broken(forged, rng)
        else:
            try:
                what = next(kinds)(forged, rng)
            except IndexError:  # the ledger has nothing of that kind
                continue
            mended(forged)
        if (text := json.dumps(forged)) not in told:
            told.add(text)
            yield what, forged
