"""The callback for the Hugging Face Trainer does what the same loop written by hand does, and resumes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import nodedrop as nd
from nodedrop.errors import InputError
from nodedrop.integrations.huggingface import FILE, NodeDropCallback
from nodedrop.training import schedules

pytestmark = pytest.mark.filterwarnings(
    "ignore:'pin_memory' argument is set as true but no accelerator is found:UserWarning",
)

LAM = 1.0
LAYER = "bert.encoder.layer.0.intermediate.dense"


class Sentences(Dataset[dict[str, Tensor]]):
    """Forty-eight rows of six words; the label says whether the first word comes before the second."""

    def __init__(self) -> None:
        self.words = torch.randint(30, (48, 6), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        words = self.words[index]
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": (words[0] < words[1]).long()}


EXAMPLE = {"input_ids": Sentences().words[:2], "attention_mask": torch.ones(2, 6, dtype=torch.long)}


def build(seed: int = 1) -> BertForSequenceClassification:
    """A tiny network with ReLU, of which some units are dead, and others will be soon."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12,
        hidden_act="relu", max_position_embeddings=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-5,
    )  # fmt: skip
    model = BertForSequenceClassification(config).double()
    with torch.no_grad():
        dense = model.get_submodule(LAYER)
        dense.bias.fill_(2.0)
        for unit, bias in ((1, -0.5), (3, 0.05), (6, 0.15)):
            dense.weight[unit], dense.bias[unit] = -0.02, bias
    return model


def width(model: nn.Module) -> int:
    return model.get_submodule(LAYER).out_features


def trainer(folder: Path, model: nn.Module, *callbacks: NodeDropCallback, epochs: int = 3, **options: Any) -> Trainer:
    settings = {
        "num_train_epochs": epochs, "per_device_train_batch_size": 8, "lr_scheduler_type": "constant",
        "train_sampling_strategy": "sequential", "save_strategy": "no", "logging_steps": 1, "report_to": "none",
        "use_cpu": True, "disable_tqdm": True,
    }  # fmt: skip
    arguments = TrainingArguments(str(folder), **settings | options)
    data, optimizer = Sentences(), None if "optim" in options else momentum(model)
    return Trainer(model, arguments, None, data, data, callbacks=list(callbacks), optimizers=(optimizer, None))


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)


def by_hand(model: nn.Module, epochs: int = 3, every: int = 6, accumulate: int = 1, clip: float = 0.1) -> Any:
    """The loop that the trainer and the callback should amount to: gradients are clipped before the penalty's come."""
    optimizer = momentum(model)
    drop = nd.NodeDrop(model, optimizer, EXAMPLE, lam=LAM)
    loader = list(torch.utils.data.DataLoader(Sentences(), 8))
    for _ in range(epochs):
        for number, batch in enumerate(loader, 1):
            model(**batch).loss.backward()
            if number % accumulate == 0:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
                drop.penalty().backward()
                optimizer.step()
                optimizer.zero_grad()
                if drop.step % every == 0:
                    drop.drop()
    return drop, optimizer


@pytest.mark.parametrize("accumulate", [1, 3])
def test_it_is_the_loop_written_by_hand(tmp_path: Path, accumulate: int) -> None:
    theirs, ours = build(), build()
    callback = NodeDropCallback(EXAMPLE, LAM)
    run = trainer(tmp_path, theirs, callback, epochs=6, gradient_accumulation_steps=accumulate, max_grad_norm=0.1)
    run.train()
    drop, optimizer = by_hand(ours, epochs=6, every=6 // accumulate, accumulate=accumulate)
    assert callback.drop is not None
    assert callback.drop.step == drop.step == 36 // accumulate
    assert [(e.step, len(e.removed)) for e in callback.drop.events] == [(e.step, len(e.removed)) for e in drop.events]
    assert len(drop.events) > 1
    assert width(theirs) < 12
    state = run.optimizer.optimizer.state
    for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)
        mine, other = state[p]["momentum_buffer"], optimizer.state[q]["momentum_buffer"]
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)


