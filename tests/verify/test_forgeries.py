"""A ledger that was changed is rejected, also if its chain of hashes was mended; and so are other models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.verify.forging import forgeries, mended, read, write
from torch import Tensor, nn

import nodedrop as nd
from nodedrop import onepage
from nodedrop.verify import verify

FORGED = 520


def mlp() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 7), nd.SoftClampedReLU(), nn.Linear(7, 2))
    with torch.no_grad():
        model[0].bias[[1, 4]] = -9.0
        model[2].bias[[0, 6]] -= 12.0
        model[4].weight[:, 3] = 0.0
    return model, torch.rand(3, 5)


def convolutions() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 5, 3), nn.ReLU6(),
        nn.Flatten(), nn.Linear(20, 3),
    )  # fmt: skip
    with torch.no_grad():
        model[1].bias[[0, 3]] = -40.0
        model[4].bias[[1, 2]] = -60.0
    return model, torch.rand(2, 1, 8, 8)


@dataclass(frozen=True)
class Case:
    before: nn.Module
    after: nn.Module
    inputs: Tensor
    ledger: Path


@pytest.fixture(scope="module", params=[mlp, convolutions])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    torch.manual_seed(0)
    model, inputs = request.param()
    before = copy.deepcopy(model)
    path = tmp_path_factory.mktemp("true") / "ledger.jsonl"
    assert len(nd.compact_(model, inputs, ledger=path, batch_size=8).removed) >= 4
    return Case(before, model, inputs, path)


def test_the_true_ledger_is_accepted(case: Case) -> None:
    verdict = verify(case.before, case.after, case.inputs, (0.0, 1.0), ledger=case.ledger)
    assert (verdict.status, verdict.code) == ("proved", 0), verdict
    assert verdict.units == len([line for line in read(case.ledger) if line["line"] == "unit"])


@pytest.mark.usefixtures("quick")
def test_every_forged_ledger_is_rejected(case: Case, tmp_path: Path) -> None:
    lines, accepted, tried = read(case.ledger), [], dict[str, int]()
    for what, forged in forgeries(lines, FORGED // 2, seed=1):
        tried[what] = tried.get(what, 0) + 1
        path = write(tmp_path / "forged.jsonl", forged)
        verdict = verify(case.before, case.after, case.inputs, (0.0, 1.0), ledger=path, tries=2)
        if verdict.status == "proved":
            accepted.append(what)
    assert sorted(set(accepted)) == []
    assert sum(tried.values()) == FORGED // 2
    assert tried.keys() >= {
        "a bound was edited", "a unit was swapped", "a line was dropped", "the domain was changed",
        "a fingerprint is stale", "a unit has another index", "the inputs have another shape", "a line is missing",
    }  # fmt: skip


@pytest.mark.usefixtures("quick")
def test_a_domain_that_only_the_ledger_states_must_give_its_bounds(case: Case, tmp_path: Path) -> None:
    """Where no bound depends on the domain, the verdict is about the one that is stated, and says so."""
    for ends in ((0.0, 0.5), (0.0, 1.5), (-1.0, 1.0)):
        lines = read(case.ledger)
        lines[0]["inputs"][0]["lo"], lines[0]["inputs"][0]["hi"] = ends
        path = write(tmp_path / "forged.jsonl", mended(lines))
        verdict = verify(case.before, case.after, case.inputs, ledger=path, tries=2)
        assert verdict.status != "proved" or verdict.domain[0].startswith(f"[{ends[0]:g}, {ends[1]:g}]")
        assert verdict.status != "proved" or isinstance(case.before[0], nn.Conv2d)


# A false value for every field that is checked; `with` and `original` have several.
FALSE: dict[str, Callable[[dict[str, Any]], None]] = {
    "header.format": lambda line: line.update(format="another ledger"),
    "header.version": lambda line: line.update(version=2),
    "header.fingerprint": lambda line: line.update(fingerprint="0" * 64),
    "header.inputs.name": lambda line: line["inputs"][0].update(name="y"),
    "header.inputs.shape": lambda line: line["inputs"][0]["shape"].append(1),
    "header.inputs.dtype": lambda line: line["inputs"][0].update(dtype="float64"),
    "header.inputs.lo": lambda line: line["inputs"][0].update(lo=0.25),
    "header.inputs.hi": lambda line: line["inputs"][0].update(hi=2.0),
    "header.outputs": lambda line: line["outputs"][0].append(1),
    "header.modes": lambda line: line.update(modes=["eval", "eval"]),
    "header.evidence": lambda line: line.update(evidence="certain"),
    "header.batch_size": lambda line: line.update(batch_size=4),
    "header.arithmetic.lowest": lambda line: line["arithmetic"].update(lowest="bfloat16"),
    "header.arithmetic.unit_roundoff": lambda line: line["arithmetic"]["unit_roundoff"].update(float32=2.0**-53),
    "header.tensors.shape": lambda line: next(iter(line["tensors"].values()))["shape"].append(1),
    "header.tensors.dtype": lambda line: next(iter(line["tensors"].values())).update(dtype="float64"),
    "header.tensors": lambda line: line["tensors"].popitem(),
    "cut.cut": lambda line: line.update(cut=2),
    "cut.units": lambda line: line.update(units=line["units"] + 1),
    "cut.groups": lambda line: line.update(groups={"0.weight": 2}),
    "cut.folded": lambda line: line.update(folded=["0.bias"]),
    "cut.before": lambda line: line.update(before="0" * 64),
    "cut.after": lambda line: line.update(after="0" * 64),
    "cut.tensors.tensor": lambda line: line["tensors"][0].update(tensor="nobody"),
    "cut.tensors.axis": lambda line: line["tensors"][0].update(axis=line["tensors"][0]["axis"] + 1),
    "cut.tensors.size": lambda line: line["tensors"][0].update(size=line["tensors"][0]["size"] + 1),
    "cut.tensors.blocks": lambda line: line["tensors"][0].update(blocks=2),
    "cut.tensors.removed": lambda line: line["tensors"][0]["removed"].pop(),
    "cut.tensors.original": lambda line: line["tensors"][0]["original"].reverse(),
    "unit.cut": lambda line: line.update(cut=2),
    "unit.step": lambda line: line.update(step=line["step"] + 1),
    "unit.layer": lambda line: line.update(layer="nobody"),
    "unit.weight": lambda line: line.update(weight="nobody.weight"),
    "unit.axis": lambda line: line.update(axis=line["axis"] + 1),
    "unit.index": lambda line: line.update(index=line["index"] + 1),
    "unit.at": lambda line: line.update(at=line["at"] + 1),
    "unit.kind": lambda line: line.update(kind="constant"),
    "unit.evidence": lambda line: line.update(evidence="observed"),
    "unit.modes": lambda line: line.update(modes=["eval"]),
    "unit.bound": lambda line: line.update(bound=-1e3),
    "unit.margin": lambda line: line.update(margin=-1.0),
    "unit.with": lambda line: line["with"].popitem(),
}
# For the reader: what a checker of a pair cannot know, or need not.
COMMENTS = {"header.model", "cut.step", "cut.difference", "cut.witness", "cut.witness.file", "cut.witness.sha256"}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("field", FALSE)
def test_a_false_value_of_any_field_is_refuted(case: Case, tmp_path: Path, field: str) -> None:
    lines = read(case.ledger)
    FALSE[field](next(line for line in lines if line["line"] == field.partition(".")[0]))
    path = write(tmp_path / "forged.jsonl", mended(lines))
    verdict = verify(case.before, case.after, case.inputs, (0.0, 1.0), ledger=path, batch_size=8, tries=2)
    assert verdict.status == "refuted", verdict


@pytest.mark.parametrize("more", ["header", "inputs", "tensors", "arithmetic", "cut", "unit"])
def test_a_field_too_many_is_none_of_the_format(case: Case, tmp_path: Path, more: str) -> None:
    lines = read(case.ledger)
    spots = {"header": lines[0], "inputs": lines[0]["inputs"][0], "tensors": next(iter(lines[0]["tensors"].values())),
             "arithmetic": lines[0]["arithmetic"], "cut": lines[1], "unit": lines[2]}  # fmt: skip
    spots[more]["more"] = 1
    path = write(tmp_path / "forged.jsonl", mended(lines))
    assert "none of its format" in verify(case.before, case.after, case.inputs, ledger=path, tries=2).reason


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("number", "told", "also"), [
    (2, '"bound": ', '"bound": -1000.0, "bound": '), (0, '"lo": ', '"lo": -100.0, "lo": '),
    (1, '"units": ', '"units": 0, "units": '), (2, '"with": {', '"with": {}, "with": {'),
])  # fmt: skip
def test_a_key_that_is_told_twice_is_refuted(case: Case, tmp_path: Path, number: int, told: str, also: str) -> None:
    """A reader may see the first, and the hash is of the last."""
    lines, path = case.ledger.read_text().splitlines(), tmp_path / "forged.jsonl"
    lines[number] = lines[number].replace(told, also, 1)
    path.write_text("\n".join(lines) + "\n")
    assert read(path) == read(case.ledger)
    assert verify(case.before, case.after, case.inputs, ledger=path, tries=2).status == "refuted"
    assert onepage.check(case.before, case.after, case.inputs, path).status == "refuted"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("bound", "margin"), [(1e6, 1e7), (1e-3, 1e-2), (-1.0, 1e7)])
def test_a_margin_excuses_no_more_than_rounding(case: Case, tmp_path: Path, bound: float, margin: float) -> None:
    lines = read(case.ledger)
    next(line for line in lines[2:] if line["bound"] is not None).update(bound=bound, margin=margin)
    path = write(tmp_path / "forged.jsonl", mended(lines))
    assert verify(case.before, case.after, case.inputs, ledger=path, tries=2).status == "refuted"


@pytest.mark.parametrize(("times", "proved"), [(0.0, True), (0.9, True), (9.0, False)])
def test_a_bound_may_lie_above_by_the_rounding_of_its_sum(tmp_path: Path, times: float, proved: bool) -> None:
    """With the margin that a ledger states, which may count more terms."""
    before, x, path = nn.Sequential(nn.Linear(2000, 3), nn.ReLU(), nn.Linear(3, 1)), torch.rand(2, 2000), tmp_path / "l"
    with torch.no_grad():
        before[0].bias[0] = -90.0
    after = copy.deepcopy(before)
    nd.compact_(after, x, ledger=path)
    lines = read(path)
    more = times * lines[2]["margin"]
    lines[2].update(bound=lines[2]["bound"] + more, margin=lines[2]["margin"] + more)
    write(path, mended(lines))
    assert (verify(before, after, x, ledger=path, tries=2).status == "proved") == proved


# What is no ledger, though its chain is whole.
SHAPELESS: dict[str, Callable[[Any, Any, Any], None]] = {
    "an end that is a text": lambda header, cut, unit: header["inputs"][0].update(hi="abc"),
    "an end that is a number as a text": lambda header, cut, unit: header["inputs"][0].update(hi="1.0"),
    "an end that is an object": lambda header, cut, unit: header["inputs"][0].update(hi={"a": 1}),
    "an end that is a truth": lambda header, cut, unit: header["inputs"][0].update(hi=True),
    "an end with a truth in it": lambda header, cut, unit: header["inputs"][0].update(hi=[True] + [1.0] * 4),
    "an end of ragged lists": lambda header, cut, unit: header["inputs"][0].update(hi=[[1.0, 1.0], [1.0]]),
    "an end of another shape": lambda header, cut, unit: header["inputs"][0].update(hi=[1.0, 1.0, 1.0]),
    "an end of too many axes": lambda header, cut, unit: header["inputs"][0].update(hi=[[[[[1.0]]]]]),
    "an end beyond all numbers": lambda header, cut, unit: header["inputs"][0].update(hi=10**400),
    "an input that is told twice": lambda header, cut, unit: header["inputs"].insert(
        0, {**header["inputs"][0], "lo": -100.0, "hi": 100.0}),
    "outputs that are no whole numbers": lambda header, cut, unit: header.update(
        outputs=[[float(n) for n in row] for row in header["outputs"]]),
    "modes that are lists": lambda header, cut, unit: header.update(modes=[["eval"]]),
    "a lowest precision that is none": lambda header, cut, unit: header["arithmetic"].update(lowest="None"),
    "no blocks": lambda header, cut, unit: cut["tensors"][0].update(blocks=0, removed=[], original=[]),
    "less than no blocks": lambda header, cut, unit: cut["tensors"][0].update(blocks=-1, removed=[], original=[]),
    "groups that are lists": lambda header, cut, unit: cut.update(groups={"0.weight": [1]}),
    "biases that are lists": lambda header, cut, unit: cut.update(folded=[["0.bias"]]),
    "a bound beyond all numbers": lambda header, cut, unit: unit.update(bound=10**400),
    "a margin beyond all numbers": lambda header, cut, unit: unit.update(margin=10**400),
}  # fmt: skip


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", SHAPELESS)
def test_what_is_no_ledger_is_refuted(case: Case, tmp_path: Path, name: str) -> None:
    lines = read(case.ledger)
    SHAPELESS[name](*lines[:3])
    path = write(tmp_path / "forged.jsonl", mended(lines))
    assert verify(case.before, case.after, case.inputs, ledger=path, tries=2).status == "refuted"
    if "margin" not in name:  # which is a comment there
        assert onepage.check(case.before, case.after, case.inputs, path).status != "proved"


def test_a_truth_is_no_size(tmp_path: Path) -> None:
    before, x, path = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.rand(3, 2), tmp_path / "ledger"
    with torch.no_grad():
        before[0].bias[0] = -9.0
    after = copy.deepcopy(before)
    nd.compact_(after, x, ledger=path)
    lines = read(path)
    for outputs, proved in (([[3, 1]], True), ([[3, True]], False)):
        lines[0]["outputs"] = outputs
        write(path, mended(lines))
        assert (verify(before, after, x, ledger=path, tries=2).status == "proved") == proved
        assert (onepage.check(before, after, x, path).status == "proved") == proved


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b'{"line": "header", "version": 1e999}', b"9" * 5000])
def test_bytes_that_are_no_json_are_refuted(case: Case, tmp_path: Path, content: bytes) -> None:
    (path := tmp_path / "forged.jsonl").write_bytes(content)
    assert verify(case.before, case.after, case.inputs, ledger=path, tries=2).status == "refuted"
    assert onepage.check(case.before, case.after, case.inputs, path).status != "proved"


def test_every_field_is_checked_or_told_to_be_a_comment() -> None:
    from nodedrop.verify.claims import FIELDS, PARTS

    parts = {f"{line}.{name}.{field}" for (line, name), fields in PARTS.items() for field in fields}
    split = {f"{line}.{name}" for line, name in PARTS}
    plain = {f"{line}.{name}" for line, fields in FIELDS.items() for name in fields} - split
    assert plain | parts <= FALSE.keys() | COMMENTS
    text = (Path(__file__).parents[2] / "docs" / "certificates.md").read_text(encoding="utf-8")
    told = text.partition("Comments, which nobody checks:")[2].partition("\n\n")[0]
    assert all(f"`{name.split('.')[1]}`" in told for name in COMMENTS)


def test_real_ledgers_follow_the_schema(case: Case, tmp_path: Path) -> None:
    """Those of a pair, and of a run."""
    import json

    import jsonschema

    from nodedrop.verify import claims

    schema = json.loads((Path(claims.__file__).parent / "schema-1.json").read_text(encoding="utf-8"))
    check = jsonschema.Draft202012Validator(schema)
    check.check_schema(schema)
    model = copy.deepcopy(case.before)
    nd.NodeDrop(model, None, case.inputs, batch_size=8, ledger=tmp_path / "ledger.jsonl").drop()
    for path in (case.ledger, tmp_path / "ledger.jsonl"):
        lines = read(path)
        assert {line["line"] for line in lines} == {"header", "cut", "unit"}
        for line in lines:
            check.validate(line)
            assert not check.is_valid({**line, "more": 1})
            assert not check.is_valid({key: value for key, value in line.items() if key != "prev"})


def test_other_weights_are_rejected(case: Case) -> None:
    for side in (0, 1):
        pair = [copy.deepcopy(case.before), copy.deepcopy(case.after)]
        with torch.no_grad():
            next(pair[side].parameters()).view(-1)[0] += 1e-6
        assert verify(pair[0], pair[1], case.inputs, ledger=case.ledger).status == "refuted"


@pytest.mark.usefixtures("quick")
def test_a_ledger_made_up_for_live_units_is_refuted_with_an_input(case: Case, tmp_path: Path) -> None:
    """Weights, fingerprints and chain all fit: only the proof can tell."""
    from nodedrop.ledger import fingerprint
    from nodedrop.verify.claims import tensors_of

    before = copy.deepcopy(case.before)
    with torch.no_grad():  # the units that go are alive
        for name, tensor in before.named_parameters():
            if name.endswith("bias"):
                tensor.clamp_(min=-0.1)
        before[0].bias.fill_(1.0)
    after = copy.deepcopy(case.after)
    lines = read(case.ledger)
    cut = lines[1]
    with torch.no_grad():
        for name, tensor in tensors_of(after).items():
            value = tensors_of(before)[name]
            for item in (i for i in cut["tensors"] if i["tensor"] == name):
                kept = sorted(set(range(item["size"])) - set(item["removed"]))
                value = value.index_select(item["axis"], torch.tensor(kept))
            tensor.copy_(value)
    lines[0]["fingerprint"] = cut["before"] = fingerprint(tensors_of(before))
    cut["after"] = fingerprint(tensors_of(after))
    path = write(tmp_path / "forged.jsonl", mended(lines))
    verdict = verify(before, after, case.inputs, (0.0, 1.0), ledger=path)
    assert verdict.status == "refuted", verdict
    assert verdict.counterexample is not None
    with torch.no_grad():
        old, new = (m.eval()(verdict.counterexample.inputs[0].float()) for m in (before, after))
    assert float((old - new).abs().max()) > 1e-4


def test_a_file_of_another_kind_is_rejected(case: Case, tmp_path: Path) -> None:
    for text in ("", "x\n", "{}\n", "[]\n", '{"line": "header"}\n', "null\n"):
        path = tmp_path / "ledger.jsonl"
        path.write_text(text)
        assert verify(case.before, case.after, case.inputs, ledger=path).status == "refuted"
