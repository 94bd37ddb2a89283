"""What the cuts of a run keep: how much it is, and intervals of weights that hold whatever the weights were."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.verify.forging import mended, read, write
from torch import Tensor, nn

import nodedrop as nd
from nodedrop.benchmarks.kept import QUICK, measured
from nodedrop.bounds import Interval, bound
from nodedrop.bounds.rules import contraction
from nodedrop.ledger import enclosure
from nodedrop.ledger.enclosure import BITS, enclose
from nodedrop.tracing import tensors_of, trace
from nodedrop.verify import Verdict
from nodedrop.verify.interval import Value
from nodedrop.verify.pairs import Assumptions
from nodedrop.verify.program import read as read_program
from nodedrop.verify.relation import Walk
from nodedrop.verify.run import verify_run


@pytest.mark.parametrize(("title", "most"), [("6 dense layers with ReLU", 0.6), ("text transformer", 0.45)])
def test_what_all_cuts_keep_is_small_beside_one_checkpoint(title: str, most: float) -> None:
    row = measured(QUICK[title])
    assert row["verdict"] == "proved", row["reason"]
    assert row["cuts"] >= 2
    assert sum(row["kept_bytes"]) <= most * row["checkpoint_bytes"]


@pytest.mark.parametrize("bits", BITS)
def test_weights_lie_in_the_intervals_that_are_kept(bits: int) -> None:
    torch.manual_seed(bits)
    for scale in (1e-6, 1.0, 1e4):
        weight = scale * torch.randn(5, 3, 3, 3)
        weight[1] = weight[1, 0, 0, 0]
        if bits:
            weight[2, 1], weight[4] = 0.0, 0.0
        made = enclose(weight, bits)
        assert made is not None
        inner, exact = made.interval(), weight.double()
        assert bool(((inner.lo <= exact) & (exact <= inner.hi)).all())
        assert bool(((inner.lo == 0) & (inner.hi == 0) == (exact == 0)).all())
        size = sum(value.numel() * value.element_size() for _, value in made.tensors("w"))
        assert size <= weight.numel() * bits / 8 + 12 * len(weight) + 1


@pytest.mark.parametrize("bits", BITS)
def test_blocks_make_no_difference(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(bits)
    weight, value = torch.randn(7, 5, 3, 3), Interval(-torch.rand(1, 5, 1, 1), torch.rand(1, 5, 1, 1), (1, 5, 4, 4))
    graph = trace(nn.Conv2d(5, 7, 3), (torch.zeros(1, 5, 4, 4),)).graphs[0]
    found = []
    for block in (2**20, 20):
        monkeypatch.setattr(enclosure, "BLOCK", block)
        monkeypatch.setattr(contraction, "BLOCK", block)
        made = enclose(weight, bits)
        assert made is not None
        tensors = {"weight": made.interval(), "bias": torch.zeros(7)}
        bounds = bound(graph, tensors, nd.Box(value.lo.expand(1, 5, 4, 4), value.hi.expand(1, 5, 4, 4)))
        found.append((dict(made.tensors("w")), bounds[graph.outputs[0]].hi))
    (one, top), (other, again) = found
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    torch.testing.assert_close(top, again, rtol=1e-12, atol=0.0)  # sums may be ordered otherwise


def test_what_cannot_be_enclosed_is_kept_whole() -> None:
    assert enclose(torch.tensor([[0.0, 1.0]]), 0) is None  # which one is 0 would be lost
    assert enclose(torch.tensor([[1.0, float("inf")]]), 8) is None
    assert enclose(torch.rand(4), 8) is None
    assert enclose(torch.rand(2, 2).bfloat16(), 16) is None  # saves nothing


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), (4, 5)),
    "no bias": (lambda: nn.Sequential(nn.Linear(5, 7, bias=False), nn.ReLU(), nn.Linear(7, 3, bias=False)), (4, 5)),
    "norm": (lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 3)), (4, 5)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2)),
                    (2, 2, 5, 5)),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 2, groups=2), nn.ReLU(), nn.Conv2d(6, 2, 1)),
                   (2, 4, 3, 3)),
}  # fmt: skip


@pytest.mark.parametrize("radius", [1e-3, 0.3])
@pytest.mark.parametrize("name", NETWORKS)
def test_bounds_hold_for_all_weights_of_an_interval(name: str, radius: float) -> None:
    """The prover's and the checker's, each by itself."""
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    model = build().eval()
    tensors = {key: value.detach().double() for key, value in tensors_of(model).items()}
    loose = {key: value for key, value in tensors.items() if value.dim() > 1}
    (graph,) = trace(model, torch.rand(shape)).in_mode("eval")
    intervals = {key: Interval(w - radius, w + radius, tuple(w.shape)) for key, w in loose.items()}
    ours = bound(graph, {**tensors_of(model), **intervals}, (-1.0, 1.0))[graph.outputs[0]]
    theirs = checked(model, torch.rand(shape), {
        **{key: Value(*[w.numpy()] * 2, tuple(w.shape)) for key, w in tensors.items()},
        **{key: Value((w - radius).numpy(), (w + radius).numpy(), tuple(w.shape)) for key, w in loose.items()},
    })  # fmt: skip
    ends = [(ours.lo.numpy(), ours.hi.numpy()), (theirs.lo, theirs.hi)]
    assert all(np.isfinite(end).all() for pair in ends for end in pair)
    for number in range(200):
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                share = 2 * torch.rand(parameter.shape, dtype=torch.float64) - 1
                share = share.sign() if number % 2 else share
                parameter.copy_(tensors[key] + (0.999 * radius * share if key in loose else 0.0))
            x = 2 * torch.rand(shape) - 1
            result = model(x.sign() if number % 3 else x).double().numpy()
        for lo, hi in ends:
            assert ((lo <= result) & (result <= hi)).all()


def checked(model: nn.Module, x: Tensor, known: dict[str, Value]) -> Value:
    """The checker's interval of an output, with what is known of the tensors."""
    program = read_program(model, x, "eval")
    boxes = {name: (np.full((1,) * x.dim(), -1.0), np.full((1,) * x.dim(), 1.0)) for name in program.inputs}
    walk = Walk(program, program, Assumptions(boxes, 1.0, None, known), {})
    for place in range(len(program.steps)):
        walk.values.append(walk.step(place))
    return walk.values[program.outputs[0]][0].value


