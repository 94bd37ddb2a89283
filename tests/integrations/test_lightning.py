"""The Lightning callback does what the same loop written by hand does, and resumes from Lightning's checkpoints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import nodedrop as nd
from nodedrop.errors import InputError
from nodedrop.integrations.lightning import NodeDropCallback
from nodedrop.training import schedules

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers:lightning.fabric.utilities.warnings.PossibleUserWarning",
    "ignore:Checkpoint directory .* exists and is not empty:UserWarning",
)

LAM = 1e-3


def batches(dtype: torch.dtype = torch.float64) -> DataLoader[tuple[Tensor, ...]]:
    x = torch.rand(192, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    return DataLoader(TensorDataset(x, (x.sum(1) > 3).long()), batch_size=16)


class Resumable:
    """The same batches, going on from where a checkpoint was written."""

    first = taken = 0

    def __iter__(self) -> Iterator[list[Tensor]]:
        first, self.first = self.first, 0
        for self.taken, batch in enumerate(list(batches())[first:], first + 1):
            yield batch

    def __len__(self) -> int:
        return len(batches())

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken % len(self)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.first = state["taken"]


class Module(pl.LightningModule):
    """Two hidden layers, of which some units are dead, and others will be when λ has pulled at them for a while."""

    def __init__(self, optimizer: str = "Adam", **options: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 2))
        with torch.no_grad():
            for layer in (self.net[0], self.net[2]):
                layer.bias.fill_(0.5)
                for unit, bias in ((1, -0.5), (3, 0.05), (6, 0.2)):
                    layer.weight[unit] = -layer.weight[unit].abs()
                    layer.bias[unit] = bias
        self.kind, self.options = optimizer, options
        self.losses: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        loss = self.loss(batch)
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return getattr(torch.optim, self.kind)(self.parameters(), lr=0.01, **self.options)


def trainer(*callbacks: pl.Callback, epochs: int = 3, **options: Any) -> pl.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "logger": False}
    if not any(isinstance(item, ModelCheckpoint) for item in callbacks):
        quiet["enable_checkpointing"] = False
    if not {"precision", "plugins"} & options.keys():
        options["precision"] = "64-true"
    return pl.Trainer(max_epochs=epochs, callbacks=list(callbacks), **quiet | options)


def by_hand(module: Module, epochs: int = 3, every: int = 12, accumulate: int = 1, clip: float | None = None) -> Any:
    """The loop that the trainer and the callback should amount to."""
    module.double()
    optimizer = module.configure_optimizers()
    drop = nd.NodeDrop(module.net, optimizer, next(iter(batches()))[0], lam=LAM)
    for _ in range(epochs):
        for number, batch in enumerate(batches(), 1):
            (module.loss(batch) / accumulate).backward()
            if number % accumulate == 0:
                drop.penalty().backward()
                if clip is not None:
                    nn.utils.clip_grad_norm_(module.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
                if drop.step % every == 0:
                    drop.drop()
    return drop, optimizer


def assert_same(first: nn.Module, second: nn.Module) -> None:
    own, other = first.state_dict(), second.state_dict()
    assert own.keys() == other.keys()
    for name, value in own.items():
        torch.testing.assert_close(value, other[name], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_it_is_the_loop_written_by_hand(accumulate: int, clip: float | None) -> None:
    every = 12 // accumulate
    theirs = Module()
    callback = NodeDropCallback(LAM)
    trainer(callback, accumulate_grad_batches=accumulate, gradient_clip_val=clip).fit(theirs, batches())
    ours = Module()
    drop, optimizer = by_hand(ours, every=every, accumulate=accumulate, clip=clip)
    assert callback.drop is not None
    assert callback.drop.step == drop.step == 3 * every
    assert [(e.step, len(e.removed)) for e in callback.drop.events] == [(e.step, len(e.removed)) for e in drop.events]
    assert len(drop.events) > 1
    assert theirs.net[0].out_features <= 8
    assert_same(theirs, ours)
    state = theirs.trainer.optimizers[0].state
    for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(state[p]["exp_avg"], optimizer.state[q]["exp_avg"], rtol=1e-10, atol=1e-14)


def test_without_a_cut_training_would_have_been_the_same() -> None:
    small, full = Module(), Module()
    trainer(NodeDropCallback(LAM)).fit(small, batches())
    trainer(NodeDropCallback(LAM, every=10**6)).fit(full, batches())
    assert full.net[0].out_features == 10
    torch.testing.assert_close(small.losses, full.losses, rtol=1e-10, atol=0)


def test_what_is_logged(tmp_path: Path) -> None:
    module, callback = Module(), NodeDropCallback(schedules.warm_up(LAM, steps=20), every=6)
    run = trainer(callback, epochs=2, logger=CSVLogger(tmp_path), log_every_n_steps=1)
    run.fit(module, batches())
    assert callback.drop is not None
    assert callback.drop.events[0].step == 6
    rows = (Path(run.logger.log_dir) / "metrics.csv").read_text().splitlines()  # type: ignore[union-attr, arg-type]
    names = rows[0].split(",")
    table = [dict(zip(names, row.split(","), strict=True)) for row in rows[1:]]
    assert {int(row["step"]) for row in table} == set(range(24))
    for row in table:
        step = int(row["step"]) + 1
        past = [event for event in callback.drop.events if event.step <= step]
        assert float(row["nodedrop/units"]) == (past[-1].units if past else 18)
        assert float(row["nodedrop/parameters"]) == (past[-1].parameters if past else 176)
        assert float(row["nodedrop/lam"]) == pytest.approx(LAM if step >= 20 else 0.0)
    assert run.callback_metrics["nodedrop/units"] == callback.drop.events[-1].units


@pytest.mark.parametrize(("every", "saved"), [("epoch", 1), (5, 1), (5, 17)])
def test_a_run_resumes_from_a_checkpoint_and_ends_as_if_it_had_not_stopped(
    tmp_path: Path, every: Any, saved: int
) -> None:
    example = next(iter(batches()))[0][:2]
    whole, first = Module().double(), NodeDropCallback(LAM, every=every, example_inputs=example)
    interval = {"every_n_epochs": saved} if saved == 1 else {"every_n_train_steps": saved}
    keep, other = (ModelCheckpoint(tmp_path, save_top_k=-1, filename="{step}", **interval) for _ in range(2))
    trainer(first, keep, epochs=4).fit(whole, Resumable())
    path = tmp_path / ("step=12.ckpt" if saved == 1 else "step=17.ckpt")
    widths = {name: value.shape for name, value in torch.load(path, weights_only=True)["state_dict"].items()}
    assert widths["net.0.weight"][0] < 10, "the checkpoint must be one of a model that was cut"
    again, second = Module().double(), NodeDropCallback(LAM, every=every, example_inputs=example)
    trainer(second, other, epochs=4).fit(again, Resumable(), ckpt_path=path)
    assert first.drop is not None
    assert second.drop is not None
    assert second.drop.state_dict() == first.drop.state_dict()
    assert again.losses == whole.losses[-len(again.losses) :]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])


def test_a_checkpoint_loads_outside_of_lightning(tmp_path: Path) -> None:
    module = Module()
    run = trainer(NodeDropCallback(LAM), epochs=1)
    run.fit(module, batches())
    run.save_checkpoint(tmp_path / "last.ckpt")
    fresh = Module()
    nd.load(fresh, torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"])
    assert fresh.net[0].out_features == module.net[0].out_features < 10
    x = torch.rand(4, 6)
    torch.testing.assert_close(fresh(x), module.float()(x))


def test_a_checkpoint_from_before_a_cut_is_refused_by_the_smaller_model(tmp_path: Path) -> None:
    module, callback = Module(), NodeDropCallback(LAM)
    run = trainer(callback, epochs=1)
    run.strategy.connect(module)
    run.save_checkpoint(tmp_path / "first.ckpt")
    run.fit(module, batches())
    with pytest.raises(InputError, match="before the model was cut, and wider; load it into a model"):
        run.fit(module, batches(), ckpt_path=tmp_path / "first.ckpt")


def test_a_second_fit_of_a_module_goes_on() -> None:
    module, callback = Module(), NodeDropCallback(LAM)
    trainer(callback, epochs=1).fit(module, batches())
    trainer(callback, epochs=1).fit(module, batches())
    assert callback.drop is not None
    assert [event.step for event in callback.drop.events] == [12, 24]
    trainer(callback, epochs=1).fit(Module(), batches())
    assert [event.step for event in callback.drop.events] == [12], "another module starts anew"


def test_a_ledger_goes_on_where_the_run_does(tmp_path: Path) -> None:
    path, example = tmp_path / "ledger.jsonl", next(iter(batches()))[0][:2]
    first, second = (NodeDropCallback(LAM, example_inputs=example, ledger=path) for _ in range(2))
    keep, other = (ModelCheckpoint(tmp_path, save_top_k=-1, filename="{step}") for _ in range(2))
    trainer(first, keep, epochs=3).fit(Module().double(), batches())
    whole = path.read_bytes()
    assert whole.count(b'"line": "cut"') > 1
    again = Module().double()
    trainer(second, other, epochs=3).fit(again, batches(), ckpt_path=tmp_path / "step=12.ckpt")
    assert path.read_bytes() == whole
    trainer(second, epochs=1).fit(again, batches())
    assert path.read_bytes().startswith(whole)
    longer = path.read_bytes()
    with pytest.raises(InputError, match=r"holds the proofs of \d cuts, and nothing says to go on"):
        trainer(first, epochs=1).fit(Module(), batches())
    assert path.read_bytes() == longer


def test_a_part_of_the_module_can_be_named_and_needs_no_forward() -> None:
    class Headless(Module):
        def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def forward(self, *_: Any) -> Tensor:
            raise NotImplementedError

    module = Headless()
    callback = NodeDropCallback(LAM, submodule="net", example_inputs=torch.rand(2, 6))
    trainer(callback, epochs=1).fit(module, batches())
    assert callback.drop is not None
    assert callback.drop.events[0].removed[0].layer == "0"
    assert module.net[0].out_features < 10


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_of_a_scaled_loss(fused: bool) -> None:
    """The penalty's gradient is the same however the loss is scaled, also where the optimizer does the unscaling."""
    found = []
    for scale in (1.0, 2.0**10):
        module, callback = Module("SGD", fused=fused), NodeDropCallback(LAM)
        plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=scale))
        trainer(callback, plugins=[plugin], epochs=1).fit(module, batches(torch.float32))
        assert callback.drop is not None
        assert callback.drop.events
        assert all(map(torch.isfinite, map(torch.tensor, module.losses)))
        found.append(module)
    for p, q in zip(*(module.parameters() for module in found), strict=True):
        torch.testing.assert_close(p, q, rtol=2e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
@pytest.mark.parametrize("scaled", [False, True])
def test_a_skipped_batch_is_no_step(scaled: bool) -> None:
    class Skipping(Module):
        def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor | None:  # type: ignore[override]
            return super().training_step(batch, number) if number % 2 else None

    callback = NodeDropCallback(LAM)
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0))
    options: dict[str, Any] = {"plugins": [plugin]} if scaled else {"precision": "32-true"}
    trainer(callback, epochs=1, **options).fit(Skipping(), batches(torch.float32))
    assert callback.drop is not None
    assert callback.drop.step == 6
    assert callback.drop.events


