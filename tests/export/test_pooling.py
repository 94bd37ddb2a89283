"""In an exported file the activation comes after max pooling, where that computes the same."""

from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

import nodedrop as nd
from nodedrop.export import write_onnx, write_pt2

IMAGES = torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(1))


class Pooled(nn.Module):
    """`reader` says who else has a look at the activation, or at the pooling."""

    def __init__(self, reader: str, **pool: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.reader = reader
        self.layer, self.act, self.pool = nn.Conv2d(1, 4, 3), nd.SoftClampedReLU(), nn.MaxPool2d(**pool)
        self.after = nn.Conv2d(4, 2, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.act(self.layer(x))
        z = self.pool(y)
        last = self.after(z)
        if self.reader == "nobody":
            return (last,)
        return last, y.sum((1, 2, 3)) if self.reader == "sum" else z


def order(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(str(path)).graph.node if node.op_type in ("Exp", "MaxPool")]


@pytest.mark.parametrize(
    "pool",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 2, "stride": 3, "ceil_mode": True},
        {"kernel_size": 2, "dilation": 2},
    ],
    ids=str,
)
def test_pooling_comes_first(pool: dict[str, object], tmp_path: Path) -> None:
    model = Pooled("nobody", **pool)
    with torch.no_grad():
        model.layer.weight.mul_(5)  # so that values reach both flat ends
    done = write_onnx(model, [IMAGES], tmp_path / "model.onnx")
    assert order(done.path) == ["MaxPool", "Exp"]
    assert done.difference < 1e-6
    assert write_pt2(model, [IMAGES], tmp_path / "model.pt2").difference < 1e-6


@pytest.mark.parametrize("reader", ["sum", "output"])
def test_what_others_read_keeps_its_place(reader: str, tmp_path: Path) -> None:
    done = write_onnx(Pooled(reader, kernel_size=2), [IMAGES], tmp_path / "model.onnx")
    assert order(done.path) == ["Exp", "MaxPool"]
    assert done.difference < 1e-6


def test_pooling_of_other_activations_stays(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 2, 3))
    path = write_onnx(model, [IMAGES], tmp_path / "model.onnx").path
    assert [node.op_type for node in onnx.load(str(path)).graph.node] == ["Conv", "Relu", "MaxPool", "Conv"]