def deep(norm: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16), norm(), nn.Linear(16, 12), nn.ReLU(),
                         nn.Linear(12, 3))  # fmt: skip


def cut_behind(norm: Callable[[], nn.Module], folder: Path) -> tuple[Verdict, dict[str, Tensor]]:
    """Two units that read a normalised row are dead."""
    model = deep(norm)
    with torch.no_grad():
        model[4].bias[[1, 5]] = -3 * 4 * model[4].weight[[1, 5]].norm(dim=1)
    nd.NodeDrop(model, None, torch.rand(4, 8), domain=(-1.0, 1.0), ledger=folder / "ledger.jsonl").drop()
    verdict = verify_run(deep(norm), model, torch.zeros(4, 8), folder / "ledger.jsonl")
    return verdict, load_file(folder / "cuts" / "000001.safetensors")


def test_nothing_is_kept_behind_an_rms_norm(tmp_path: Path) -> None:
    """Whatever it reads, the length of its rows is the same."""
    verdict, kept = cut_behind(lambda: nn.RMSNorm(16), tmp_path)
    assert (verdict.status, verdict.units) == ("proved", 2), verdict
    assert set(kept) == {"whole/3.weight", "removed/0/4.weight", "removed/0/4.bias", "removed/1/6.weight"}


def test_behind_a_layer_norm_only_sizes_are_kept(tmp_path: Path) -> None:
    """Rounding a mean can cost as much as the rows are large."""
    verdict, kept = cut_behind(lambda: nn.LayerNorm(16), tmp_path)
    assert (verdict.status, verdict.units) == ("proved", 2), verdict
    assert {"rows/0.weight", "rows/2.weight"} < set(kept)
    assert not any(name.startswith("steps/") or name in ("whole/0.weight", "whole/2.weight") for name in kept)


def _negative(kept: dict[str, Tensor]) -> None:
    kept["rows/0.weight"][2] = -1.0


def _wide(kept: dict[str, Tensor]) -> None:
    kept["rows/2.weight"][2] = 1e6


def _infinite(kept: dict[str, Tensor]) -> None:
    kept["rows/0.weight"][1, 0] = float("nan")


def _short(kept: dict[str, Tensor]) -> None:
    kept["rows/0.weight"] = kept["rows/0.weight"][:, :-1].contiguous()


def _strange(kept: dict[str, Tensor]) -> None:
    kept["steps/0.weight"] = torch.zeros(64, 8)


def _alone(kept: dict[str, Tensor]) -> None:
    kept["steps/4.weight"] = torch.zeros(10, 16, dtype=torch.int8)


def _twice(kept: dict[str, Tensor]) -> None:
    kept["whole/0.weight"] = torch.zeros(64, 8)


@pytest.fixture(scope="module")
def normed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("normed")
    cut_behind(lambda: nn.LayerNorm(16), folder)
    return folder


@pytest.mark.parametrize("forge", [None, _negative, _wide, _infinite, _short, _strange, _alone, _twice])
def test_intervals_that_were_changed_are_no_proof(normed: Path, tmp_path: Path, forge: Any) -> None:
    folder = tmp_path / "run"
    shutil.copytree(normed, folder)
    lines, path = read(folder / "ledger.jsonl"), folder / "cuts" / "000001.safetensors"
    kept = load_file(path)
    if forge is not None:
        forge(kept)
    save_file(kept, path)
    lines[1]["witness"]["sha256"] = sha256(path.read_bytes()).hexdigest()
    write(folder / "ledger.jsonl", mended(lines))
    last = deep(lambda: nn.LayerNorm(16))
    with torch.no_grad():
        last[4].bias[[1, 5]] = -3 * 4 * last[4].weight[[1, 5]].norm(dim=1)
    nd.compact_(last, torch.rand(4, 8), domain=(-1.0, 1.0))
    verdict = verify_run(deep(lambda: nn.LayerNorm(16)), last, torch.zeros(4, 8), folder / "ledger.jsonl")
    assert (verdict.status == "proved") == (forge is None), verdict
