"""Recipes: two profiles each, any value can be changed, and nothing strange gets through."""

import math
from dataclasses import asdict, fields

import pytest

from nodedrop.errors import InputError
from nodedrop.experiments.making import pressure, spared
from nodedrop.experiments.recipes import EXPERIMENTS, Recipe, baseline, changed, domain_of, recipe, spares_of


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("profile", ["short", "paper"])
def test_every_recipe_is_one_that_could_be_given_on_a_command_line(name: str, profile: str) -> None:
    made = recipe(name, profile)
    texts = {key: str(value) for key, value in asdict(made).items()}
    assert changed(Recipe(), texts) == made


def test_short_recipes_say_how_they_differ() -> None:
    assert EXPERIMENTS["text"].short == EXPERIMENTS["text"].paper  # not in the paper
    for experiment in (made for name, made in EXPERIMENTS.items() if name != "text"):
        assert str(experiment.short.epochs) in experiment.differs
        assert str(experiment.paper.epochs) in experiment.differs


def test_the_paper_profile_has_the_papers_values() -> None:
    mnist, vgg, densenet = (EXPERIMENTS[name].paper for name in ("mnist", "cifar10-vgg16-bn", "cifar10-densenet40-bn"))
    assert (mnist.optimizer, mnist.lr, mnist.batch, mnist.epochs) == ("adam", 1e-3, 1024, 480)
    assert (vgg.lr, vgg.momentum, vgg.decay, vgg.epochs) == (0.1, 0.9, "80,130", 200)
    assert (densenet.lr, densenet.decay, densenet.epochs) == (0.1, "150,225", 300)


def test_the_baseline_is_a_plain_relu_network_unless_told_otherwise() -> None:
    assert (baseline(Recipe()).lam, baseline(Recipe()).activation) == (0.0, "relu")
    assert baseline(Recipe(activation="clamped")).activation == "clamped"
    assert baseline(Recipe(network="a:b")).activation == ""


def test_a_domain_is_two_numbers() -> None:
    assert domain_of(recipe("mnist", changes={"domain": "-1, 1"})) == (-1.0, 1.0)


WRONG = {
    "lam": ["-1", "nan", "inf", "x", -1e-9, math.nan], "lr": ["0", "nan"], "C": ["0", "-1"],
    "epochs": ["0", "1.5", "x"], "batch": ["1"], "part": ["-1"], "images": ["-1"],
    "shift": ["-1"], "mirror": ["perhaps"],
    "optimizer": ["adm"], "momentum": ["1", "-0.1"], "weight_decay": ["-1"], "decay": ["linear", "8,", "a,b"],
    "form": ["l1"], "norm_form": ["l2"], "m": ["all", "0"], "spare": ["1.1", "-0.5"],
    "spare_of": ["conv1", "=8", "conv1=x", "conv*=1.5", "conv1=-1"], "evidence": ["observed"],
    "multiple": ["0", "1.5"], "toll": ["-1", "inf"], "quiet": ["-1"], "rest": ["-1"], "fade": ["1.5"],
    "least": ["0"], "evaluate": ["0"], "activation": ["gelu"], "batch_norm": ["2"], "width": ["0", "65"],
    "init": ["zeros"], "seed": ["-1"], "network": ["mnist-dense1"], "data": ["mnits"], "domain": ["0", "1,0", "0,inf"],
}  # fmt: skip


def test_there_is_a_wrong_value_for_every_value() -> None:
    assert set(WRONG) == {field.name for field in fields(Recipe)}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_value_is_named(name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"^{name} ") as caught:
        recipe("mnist", changes={name: value})
    assert "\n" not in str(caught.value)


def test_what_belongs_to_other_networks_cannot_be_set_for_ones_own() -> None:
    with pytest.raises(InputError, match="width can be set for the package's networks only"):
        recipe("mnist", changes={"network": "my:net", "width": "0.5"})


def test_unknown_names_come_with_the_known_ones() -> None:
    for call in (lambda: recipe("minst"), lambda: recipe("mnist", "long"), lambda: recipe("mnist", "short", {"x": 1})):
        with pytest.raises(InputError, match="there are "):
            call()
    with pytest.raises(InputError, match="nesterov needs a momentum"):
        recipe("mnist", changes={"optimizer": "nesterov", "momentum": "0"})
    with pytest.raises(InputError, match="quiet and rest leave none of 3 epochs"):
        recipe("mnist", changes={"epochs": "3", "quiet": "1", "rest": "2"})


def test_the_penalty_acts_between_quiet_and_rest() -> None:
    made = recipe("mnist", changes={"epochs": 10, "quiet": 1, "rest": 5, "fade": 0, "lam": 1e-3})
    rates = [pressure(made, per_epoch=4)(step) for step in range(40)]
    assert rates == [0.0] * 4 + [1e-3] * 16 + [0.0] * 20
    fading = pressure(changed(made, {"fade": 0.4}), per_epoch=4)
    assert (fading(4), fading(12)) == (1e-3, 1e-3)
    assert 1e-5 < fading(19) < fading(13) < 1e-3
    assert fading(20) == 0.0
    rounding = changed(made, {"spare": 0.7, "multiple": 8})
    assert [spared(rounding, 4)(step) for step in (0, 19, 20, 39)] == [0.7, 0.7, 1.0, 1.0]
    assert [pressure(rounding, 4)(step) for step in (3, 19, 39)] == [0.0, 1e-3, 1e-2], "on units beyond a multiple"
    named = changed(made, {"spare_of": "conv1=8,conv*=32,conv1=16"})
    assert pressure(named, 4)(39) == 1e-2, "what is to go by name goes on being pressed"
    assert list(spares_of(named).items()) == [("conv*", 32.0), ("conv1", 16.0)], "the last one that fits counts"
