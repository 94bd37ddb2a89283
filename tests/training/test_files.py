"""A saved model rebuilds its own widths in a freshly built original, and trains on as if it had never been away."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import nodedrop as nd
from nodedrop.errors import InputError
from nodedrop.surgery.sizes import full_shapes
from nodedrop.training import files
from nodedrop.training.atomic import replacing
from nodedrop.training.files import described, load, save

from ..exactness import Inputs, leaves
from ..zoo import ZOO, plant

NAMES = [
    "resnet_basic",
    "resnext",
    "mobilenet_v2",
    "depthwise_multiplier",
    "shufflenet_v1",
    "grouped",
    "grouped_whole",
    "transposed_grouped",
    "vit",
    "gpt",
    "multihead_attention",
    "lstm_head",
    "instance_norm",
    "tied_layers",
    "raw_parameters",
    "bag_of_words",
    "rms_norm",
]
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True, betas=(0.8, 0.99)),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, nesterov=True),
}


def fresh(name: str, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return ZOO[name].build()


@cache
def shrunk(name: str) -> tuple[nn.Module, Inputs]:
    """The network after its planted units were cut."""
    entry = ZOO[name]
    model = fresh(name, seed=0)
    plant(model, entry)
    example = entry.inputs(torch.Generator().manual_seed(0))
    assert nd.compact_(model, example, entry.domain).removed
    return model, example


def cut(name: str) -> tuple[nn.Module, Inputs]:
    model, example = shrunk(name)
    return copy.deepcopy(model), example


def outputs(model: nn.Module, example: Inputs) -> list[Tensor]:
    model.eval()
    with torch.no_grad():
        return leaves(model(**example) if isinstance(example, dict) else model(*example))


def train(model: nn.Module, optimizer: Optimizer, example: Inputs, steps: int) -> None:
    model.train()
    for _ in range(steps):
        torch.manual_seed(0)
        out = leaves(model(**example) if isinstance(example, dict) else model(*example))
        loss = sum((value.square().mean() for value in out if value.is_floating_point()), torch.zeros(()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def same_tensors(a: Any, b: Any) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]) if isinstance(a[name], Tensor) else a[name] == b[name], name


def snapshot(model: nn.Module) -> tuple[dict[str, Tensor], list[int], str]:
    """Values, identity and printed sizes of everything in a model."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return state, [id(p) for p in model.parameters()], repr(model)


def assert_untouched(model: nn.Module, before: tuple[dict[str, Tensor], list[int], str]) -> None:
    after = snapshot(model)
    same_tensors(before[0], after[0])
    assert before[1:] == after[1:]


def assert_rebuilt(model: nn.Module, small: nn.Module, example: Inputs) -> None:
    same_tensors(small.state_dict(), model.state_dict())
    assert repr(model) == repr(small)
    for old, new in zip(outputs(small, example), outputs(model, example), strict=True):
        assert torch.equal(old, new)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["saved", "torch.save", "state_dict"])
def test_widths_rebuild(name: str, kind: str, tmp_path: Path) -> None:
    small, example = cut(name)
    model = fresh(name)
    parameters = dict(model.named_parameters())
    next(iter(parameters.values())).requires_grad_(False)
    source: Any = tmp_path / "model"
    if kind == "saved":
        save(small, source)
    elif kind == "torch.save":
        torch.save(small.state_dict(), source)
    else:
        source = small.state_dict()
    load(model, source)
    assert_rebuilt(model, small, example)
    assert all(model.get_parameter(key) is value for key, value in parameters.items())
    assert [p.requires_grad for p in parameters.values()] == [False] + [True] * (len(parameters) - 1)
    assert len(parameters) == len(list(model.parameters()))
    load(model, source)  # of the right size already
    assert_rebuilt(model, small, example)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", NAMES)
