"""Figures and pages are written from records, twice the same."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nodedrop.errors import InputError
from nodedrop.reporting import benchmarks, figures, findings, pages
from nodedrop.reporting.figures import style
from nodedrop.reporting.records import read
from nodedrop.reporting.topics import missing

ROOT = Path(__file__).parents[2]
TOPICS = ("mnist", "activations", "penalties")


@pytest.mark.parametrize("topic", TOPICS)
def test_figures_are_written_and_twice_the_same(results: Path, tmp_path: Path, topic: str) -> None:
    records, _ = read(results)
    pictures = figures.for_topic(records, topic)
    assert pictures
    for picture in pictures:
        first, second = (tmp_path / name for name in ("first", "second"))
        for folder in (first, second):
            folder.mkdir(exist_ok=True)
            made = figures.write(picture, folder)
            assert [path.suffix for path in made] == [".svg", ".png"]
        for suffix in ("svg", "png"):
            content = (first / f"{picture.name}.{suffix}").read_bytes()
            assert len(content) > 5000
            assert content == (second / f"{picture.name}.{suffix}").read_bytes()
        ElementTree.parse(first / f"{picture.name}.svg")


def cifar(results: Path, *, network: str = "vgg16", lam: float, collapsed: bool = False) -> None:
    """A run's record told as one of CIFAR-10, so that the figures with the paper's points have some of ours."""
    record = json.loads((results / "mnist" / "run1.json").read_text())
    record["recipe"] |= {"data": "cifar10", "network": network, "lam": lam, "activation": "" if lam else "relu"}
    record |= {"experiment": "cifar10-vgg16", "collapsed": ["conv2"] if collapsed else []}
    (results / f"{network}-{lam:g}.json").write_text(json.dumps(record))


def test_cifar_figures_have_the_papers_points_and_say_what_is_missing(results: Path, tmp_path: Path) -> None:
    for lam in (0.0, 1e-5, 1e-4):
        cifar(results, lam=lam, collapsed=lam == 1e-4)
    records, _ = read(results)
    names = [picture.name for picture in figures.for_topic(records, "cifar10")]
    assert names == ["cifar10-vgg16-lambda-short", "cifar10-tradeoff-short", "cifar10-convergence", "cifar10-widths"]
    for picture in figures.for_topic(records, "cifar10"):
        assert all(path.stat().st_size > 5000 for path in figures.write(picture, tmp_path))
    with style.styled():
        drawn = figures.for_topic(records, "cifar10")[0].draw()
    error, share, absent, _ = drawn.axes
    theirs = next(line for line in error.lines if line.get_label() == "paper")
    assert list(theirs.get_xdata()) == [1e-6, 1e-5, 3.2e-5, 1e-4]
    assert list(theirs.get_ydata()) == [14.14, 13.27, 13.76, 90.00]
    assert any("collapsed" in text.get_text() for text in share.texts)
    assert any("nodedrop reproduce cifar10-lambda" in text.get_text() for text in absent.texts)
    one, two, three = missing(records, "cifar10")
    assert one.startswith("`nodedrop reproduce cifar10-lambda --missing`, profile `short`, has 15 of 15 runs to make: ")
    assert one.endswith(" and 11 more.")
    assert "has 10 of 23 runs to make: cifar10-densenet40-lam0-seed0, " in two  # the others are those of the first
    assert three.endswith("has 1 of 1 runs to make: cifar10-vgg16-long-lam1e-05-seed0.")
    assert any("lost 1 whole layer (conv2) in 1 of 1 runs" in s for s in findings.for_topic(records, "cifar10"))


def test_a_page_tells_how_far_training_got(results: Path) -> None:
    for lam in (0.0, 1e-5):
        cifar(results, lam=lam)
    record = json.loads((results / "vgg16-0.json").read_text())
    record["epochs"][-1]["train_error"] = 12.34
    (results / "vgg16-0.json").write_text(json.dumps(record))
    records, _ = read(results)
    (said,) = (s for s in findings.for_topic(records, "cifar10") if "training images" in s)
    assert "12.34 % on training images" in said
    assert f"{record['test_error']:.2f} % on test images" in said
    # 2 epochs of 300 images in batches of 100, the first 0.2 without penalty; the profile: 195 of 98 batches each.
    assert "for 5 steps, where the profile `paper` has 19,110" in said


def test_a_comparison_names_the_network_where_there_are_several(results: Path) -> None:
    def said() -> list[str]:
        return [s for s in findings.for_topic(read(results)[0], "activations") if "at the end:" in s]

    assert all(s.startswith(("Without penalty", "λ = ")) for s in said())
    cifar(results, lam=0.0)
    record = json.loads((results / "vgg16-0.json").read_text())
    record["recipe"]["activation"] = "soft"
    (results / "soft.json").write_text(json.dumps(record))
    assert sum(s.startswith("VGG16 without BN, without penalty") for s in said()) == 1
    assert sum(s.startswith("Dense160, ") for s in said()) == len(said()) - 1


def test_pages_hold_numbers_of_records_and_their_origin(results: Path, tmp_path: Path) -> None:
    (results / "notes").mkdir()
    (results / "notes" / "mnist.md").write_text("Fewer images were seen.\n")
    records, _ = read(results)
    made = pages.write(records, tmp_path / "docs", results)
    texts = {path.name: path.read_text() for path in made if path.suffix == ".md"}
    assert set(texts) == {"mnist.md", "activations.md", "penalties.md", "index.md"}
    record = json.loads((results / "mnist" / "run3.json").read_text())
    mnist = texts["mnist.md"]
    assert f"| {record['test_error']:.2f} |" in mnist
    assert f"{record['parameters']:,}" in mnist
    assert record["machine"]["torch"] in mnist
    assert "nodedrop report" in mnist
    assert "batch 100 for 50" in mnist
    assert "Fewer images were seen." in mnist
    assert "units were left for a cut after the last epoch" in mnist
    assert all(path.exists() for path in made)
    for picture in figures.for_topic(records, "mnist"):
        assert f"({picture.name}.svg)" in mnist
    again = {path.name: path.read_bytes() for path in pages.write(records, tmp_path / "docs", results)}
    assert again == {path.name: path.read_bytes() for path in made}


def test_a_single_cut_at_the_end_is_told_apart_from_tables(results: Path) -> None:
    def told(text: str) -> tuple[int, str]:
        said = next(line for line in text.splitlines() if "units were left for a cut after" in line)
        return int(said.partition(" in all)")[0].rpartition("(")[2] if "in all" in said else 0), said

    before = pages.texts(read(results)[0], results, results)["mnist"]
    record = json.loads((results / "mnist" / "run1.json").read_text())
    record["recipe"]["least"], record["units"], record["logit_change"] = 10**6, record["epochs"][-1]["units"] - 3, 0.05
    (results / "once.json").write_text(json.dumps(record))
    after = pages.texts(read(results)[0], results, results)["mnist"]
    assert told(after)[0] == told(before)[0] + 3
    assert "none by more than 5.0e-02" in told(after)[1]
    assert after.partition("## Tables")[2] == before.partition("## Tables")[2]


def test_the_pages_of_the_repository_are_those_of_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    records, problems = read(Path("results"))
    assert problems == []
    for name, text in pages.texts(records, Path("docs/results"), Path("results")).items():
        assert Path(f"docs/results/{name}.md").read_text(encoding="utf-8") == text, "not written anew"
    page, _ = benchmarks.text_of(Path("results/bench"), Path("docs/benchmarks.md"))
    assert Path("docs/benchmarks.md").read_text(encoding="utf-8") == page, "not written anew"


def test_the_best_without_loss_is_the_smallest_within_a_tenth_of_a_point(results: Path) -> None:
    for number, (error, parameters) in {0: (1.0, 49850), 1: (1.1, 500), 2: (1.1, 500), 3: (1.2, 100)}.items():
        path = results / "mnist" / f"run{number}.json"
        record = json.loads(path.read_text()) | {"test_error": error, "parameters": parameters}
        path.write_text(json.dumps(record))
    records, _ = read(results)
    first = findings.for_topic(records, "mnist")[0]
    assert f"{100 * (1 - 500 / 49850):.2f} % of the parameters, more than the paper's best, 93.27 %" in first
    assert "λ = 1e-3 leaves 500" in first


def test_without_matplotlib_a_sentence_names_the_extra(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    records, _ = read(results)
    picture = figures.for_topic(records, "mnist")[0]
    with pytest.raises(InputError, match=r"nodedrop\[report\]"):
        figures.write(picture, results)
