"""The grids behind the paper's figures and tables, and the records of runs."""

import json
from pathlib import Path

import pytest
from tests.experiments.own_target import OWN

from nodedrop.errors import InputError
from nodedrop.experiments.recipes import Recipe
from nodedrop.experiments.reproduce import LAMS, REPRODUCTIONS, SIZES, jobs_of, record
from nodedrop.experiments.run import train
from nodedrop.experiments.sweep import Grid
from nodedrop.functional import PENALTY_FORMS


def recipes(name: str, **changes: object) -> list[Recipe]:
    return [job.recipe for job in jobs_of(name, "short", [0], Path("runs"), changes)]


@pytest.mark.parametrize("name", REPRODUCTIONS)
@pytest.mark.parametrize("profile", ["short", "paper"])
def test_runs_have_names_of_their_own_and_one_recipe_each(name: str, profile: str) -> None:
    jobs = jobs_of(name, profile, [0, 1], Path("runs"))
    assert len({job.name for job in jobs}) == len({job.recipe for job in jobs}) == len(jobs)
    assert {job.recipe.seed for job in jobs} == {0, 1}


def test_the_mnist_figures_rest_on_the_same_runs() -> None:
    found = recipes("mnist-lambda")
    assert found == recipes("mnist-sizes")
    assert {(made.network, made.lam) for made in found} == {(size, lam) for size in SIZES for lam in LAMS}
    swept = [lam for lam in LAMS if lam > 0]
    assert len(swept) >= 7
    assert min(swept) == 1e-8
    assert 1e-3 in swept


def test_the_cifar_table_has_the_papers_rows() -> None:
    found = {(made.network, made.batch_norm, made.lam) for made in recipes("cifar10-table")}
    assert {lam for net, norm, lam in found if net == "vgg16" and norm} >= {0.0, 1e-6, 1e-5, 3.2e-5, 1e-4}
    assert {lam for net, norm, lam in found if net == "densenet40" and not norm} >= {0.0, 1e-6, 1e-5, 1e-4}
    assert {(net, norm) for net, norm, _ in found} == {(n, b) for n in ("vgg16", "densenet40") for b in (False, True)}


def test_every_form_and_activation_is_compared() -> None:
    assert {made.form for made in recipes("penalties") if made.lam == 1e-4} == set(PENALTY_FORMS)
    for lam in (0.0, 1e-4):
        found = {made.activation or "soft" for made in recipes("activations") if made.lam == lam}
        assert found == {"soft", "clamped", "relu"}


def test_shared_runs_are_the_same_jobs() -> None:
    everything = {job.name: job for name in REPRODUCTIONS for job in jobs_of(name, "short", [0], Path("runs"))}
    for name in REPRODUCTIONS:
        for job in jobs_of(name, "short", [0], Path("runs")):
            assert everything[job.name] == job


def test_changes_reach_every_run() -> None:
    assert {made.epochs for made in recipes("penalties", epochs="1")} == {1}
    with pytest.raises(InputError, match=r"^form is what the runs differ in"):
        recipes("penalties", form="l2")
    with pytest.raises(InputError, match="there is no reproduction 'mnist'; there are mnist-lambda, "):
        recipes("mnist")


def test_a_record_says_where_it_comes_from(tmp_path: Path) -> None:
    job = Grid("mnist", (1e-3,)).jobs("short", [0], tmp_path / "runs", OWN)[0]
    result = train(job.recipe, job.folder)
    path = record(job, result, tmp_path / "results")
    assert path == tmp_path / "results" / "mnist" / f"{job.name}.json"
    stored = json.loads(path.read_text())
    assert {key: stored[key] for key in result} == result
    assert (stored["name"], stored["experiment"], stored["profile"]) == (job.name, "mnist", "short")
    assert stored["command"] == job.command
    before = path.stat().st_mtime_ns
    record(job, result, tmp_path / "results")
    assert path.stat().st_mtime_ns == before
    assert [other.name for other in path.parent.iterdir()] == [path.name]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        record(job, result, tmp_path / "file")
