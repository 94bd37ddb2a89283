"""Shrinking while training: the rest of the training is exactly what it would have been."""

import copy
import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from nodedrop import Box, load
from nodedrop.errors import CollapseError, CutError, InputError
from nodedrop.training import NodeDrop, schedules
from nodedrop.training.late import late

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adam-amsgrad": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.005, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
    "nadam": lambda p: torch.optim.NAdam(p, 0.01),
}


class Net(nn.Module):
    """A convolution, a residual pair of dense layers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 6, 3, padding=1)
        self.first, self.second = nn.Linear(24, 14), nn.Linear(14, 14)
        self.head = nn.Linear(14, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.conv(x).relu().flatten(1)).relu()
        return self.head(x + self.second(x).relu())


def data(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.rand(16, 2, 4, generator=generator, dtype=torch.float64)
    return x, (x.sum((1, 2)) > 4).long() + (x[:, 0, 0] > 0.7).long()


EXAMPLE = data(0)[0][:2]


def make() -> Net:
    """A network of which some units are dead, or will be soon."""
    torch.manual_seed(1)
    net = Net().double()
    with torch.no_grad():
        for layer, units in ((net.conv, [1]), (net.first, [3, 7]), (net.second, [3, 7, 9])):
            for unit in units:
                layer.weight[unit] = -layer.weight[unit].abs()
                layer.bias[unit] = 1e-3 if unit == 7 else -0.5
    return net


def train(
    model: nn.Module, optimizer: Optimizer, drop: NodeDrop, steps: range, every: int | None, scheduler: Any = None
) -> list[float]:
    losses = []
    for step in steps:
        x, y = data(step)
        loss = nn.functional.cross_entropy(model(x), y) + drop.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(float(nn.functional.cross_entropy(model(x), y).detach()))
        if every and step % every == every - 1:
            drop.drop()
    return losses


def kept(drop: NodeDrop, layer: str, width: int) -> list[int]:
    gone = {c.index for event in drop.events for c in event.removed if c.layer == layer}
    return [index for index in range(width) if index not in gone]


def assert_close(first: Tensor, second: Tensor, relative: float = 1e-10) -> None:
    assert first.shape == second.shape
    first, second = first.detach(), second.detach()
    scale = max(float(second.abs().max()), 1e-30)
    assert float((first - second).abs().max()) <= relative * scale


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_trajectory_is_left_alone(name: str) -> None:
    sides = []
    for every in (40, None):
        model = make()
        groups = [
            {"params": [p for n, p in model.named_parameters() if "bias" in n]},
            {"params": [p for n, p in model.named_parameters() if "bias" not in n]},
        ]
        optimizer = OPTIMIZERS[name](groups)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
        drop = NodeDrop(model, optimizer, EXAMPLE, lam=1e-3)
        losses = train(model, optimizer, drop, range(360), every, scheduler)
        sides.append((model, optimizer, drop, losses))
    (small, small_optimizer, drop, small_losses), (full, full_optimizer, _, full_losses) = sides
    removed = sum(len(event.removed) for event in drop.events)
    assert drop.events
    assert drop.events[0].step <= 160, "units must go early enough to train 200 further steps"
    assert removed == 34 - sum(len(kept(drop, n, w)) for n, w in (("conv", 6), ("first", 14), ("second", 14)))
    assert max(abs(a - b) / b for a, b in zip(small_losses, full_losses, strict=True)) < 1e-10
    conv, first = kept(drop, "conv", 6), kept(drop, "first", 14)
    flat = [c * 4 + k for c in conv for k in range(4)]
    pairs = [
        ("conv.weight", lambda t: t[conv]),
        ("conv.bias", lambda t: t[conv]),
        ("first.weight", lambda t: t[first][:, flat]),
        ("second.weight", lambda t: t[first][:, first]),
        ("head.weight", lambda t: t[:, first]),
        ("head.bias", lambda t: t),
    ]
    for path, keep in pairs:
        mine, other = small.get_parameter(path), full.get_parameter(path)
        assert_close(mine, keep(other))
        for key, value in full_optimizer.state[other].items():
            if isinstance(value, Tensor) and value.numel() > 1:
                assert_close(small_optimizer.state[mine][key], keep(value))


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_memory_formats_stay(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 3))
    model = model.to(memory_format=torch.channels_last)
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight[1], layer.bias[1] = -1.0, -1.0
    optimizer = OPTIMIZERS[name](model.parameters())
    example = torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last)
    drop = NodeDrop(model, optimizer, example, lam=0.0)
    model(example).square().mean().backward()
    optimizer.step()
    event = drop.drop()
    assert event is not None
    assert len(event.removed) == 2
    for layer in (model[0], model[2], model[4]):
        of_shape = [v for v in optimizer.state[layer.weight].values() if torch.is_tensor(v) and v.dim() == 4]
        assert of_shape
        for tensor in (layer.weight, layer.weight.grad, *of_shape):
            assert tensor.is_contiguous(memory_format=torch.channels_last)
            assert not tensor.is_contiguous()


def test_a_gradient_that_is_being_accumulated_is_carried_along() -> None:
    sides = []
    for cutting in (True, False):
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        drop = NodeDrop(model, optimizer, EXAMPLE, lam=0.0)
        for part in range(2):
            x, y = data(part)
            nn.functional.cross_entropy(model(x), y).backward()
            if cutting and part == 0:
                assert drop.drop() is not None
        optimizer.step()
        sides.append(model)
    rows = [k for k in range(14) if k != 3]
    assert sides[0].first.out_features == 13
    columns = [k for k in range(24) if k not in range(4, 8)]
    assert_close(sides[0].first.weight, sides[1].first.weight[rows][:, columns])
    assert_close(sides[0].head.weight, sides[1].head.weight[:, rows])


def test_an_average_of_the_model_goes_along_and_has_a_say() -> None:
    model = make()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    drop = NodeDrop(model, optimizer, EXAMPLE, lam=1e-3, copies=[average])
    for step in range(200):
        x, y = data(step)
        loss = nn.functional.cross_entropy(model(x), y) + drop.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        if step % 40 == 39:
            before = average(x)
            if drop.drop() is not None:
                assert_close(average(x), before, 1e-12)
    assert drop.events
    assert average.module.first.weight.shape == model.first.weight.shape


def test_a_compiled_model_and_a_gradient_scaler_go_on() -> None:
    model = make()
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    drop = NodeDrop(compiled, optimizer, EXAMPLE, lam=1e-3)
    for step in range(120):
        x, y = data(step)
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(compiled(x), y) + drop.penalty()).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 40 == 39:
            drop.drop()
    assert drop.events
    x, _ = data(999)
    assert torch.equal(compiled(x), model(x))


def test_layers_are_found_from_the_graph() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(4, 4) for _ in range(4))
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.d(nn.functional.gelu(self.c(self.norm(self.b(self.a(x).relu())).clamp(min=0))))

    model = Mixed()
    drop = NodeDrop(model, None, torch.rand(2, 4))
    assert [(t.layer, [norm.scale for norm in t.norms]) for t in drop.targets] == [("a", []), ("b", ["norm.weight"])]
    del drop
    assert [t.layer for t in NodeDrop(model, None, torch.rand(2, 4), exclude=["a"]).targets] == ["b"]


def test_the_penalty_is_the_papers() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    drop = NodeDrop(model, None, torch.rand(2, 3, dtype=torch.float64), lam=1e-2, C=2.0, lam_of={"0": 3.0})
    expected = 3e-2 * (model[0].weight.clamp(min=0).sum() + (model[0].bias + 2.0).abs().sum())
    torch.testing.assert_close(drop.penalty(), expected)


class Handmade(nn.Module):
    """Dense layers as people write them by hand: the weight turned or not, the bias in the product or after it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.rand(size)) for size in ((3, 5), (4, 5), (4, 6)))
        self.p, self.q, self.r = (nn.Parameter(torch.rand(size)) for size in (5, 4, 6))
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = (x @ self.a + self.p).relu()
        x = (x @ self.b.T + self.q).relu()
        return self.head(torch.addmm(self.r, x, self.c).relu())


