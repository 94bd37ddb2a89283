"""What a user may get wrong around a cut: each is said in a sentence, before anything is lost."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import nodedrop as nd
from nodedrop.errors import CutError, InputError
from nodedrop.intake import Options, uncounted
from nodedrop.session import Session
from nodedrop.training import NodeDrop, schedules
from nodedrop.training.refusals import warn_refused


def net(dead: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    nn.init.constant_(made[0].bias, 0.5)
    nn.init.constant_(made[0].bias[:dead], -9.0)
    return made


def shrinking(model: nn.Module, example: Tensor | None = None, **options: object) -> NodeDrop:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    return NodeDrop(model, optimizer, torch.rand(2, 4) if example is None else example, **options)


def test_every_penalty_that_is_not_yet_differentiated_forbids_a_cut() -> None:
    model = net()
    drop = shrinking(model, lam=1e-3)
    first, second = (model(torch.rand(3, 4)).sum() + drop.penalty() for _ in range(2))
    second.backward()
    with pytest.raises(CutError, match=r"call drop\(\) after optimizer\.step\(\)"):
        drop.drop()
    first.backward()
    assert drop.drop() is not None


def test_a_pending_loss_is_seen_before_the_penalty_begins_to_act() -> None:
    model = net()
    drop = shrinking(model, lam=schedules.warm_up(1e-3, steps=10))
    loss = model(torch.rand(3, 4)).sum() + drop.penalty()
    with pytest.raises(CutError, match="waits for its backward"):
        drop.drop()
    loss.backward()
    assert drop.drop() is not None


def test_a_loss_that_was_given_up_forbids_nothing() -> None:
    model = net()
    drop = shrinking(model)
    _ = model(torch.rand(3, 4)).sum() + drop.penalty()
    del _
    assert drop.drop() is not None


def normalised() -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    nn.init.constant_(made[1].bias[:3], -90.0)
    nn.init.constant_(made[1].bias[3], 1.0)
    return made


def test_batches_larger_than_the_proofs_allow_are_refused() -> None:
    model, image = normalised(), torch.rand(2, 1, 4, 4)
    drop = shrinking(model, image, evidence="batch-proved", batch_size=8)
    model(torch.rand(8, 1, 4, 4))
    drop.penalty()
    model.eval()
    model(torch.rand(100, 1, 4, 4))  # evaluation has no batch statistics
    drop.penalty()
    model.train()
    model(torch.rand(9, 1, 4, 4))
    with pytest.raises(InputError, match=r"as many values as 9 samples.* up to batch_size=8"):
        drop.penalty()


def test_a_layer_left_with_one_unit_is_still_penalised() -> None:
    model = normalised()
    drop = shrinking(model, torch.rand(2, 1, 4, 4), evidence="batch-proved", batch_size=8, lam=1.0)
    assert drop.drop() is not None
    assert drop.widths == {"0": 1}
    drop.penalty().backward()
    assert model[1].bias.grad is not None
    assert model[1].bias.grad.item() != 0


def test_the_original_index_of_a_last_unit_survives_a_restart() -> None:
    model = normalised()
    drop = shrinking(model, torch.rand(2, 1, 4, 4), evidence="batch-proved", batch_size=8)
    drop.drop()
    state, weights = drop.state_dict(), copy.deepcopy(model.state_dict())
    fresh = normalised()
    again = shrinking(fresh, torch.rand(2, 1, 4, 4), evidence="batch-proved", batch_size=8)
    nd.load(fresh, weights)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert state["origin"]["0.weight:0"] == [3]
    assert again.widths == {"0": 1}


def test_a_model_cut_by_other_hands_is_refused() -> None:
    model = net()
    drop = shrinking(model)
    nd.compact_(model, torch.rand(2, 4))
    with pytest.raises(InputError, match="changed shape or type, or were replaced, by other hands"):
        drop.drop()


def test_neither_a_part_nor_the_whole_gets_a_second_nodedrop() -> None:
    inner = net()
    outer = nn.Sequential(inner, nn.Linear(2, 2))
    first = shrinking(inner)
    with pytest.raises(InputError, match="already has a NodeDrop"):
        shrinking(outer)
    del first
    second = shrinking(outer)
    with pytest.raises(InputError, match="already has a NodeDrop"):
        shrinking(inner)
    del second


def test_a_nodedrop_that_is_closed_makes_room_for_another() -> None:
    model = net()
    first = shrinking(model)
    with pytest.raises(InputError, match=r"already has a NodeDrop; use that one, or close\(\) it first"):
        shrinking(model)
    hooks = len(model._forward_pre_hooks)
    first.close()
    first.close()
    assert len(model._forward_pre_hooks) == hooks - 1
    second = shrinking(model)
    del first  # takes nothing from the second
    with pytest.raises(InputError, match="already has a NodeDrop"):
        shrinking(model)
    del second


@pytest.mark.parametrize("lam", ["1e-5", None, True, float("nan"), float("inf"), -1])
def test_lam_must_be_a_number(lam: object) -> None:
    with pytest.raises(InputError, match="λ must be a number from 0 on"):
        shrinking(net(), lam=lam)


@pytest.mark.parametrize("name", ["lam_of", "spare_of"])
def test_a_layer_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=rf"{name} names 'fc\*', and no layer that the penalty acts on does: 0, 2"):
        shrinking(net(), **{name: {"fc*": 0.5}})


class Other(nn.Sequential):
    pass


def test_a_file_of_another_class_is_loaded_with_a_warning(tmp_path: Path) -> None:
    nd.save(net(), tmp_path / "a.safetensors")
    with pytest.warns(UserWarning, match="was written from a Sequential, and Other has tensors of the same names"):
        nd.load(Other(*net()), tmp_path / "a.safetensors")


def step(model: nn.Module, drop: NodeDrop, batch: Tensor) -> None:
    """One step under autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(batch).float().sum() + drop.penalty()
    loss.backward()


