"""Records are read back as written; what is no record is named and left out."""

import json
import shutil
from pathlib import Path

import pytest

from nodedrop.errors import InputError
from nodedrop.reporting.groups import Spread, compared, points, settings, standard
from nodedrop.reporting.records import read

from ..records import RUNS


def test_a_record_holds_what_the_run_wrote(results: Path) -> None:
    records, problems = read(results)
    assert problems == []
    assert len(records) == len(RUNS)
    for record in records:
        written = json.loads((results / "mnist" / f"{record.name}.json").read_text())
        for key in ("test_error", "parameters", "parameters_dense", "units", "units_dense", "logit_change", "seconds"):
            assert getattr(record, key) == written[key]
        assert [row.test_error for row in record.epochs] == [row["test_error"] for row in written["epochs"]]
        assert record.removed == 100 * (1 - written["parameters"] / written["parameters_dense"])
        assert record.overrides == {"batch": (50, 100), "images": (0, 300)}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"recipe": {', "no JSON"),
        (b"\xff\xfe\x00", "no text"),
        (b"[1, 2]", "not the record of a run"),
        (b'{"machine": {}}', "not the record of a run"),
        (b'{"recipe": {"lam": "many"}}', "lam must be"),
        (b'{"recipe": {}}', "no value 'machine'"),
        (b'{"recipe": 3}', "not of the kind a record has"),
    ],
)
def test_what_is_no_record_is_named_and_left_out(results: Path, content: bytes, words: str) -> None:
    (results / "mnist" / "strange.json").write_bytes(content)
    records, problems = read(results)
    assert len(records) == len(RUNS)
    assert len(problems) == 1
    assert "strange.json" in problems[0]
    assert words in problems[0]


def test_records_of_benchmarks_are_no_problem(results: Path) -> None:
    (results / "bench").mkdir()
    (results / "bench" / "analysis.json").write_text("{}")
    assert read(results)[1] == []


def test_run_folders_are_read_and_unfinished_ones_are_marked(made: Path, tmp_path: Path) -> None:
    runs = Path(shutil.copytree(made / "runs", tmp_path / "runs"))
    (runs / "run1" / "result.json").unlink()
    with (runs / "run1" / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"epoch": 3, "test_er')
    records, problems = read(runs)
    assert problems == []
    assert [record.name for record in records if not record.finished] == ["run1"]
    unfinished = next(record for record in records if not record.finished)
    assert unfinished.epochs[-1].epoch == 2
    assert unfinished.parameters == unfinished.epochs[-1].parameters
    assert {(record.experiment, record.profile) for record in records} == {("mnist", "short")}
    assert all(not any(r.name == "run1" for r in point.records) for point in points(records))


def test_a_missing_folder_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        read(tmp_path / "none")


def test_seeds_go_together_and_comparisons_find_their_kin(results: Path) -> None:
    records, _ = read(results)
    chosen = standard(records, "mnist")
    assert [r.name for r in chosen] == ["run0", "run1", "run2", "run3", "run6"]
    (setting,) = settings(chosen)
    small, large = setting.series
    assert (small.title, large.title) == ("Dense160", "Dense240")
    assert [(p.lam, p.n) for p in small.points] == [(1e-3, 2), (1e-2, 1)]
    assert small.baseline is not None
    assert [r.name for r in compared(records, "activation")] == ["run0", "run1", "run2", "run4"]
    assert [r.name for r in compared(records, "form")] == ["run0", "run1", "run2", "run5"]


def test_a_dense_run_is_the_baseline_of_any_penalty(results: Path) -> None:
    path = results / "mnist" / "run1.json"
    record = json.loads(path.read_text())
    record["recipe"]["spare"] = 0.5
    path.write_text(json.dumps(record))
    records, _ = read(results)
    plain, spared = settings(standard(records, "mnist"))
    assert spared.title.endswith("spare 0.5 for 0")
    assert [len(setting.records) for setting in (plain, spared)] == [4, 2]
    for setting in (plain, spared):
        baseline = setting.series[0].baseline
        assert baseline is not None
        assert baseline.records[0].name == "run0"
    (alone,) = settings(record for record in records if record.dense)
    assert [record.name for record in alone.records] == ["run0"]


def test_the_same_run_twice_counts_once(results: Path) -> None:
    shutil.copy(results / "mnist" / "run1.json", results / "mnist" / "again.json")
    records, _ = read(results)
    assert max(point.n for point in points(records)) == 2


def test_spread_is_that_of_a_sample() -> None:
    assert Spread((1.0, 2.0, 4.0)).std == pytest.approx((14 / 6) ** 0.5)
    assert Spread((3.0,)).std is None