def test_layers_written_by_hand_are_penalised_like_any_other() -> None:
    model = Handmade().double()
    drop = NodeDrop(model, None, torch.rand(2, 3, dtype=torch.float64), lam=1.0)
    pairs = ((model.a, model.p), (model.b, model.q), (model.c, model.r))
    expected = sum(w.clamp(min=0).sum() + (b + 1.0).abs().sum() for w, b in pairs)
    torch.testing.assert_close(drop.penalty(), expected)
    with torch.no_grad():
        model.p[1], model.q[2], model.r[3] = -9.0, -99.0, -999.0
    event = drop.drop()
    assert event is not None
    assert [tuple(p.shape) for p in (model.a, model.b, model.c)] == [(3, 4), (3, 4), (3, 5)]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_transposed_convolutions_are_penalised(groups: int) -> None:
    layers = [nn.Conv2d(3, 4, 1), nn.ReLU(), nn.ConvTranspose2d(4, 8, 3, groups=groups), nn.ReLU(), nn.Conv2d(8, 2, 1)]
    model = nn.Sequential(*layers).double()
    drop = NodeDrop(model, None, torch.rand(2, 3, 5, 5, dtype=torch.float64), lam=1.0, include=["2"])
    expected = model[2].weight.clamp(min=0).sum() + (model[2].bias + 1.0).abs().sum()
    torch.testing.assert_close(drop.penalty(), expected)
    assert drop.widths == {"2": 8}


