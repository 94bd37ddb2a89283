"""Pairs that differ, and half-known weights, which the checker once took for proved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.verify.forging import mended, read, write
from torch import Tensor, nn
from torch.nn import functional as F

import nodedrop as nd
from nodedrop.verify import Verdict, verify
from nodedrop.verify.interval import INF, Value, known
from nodedrop.verify.pairs import Assumptions
from nodedrop.verify.program import read as program_of
from nodedrop.verify.relation import Walk
from nodedrop.verify.run import verify_run

Function = Callable[[Tensor], Tensor]


class Net(nn.Module):
    def __init__(self, function: Function, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, width, dtype=dtype), nn.Linear(width, 2, dtype=dtype)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)).to(self.last.weight.dtype))


def pair(function: Function, bias: float, weight: float, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    """Two layers with a function between them, and the same without the first unit, which is its bias."""
    torch.manual_seed(0)
    before, after = Net(function, 4, dtype), Net(function, 3, dtype)
    with torch.no_grad():
        before.first.weight[0], before.first.bias[0], before.last.weight[:, 0] = 0.0, bias, weight
        for new, old in zip(after.parameters(), before.parameters(), strict=True):
            new.copy_(old[tuple(slice(-n, None) for n in new.shape)])
    return before, after


def written(x: Tensor) -> Tensor:
    y = torch.slice_scatter(torch.zeros_like(x, dtype=torch.bfloat16), torch.full_like(x, 0.1), dim=1)
    return (y.to(x.dtype) - 0.10005).relu()


def filled(x: Tensor) -> Tensor:
    y = torch.fill(torch.zeros_like(x, dtype=torch.bfloat16), torch.full((), 0.1))
    return (y.to(x.dtype) - 0.10005).relu()


def padded(x: Tensor) -> Tensor:
    return (F.pad(x[:, :0].long(), (0, x.shape[1]), value=-0.9).to(x.dtype) + 0.5).relu()


# What units see, their bias, and how strongly they are read. Each fires, and would not with the numbers of the text.
LIVE: dict[str, tuple[Function, float, float, torch.dtype]] = {
    "a sigmoid far down": (torch.sigmoid, -40.0, 1e18, torch.float32),
    "a number that is rounded": (
        lambda x: (F.hardtanh(x, 0.0, 0.1).double() - 0.1000000001).relu() * 1e9, 1.0, 1.0, torch.float32),
    "a number that is too small": (
        lambda x: (0.5 - torch.full_like(x, 1e-46) * 1e38 * 1e8).relu(), 0.0, 1.0, torch.float32),
    "a whole number": (
        lambda x: (torch.full_like(x, -0.9, dtype=torch.int64) + 0.5).relu(), 0.0, 1.0, torch.float32),
    "a byte": (
        lambda x: (300.0 - (torch.full_like(x, 200, dtype=torch.uint8) * 2).to(x.dtype)).relu(),
        0.0, 1.0, torch.float32),
    "a truth value": (
        lambda x: (3.0 - torch.full_like(x, 5, dtype=torch.bool).to(x.dtype)).relu(), 0.0, 1.0, torch.float32),
    "a padding of whole numbers": (padded, 0.0, 1.0, torch.float32),
    "a part that is written in half precision": (written, 0.0, 1e4, torch.float32),
    "half precision that is filled": (filled, 0.0, 1e4, torch.float32),
}  # fmt: skip


@pytest.mark.parametrize("name", LIVE)
def test_a_unit_that_is_nearly_zero_is_not_dead(name: str) -> None:
    function, bias, weight, dtype = LIVE[name]
    before, after = pair(function, bias, weight, dtype)
    x = torch.rand(2, 2, dtype=dtype)
    with torch.no_grad():
        assert not torch.allclose(before(x), after(x), rtol=1e-3, atol=1e-3), "both are the same, so this shows nothing"
    assert verify(before, after, x, tries=2).status != "proved"


def test_a_kernel_of_other_shape_is_another_one() -> None:
    tall, wide = nn.Conv2d(1, 2, (3, 1), padding="same"), nn.Conv2d(1, 2, (1, 3), padding="same")
    with torch.no_grad():
        wide.weight.copy_(tall.weight.transpose(2, 3))
        wide.bias.copy_(tall.bias)
    assert verify(tall, wide, torch.rand(1, 1, 6, 6)).status == "refuted"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_constant_must_be_in_the_bias_whatever_its_type(dtype: torch.dtype) -> None:
    """A unit that is 1 was taken out; its bias has got none of it, or a half, or nearly all, or all."""
    torch.manual_seed(0)
    before = nn.Sequential(nn.Linear(2, 4), nn.Hardtanh(0.0, 1.0), nn.Linear(4, 2)).to(dtype)
    after = nn.Sequential(nn.Linear(2, 3), nn.Hardtanh(0.0, 1.0), nn.Linear(3, 2)).to(dtype)
    with torch.no_grad():
        before[0].bias[0], before[2].weight[:, 0] = 9.0, 1.0
        for new, old in zip(after.parameters(), before.parameters(), strict=True):
            new.copy_(old[tuple(slice(-n, None) for n in new.shape)])
    x = torch.rand(2, 2, dtype=dtype)
    for share, proved in ((0.0, False), (0.5, False), (0.95, False), (1.0, True)):
        with torch.no_grad():
            after[2].bias.copy_(before[2].bias + share)
        assert (verify(before, after, x, tries=2).status == "proved") == proved, share


class Two(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, width), nn.Linear(width, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.last((self.first(a) + b.sum(1, keepdim=True)).relu())


def test_domains_and_ledgers_go_by_name(tmp_path: Path) -> None:
    before, inputs = Two(4), {"b": torch.rand(2, 3), "a": torch.rand(2, 3)}
    with torch.no_grad():
        before.first.weight[0], before.first.bias[0] = 0.0, -5.0  # dead for b up to 1, alive for b up to 10
    after = Two(3)
    with torch.no_grad():
        for new, old in zip(after.parameters(), before.parameters(), strict=True):
            new.copy_(old[tuple(slice(-n, None) for n in new.shape)])
    assert verify(before, after, inputs, {"b": (0, 1), "a": (0, 10)}).status == "proved"
    assert verify(before, after, inputs, {"a": (0, 1), "b": (0, 10)}).status == "refuted"
    strange = verify(before, after, inputs, {"a": (0, 1), "c": (0, 1)})
    assert "names the input 'c'" in strange.reason
    model, ledger = Two(4), tmp_path / "ledger.jsonl"
    model.load_state_dict(before.state_dict())
    nd.compact_(model, inputs, {"b": (0, 1), "a": (0, 10)}, ledger=ledger)
    assert verify(before, model, {"a": inputs["a"], "b": inputs["b"]}, ledger=ledger).status == "proved"


class Remembers(nn.Module):
    """Multiplies with what it saw the time before, in this order or the other."""

    def __init__(self, width: int, flipped: bool) -> None:
        super().__init__()
        self.first, self.last, self.flipped = nn.Linear(2, width), nn.Linear(width, 2), flipped
        self.register_buffer("seen", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        out = self.last(y * (self.seen.flip(0) if self.flipped else self.seen))
        self.seen.copy_(y[0])
        return out


@pytest.mark.parametrize("flipped", [False, True])
def test_what_is_written_must_be_what_is_read_the_next_time(flipped: bool) -> None:
    before, after, x = Remembers(4, flipped), Remembers(3, flipped), torch.rand(2, 2)
    with torch.no_grad():
        before.first.weight[0], before.first.bias[0], before.first.bias[1:] = 0.0, -1.0, 2.0
        for new, old in zip(after.parameters(), before.parameters(), strict=True):
            new.copy_(old[tuple(slice(-n, None) for n in new.shape)])
    assert verify(before, after, x).status == ("refuted" if flipped else "proved")
    differences = [float((before(x) - after(x)).detach().abs().max()) for _ in range(2)]
    assert differences[0] == 0
    assert (differences[1] > 1e-2) == flipped


def test_no_mode_is_no_proof() -> None:
    for modes in ((), ("evaluation",)):
        with pytest.raises(ValueError, match="modes are eval, train or both"):
            verify(nn.Linear(2, 2), nn.Linear(2, 2), torch.rand(1, 2), modes=modes)


def test_a_box_upside_down_is_none() -> None:
    layer = nn.Linear(2, 2)
    assert verify(layer, layer, torch.rand(1, 2), (1.0, 0.0)).status == "refuted"


def intervals(module: nn.Module, x: Tensor, facts: dict[str, Value]) -> Value:
    """Of a module's output, where of its tensors no more than this is known."""
    program = program_of(module, x, "eval")
    ends = (np.zeros((1,) * x.dim()), np.ones((1,) * x.dim()))
    walk = Walk(program, program, Assumptions(dict.fromkeys(program.inputs, ends), 1.0, known=facts), {})
    for place in range(len(program.steps)):
        walk.values.append(walk.step(place))
    return walk.values[program.outputs[0]][0].value