def nearly() -> nn.Sequential:
    """Unit 0 is below zero by less than the rounding of bfloat16."""
    made = net(dead=0)
    with torch.no_grad():
        made[0].weight[0], made[0].bias[0] = torch.tensor([1.004, 1.004, 1.004, 0.0]), -3 * 1.004 - 1e-4
    return made


def test_autocast_that_is_coarser_than_the_proofs_is_refused() -> None:
    model = nearly()
    drop = shrinking(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert model[:2](torch.ones(1, 4))[0, 0] > 0
    for call in (drop.penalty, drop.drop):
        with torch.autocast("cpu", torch.bfloat16):
            model(torch.ones(1, 4))
        with pytest.raises(InputError, match=r"proofs are for torch\.float32: .* with dtype=torch\.bfloat16"):
            call()
    assert len(drop.drop().removed) == 1, "what was seen is told once"


def test_autocast_that_the_proofs_count_is_fine() -> None:
    model = nearly()
    drop = shrinking(model, dtype=torch.bfloat16)
    step(model, drop, torch.ones(1, 4))
    assert drop.drop() is None
    with torch.autocast("cpu", torch.float16):  # finer, but with a smaller range
        model(torch.ones(1, 4))
    with pytest.raises(InputError, match=r"proofs are for torch\.bfloat16: .* with dtype=torch\.float16"):
        drop.drop()
    del drop
    model.double()
    drop = shrinking(model, torch.rand(2, 4).double())
    step(model, drop, torch.ones(1, 4).double())  # double precision stays what it is


class Branching(nn.Module):
    """Runs another operator under autocast than without it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = net()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body[:4](x)
        return self.body[4](hidden if hidden.dtype == torch.float32 else hidden.float())  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", [net, Branching])
@pytest.mark.parametrize("opened", [False, True], ids=["opened outside", "opened inside"])
def test_a_cut_inside_an_autocast_block_goes_on_with_the_new_weights(make: type[nn.Module], opened: bool) -> None:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with torch.autocast("cpu", torch.bfloat16, enabled=opened):
        drop = NodeDrop(model, optimizer, torch.rand(2, 4), dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        for width in (4, 4):
            (model(torch.rand(3, 4)).float().sum() + drop.penalty()).backward()
            optimizer.step()
            drop.drop()
            assert next(model.parameters()).shape == (width, 4)
            assert drop.refused == {}


def test_own_passes_are_no_batches_of_the_training() -> None:
    model, images = normalised(), torch.rand(16, 1, 4, 4)
    drop = shrinking(model, images, evidence="batch-proved", batch_size=8)
    assert drop.drop() is not None
    drop.penalty()
    drop.load_state_dict(drop.state_dict())
    drop.penalty()
    nd.analyze(model, torch.full((16, 1, 4, 4), 5.0), domain=(0, 9))
    drop.penalty()
    model(images)
    with pytest.raises(InputError, match="as many values as 16 samples"):
        drop.penalty()


class Masked(nn.Module):
    """A batch of its own axis, a mask without one, and inputs inside of others."""

    def __init__(self) -> None:
        super().__init__()
        self.body = net()

    def forward(self, x: Tensor, mask: Tensor, pair: dict[str, Tensor], last: Tensor) -> Tensor:
        found: Tensor = self.body((mask @ x + pair["a"] + pair["b"]).sum(1)) + last
        return found


def test_batches_are_counted_by_the_first_input() -> None:
    model, drop = masked(batch_size=2)
    model(*inputs())
    drop.penalty()
    model(*tree_map(lambda value: value if value.shape == (3, 3) else torch.cat([value, value]), inputs()))
    with pytest.raises(InputError, match="as many values as 4 samples"):
        drop.penalty()


@pytest.mark.parametrize("named", [False, True], ids=["in order", "by name"])
def test_inputs_inside_of_others_are_compared_with_their_own_box(named: bool) -> None:
    model, drop = masked()
    names = ("x", "mask", "pair", "last")

    def call(**changed: Tensor) -> None:
        x, mask, pair, last = inputs()
        pair = {name: changed.get(name, value) for name, value in pair.items()}
        given = {"x": x, "mask": mask, "pair": pair, "last": changed.get("last", last)}
        model(**given) if named else model(*(given[name] for name in names))

    call()
    drop.penalty()
    for name, bad in (("pair_a", {"a": torch.full((2, 3, 4), 2.5)}), ("pair_b", {"b": torch.full((2, 3, 4), 1.5)}),
                      ("last", {"last": torch.full((2, 2), 2.5)})):  # fmt: skip
        call(**bad)
        with pytest.raises(InputError, match=f"for input '{name}'"):
            drop.penalty()


def inputs() -> tuple[Tensor, Tensor, dict[str, Tensor], Tensor]:
    boxes = {"a": torch.full((2, 3, 4), 1.5), "b": torch.full((2, 3, 4), 2.5)}
    return torch.rand(2, 3, 4), torch.rand(3, 3), boxes, torch.full((2, 2), 3.5)


def masked(**options: object) -> tuple[Masked, NodeDrop]:
    domain = [(0, 1), (0, 1), (1, 2), (2, 3), (3, 4)]
    model = Masked()
    return model, NodeDrop(model, None, inputs(), domain=domain, **options)  # type: ignore[arg-type]


def test_extremes_of_batches_of_other_ranks_are_not_forgotten() -> None:
    for box in ((0, 1), nd.Box(torch.zeros(4), torch.ones(4))):
        model = net()
        drop = shrinking(model, domain=box)
        for bad, good in ((torch.full((4,), 7.0), torch.rand(2, 4)), (torch.full((2, 4), 7.0), torch.rand(4))):
            model(bad)
            model(good)
            with pytest.raises(InputError, match="outside the declared domain"):
                drop.penalty()


class Written(nn.Module):
    """A size in the code of one layer, none in that of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed, self.free, self.last = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 2)
        for layer in (self.fixed, self.free):
            nn.init.constant_(layer.bias, 5.0)
            nn.init.constant_(layer.bias[:2], -9.0 - 40 * (layer is self.free))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.free(self.fixed(x).relu().view(-1, 6)).relu())
        return found