def test_hooks_go_on_and_computed_weights_are_left_alone_with_a_sentence() -> None:
    layers = [part for width in (3, 4, 4) for part in (nn.Linear(width, 4), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(4, 2))
    nn.utils.parametrizations.weight_norm(model[4])
    seen: list[tuple[int, ...]] = []
    model[0].weight.register_hook(lambda grad: seen.append(tuple(grad.shape)))
    model[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(tuple(p.grad.shape)))
    model[0].register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape[1:])))
    with pytest.warns(UserWarning, match=r"'4\.parametrizations\.weight\.original1' goes through other computations"):
        drop = NodeDrop(model, None, torch.rand(2, 3))
    assert [target.layer for target in drop.targets] == ["0"]  # what a computed weight reads cannot be cut
    with torch.no_grad():
        model[0].bias.fill_(1.0)
        model[0].bias[1] = -9.0
    assert drop.drop() is not None
    seen.clear()
    model(torch.rand(5, 3)).sum().backward()
    assert seen == [(3,), (3, 3), (3, 3)]


@pytest.mark.parametrize(("m", "count"), [("elements", 2 * 5), ("batch", 2), ("channels", 4), (7, 7)])
def test_what_batch_norm_counts(m: Any, count: int) -> None:
    model = nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4), nn.ReLU(), nn.Conv1d(4, 2, 1)).double()
    drop = NodeDrop(model, None, torch.rand(2, 3, 5, dtype=torch.float64), lam=1.0, m=m)
    expected = model[1].weight.abs().sum() * count**0.5 + (model[1].bias + 1.0).abs().sum()
    torch.testing.assert_close(drop.penalty(), expected)


def test_schedules() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    drop = NodeDrop(model, None, torch.rand(2, 3), lam=schedules.warm_up(1e-2, steps=2))
    assert [float(drop.penalty().detach()) > 0 for _ in range(4)] == [False, False, True, True]


def dying(on_collapse: Any) -> tuple[nn.Sequential, NodeDrop]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    drop = NodeDrop(model, None, torch.rand(2, 3), lam=1e-3, on_collapse=on_collapse)
    with torch.no_grad():
        model[0].bias.fill_(-5.0)
    return model, drop


def test_the_last_unit_of_a_layer_is_kept_with_a_warning() -> None:
    model, drop = dying("keep")
    with pytest.warns(UserWarning, match=r"'0' is dead and one was kept; λ = 0.001 is too large .* try λ = 0.0001"):
        event = drop.drop()
    assert event is not None
    assert len(event.removed) == 3
    assert model[0].out_features == 1
    assert drop.drop() is None, "said once, not at every drop"


def test_a_collapse_can_be_allowed() -> None:
    model, drop = dying("allow")
    event = drop.drop()
    assert event is not None
    assert (len(event.removed), event.units, event.collapsed) == (3, 0, ("0",))
    assert drop.drop() is None
    assert torch.equal(model(torch.zeros(1, 3)), model(torch.ones(1, 3))), "the network is constant now"