def test_each_of_several_optimizers_gets_the_gradient_of_its_own_parameters() -> None:
    class Two(Module):
        automatic_optimization = False

        def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> None:
            for optimizer in self.optimizers():  # type: ignore[union-attr]
                optimizer.zero_grad()
                self.manual_backward(self.loss(batch))
                optimizer.step()

        def configure_optimizers(self) -> list[torch.optim.Optimizer]:  # type: ignore[override]
            return [torch.optim.SGD(self.net[0].parameters(), 0.1), torch.optim.SGD(self.net[2:].parameters(), 0.1)]

    theirs, ours = Two(), Two().double()
    callback = NodeDropCallback(LAM, every=8)
    trainer(callback, epochs=1).fit(theirs, batches())
    optimizers = ours.configure_optimizers()
    drop = nd.NodeDrop(ours.net, optimizers, next(iter(batches()))[0], lam=LAM)
    for batch in batches():
        for optimizer in optimizers:
            ours.zero_grad()
            (ours.loss(batch) + drop.penalty()).backward()
            optimizer.step()
        if drop.step % 8 == 0:
            drop.drop()
    assert callback.drop is not None
    assert callback.drop.events
    assert_same(theirs, ours)


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    for every in (0, "step", 2.5, True):
        with pytest.raises(InputError, match="every must be 'epoch' or a number of steps"):
            NodeDropCallback(every=every)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="λ must be a number from 0 on, not -1"):
        NodeDropCallback(lam=-1)
    with pytest.raises(InputError, match="Module has no part 'nett', which submodule names"):
        trainer(NodeDropCallback(submodule="nett"), epochs=1).fit(Module(), batches())
    with pytest.raises(InputError, match="outside the declared domain"):
        trainer(NodeDropCallback(domain=(0.0, 0.1)), epochs=1).fit(Module(), batches())
    run = trainer(NodeDropCallback(), epochs=1)
    monkeypatch.setattr(type(run), "world_size", 2)
    with pytest.raises(InputError, match="in one process, and the trainer uses 2; train on one device"):
        run.fit(Module(), batches())


def test_without_lightning_one_sentence_names_the_extra() -> None:
    code = (
        "import sys; sys.modules.update({'lightning': None, 'lightning.pytorch': None, 'pytorch_lightning': None})\n"
        "import nodedrop.integrations.lightning"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: nodedrop.integrations.lightning needs Lightning; pip install 'nodedrop[lightning]'"
    )
