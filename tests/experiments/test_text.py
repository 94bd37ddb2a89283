"""A transformer that shrinks while it learns to continue a text."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import nodedrop as nd
from nodedrop.cli.app import app
from nodedrop.errors import InputError
from nodedrop.experiments.data import Batches, Data, load
from nodedrop.experiments.making import data_of, network
from nodedrop.experiments.networks import build
from nodedrop.experiments.recipes import recipe
from nodedrop.experiments.run import train
from nodedrop.training import NodeDrop


@pytest.fixture(scope="module")
def text() -> Data:
    return load("pydoc")


def test_every_letter_is_labelled_with_the_next(text: Data) -> None:
    assert text.text
    assert not load("mnist").text
    assert torch.equal(text.train_labels[:, :-1], text.train_images[:, 1:].long())
    assert text.train_images.max() < text.classes
    assert 8 < len(text.train_images) / len(text.test_images) < 10
    shared = {tuple(row.tolist()) for row in text.train_images} & {tuple(row.tolist()) for row in text.test_images}
    assert len(shared) < 0.02 * len(text.test_images)  # help repeats itself here and there


def test_batches_of_a_text_are_numbers(text: Data) -> None:
    passages, labels = next(iter(Batches(text.test_images, text.test_labels, 3)))
    assert passages.dtype == labels.dtype == torch.int64
    assert passages.shape == labels.shape == (3, 96)


def test_no_place_sees_what_comes_after_it() -> None:
    torch.manual_seed(0)
    net = build("text-transformer", classes=50, size=12)
    tokens = torch.randint(0, 50, (1, 12))
    other = tokens.clone()
    other[0, 7:] = torch.randint(0, 50, (5,))
    before, after = net(tokens), net(other)
    assert before.shape == (1, 50, 12)
    torch.testing.assert_close(before[..., :7], after[..., :7])
    assert not torch.allclose(before[..., 7:], after[..., 7:])


def test_only_feed_forward_units_are_penalised_and_go() -> None:
    torch.manual_seed(0)
    net = build("text-transformer", classes=50, size=12, width=0.25)
    tokens = torch.randint(0, 50, (2, 12))
    drop = NodeDrop(net, torch.optim.Adam(net.parameters()), tokens, domain=None)
    assert drop.widths == {f"blocks.{number}.up": 96 for number in range(3)}
    assert all(target.reads is not None and target.reads.kind == "layer" for target in drop.targets)
    with torch.no_grad():
        net.get_parameter("blocks.1.up.weight")[:30] *= 1e-3
        net.get_parameter("blocks.1.up.bias")[:30] = -1.0
    before = net(tokens)
    assert len(drop.drop().removed) == 30
    torch.testing.assert_close(net(tokens), before)


def test_a_run_tells_its_loss_and_goes_on_after_a_stop(text: Data, tmp_path: Path) -> None:
    small = replace(recipe("text"), images=96, epochs=2, batch=32, width=0.1, quiet=0.0, lam=1e-2)
    few = replace(text, test_images=text.test_images[:20], test_labels=text.test_labels[:20])
    steps = iter(range(100))
    with pytest.raises(KeyboardInterrupt):
        train(small, tmp_path / "a", few, stop=lambda: next(steps) == 3)
    resumed, straight = train(small, tmp_path / "a", few, resume=True), train(small, tmp_path / "b", few)
    assert resumed["test_loss"] == straight["test_loss"]
    losses = [row["test_loss"] for row in straight["epochs"]]
    assert losses[-1] < losses[0]
    done = CliRunner().invoke(app, ["inspect", str(tmp_path / "b"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["samples"] > 0
    saved = network(small, few)
    nd.load(saved, tmp_path / "b" / "model.safetensors")
    assert json.loads((tmp_path / "b" / "result.json").read_text())["parameters"] == sum(
        p.numel() for p in saved.parameters()
    )


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("text", {"network": "vgg16"}, "vgg16 reads images, and pydoc holds texts"),
        ("mnist", {"network": "text-transformer"}, "text-transformer reads texts, and mnist holds images"),
        ("text", {"batch_norm": "yes"}, "has no batch norm"),
    ],
)
def test_networks_and_data_must_fit(name: str, changes: dict[str, str], words: str) -> None:
    made = recipe(name, changes=changes)
    data = data_of(made)
    with pytest.raises(InputError, match=words):
        network(made, data)
