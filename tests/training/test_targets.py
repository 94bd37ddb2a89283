"""The penalty acts on units that meet an activation, and on each of them once, however values are joined or split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nodedrop.errors import InputError
from nodedrop.training import NodeDrop

from ..zoo import ZOO


class Net(nn.Module):
    """Layers by name, and what to do with them."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def norm(units: int) -> nn.BatchNorm2d:
    made = nn.BatchNorm2d(units)
    nn.init.uniform_(made.weight, 0.5, 1.5)
    nn.init.uniform_(made.bias, -0.4, 0.4)
    return made


def conv(inputs: int, units: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, units, 1)


def behind(*norms: nn.Module, count: int) -> Tensor:
    """The paper's penalty of some batch norms."""
    found = [n.weight.abs().sum() * count**0.5 + (n.bias + 1).abs().sum() for n in norms]  # type: ignore[union-attr,operator]
    return torch.stack(found).sum()


def joined() -> Net:
    def run(net: Any, x: Tensor) -> Tensor:
        return net.head(net.norm(torch.cat([net.a(x), net.b(x)], 1)).relu())  # type: ignore[no-any-return]

    return Net(run, a=conv(3, 4), b=conv(3, 6), norm=norm(10), head=conv(10, 2)).double()


def pressing(model: nn.Module, example: Any = None, **options: Any) -> NodeDrop:
    example = torch.rand(2, 3, 5, 5, dtype=torch.float64) if example is None else example
    return NodeDrop(model, None, example, lam=1.0, **options)


def test_a_norm_behind_a_join_counts_once_and_each_row_for_its_layer() -> None:
    model = joined()
    torch.testing.assert_close(pressing(model).penalty(), behind(model.norm, count=50))
    drop = pressing(model, lam_of={"b": 0.0})
    assert drop.widths == {"a": 4, "b": 6}
    drop.penalty().backward()
    assert model.norm.bias.grad.ne(0).tolist() == [True] * 4 + [False] * 6


def test_after_a_cut_the_rows_of_a_shared_norm_are_the_layers_own() -> None:
    model = joined()
    with torch.no_grad():
        model.norm.weight[[0, 1, 2, 7]], model.norm.bias[[0, 1, 2, 7]] = 0.0, -1.0
    drop = pressing(model, lam_of={"b": 0.0}, batch_size=2, evidence="batch-proved")
    assert drop.drop() is not None
    assert drop.widths == {"a": 1, "b": 5}
    drop.penalty().backward()
    assert model.norm.bias.grad.ne(0).tolist() == [True] + [False] * 5


def test_every_norm_of_a_residual_network_counts_once() -> None:
    model = ZOO["preact_resnet"].build().double()
    example = tuple(x.double() for x in ZOO["preact_resnet"].inputs(torch.Generator()))
    drop = pressing(model, example, m=7)
    norms = [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]
    torch.testing.assert_close(drop.penalty(), behind(*norms, count=7))
    assert sorted(name for t in drop.targets for name in t.parameters) == sorted(
        f"{name}.{kind}" for name, part in model.named_modules() if part in norms for kind in ("weight", "bias")
    )


def test_a_unit_with_several_norms_is_spared_in_all_or_none() -> None:
    def run(net: Any, x: Tensor) -> Tensor:
        x = net.a(x)
        x = torch.cat([x, net.b(net.first(x).relu())], 1)
        return net.head(net.second(x).relu())  # type: ignore[no-any-return]

    model = Net(run, a=conv(3, 8), first=norm(8), b=conv(8, 4), second=norm(12), head=conv(12, 2)).double()
    torch.testing.assert_close(pressing(model).penalty(), behind(model.first, model.second, count=50))
    pressing(model, spare_of={"a": 5, "b": 4}).penalty().backward()
    first, second = model.first.bias.grad.ne(0), model.second.bias.grad.ne(0)
    assert int(first.sum()) == 3
    assert second.tolist() == [*first.tolist(), *[False] * 4]


def regular(net: Any, x: Tensor) -> Tensor:
    return net.up(x)  # type: ignore[no-any-return]