class Reads(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.p, self.function = nn.Parameter(torch.rand(shape)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.p)


def some_rows(shape: tuple[int, ...]) -> Value:
    """Of a parameter, the first row is known: it is 0."""
    zero = np.zeros((1, *shape[1:]))
    return Value(zero, zero, shape, rows=np.array([0]))


HALF_KNOWN: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "a transposed convolution": (F.conv_transpose2d, (2, 3, 4, 4), (3, 2, 1, 1)),
    "a product from the left": (lambda x, p: p @ x, (3, 2), (4, 3)),
    "an activation": (lambda x, p: p.relu() + x, (4, 3), (4, 3)),
    "a sum": (lambda x, p: p.abs().sum(0) + x, (4, 3), (4, 3)),
    "a table": (lambda x, p: F.embedding((x * 0).long()[:, 0], p), (2, 3), (4, 3)),
}


@pytest.mark.parametrize("name", HALF_KNOWN)
def test_rows_that_are_not_known_may_be_anything(name: str) -> None:
    function, given, shape = HALF_KNOWN[name]
    found = intervals(Reads(function, shape), torch.rand(given), {"p": some_rows(shape)})
    assert float(found.hi.max()) == INF


@pytest.mark.parametrize("function", [F.relu, lambda p: F.threshold(p, 0.5, 0.2).abs(), lambda p: torch.cat([p, p])])
def test_numbers_that_are_not_known_may_be_anything(function: Function) -> None:
    module = Reads(lambda x, p: function(p)[1] + x, (3,))
    found = intervals(module, torch.rand(2), {"p": known(np.array([0.0, np.nan, 0.0]))})
    assert float(found.hi.max()) == INF