def test_training_goes_on_identically(name: str, kind: str, tmp_path: Path) -> None:
    small, example = cut(name)
    optimizer = OPTIMIZERS[kind](small.parameters())
    train(small, optimizer, example, 2)
    optimizer.param_groups[0]["lr"] = 5e-4
    save(small, tmp_path / "run.safetensors", optimizer=optimizer)

    model = fresh(name)
    resumed = OPTIMIZERS[kind](model.parameters())
    load(model, tmp_path / "run.safetensors", optimizer=resumed)
    groups = [{k: v for k, v in o.param_groups[0].items() if k != "params"} for o in (optimizer, resumed)]
    assert groups[0] == groups[1]

    train(small, optimizer, example, 3)
    train(model, resumed, example, 3)
    same_tensors(small.state_dict(), model.state_dict())
    old, new = optimizer.state_dict()["state"], resumed.state_dict()["state"]
    assert old.keys() == new.keys()
    for index in old:
        same_tensors(old[index], new[index])


class Odd(nn.Module):
    """What the zoo has not: a cached buffer, a size in an attribute, two groups, a child called 'optimizer'."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.width, self.calls = width, 0
        self.scale = nn.Parameter(torch.rand(width))
        self.register_buffer("shift", torch.rand(1, width), persistent=False)
        self.register_buffer("kept", torch.rand(2), persistent=True)
        self.optimizer = nn.Linear(3, width)
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.optimizer(x) * self.scale + self.shift
        return self.head(h.relu().reshape(-1, self.width))


def several_groups(model: Odd) -> Optimizer:
    first = [*model.optimizer.parameters(), model.scale]
    return torch.optim.AdamW(
        [{"params": first, "lr": torch.tensor(0.01)}, {"params": model.head.parameters(), "weight_decay": 0.5}],
        foreach=False,
    )


def test_attributes_caches_and_groups_of_parameters(tmp_path: Path) -> None:
    small, model, example = Odd(4), Odd(6), (torch.rand(5, 3),)
    optimizer, resumed = several_groups(small), several_groups(model)
    train(small, optimizer, example, 2)
    save(small, tmp_path / "odd", optimizer=optimizer)
    load(model, tmp_path / "odd", optimizer=resumed, cut_elsewhere=True)
    assert (model.width, model.calls) == (4, 0)
    assert torch.equal(model.shift, small.shift)
    train(small, optimizer, example, 2)
    train(model, resumed, example, 2)
    assert_rebuilt(model, small, example)
    load(Odd(6), tmp_path / "odd", cut_elsewhere=True)


def test_device_dtype_and_memory_format_are_the_models(tmp_path: Path) -> None:
    small = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).double().to(memory_format=torch.channels_last)
    save(small, tmp_path / "m")
    load(model, tmp_path / "m", cut_elsewhere=True)
    assert model[0].weight.dtype == torch.float64
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert model[1].num_batches_tracked.dtype == torch.int64
    assert torch.equal(model[0].weight.float(), small[0].weight)
    save(model, tmp_path / "m")
    load(small, tmp_path / "m")


def test_tensors_in_one_memory_are_saved_apart(tmp_path: Path) -> None:
    memory = torch.rand(12)
    model = nn.ParameterList([memory[:6], memory[6:], memory[:6]])
    save(model, tmp_path / "m")
    again = nn.ParameterList([torch.zeros(6)] * 3)
    load(again, tmp_path / "m")
    same_tensors(model.state_dict(), again.state_dict())


def test_the_file_is_plain_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import safe_open

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("pickle was used")

    small, _ = cut("gpt")
    optimizer = OPTIMIZERS["amsgrad"](small.parameters())
    for name in ("dump", "dumps", "Pickler", "load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    save(small, tmp_path / "m.safetensors", optimizer=optimizer)
    load(fresh("gpt"), tmp_path / "m.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]
    (tmp_path / "other").touch()
    assert (tmp_path / "m.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
    with safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        assert set(file.keys()) == {name for name, _ in (*small.named_parameters(), *small.named_buffers())}
        document = json.loads(file.metadata()["nodedrop"])
    assert (document["format"], document["version"], document["model"]) == ("nodedrop model", 1, "Gpt")
    layer = next(name for name, child in small.named_modules() if isinstance(child, nn.Linear))
    assert document["sizes"][layer]["out_features"] == small.get_submodule(layer).out_features


def test_prefixes_of_wrappers_and_bare_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    small, example = cut("mobilenet_v1")
    for prefix in ("module.", "_orig_mod."):
        model = fresh("mobilenet_v1")
        load(model, {prefix + name: value for name, value in small.state_dict().items()})
        assert_rebuilt(model, small, example)
    save_file(small.state_dict(), tmp_path / "bare.safetensors")
    model = fresh("mobilenet_v1")
    load(model, str(tmp_path / "bare.safetensors"))
    assert_rebuilt(model, small, example)


def test_an_existing_file_stays_if_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2)
    save(model, tmp_path / "m")
    before = (tmp_path / "m").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        save(nn.Linear(3, 3), tmp_path / "m")
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    assert (tmp_path / "m").read_bytes() == before


# Bad input: one sentence each, nothing changed.


def mlp(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


def foreign(folder: Path, name: str) -> Any:
    """A source that does not fit `mlp()`."""
    path = folder / name
    state = mlp(5).state_dict()
    if name == "other class":
        save(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), path)
    elif name == "lacking":
        return {key: state[key] for key in list(state)[:-1]}
    elif name == "rank":
        return {**state, "0.weight": torch.rand(5, 4, 1)}
    elif name == "larger":
        save(mlp(9), path)
    elif name == "complex":
        return {**state, "0.bias": state["0.bias"].to(torch.complex64)}
    elif name == "truncated":
        save(mlp(5), path)
        path.write_bytes(path.read_bytes()[:-7])
    elif name == "truncated pickle":
        torch.save(state, path)
        path.write_bytes(path.read_bytes()[:-300])
    elif name == "text":
        path.write_text("these are no weights at all")
    elif name == "empty":
        path.write_bytes(b"")
    elif name == "whole model":
        torch.save(mlp(5), path)
    elif name == "list":
        torch.save([torch.rand(2)], path)
    elif name == "checkpoint":
        torch.save({"epoch": 3, "model": state}, path)
    elif name == "code":
        path.write_bytes(pickle.dumps(Path))
    elif name == "folder":
        path.mkdir()
    elif name == "number":
        return 3
    elif name in ("newer", "damaged"):
        from safetensors.torch import save_file

        text = json.dumps({"format": "nodedrop model", "version": 99, "sizes": {}}) if name == "newer" else '{"format"'
        save_file(state, path, {"nodedrop": text})
    return path


SENTENCES = {
    "other class": r"does not come from Sequential: it lacks '2.weight', '2.bias' and it holds '1.bias', "
    r"'1.num_batches_tracked', '1.running_mean' and 2 more, unknown to the model",
    "lacking": r"the state_dict does not come from Sequential: it lacks '2.bias'$",
    "rank": r"'0.weight' has 3 axes there, shape \(5, 4, 1\), and 2 in the model",
    "larger": r"'0.weight' has shape \(9, 4\) there, larger than the model's \(8, 4\)",
    "complex": r"'0.bias' is of type torch.complex64 there and torch.float32 in the model",
    "truncated": r"is no complete safetensors file",
    "truncated pickle": r"is damaged, or no state_dict",
    "text": r"is neither a safetensors file nor one written by torch.save",
    "empty": r"is neither a safetensors file nor one written by torch.save",
    "whole model": r"is damaged, or no state_dict .*; write it with",
    "list": r"holds a list, and a state_dict was expected",
    "checkpoint": r"is no state_dict: it holds 'epoch' of type int; if .* lies inside, give that part alone",
    "code": r"is damaged, or no state_dict",
    "folder": r"cannot be read: Is a directory",
    "absent": r"cannot be read: No such file or directory",
    "number": r"expected a path or a state_dict, not int",
    "newer": r"has version 99 of the format, and this nodedrop reads version 1",
    "damaged": r"the metadata of '.*' is damaged",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_what_does_not_fit_is_refused(name: str, tmp_path: Path) -> None:
    model = mlp()
    before = snapshot(model)
    with pytest.raises(InputError, match=SENTENCES[name]) as caught:
        load(model, foreign(tmp_path, name))
    assert "\n" not in str(caught.value)
    assert_untouched(model, before)


OTHERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], str]] = {
    "kernel": (lambda: nn.Conv2d(1, 2, 3), lambda: nn.Conv2d(1, 2, 5), r"\(2, 1, 3, 3\) there and \(2, 1, 5, 5\) in"),
    "rows": (lambda: nn.Embedding(10, 4), lambda: nn.Embedding(50, 4), r"\(10, 4\) there and \(50, 4\) in the model"),
    "classes": (lambda: nn.Linear(4, 3), lambda: nn.Linear(4, 5), r"'weight' has shape \(3, 4\) there and \(5, 4\) in"),
    "features": (lambda: nn.Linear(6, 16), lambda: nn.Linear(9, 16), r"\(16, 6\) there and \(16, 9\) in the model"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_of_another_architecture_is_refused(name: str, tmp_path: Path) -> None:
    small, model, sentence = OTHERS[name][0](), OTHERS[name][1](), OTHERS[name][2]
    save(small, tmp_path / "m")
    before = snapshot(model)
    with pytest.raises(InputError, match=f"does not fit this model: .*{sentence}.*, and no cut of nodedrop's"):
        load(model, tmp_path / "m")
    if name in ("kernel", "rows"):  # no file needs to say that these are never cut
        with pytest.raises(InputError, match=f"the state_dict does not fit this model: .*{sentence}"):
            load(model, small.state_dict())
    assert_untouched(model, before)


def dead(model: nn.Sequential, count: int) -> nn.Sequential:
    """A network whose first layer has so many dead units, cut."""
    with torch.no_grad():
        model[0].bias.fill_(9.0)[:count] = -9.0
    nd.compact_(model, torch.rand(2, 4))
    return model


@pytest.mark.parametrize(
    "way", ["saved", "loaded and cut again", "copied", "pickled", "state_dict", "checkpoint", "part"]
)
def test_a_file_knows_what_was_cut(way: str, tmp_path: Path) -> None:
    small, path, left = dead(mlp(), 3), tmp_path / "m", 5
    if way == "loaded and cut again":
        save(small, path)
        load(again := mlp(), path)
        small, left = dead(again, 2), 3
    elif way == "copied":
        small = copy.deepcopy(small)
    elif way == "pickled":
        small = pickle.loads(pickle.dumps(small))
    elif way == "state_dict":
        load(again := mlp(), small.state_dict())
        small = again
    elif way == "checkpoint":
        path = nd.Checkpoints(tmp_path, small, copy=copy.deepcopy(small)).write(1)
        again, other = mlp(), mlp()
        assert nd.Checkpoints(tmp_path, again, copy=other).resume() == {"step": 1}
        small = other
    wrap = nn.Sequential if way == "part" else lambda model: model
    save(wrap(small), path)
    model: Any = wrap(mlp())
    load(model, path)
    same_tensors(model.state_dict(), wrap(small).state_dict())
    load(model, path)  # of these widths already
    assert (model[0] if way == "part" else model)[0].out_features == left
    wide = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(InputError, match=r"weight' has shape \(2, .\) there and \(3, 8\) in the model"):
        load(wrap(wide), path)


def test_a_cut_that_is_taken_back_leaves_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    monkeypatch.setattr("nodedrop.session.Session._adopt", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        dead(model, 3)
    assert full_shapes(model) == {}
    assert vars(model[0]).keys() == vars(nn.Linear(4, 8)).keys()


def test_a_file_from_before_shapes_were_written_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def older(module: nn.Module) -> dict[str, Any]:
        return {key: value for key, value in described(module).items() if key != "full"}

    monkeypatch.setattr(files, "described", older)
    save(mlp(5), tmp_path / "m")
    load(model := mlp(), tmp_path / "m")
    assert model[0].out_features == 5


def test_sizes_follow_from_the_file_of_a_wrapper(tmp_path: Path) -> None:
    wrapper = nn.Module()
    wrapper.module = dead(mlp(), 3)
    save(wrapper, tmp_path / "m")
    with pytest.warns(UserWarning, match="was written from a Module"):
        load(model := mlp(), tmp_path / "m")
    assert repr(model) == repr(wrapper.module)


def test_groups_that_do_not_follow_from_shapes(tmp_path: Path) -> None:
    small = nn.Sequential(nn.Conv2d(4, 6, 1), nn.Conv2d(6, 5, 1))
    small[1].weight.data = small[1].weight.data[:, :2]
    model = nn.Sequential(nn.Conv2d(4, 8, 1), nn.Conv2d(8, 12, 1, groups=4))
    before = snapshot(model)
    with pytest.raises(InputError, match=r"weight of '1' in the state_dict has 5 of 12 rows, .* its 4 groups are left"):
        load(model, small.state_dict())
    assert_untouched(model, before)


def test_tied_tensors_must_agree() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model[1].weight = model[0].weight
    with pytest.raises(InputError, match=r"the model ties '1.weight' to '0.weight', but in the state_dict they differ"):
        load(model, state)


def test_optimizers_that_do_not_fit(tmp_path: Path) -> None:
    small, model = mlp(5), mlp()
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1, momentum=0.9)
    train(small, optimizer, (torch.rand(3, 4),), 1)
    save(small, tmp_path / "with", optimizer=optimizer)
    save(small, tmp_path / "without")
    before = snapshot(model)
    reverse = list(model.parameters())[::-1]
    for path, given, sentence in (
        ("without", torch.optim.SGD(model.parameters()), "holds no optimizer state"),
        ("with", torch.optim.Adam(model.parameters()), "holds the state of SGD, and the optimizer is Adam"),
        ("with", torch.optim.SGD(reverse), "or holds them in another order"),
        ("with", torch.optim.SGD(mlp().parameters()), "the SGD holds none of the model's parameters"),
        ("with", "sgd", "optimizer must be a torch.optim.Optimizer, not str"),
    ):
        with pytest.raises(InputError, match=sentence):
            load(model, tmp_path / path, optimizer=given, cut_elsewhere=True)  # type: ignore[arg-type]
        assert_untouched(model, before)
    load(model, tmp_path / "with", cut_elsewhere=True)
    assert model[0].out_features == 5


def test_all_or_nothing_when_the_optimizer_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, model = mlp(5), mlp()
    old, new = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (small, model))
    train(small, old, (torch.rand(3, 4),), 1)
    save(small, tmp_path / "m", optimizer=old)
    before, groups = snapshot(model), new.param_groups

    def refuse(self: Optimizer, state: Any) -> None:
        self.param_groups = []
        raise RuntimeError("no")

    monkeypatch.setattr(torch.optim.SGD, "load_state_dict", refuse)
    with pytest.raises(RuntimeError, match="no"):
        load(model, tmp_path / "m", optimizer=new, cut_elsewhere=True)
    assert_untouched(model, before)
    assert new.param_groups is groups


class Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"seen": 3}


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    line = nn.Linear(2, 2)
    odd = torch.optim.SGD(line.parameters(), lr=0.1)
    odd.param_groups[0]["callback"] = print
    for model, path, optimizer, sentence in (
        (3, "m", None, "the model must be an nn.Module, not int"),
        (nn.LazyLinear(2), "m", None, "'weight' is lazy or on the meta device"),
        (nn.Linear(2, 2, device="meta"), "m", None, "'weight' is lazy or on the meta device"),
        (nn.DataParallel(line), "m", None, "wrapped in DataParallel; pass the wrapped model, `model.module`"),
        (nn.Sequential(Extra(2, 2)), "m", None, r"'0' \(Extra\) has extra state"),
        (line, "no/such/folder", None, "cannot be written: No such file or directory"),
        (line, "m", odd, "the state of SGD cannot be saved as plain data"),
    ):
        with pytest.raises(InputError, match=sentence):
            save(model, tmp_path / path, optimizer=optimizer)  # type: ignore[arg-type]
        assert not list(tmp_path.iterdir())


def test_compiled_models_are_taken_for_what_they_are(tmp_path: Path) -> None:
    small, model = mlp(5), mlp()
    save(torch.compile(small, backend="eager"), tmp_path / "m")  # type: ignore[arg-type]
    load(torch.compile(model, backend="eager"), tmp_path / "m", cut_elsewhere=True)  # type: ignore[arg-type]
    same_tensors(small.state_dict(), model.state_dict())


def test_a_folder_in_place_of_a_file_is_said(tmp_path: Path) -> None:
    for place in (tmp_path, Path(".")):
        with pytest.raises(InputError, match=r"is a folder; name a file in it$"), replacing(place):
            pass