def with_side_path(net: Any, x: Tensor) -> Tensor:
    return net.side(x) + net.up(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("made", [regular, with_side_path])
@pytest.mark.parametrize("width", [1, 6])
def test_of_a_packed_gate_only_the_half_with_the_activation_is_pressed(made: Any, width: int) -> None:
    def run(net: Any, x: Tensor) -> Tensor:
        gate, linear = made(net, x).chunk(2, -1)
        return net.down(gate.relu() * linear)  # type: ignore[no-any-return]

    up, side, down = nn.Linear(3, 2 * width), nn.Linear(3, 2 * width), nn.Linear(width, 2)
    model = Net(run, up=up, side=side, down=down).double()
    layers = [model.up] if made is regular else [model.side, model.up]
    drop = pressing(model, torch.rand(2, 3, dtype=torch.float64))
    halves = [(layer.weight[:width], layer.bias[:width]) for layer in layers]
    torch.testing.assert_close(drop.penalty(), sum(w.clamp(min=0).sum() + (b + 1).abs().sum() for w, b in halves))
    assert list(drop.widths.values()) == [2 * width] * len(layers)
    del drop
    pressing(model, torch.rand(2, 3, dtype=torch.float64), spare=0.5).penalty().backward()
    for layer in layers:
        moved = torch.zeros(0) if layer.bias.grad is None else layer.bias.grad
        assert int(moved[:width].ne(0).sum()) == width // 2
        assert not moved[width:].any()


def shuffled(net: Any, x: Tensor) -> Tensor:
    return net.head(net.norm(nn.functional.pixel_shuffle(net.a(x), 2)).relu())  # type: ignore[no-any-return]


def twice(net: Any, x: Tensor) -> Tensor:
    return net.head(net.norm(net.a(x)).relu()) + net.head(net.other(net.a(x + 1)).relu())  # type: ignore[no-any-return]


def in_a_row(net: Any, x: Tensor) -> Tensor:
    return net.head(net.norm(net.other(net.a(x))).relu())  # type: ignore[no-any-return]


def without(net: Any, x: Tensor) -> Tensor:
    """The norm that no activation follows is passed last."""
    x = net.a(x)
    return net.head(net.norm(x).relu()) + net.head(net.other(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("run", "units", "rows", "norms", "count"),
    [
        (shuffled, 16, 4, ["norm"], 200),
        (twice, 4, 4, ["norm", "other"], 50),
        (in_a_row, 4, 4, ["norm"], 50),
        (without, 4, 4, ["norm"], 50),
    ],
)
def test_the_norms_that_count(run: Any, units: int, rows: int, norms: list[str], count: int) -> None:
    model = Net(run, a=conv(3, units), norm=norm(rows), other=norm(rows), head=conv(rows, 4)).double()
    drop = pressing(model)
    torch.testing.assert_close(drop.penalty(), behind(*(getattr(model, name) for name in norms), count=count))
    assert drop.widths == {"a": units}


def test_units_with_and_without_a_norm_each_have_their_own_penalty() -> None:
    def run(net: Any, x: Tensor) -> Tensor:
        first, second = net.a(x).split([4, 4], 1)
        return net.head(net.norm(first).relu() + second.relu())  # type: ignore[no-any-return]

    model = Net(run, a=conv(3, 8), norm=norm(4), head=conv(4, 2)).double()
    own = model.a.weight[4:].clamp(min=0).sum() + (model.a.bias[4:] + 1).abs().sum()
    torch.testing.assert_close(pressing(model).penalty(), own + behind(model.norm, count=50))


def test_a_layer_that_has_only_one_unit_left_is_found_again() -> None:
    parts = [conv(3, 1), norm(1), nn.MaxPool2d(2), nn.ReLU(), conv(1, 2)]
    model = nn.Sequential(*parts).double()
    drop = pressing(model, lam_of={"0": 2.0})
    assert drop.widths == {"0": 1}
    torch.testing.assert_close(drop.penalty(), 2 * behind(model[1], count=50))


def test_names_that_choose_nothing_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    example = torch.rand(2, 3, dtype=torch.float64)
    with pytest.raises(InputError, match=r"include names '4', .* no activation .* follows; it can on 0, 2$"):
        pressing(model, example, include=["0", "4"])
    with pytest.raises(InputError, match=r"^include= and exclude= leave none of the layers .* can act on: 0, 2$"):
        pressing(model, example, include=["0"], exclude=["0"])
    assert pressing(model, example, include=["*"], exclude=["2", "4"]).widths == {"0": 4}


def test_computed_weights_are_the_reason_if_there_is_nothing_else() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    model = nn.Sequential(layer, nn.ReLU(), nn.Linear(4, 2)).double()
    words = r"an activation .* follows, but the weights are computed from 0\.parametrizations\.weight\.original"
    with pytest.warns(UserWarning, match="goes through other computations"), pytest.raises(InputError, match=words):
        pressing(model, torch.rand(2, 3, dtype=torch.float64))


def test_what_is_excluded_goes_where_it_is_dead() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    for layer in (model[0], model[2]):
        nn.init.ones_(layer.bias)
        nn.init.constant_(layer.bias[:1], -99.0)
    drop = pressing(model, torch.rand(2, 3, dtype=torch.float64), exclude=["2"])
    event = drop.drop()
    assert event is not None
    assert {item.layer for item in event.removed} == {"0", "2"}
    assert (event.units, drop.widths, model[2].out_features) == (3, {"0": 3}, 3)


def test_a_bias_may_have_axes_of_one_beside_it() -> None:
    def run(net: Any, x: Tensor) -> Tensor:
        return net.head((x @ net.weight + net.bias).relu())  # type: ignore[no-any-return]

    model = Net(run, head=nn.Linear(4, 2))
    model.weight, model.bias = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(1, 4))
    drop = pressing(model.double(), torch.rand(2, 3, dtype=torch.float64))
    torch.testing.assert_close(drop.penalty(), model.weight.clamp(min=0).sum() + (model.bias + 1).abs().sum())


def test_a_frozen_norm_is_not_moved_whatever_the_layer_before_it_does() -> None:
    model = joined()
    model.norm.requires_grad_(False)
    with pytest.raises(InputError, match="is frozen"):
        pressing(model)


def test_a_norm_without_statistics_is_one_too() -> None:
    """Where a forward pass writes into its input, train mode shows another operator."""

    def run(net: Any, x: Tensor) -> Tensor:
        x = x.clone()
        x[:, :, 0, 0] = 0.0
        return net.head(net.norm(net.a(x)).relu())  # type: ignore[no-any-return]

    norm = nn.BatchNorm2d(4, track_running_stats=False)
    model = Net(run, a=conv(3, 4), norm=norm, head=conv(4, 2)).double()
    drop = pressing(model, evidence="batch-proved", batch_size=2)
    (target,) = drop.targets
    assert not target.direct
    assert [one.scale for one in target.norms] == ["norm.weight"]


KEPT: dict[str, Callable[[], nn.Module]] = {
    "counts in the statistics of a group norm": lambda: nn.Sequential(nn.GroupNorm(2, 4), conv(4, 2)),
    "network output": nn.Identity,
}


@pytest.mark.parametrize("reason", KEPT)
def test_units_that_could_not_be_cut_are_not_pressed(reason: str) -> None:
    """They would lose what they do, and stay."""
    model = nn.Sequential(conv(3, 4), nn.ReLU(), KEPT[reason]())
    with pytest.raises(InputError, match=f"could not be cut if they were dead: 0: {reason}"):
        pressing(model.double())
    whole = nn.Sequential(conv(3, 3), nn.ReLU(), model).double()
    with pytest.raises(InputError, match=f"include names '2.0', and no unit of '2.0' could be cut: {reason}"):
        pressing(whole, include=["2.0"])
    drop = pressing(whole)
    drop.penalty().backward()
    assert "2.0" not in drop.widths
    assert whole[0].weight.grad is not None
    assert model[0].weight.grad is None


def test_what_a_cut_was_refused_for_is_not_pressed_any_more() -> None:
    def run(net: Any, x: Tensor) -> Tensor:
        return net.head(net.a(x).relu().view(-1, 4)) + net.other(net.b(x).relu())  # type: ignore[no-any-return]

    layers = {"a": nn.Linear(3, 4), "b": nn.Linear(3, 4), "head": nn.Linear(4, 2), "other": nn.Linear(4, 2)}
    model = Net(run, **layers).double()
    drop = pressing(model, torch.rand(2, 3, dtype=torch.float64))
    assert list(drop.widths) == ["a", "b"]
    with torch.no_grad():
        model.a.bias[0] = -99.0
        model.b.bias.fill_(9.0)
    with pytest.warns(UserWarning, match="left alone from now on"):
        assert drop.drop() is None
    assert list(drop.widths) == ["b"]
    drop.penalty().backward()
    assert model.a.weight.grad is None