def test_a_layer_that_dies_after_its_last_cut_is_an_event_where_that_is_allowed() -> None:
    model, drop = dying("allow")
    with torch.no_grad():
        model[0].bias[0] = 5.0
    first = drop.drop()
    assert first is not None
    assert (first.units, first.collapsed) == (1, ())
    with torch.no_grad():
        model[0].bias.fill_(-5.0)
    second = drop.drop()
    assert second is not None
    assert (second.removed, second.units, second.collapsed) == ((), 0, ("0",))


def test_a_collapse_can_be_an_error() -> None:
    model, drop = dying("error")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(CollapseError, match="'0'"):
        drop.drop()
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def press(drop: NodeDrop, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Train on the penalty alone."""
    for _ in range(steps):
        optimizer.zero_grad()
        drop.penalty().backward()
        optimizer.step()
        drop.drop()


@pytest.mark.parametrize(
    ("spare", "multiple", "left"),
    [(0.0, 1, 0), (0.5, 1, 1), (0.7, 1, 3), (0.5, 4, 4), (0.7, 4, 12), (0.5, 16, 16), (7, 1, 7), (7, 4, 8)],
)
def test_a_layer_comes_to_rest_at_the_units_that_are_spared(spare: float, multiple: int, left: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"spare": spare, "multiple": multiple, "on_collapse": "allow"}
    drop = NodeDrop(model, optimizer, torch.rand(2, 3), lam=1.0, **options)
    press(drop, optimizer, 300)
    assert drop.widths["0"] == left


def test_layers_come_to_rest_at_numbers_of_their_own() -> None:
    torch.manual_seed(0)
    layers = [layer for width in (20, 20, 20) for layer in (nn.LazyLinear(width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.LazyLinear(2))
    model(torch.rand(2, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    table = {"*": 5, "2": 12, "4": 0.7}
    drop = NodeDrop(model, optimizer, torch.rand(2, 3), lam=1.0, spare=0.5, spare_of=table, multiple=4)
    press(drop, optimizer, 300)
    assert drop.widths == {"0": 8, "2": 12, "4": 12}, "the last pattern that fits, rounded up"


def test_what_no_layer_uses_is_not_asked_for() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    drop = NodeDrop(model, None, torch.rand(2, 3), lam=1.0, spare_of={"*": 4}, multiple=4)  # with spare=0
    assert drop.penalty() > 0


def test_the_share_that_is_spared_may_change_with_the_steps() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 21), nn.ReLU(), nn.Linear(21, 2))
    nn.init.constant_(model[0].bias, 0.5)  # none is dead from the start
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    share = schedules.until(schedules.constant(1.0), steps=150, then=0.5)
    drop = NodeDrop(model, optimizer, torch.rand(2, 3), lam=1.0, spare=share, multiple=4)
    for expected in (20, 4):
        press(drop, optimizer, 150)
        assert drop.widths["0"] == expected


def test_a_number_of_units_that_is_spared_may_fall_with_the_steps() -> None:
    model = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 2))
    drop = NodeDrop(model, None, torch.rand(2, 3), lam=1.0, spare=schedules.anneal(64, 32, steps=2))
    counts = []
    for _ in range(3):
        model.zero_grad()
        drop.penalty().backward()
        counts.append(0 if model[0].bias.grad is None else int((model[0].bias.grad != 0).sum()))
    assert counts == [0, 64 - 46, 32], "45.25 is rounded up"


def test_a_layer_at_rest_costs_nothing_and_others_are_pressed() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 11), nn.ReLU(), nn.Linear(11, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    drop = NodeDrop(model, optimizer, torch.rand(2, 3), lam=1.0, spare=1.0, multiple=8)
    drop.penalty().backward()
    assert model[0].weight.grad is None, "not even a gradient of zeros"
    assert int((model[2].bias.grad != 0).sum()) == 3, "the units beyond eight"


def test_a_share_below_none_is_refused_at_the_step_that_has_it() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    share = schedules.until(schedules.constant(0.5), steps=1, then=-0.5)
    drop = NodeDrop(model, None, torch.rand(2, 3), lam=1.0, spare=share)
    drop.penalty().backward()
    with pytest.raises(InputError, match=r"spare must be from 0 to 1, or a number of units above 1, got -0\.5"):
        drop.penalty()


def test_batch_proved_units_go_and_the_change_in_eval_mode_is_stated() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)).double()
    with torch.no_grad():
        model[1].weight[2], model[1].bias[2] = 1e-3, -0.5  # dead in training: 1e-3·√(m−1) < 0.5
        model[1].running_mean[2] = -1e4  # but not in eval mode, by these running statistics
    example = torch.rand(8, 3, dtype=torch.float64)
    strict = NodeDrop(model, None, example, lam=0.0)
    with pytest.warns(UserWarning, match="give batch_size="):
        assert strict.drop() is None
    del strict
    event = NodeDrop(model, None, example, lam=0.0, evidence="batch-proved", batch_size=64).drop()
    assert event is not None
    assert [c.evidence for c in event.removed] == ["batch-proved"]
    assert event.eval_change is not None
    assert event.eval_change > 1e-3
    assert "eval-mode outputs changed" in str(event)


def test_a_state_goes_on_where_it_was_left() -> None:
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    drop = NodeDrop(model, optimizer, EXAMPLE, lam=1e-3)
    train(model, optimizer, drop, range(160), 40)
    state, weights = json.loads(json.dumps(drop.state_dict())), copy.deepcopy(model.state_dict())
    assert drop.events
    other = Net().double()
    resumed = NodeDrop(other, None, EXAMPLE, lam=1e-3)
    with pytest.raises(InputError, match="load its weights first"):
        resumed.load_state_dict(state)
    load(other, weights)
    resumed.load_state_dict(state)
    assert json.dumps(resumed.state_dict()) == json.dumps(state)
    for side in (model, other):
        with torch.no_grad():
            side.first.bias[0] = -9.0
    events = [each.drop() for each in (drop, resumed)]
    assert events[0] is not None
    assert events[0] == events[1], "indices are those of the network as it was at first"
    with pytest.raises(InputError, match="no state of a NodeDrop"):
        resumed.load_state_dict({"weights": 1})


def test_a_state_with_a_collapsed_layer_goes_on() -> None:
    model, drop = dying("allow")
    drop.drop()
    state, weights = json.loads(json.dumps(drop.state_dict())), copy.deepcopy(model.state_dict())
    other, resumed = dying("allow")
    load(other, weights)
    resumed.load_state_dict(state)
    again = json.loads(json.dumps(resumed.state_dict()))
    assert {k: v for k, v in again.items() if k != "proven"} == {k: v for k, v in state.items() if k != "proven"}
    assert resumed.widths == drop.widths == {"0": 0}
    assert resumed.drop() is None, "the collapse is no news"


def test_batches_outside_the_domain_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    drop = NodeDrop(model, None, torch.rand(2, 3), domain=Box(torch.tensor([0.0, 0.0, -1.0]), torch.ones(3)))
    model(torch.tensor([[0.0, 1.0, -1.0], [1.0, 0.5, 0.0]]))
    drop.penalty().backward()
    for bad in (1.5, -0.25, float("nan")):
        model(torch.tensor([[0.0, bad, 0.0]]))
        with pytest.raises(InputError, match=r"outside the declared domain .* check_inputs=False"):
            drop.penalty()
        drop.drop()
        model(torch.tensor([[0.0, bad, 0.0]]))
        with pytest.raises(InputError, match="outside the declared domain"):
            drop.drop()
    copied = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    copied(torch.full((1, 3), 7.0))
    drop.drop()
    del drop
    assert not model._forward_pre_hooks
    drop = NodeDrop(model, None, torch.rand(2, 3), check_inputs=False)
    model(torch.full((1, 3), 7.0))
    drop.penalty()


def test_inputs_are_checked_by_name_and_whatever_their_shape() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor, y: Tensor, z: Tensor | None = None) -> Tensor:
            out = self.b(self.a(x + y).relu())
            return out if z is None else out + z.mean()

    model, low, high = Two(), torch.zeros(2, 3), torch.full((2, 3), 5.0)
    drop = NodeDrop(model, None, (low, high), domain=[(0.0, 1.0), (4.0, 6.0)])
    model(y=high, x=low)
    model(low, high, torch.full((2, 1), 99.0))
    drop.drop()
    for call in (lambda: model(y=low, x=low), lambda: model(low, low, low), lambda: model(high[0], high[0])):
        call()
        with pytest.raises(InputError, match="outside the declared domain"):
            drop.drop()


def test_the_change_in_eval_mode_is_measured_on_the_samples_given() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)).double()
    with torch.no_grad():
        model[0].weight[2], model[0].bias[2] = torch.tensor([1.0, 0.0, 0.0]), -0.9  # fires in eval mode above 0.9
        model[1].weight[2], model[1].bias[2] = 1e-3, -1e-2
        model[1].running_mean[2], model[1].running_var[2] = 0.0, 1e-10
    changes = []
    for samples in (None, torch.tensor([[0.99, 0.5, 0.5]]).double()):
        side = copy.deepcopy(model)
        example = torch.full((8, 3), 0.5, dtype=torch.float64)
        drop = NodeDrop(side, None, example, lam=0.0, evidence="batch-proved", batch_size=8, samples=samples)
        event = drop.drop()
        assert event is not None
        changes.append(event.eval_change)
    assert changes[1] > changes[0]


@pytest.mark.parametrize("name", ["form", "norm_form"])
def test_a_misspelt_form_is_refused_at_once(name: str) -> None:
    with pytest.raises(InputError, match=rf"^{name} must be one of paper, one-sided.*, not 'papper'$"):
        NodeDrop(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), None, torch.rand(2, 4), **{name: "papper"})


def test_bad_input() -> None:
    model, example = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.rand(2, 3)
    for options, words in [
        ({"lam": -1.0}, "λ must be a number from 0 on"),
        ({"C": 0.0}, "C must be above 0"),
        ({"C": math.inf}, "C must be above 0 and finite, got inf"),
        ({"m": 0}, "m must be the number of values per channel"),
        ({"lam_of": {"0": math.nan}}, "for layer '0' must be at least 0 and finite, not nan"),
        ({"spare": -0.5}, "spare must be from 0 to 1"),
        ({"spare_of": {"0": -0.5}}, "spare must be from 0 to 1"),
        ({"spare": 0.5, "multiple": 0}, "multiple must be at least 1"),
        ({"spare": 0.5, "multiple": 8.0}, "multiple must be at least 1, and a whole number, got 8.0"),
        ({"multiple": 8}, "multiple=8 rounds the number of units that are spared, so it needs spare above 0"),
        ({"toll": -0.5}, "toll must be at least 0"),
        ({"m": "pixels"}, "m must be"),
        ({"on_collapse": "ignore"}, "on_collapse"),
        ({"include": ["encoder.*"]}, r"no layer is called 'encoder\.\*'"),
        ({"evidence": "hope"}, "evidence"),
    ]:
        with pytest.raises(InputError, match=words):
            NodeDrop(model, None, example, **options)
    with pytest.raises(InputError, match="none of the model's parameters"):
        NodeDrop(model, torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1), example)
    with pytest.raises(InputError, match="no layer that NodeDrop can act on"):
        NodeDrop(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)), None, example)
    first = NodeDrop(model, None, example)
    with pytest.raises(InputError, match="already has a NodeDrop"):
        NodeDrop(model, None, example)
    loss = model(example).sum() + first.penalty()
    with pytest.raises(CutError, match=r"after optimizer\.step"):
        first.drop()
    loss.backward()
    first.drop()
    loss = model(example).sum() + first.penalty()
    del loss  # a step that was given up leaves no graph behind
    first.drop()


def test_what_would_fail_later_is_refused_at_once() -> None:
    model, example = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.rand(2, 3)
    with pytest.raises(InputError, match="LBFGS keeps state"):
        NodeDrop(model, torch.optim.LBFGS(model.parameters()), example)
    with pytest.raises(InputError, match="needs batch_size="):
        NodeDrop(model, None, example, evidence="batch-proved")
    drop = NodeDrop(model, None, example)
    with torch.inference_mode(), pytest.raises(InputError, match="inference_mode"):
        drop.drop()

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x) if x.sum() > 0 else self.net(-x)

    with pytest.raises(InputError, match="cannot be traced as a whole"):
        NodeDrop(Branching(), None, example)


def test_a_collapse_that_is_an_error_still_records_what_went() -> None:
    model = nn.Sequential(nn.Linear(4, 1), nn.ReLU(), nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 2))
    drop = NodeDrop(model, None, torch.rand(2, 4), on_collapse="error")
    with torch.no_grad():
        model[0].bias.fill_(-9.0)
        model[2].bias.fill_(0.5)
        model[2].bias[:3] = -9.0
    with pytest.raises(CollapseError, match="last unit of layer '0'"):
        drop.drop()
    assert [len(event.removed) for event in drop.events] == [8 - model[2].out_features] == [3]


def test_compiled_copies_go_along() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].bias[1] = -9.0
    copies = [AveragedModel(model), copy.deepcopy(model), AveragedModel(model)]
    drop = NodeDrop(model, None, torch.rand(2, 3), copies=[torch.compile(item, backend="eager") for item in copies])
    assert drop.drop() is not None
    assert [item.get_parameter(name).shape[0] for item, name in
            zip(copies, ("module.0.weight", "0.weight", "module.0.weight"), strict=True)] == [model[0].out_features] * 3


def test_the_penalty_is_differentiated_last() -> None:
    """Its gradients are as large as the weights, and should not be there while the activations are."""
    order: list[str] = []
    layer = nn.Linear(4, 8)
    values = layer(torch.rand(3, 4))
    values.register_hook(lambda gradient: order.append("network"))
    term = layer.weight.abs().sum()
    term.register_hook(lambda gradient: order.append("penalty"))
    term = late(term)
    (term + values.relu().sum()).backward()
    assert order == ["network", "penalty"]


@pytest.mark.parametrize(
    "domain", [(0.0, 1.0), (-3.0, 3.0), Box(torch.full((6,), -2.0), torch.linspace(0.5, 3, 6)), (0.0, 0.2)]
)
def test_the_penalty_alone_kills_the_first_layer_whatever_the_domain(domain: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    drop = NodeDrop(model, optimizer, torch.zeros(2, 6), lam=1.0, domain=domain, on_collapse="allow")
    for _ in range(400):
        optimizer.zero_grad()
        drop.penalty().backward()
        optimizer.step()
    drop.drop()
    assert drop.widths == {"0": 0, "2": 0}


def test_what_is_frozen_is_said() -> None:
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2))
    model[0].requires_grad_(False)
    with pytest.warns(UserWarning, match=r"^the penalty does not move 0: requires_grad is False$"):
        NodeDrop(model, None, torch.rand(2, 6))
    with pytest.raises(InputError, match=r"^every layer that NodeDrop could act on is frozen"):
        NodeDrop(model.requires_grad_(False), None, torch.rand(2, 6))


def test_batch_norms_bound_holds_up_to_the_batch_that_was_declared() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1))
    for batch, fine in (((16, 3, 8, 8), True), ((32, 3, 4, 4), True), ((17, 3, 8, 8), False), ((16, 3, 16, 16), False)):
        drop = NodeDrop(model, None, torch.rand(2, 3, 8, 8), batch_size=16)
        model(torch.rand(batch))
        if fine:
            drop.drop()
        else:
            with pytest.raises(InputError, match="but the proofs hold up to batch_size=16"):
                drop.drop()
        del drop


@pytest.mark.parametrize("domain", [(0.0, 1.0), (-2.0, 2.0)])
@pytest.mark.parametrize("norm", [None, nn.LayerNorm(24), nn.GroupNorm(4, 24)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_penalty_keeps_no_copy_of_the_weights(dtype: torch.dtype, norm: nn.Module | None, domain: Any) -> None:
    """All of them would be there beside the activations, until the penalty is differentiated."""
    layers = [nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 2)]
    model = nn.Sequential(*([norm] if norm is not None else []), *layers).to(dtype)
    drop = NodeDrop(model, None, torch.rand(2, 24, dtype=dtype), lam=1.0, domain=domain)
    own, kept = {p.untyped_storage().data_ptr() for p in model.parameters()}, list[int]()

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        penalty = drop.penalty()
        assert max(kept, default=0) < 24 * 48 / 4
    penalty.backward()
    assert layers[0].weight.grad is not None
