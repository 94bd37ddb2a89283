"""An exported file computes what the module computes, for any batch size, with ordinary operators."""

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch
from tests.export.target import Exponential, Fickle, OneBatchSize, Pair, convolutional, smooth

import nodedrop as nd
from nodedrop.errors import InputError
from nodedrop.export import DifferenceError, Exported, quantize, write_onnx, write_pt2
from nodedrop.export.onnx import opened, operators, run
from nodedrop.export.program import names_of_outputs, program_of

IMAGES = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(1))


def test_an_onnx_file_has_a_free_batch_axis_and_ordinary_operators(tmp_path: Path) -> None:
    model = convolutional().eval()
    done = write_onnx(model, [IMAGES], tmp_path / "model.onnx")
    assert isinstance(done, Exported)
    assert sorted(done.differences) == [2, 5]
    assert done.difference < 1e-6
    assert os.listdir(tmp_path) == ["model.onnx"]
    onnx.checker.check_model(str(done.path), full_check=True)
    graph = onnx.load(str(done.path)).graph
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert set(operators(done.path)) <= {
        "Conv", "Mul", "Exp", "Add", "Log", "Clip", "Relu", "MaxPool", "Reshape", "Gemm",
    }  # fmt: skip
    for rows in (1, 7):
        x = torch.rand(rows, 1, 28, 28)
        with torch.no_grad():
            torch.testing.assert_close(run(opened(done.path), [x])[0], model(x), rtol=1e-5, atol=1e-6)


class Branches(torch.nn.Module):
    """Units that are summed, joined or returned stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = (torch.nn.Conv2d(n, 5, 3, padding=1) for n in (1, 5, 10))
        self.deep, self.head = torch.nn.Conv2d(5, 3, 3), torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.one(x).relu()
        y = self.two(x).relu()
        z = self.last(torch.cat([x, y + 1.0], 1)).relu()
        return y, self.head(self.deep(z).relu().mean((2, 3)))


class Returned(torch.nn.Module):
    """Units that a convolution reads, and that are an output as well."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Conv2d(1, 5, 3), torch.nn.Conv2d(5, 3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.one(x).relu()
        return x, self.two(x)


@pytest.mark.parametrize(("build", "widths"), [(convolutional, [8]), (Branches, [5, 5, 8, 3]), (Returned, [5, 3])])
def test_units_are_filled_up_where_that_changes_nothing(build: type, widths: list[int], tmp_path: Path) -> None:
    model = build().eval()
    done = write_onnx(model, [IMAGES], tmp_path / "model.onnx")
    assert done.difference < 1e-6
    assert (done.filled, done.multiple) == (1 if 8 in widths else 0, 8)
    onnx.checker.check_model(str(done.path), full_check=True)
    graph = onnx.load(str(done.path)).graph
    shapes = {item.name: list(item.dims) for item in graph.initializer}
    assert [shapes[node.input[1]][0] for node in graph.node if node.op_type == "Conv"] == widths
    plain = write_onnx(model, [IMAGES], tmp_path / "plain.onnx", multiple=1)
    assert plain.filled == 0
    x = torch.rand(7, 1, 28, 28)
    for one, two in zip(run(opened(done.path), [x]), run(opened(plain.path), [x]), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("units", "widths"), [(3, [3, 5]), (4, [8, 5]), (9, [16, 5]), (16, [16, 5])])
def test_few_units_are_not_filled_up(units: int, widths: list[int], tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, units, 3), torch.nn.ReLU(), torch.nn.Conv2d(units, 5, 3))
    graph = onnx.load(str(write_onnx(model, [IMAGES], tmp_path / "model.onnx").path)).graph
    shapes = {item.name: list(item.dims) for item in graph.initializer}
    assert [shapes[node.input[1]][0] for node in graph.node if node.op_type == "Conv"] == widths