def test_what_is_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, callback = build(), NodeDropCallback(EXAMPLE, schedules.warm_up(LAM, steps=2), every=3)
    run = trainer(tmp_path, model, callback, epochs=2)
    run.train()
    assert callback.drop is not None
    assert callback.drop.events[0].step == 3
    first = callback.drop.events[0]
    units, parameters = first.units + len(first.removed), sum(p.numel() for p in build().parameters())
    history = run.state.log_history
    assert len(history) == 12 + 1
    for values in history:
        past = [event for event in callback.drop.events if event.step <= values["step"]]
        assert values["nodedrop/units"] == (past[-1].units if past else units)
        assert values["nodedrop/parameters"] == (past[-1].parameters if past else parameters)
        assert values["nodedrop/lam"] == (LAM if values["step"] >= 2 else 0.0)
    assert all(torch.isfinite(torch.tensor(values["loss"])) for values in history[:-1])
    assert f"'nodedrop/units': {callback.drop.events[-1].units}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("every", "checkpoint", "options"),
    [
        ("epoch", 6, {"save_strategy": "epoch"}),
        (4, 7, {"save_strategy": "steps", "save_steps": 7, "optim": "sgd", "learning_rate": 0.04}),
    ],
    ids=["epoch, given optimizer", "steps, own optimizer"],
)
def test_a_run_resumes_from_a_checkpoint_and_ends_as_if_it_had_not_stopped(
    tmp_path: Path, every: Any, checkpoint: int, options: dict[str, Any]
) -> None:
    first, second = NodeDropCallback(EXAMPLE, LAM, every=every), NodeDropCallback(EXAMPLE, LAM, every=every)
    whole, again = (trainer(tmp_path, build(), callback, **options) for callback in (first, second))
    whole.train()
    again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{checkpoint}"))
    assert first.drop is not None
    assert second.drop is not None
    assert first.drop.events[0].step <= checkpoint < first.drop.events[-1].step
    assert json.dumps(second.drop.state_dict()) == json.dumps(first.drop.state_dict())
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name])


def test_checkpoints_hold_a_file_that_rebuilds_the_model(tmp_path: Path) -> None:
    model = build()
    trainer(tmp_path, model, NodeDropCallback(EXAMPLE, LAM), epochs=2, save_strategy="epoch").train()
    folder = tmp_path / "checkpoint-12"
    fresh = build(seed=2)
    nd.load(fresh, folder / FILE)
    assert width(fresh) == width(model) < 12
    assert torch.equal(fresh(**EXAMPLE).logits, model(**EXAMPLE).logits)
    again = build(seed=2)
    nd.load(again, folder / "model.safetensors")
    assert torch.equal(again(**EXAMPLE).logits, model(**EXAMPLE).logits)


def test_mixed_precision_stays_on(tmp_path: Path) -> None:
    with_bf16 = NodeDropCallback(EXAMPLE, LAM)
    trainer(tmp_path, build().float(), with_bf16, epochs=1, bf16=True).train()
    assert with_bf16.options["dtype"] == torch.bfloat16, "proofs count the rounding of the forward pass"
    model, callback = build().float(), NodeDropCallback(EXAMPLE, LAM, dtype=torch.float32)
    trainer(tmp_path, model, callback, epochs=1, bf16=True).train()
    assert width(model) < 12
    assert "forward" in vars(model), "accelerate puts its own there"
    seen: list[torch.dtype] = []
    model.get_submodule(LAYER).register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    assert model(**EXAMPLE).logits.isfinite().all()
    assert seen == [torch.bfloat16]


def test_a_second_run_goes_on_from_the_first(tmp_path: Path) -> None:
    model, callback = build(), NodeDropCallback(EXAMPLE, LAM)
    run = trainer(tmp_path, model, callback, epochs=1)
    run.train()
    before = width(model)
    run.train()
    assert width(model) < before < 12


def test_a_ledger_goes_on_where_the_run_does(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first, second = (NodeDropCallback(EXAMPLE, LAM, ledger=path) for _ in range(2))
    trainer(tmp_path, build(), first, save_strategy="epoch").train()
    whole = path.read_bytes()
    assert whole.count(b'"line": "cut"') > 1
    again = trainer(tmp_path, build(), second)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert path.read_bytes() == whole
    again.train()
    assert path.read_bytes().startswith(whole)
    with pytest.raises(InputError, match=r"holds the proofs of \d cuts, and nothing says to go on"):
        trainer(tmp_path, build(), NodeDropCallback(EXAMPLE, LAM, ledger=path), epochs=1).train()
    assert path.read_bytes().startswith(whole)


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="every must be"):
        NodeDropCallback(EXAMPLE, every=0)
    with pytest.raises(InputError, match="there is no option 'lamda', did you mean lam"):
        NodeDropCallback(EXAMPLE, lamda=1.0)
    with pytest.raises(InputError, match="example_inputs must be a dict of keyword inputs, not a Tensor"):
        NodeDropCallback(torch.zeros(2, 6))  # type: ignore[arg-type]
    best = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    run = trainer(tmp_path, build(), NodeDropCallback(EXAMPLE), **best)
    with pytest.raises(InputError, match="load_best_model_at_end=True and NodeDropCallback do not go together"):
        run.train()


def test_without_transformers_one_sentence_names_the_extra() -> None:
    code = "import sys; sys.modules['transformers'] = None\nimport nodedrop.integrations.huggingface"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: nodedrop.integrations.huggingface needs transformers; pip install 'nodedrop[hf]'"
    )
