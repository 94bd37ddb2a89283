"""Cells are the records' values; renderings say the same in their own way."""

import csv
import io
import json
from pathlib import Path
from statistics import mean, stdev

import pytest

from nodedrop.experiments import reproduce
from nodedrop.reporting import paper, show, tables
from nodedrop.reporting.groups import Setting, Spread, settings, standard
from nodedrop.reporting.records import read
from nodedrop.reporting.table import Column, Table, comma_separated, data, markdown, text
from nodedrop.reporting.topics import REPRODUCTIONS


@pytest.fixture
def setting(results: Path) -> Setting:
    (found,) = settings(standard(read(results)[0], "mnist"))
    return found


def written(results: Path, *numbers: int) -> list[dict[str, float]]:
    return [json.loads((results / "mnist" / f"run{number}.json").read_text()) for number in numbers]


def test_mnist_cells_are_the_records_values(results: Path, setting: Setting) -> None:
    rows = {(row[0], row[1]): row for row in tables.mnist(setting).rows}
    assert set(rows) == {("Dense160", "baseline"), ("Dense160", "1e-3"), ("Dense160", "1e-2"), ("Dense240", "1e-3")}
    first, second = written(results, 1, 2)
    _, _, n, error, parameters, _, factor, units, _ = rows["Dense160", "1e-3"]
    assert n == 2
    assert isinstance(error, Spread)
    assert error.mean == mean([first["test_error"], second["test_error"]])
    assert error.std == stdev([first["test_error"], second["test_error"]])
    assert parameters == Spread((first["parameters"], second["parameters"]))
    assert units == Spread((first["units"], second["units"]))
    assert factor == Spread(tuple(r["parameters_dense"] / r["parameters"] for r in (first, second)))


def test_grid_says_how_far_apart_sizes_end(results: Path, setting: Setting) -> None:
    grid = tables.mnist_grid(setting, "parameters")
    row = next(row for row in grid.rows if row[0] == "1e-3")
    one, two, other = (r["parameters"] for r in written(results, 1, 2, 6))
    ends = [mean([one, two]), other]
    assert row[-1] == max(ends) / min(ends)
    assert next(row for row in grid.rows if row[0] == "1e-2")[-1] is None


def test_comparisons_hold_each_variant(results: Path) -> None:
    records, _ = read(results)
    (activations,) = tables.comparison(records, "activation")
    assert [row[:2] for row in activations.rows] == [
        ("ReLU", "baseline"), ("SoftClampedReLU", "1e-3"), ("ClampedReLU", "1e-3"),
    ]  # fmt: skip
    stuck = [(r["stuck_at_start"], r["stuck"]) for r in written(results, 4)]
    assert [(row[3], row[4]) for row in activations.rows[2:]] == [tuple(Spread((float(n),)) for n in stuck[0])]
    (penalties,) = tables.comparison(records, "form")
    assert [row[0] for row in penalties.rows] == ["none", "‖max(w,0)‖₁ + |b+C|", "‖w‖₂² + b²"]
    assert penalties.rows[2][3] == Spread((written(results, 5)[0]["test_error"],))


SAMPLE = Table(
    "A | b",
    (Column("name"), Column("error", ".2f"), Column("left", ",.0f")),
    (("|w|", Spread((0.5, 0.7)), 12345), ("x", Spread((1.0,)), None)),
    ("A remark.",),
)


def test_text_lines_columns_up() -> None:
    assert text(SAMPLE).splitlines() == [
        "A | b",
        "name        error    left",
        "----  -----------  ------",
        "|w|   0.60 ± 0.14  12,345",
        "x            1.00       –",
        "A remark.",
    ]


def test_markdown_keeps_bars_out_of_the_way() -> None:
    lines = markdown(SAMPLE).splitlines()
    assert lines[2:6] == [
        "| name | error | left |",
        "|---|---:|---:|",
        "| \\|w\\| | 0.60 ± 0.14 | 12,345 |",
        "| x | 1.00 | – |",
    ]


def test_csv_parses_to_full_numbers() -> None:
    rows = list(csv.DictReader(io.StringIO(comma_separated(SAMPLE))))
    assert float(rows[0]["error"]) == mean([0.5, 0.7])
    assert float(rows[0]["error std"]) == stdev([0.5, 0.7])
    assert rows[0]["left"] == "12345"
    assert rows[1]["error std"] == rows[1]["left"] == ""
    assert data(SAMPLE)["columns"] == ["name", "error", "error std", "left"]


def test_every_reproduction_has_its_tables() -> None:
    assert set(REPRODUCTIONS) == set(reproduce.REPRODUCTIONS)


def test_show_prints_every_reproduction(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in REPRODUCTIONS:
        show(results, name)
        printed = capsys.readouterr().out
        assert "nodedrop reproduce" in printed or "SoftClampedReLU" in printed
    show(results, "mnist-lambda")
    assert "MNIST: test error in %" in capsys.readouterr().out


def test_the_papers_rows() -> None:
    vgg = paper.rows("cifar10", "vgg16", batch_norm=False)
    assert [row.lam for row in vgg] == [None, 1e-6, 1e-5, 3.2e-5, 1e-4]
    assert [row.test_error for row in vgg] == [13.01, 14.14, 13.27, 13.76, 90.00]
    assert [row.factor for row in vgg] == [1.0, 33.28, 48.98, 114.00, None]
    assert [row.units for row in vgg] == [4736, 1115, 859, 612, 0]
    assert vgg[0].parameters == 15.04e6
    assert [row.removed for row in paper.rows("cifar100", "densenet40", batch_norm=True)] == [0.0, 2.27, 4.74, 31.12]
    counts = {key: [len(rows) for rows in paper.content()[key].values()] for key in ("cifar10", "cifar100")}
    assert counts == {"cifar10": [5, 5, 4, 4], "cifar100": [4, 4]}
    assert paper.mnist_removed() == 93.27


@pytest.mark.parametrize(
    ("data_set", "network", "norm", "bold"),
    [
        ("cifar10", "vgg16", False, 99.12), ("cifar10", "vgg16", True, 95.96), ("cifar10", "densenet40", False, 91.96),
        ("cifar10", "densenet40", True, 47.12), ("cifar100", "vgg16", True, 87.82),
        ("cifar100", "densenet40", True, 4.74),
    ],
)  # fmt: skip
def test_one_point_of_loss_gives_the_papers_bold_rows(data_set: str, network: str, norm: bool, bold: float) -> None:
    best = paper.best(paper.rows(data_set, network, batch_norm=norm), tables.NO_LOSS[data_set])
    assert best is not None
    assert best.removed == bold