@pytest.mark.parametrize("beta", [0.5, 10.0, 300.0])
def test_dead_stays_exactly_zero(beta: float, tmp_path: Path) -> None:
    v = torch.cat([-torch.logspace(-30, 30, 61), torch.tensor([-0.0, 0.0]), torch.linspace(0, 3, 61)]).reshape(-1, 4)
    done = write_onnx(nd.SoftClampedReLU(beta), [v], tmp_path / "sigma.onnx")
    (y,) = run(opened(done.path), [v])
    assert bool((y[v <= 0] == 0).all())
    torch.testing.assert_close(y, nd.functional.soft_clamped_relu(v, beta), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("write", [write_onnx, write_pt2])
def test_several_inputs_and_outputs(write: type, tmp_path: Path) -> None:
    inputs = [torch.rand(2, 4), torch.tensor([[0, 1, 2], [2, 3, 4]])]
    assert write(Pair(), inputs, tmp_path / "file").difference < 1e-6


class Keyed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(4, 3), torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        return {"logits": self.one(x), "value": [self.two(x), x + 1], "input": x * 2}


def test_outputs_are_called_by_their_keys(tmp_path: Path) -> None:
    names = ["logits", "value.0", "value.1", "input.output"]
    assert names_of_outputs(program_of(Keyed(), [torch.rand(2, 4)]), ["input"]) == names
    session = opened(write_onnx(Keyed(), [torch.rand(2, 4)], tmp_path / "model.onnx").path)
    assert [item.name for item in session.get_outputs()] == names
    assert names_of_outputs(program_of(convolutional(), [IMAGES])) is None


def test_a_pt2_file_loads_without_nodedrop(tmp_path: Path) -> None:
    path = write_pt2(convolutional(), [IMAGES], tmp_path / "model.pt2").path
    code = (
        f"import sys, torch; net = torch.export.load({str(path)!r}).module(); "
        "print(net(torch.rand(7, 1, 28, 28)).shape, 'nodedrop' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "torch.Size([7, 10]) False", done.stderr


def test_the_module_is_left_as_it_was(tmp_path: Path) -> None:
    model = convolutional().train()
    model[1].eval()  # frozen, as for fine-tuning
    state = {name: value.clone() for name, value in model.state_dict().items()}
    write_pt2(model, [IMAGES], tmp_path / "model.pt2")
    assert [module.training for module in model.children()] == [True, False] + [True] * 6
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("write", [write_onnx, write_pt2])
def test_a_file_that_computes_something_else_is_not_kept(write: type, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("as it was")
    with pytest.raises(DifferenceError, match=r"differs from the module by 1\.\de-03 \(relative\) for a batch of 2"):
        write(Fickle(), [torch.rand(2, 4)], tmp_path / "file")
    assert (tmp_path / "file").read_text() == "as it was"
    assert os.listdir(tmp_path) == ["file"]


def test_what_cannot_be_exported_is_one_sentence(tmp_path: Path) -> None:
    for model, inputs, words in (
        (OneBatchSize(), [torch.rand(2, 4)], "OneBatchSize cannot be exported for any batch size: "),
        (smooth(), [torch.rand(2, 5)], r"Sequential does not run on inputs of shape \(2, 5\): "),
        (Pair(), [torch.rand(2, 4), torch.zeros(3, 3, dtype=torch.int64)], "the first axis of every input must be"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            write_pt2(model, inputs, tmp_path / "file")
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="cannot be written"):
        write_pt2(smooth(), [torch.rand(2, 4)], tmp_path / "none" / "file")
    assert os.listdir(tmp_path) == []


def test_an_operator_that_onnx_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Exponential cannot be written as ONNX: .*matrix_exp") as caught:
        write_onnx(Exponential(), [torch.rand(2, 4, 4)], tmp_path / "file")
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_int8_is_smaller_and_close(tmp_path: Path) -> None:
    source = write_onnx(convolutional(), [IMAGES], tmp_path / "model.onnx").path
    samples = torch.rand(120, 1, 28, 28)
    labels = run(opened(source), [samples])[0].argmax(1)
    done = quantize(source, tmp_path / "model.int8.onnx", samples, labels)
    assert done.bytes < done.bytes_float == source.stat().st_size
    assert (done.error_float, done.samples) == (0.0, 120)
    assert 0 < done.difference < 0.1
    assert {"QuantizeLinear", "DequantizeLinear"} <= set(operators(done.path))
    assert sorted(os.listdir(tmp_path)) == ["model.int8.onnx", "model.onnx"]


class Logarithm(torch.nn.Module):
    """A unit that is filled up with 0 becomes −∞ on its way to a weight of 0."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Conv2d(1, 5, 3), torch.nn.Conv2d(5, 2, 3)
        torch.nn.init.uniform_(self.one.weight, 0.1, 0.2)
        torch.nn.init.constant_(self.one.bias, 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.two(torch.log(self.one(x)))
        return found


def test_where_filling_up_gives_other_numbers_widths_stay(tmp_path: Path) -> None:
    done = write_onnx(Logarithm().eval(), [IMAGES], tmp_path / "model.onnx")
    assert done.filled == 0
    assert done.difference < 1e-6