def test_a_recurrence_may_start_anywhere() -> None:
    class Starts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.p = nn.GRU(1, 1, batch_first=True), nn.Parameter(torch.rand(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.gru(x, self.p[1:2].reshape(1, 1, 1))[0]

    found = intervals(Starts(), torch.rand(1, 2, 1), {"p": known(np.array([0.0, np.nan, 0.0]))})
    assert float(found.hi.max()) == INF


def made(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, nn.Module]:
    """A run with a single cut."""
    first = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).to(dtype)
    model = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).to(dtype)
    with torch.no_grad():
        model[2].bias[1] = -300.0
    nd.NodeDrop(model, None, torch.rand(3, 2, dtype=dtype), ledger=folder / "ledger.jsonl").drop()
    return first, model


def checked(folder: Path, first: nn.Module, model: nn.Module) -> Verdict:
    return verify_run(first, model, torch.rand(3, 2, dtype=first[0].weight.dtype), folder / "ledger.jsonl")


def test_a_run_in_half_precision(tmp_path: Path) -> None:
    assert checked(tmp_path, *made(tmp_path, torch.bfloat16)).status == "proved"


def _twice(cut: dict[str, Any], kept: dict[str, Tensor]) -> None:
    kept["whole/2.bias"] = torch.ones(5)


def _strange(cut: dict[str, Any], kept: dict[str, Tensor]) -> None:
    kept["other/0.bias"] = torch.ones(6)


def _nowhere(cut: dict[str, Any], kept: dict[str, Tensor]) -> None:
    del cut["tensors"][0]["size"]


def _text(cut: dict[str, Any], kept: dict[str, Tensor]) -> None:
    cut["tensors"][0]["removed"] = ["1"]


def _folder(cut: dict[str, Any], kept: dict[str, Tensor]) -> None:
    cut["witness"]["file"] = "."


@pytest.mark.parametrize("forge", [None, _twice, _strange, _nowhere, _text, _folder])
def test_a_run_whose_files_are_none_of_the_format(tmp_path: Path, forge: Callable[..., None] | None) -> None:
    from hashlib import sha256

    first, model = made(tmp_path)
    lines = read(tmp_path / "ledger.jsonl")
    path = tmp_path / lines[1]["witness"]["file"]
    kept = load_file(path)
    if forge is not None:
        forge(lines[1], kept)
    save_file(kept, path)
    lines[1]["witness"]["sha256"] = sha256(path.read_bytes()).hexdigest()
    write(tmp_path / "ledger.jsonl", mended(lines))
    verdict = checked(tmp_path, first, model)
    assert (verdict.status == "proved") == (forge is None), verdict


def test_weights_in_no_format(tmp_path: Path) -> None:
    first, model = made(tmp_path)
    lines = read(tmp_path / "ledger.jsonl")
    (tmp_path / lines[1]["witness"]["file"]).write_bytes(b"nothing")
    from hashlib import sha256

    lines[1]["witness"]["sha256"] = sha256(b"nothing").hexdigest()
    write(tmp_path / "ledger.jsonl", mended(lines))
    assert "cannot be read" in checked(tmp_path, first, model).reason


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.value, self.gate, self.last = nn.Linear(2, width), nn.Linear(2, width), nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.value(x).relu() * self.gate(x).relu())


def test_a_unit_may_not_state_a_smaller_bound_of_its_gate(tmp_path: Path) -> None:
    before, after, path = Gated(4), Gated(4), tmp_path / "ledger.jsonl"
    with torch.no_grad():
        for layer, bias in ((before.value, -1.0), (before.gate, -5.0)):
            layer.weight[0], layer.bias[0], layer.bias[1:] = 0.0, bias, 1.0
    after.load_state_dict(before.state_dict())
    nd.compact_(after, torch.rand(2, 2), ledger=path)
    lines = read(path)
    unit = next(line for line in lines if line["line"] == "unit" and line["weight"] == "value.weight")
    for bound, status in ((unit["bound"], "proved"), (-5.0, "refuted")):
        unit["bound"] = bound
        write(path, mended(lines))
        assert verify(before, after, torch.rand(2, 2), ledger=path).status == status