@pytest.mark.parametrize(
    ("why", "hint"),
    [
        ("the forward pass fails in eval mode: RuntimeError: shape '[-1, 64]' is invalid", r"flatten\(1\) takes any"),
        ("an output changes by 2.0e-05 (relative) in train mode", "give one of a training batch's size"),
    ],
)
def test_a_refusal_says_what_may_help(why: str, hint: str) -> None:
    with pytest.warns(UserWarning, match=f"'conv': .*{hint}; NodeDrop.refused"):
        warn_refused({"conv": f"the model's own code does not allow the cut: {why}"})


def test_a_cut_that_the_models_code_forbids_is_said_once() -> None:
    drop = shrinking(Written())
    with pytest.warns(UserWarning, match=r"stay in the model\. 'fixed': the model's own code .*flatten\(1\)") as told:
        event = drop.drop()
    assert len(told) == 1
    assert {c.layer for c in event.removed} == {"free"}
    assert list(drop.refused) == ["fixed"]
    assert drop.drop() is None  # and without another warning
    drop.load_state_dict(drop.state_dict())
    assert drop.drop() is None
    assert list(drop.refused) == ["fixed"]


class Awkward(nn.Module):
    """Computes something else with fewer than six units."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
        nn.init.constant_(self.a.bias, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x))
        found: Tensor = self.b(y if self.a.out_features >= 6 else y * 1.001)
        return found


def test_a_resumed_run_refuses_what_the_run_refused() -> None:
    """Also where the refusal came without a cut."""

    def begun() -> tuple[Awkward, NodeDrop]:
        torch.manual_seed(0)
        model = Awkward()
        return model, NodeDrop(model, None, torch.rand(2, 4))

    def die(model: Awkward, units: slice) -> None:
        with torch.no_grad():
            model.a.weight[units], model.a.bias[units] = 0.0, -1.0

    model, drop = begun()
    die(model, slice(3))
    with pytest.warns(UserWarning, match="stay in the model"):
        assert drop.drop() is None
    weights, state = copy.deepcopy(model.state_dict()), drop.state_dict()
    other, resumed = begun()
    other.load_state_dict(weights)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    for run, one in ((drop, model), (resumed, other)):
        nn.init.constant_(one.a.bias, 1.0)
        die(one, slice(7, 8))
        assert run.drop() is None
    assert drop.state_dict() == resumed.state_dict()


def test_a_cut_that_cannot_be_recorded_is_undone_by_all_processes() -> None:
    model, said = net(), list[str]()
    session = Session(model, torch.rand(2, 4), Options(), agree=said.append)

    def full(*args: object) -> None:
        said.append("recorder")
        raise InputError("no space left")

    session.recorder = full
    with pytest.raises(InputError, match="no space left"):
        session.cut_("keep")
    assert said[-3:] == ["the check of the cut passes", "recorder", "the cut cannot be recorded: no space left"]
    assert model[0].out_features == 6
    session.recorder = None
    session.cut_("keep")
    assert said[-1] == "the cut is recorded"
    assert model[0].out_features == 4


def test_a_ledger_does_not_tell_of_a_cut_that_was_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drop = shrinking(net(), ledger=tmp_path / "ledger.jsonl")

    def late(*args: object) -> None:
        raise CutError("too late")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_adopt", late)
        with pytest.raises(CutError, match="too late"):
            drop.drop()
    assert drop.drop() is not None
    text = (tmp_path / "ledger.jsonl").read_text()
    assert text.count('"line": "cut"') == 1
    assert text.count("\"cut\": 2") == 0


def test_a_ledger_that_was_removed_is_named(tmp_path: Path) -> None:
    drop = shrinking(net(0), ledger=tmp_path / "ledger.jsonl")
    drop.drop()
    (tmp_path / "ledger.jsonl").unlink()
    with pytest.raises(InputError, match=r"ledger\.jsonl' of this run's cuts is not there any more: No such file"):
        drop.drop()


def test_arithmetic_that_proofs_do_not_count_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    with pytest.warns(UserWarning, match=r"more coarsely than proofs count.*precision\('highest'\)"):
        shrinking(net())
    assert any("more coarsely" in note for note in nd.analyze(net(), torch.rand(2, 4)).notes)
    assert uncounted(net().double().parameters()) is None, "double precision is left alone"


@pytest.mark.parametrize(("tf32", "said"), [(True, True), (False, False)])
def test_convolutions_in_tf32_are_said(tf32: bool, said: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class OnACard:
        device, dtype = torch.device("cuda"), torch.float32

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    words = uncounted([OnACard()])  # type: ignore[list-item]
    assert ("TF32" in words if words is not None else False) == said


@pytest.mark.filterwarnings("ignore:nothing was cut, and in train mode batch norm")
def test_a_norm_that_is_frozen_later_is_another_program() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    drop = shrinking(model)
    drop.drop()
    model.eval()
    drop.drop()
    model.train()
    model[1].eval()
    with pytest.raises(InputError, match=r"^'1' is in another mode than the model.*set the modes first"):
        drop.drop()
    drop.close()
    frozen = shrinking(model)
    frozen.drop()
    model.train()
    with pytest.raises(InputError, match=r"^'1' is in another mode"):
        frozen.drop()


def test_larger_samples_are_said_once() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2))
    drop = shrinking(model, torch.rand(2, 3, 8, 8))
    model(torch.rand(5, 3, 8, 8))
    model(torch.rand(5, 3, 6, 8))
    drop.drop()
    model(torch.rand(5, 3, 8, 9))
    with pytest.warns(UserWarning, match=r"shape \(5, 3, 8, 9\) .* larger samples than the example, of shape \(2, 3"):
        drop.drop()
    model(torch.rand(5, 3, 9, 9))
    drop.drop()


def test_a_cut_under_inference_mode_leaves_weights_that_train() -> None:
    model = net()
    with torch.inference_mode():
        assert nd.compact_(model, torch.rand(2, 4)).removed
    model(torch.rand(3, 4)).sum().backward()
    assert model[0].weight.grad is not None


def test_with_an_optimizer_what_learns_stays() -> None:
    """Nobody reads these units yet."""
    model = net(0)
    nn.init.zeros_(model[2].weight[:, :3])
    other = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    assert not nd.compact_(model, torch.rand(2, 4), optimizer=optimizer).removed
    assert len(nd.compact_(other, torch.rand(2, 4)).removed) == 3
    assert len(nd.compact_(model, torch.rand(2, 4), optimizer=optimizer, learning=False).removed) == 3


@pytest.mark.parametrize(("terms", "dtype", "said"), [
    (200, torch.bfloat16, True), (60, torch.bfloat16, False), (200, None, False), (600, torch.float16, False),
    (1200, torch.float16, True),
])  # fmt: skip
def test_sums_that_are_too_long_for_their_precision_are_named(
    terms: int, dtype: torch.dtype | None, said: bool
) -> None:
    model = nn.Sequential(nn.Linear(terms, 6), nn.ReLU(), nn.Linear(6, 2))
    nn.init.constant_(model[0].bias[:2], -1e4)
    analysis = nd.analyze(model, torch.rand(2, terms), dtype=dtype)
    assert any("nothing can be proved of 0: sums of so many terms" in note for note in analysis.notes) == said
    assert bool(analysis.removable) != said


class Narrowing(nn.Module):
    """Computes something else once it is narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        nn.init.constant_(self.first.bias, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        y: Tensor = self.last(h)
        return y * torch.where(x.sum(1, keepdim=True) > 3.9, 2.0, 1.0) if h.shape[1] < 6 else y


def test_code_that_asks_for_a_width_is_found_at_any_cut() -> None:
    """The example and drawn inputs do not show what it does then."""
    torch.manual_seed(0)
    model = Narrowing()
    drop = shrinking(model, torch.rand(5, 4) * 0.5)
    nn.init.constant_(model.first.bias[:1], -9.0)
    assert drop.drop() is not None
    nn.init.constant_(model.first.bias[:3], -9.0)
    before, x = model(torch.ones(1, 4)), torch.ones(1, 4)
    with pytest.warns(UserWarning, match="dead units stay in the model"):
        assert drop.drop() is None
    assert torch.equal(model(x), before)
