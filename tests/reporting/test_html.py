"""The page about runs, opened in a real browser."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nodedrop.cli.app import app
from nodedrop.errors import InputError
from nodedrop.experiments.recipes import recipe
from nodedrop.reporting.html import view, write_html

NAMES = {"conv1": 64, "conv2": 64, "conv3": 128, "conv4": 128, "dense": 256}


def made(
    folder: Path, *, lam: float = 1e-3, epochs: int = 5, names: dict[str, int] | None = None, ledger: bool = True
) -> Path:
    """A run folder, as a run would leave it: units go one after another, every third stays."""
    names = names or NAMES
    folder.mkdir(parents=True)
    total, steps = sum(names.values()), 100 * epochs
    gone = [(n, k) for n, size in names.items() for k in range(size) if k % 3]
    left = {place: 1 + (number * (steps - 1)) // len(gone) for number, place in enumerate(gone)} if lam else {}
    rows = []
    for epoch in range(epochs + 1):
        widths = [sum(left.get((n, k), steps + 1) > 100 * epoch for k in range(size)) for n, size in names.items()]
        rows.append({
            "epoch": epoch, "step": 100 * epoch, "train_loss": 1.0, "train_error": 1.0,
            "test_error": 10.0 / (epoch + 1), "units": sum(widths), "parameters": 1000 * sum(widths),
            "widths": widths, "lr": 0.1, "seconds": 10.0 * epoch, "cutting": 0.1, "stuck": 0,
        })  # fmt: skip
    last = rows[-1]
    result = {
        "recipe": asdict(recipe("mnist", changes={"lam": lam, "network": "mnist-dense640"})),
        "machine": {"processor": "test"},
        "test_error": last["test_error"], "test_error_before_cut": last["test_error"], "predictions_changed": 0,
        "cuts": 3, "cut_change": 0.0, "logit_change": 1e-7, "eval_change": 0.0, "parameters": last["parameters"],
        "parameters_dense": 1000 * total, "units": last["units"], "units_dense": total, "stuck": 0, "stuck_at_start": 0,
        "widths": dict(zip(names, last["widths"], strict=True)), "collapsed": [], "seconds": 50.0, "cutting": 0.1,
        "epochs": rows,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(result["recipe"]))
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if ledger and lam:
        lines = [{"line": "header"}] + [
            {"line": "unit", "cut": step, "step": step, "layer": n, "index": k} for (n, k), step in left.items()
        ]
        (folder / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.skip("no chromium with its driver here; `make browser` installs them")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1000,1400",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def opened(browser: Any, path: Path) -> None:
    browser.get(path.as_uri())
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def requests(browser: Any) -> list[str]:
    """Addresses that the page asked for since the log was last read."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def counted(browser: Any) -> int:
    return int(browser.find_element("id", "moment").get_attribute("data-units"))


def test_the_page_shows_the_records_numbers_and_the_slider_moves(browser: Any, tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    browser.get_log("performance")
    opened(browser, write_html([view(run)], tmp_path / "page.html"))
    assert [url for url in requests(browser) if not url.startswith(("file:", "data:"))] == []
    result = json.loads((run / "result.json").read_text())
    assert "3.0× fewer parameters at 1.67 % test error" in browser.find_element("id", "headline").text
    assert counted(browser) == result["units"] == 216
    slider = browser.find_element("id", "time")
    slider.send_keys("\ue011")  # Home
    assert counted(browser) == 640
    assert "640 of 640 units" in browser.find_element("id", "moment").text
    slider.send_keys("\ue014")  # arrow right
    assert 0 < 640 - counted(browser) < 10
    browser.execute_script("const t = arguments[0]; t.value = t.max / 2; t.dispatchEvent(new Event('input'))", slider)
    assert 400 < counted(browser) < 460
    cells = [cell.text for cell in browser.find_elements("css selector", "#layers tbody tr:first-child td")]
    assert cells[:4] == ["conv1", "64", "22", "42"]
    assert "424 removed units" in browser.find_element("id", "ledger").text


def test_the_table_sorts_from_the_keyboard(browser: Any, tmp_path: Path) -> None:
    opened(browser, write_html([view(made(tmp_path / "run"))], tmp_path / "page.html"))
    for expected in ("conv1", "dense"):  # rising, then falling
        browser.find_elements("css selector", "#layers th button")[1].send_keys("\ue007")
        assert browser.find_element("css selector", "#layers tbody td").text == expected


def test_playing_runs_to_the_end(browser: Any, tmp_path: Path) -> None:
    opened(browser, write_html([view(made(tmp_path / "run"))], tmp_path / "page.html"))
    browser.find_element("id", "play").send_keys("\ue007")
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 60).until(lambda page: counted(page) > 216)
    WebDriverWait(browser, 60).until(lambda page: page.find_element("id", "play").get_attribute("aria-label") == "play")
    assert counted(browser) == 216


def test_several_runs_are_compared_with_the_paper(browser: Any, tmp_path: Path) -> None:
    for lam in (0.0, 1e-4, 1e-3):
        made(tmp_path / "runs" / f"lam{lam}", lam=lam)
    page = tmp_path / "page.html"
    outcome = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--html", str(page)])
    assert outcome.exit_code == 0, outcome.output
    assert "about 3 runs" in outcome.output
    opened(browser, page)
    browser.find_element("id", "run").send_keys("mnist-dense640, λ = 0,")
    assert "1.0× fewer" in browser.find_element("id", "headline").text
    assert browser.find_element("id", "tradeoff-section").is_displayed()
    assert len(browser.find_elements("css selector", "#tradeoff .point")) == 3


def test_ten_thousand_units_and_five_hundred_epochs_without_stutter(browser: Any, tmp_path: Path) -> None:
    names = {f"layer{number}": 1000 for number in range(10)}
    opened(browser, write_html([view(made(tmp_path / "run", names=names, epochs=500))], tmp_path / "page.html"))
    browser.set_script_timeout(120)
    per_move = browser.execute_script("""
        const slider = document.getElementById("time"), begin = performance.now(), moves = 20;
        for (let k = 0; k < moves; k++) {
            slider.value = (k / moves) * slider.max;
            slider.dispatchEvent(new Event("input"));
        }
        return (performance.now() - begin) / moves;
    """)
    assert per_move < 250  # a busy machine draws at a tenth of its speed


@pytest.mark.parametrize("width", [390, 1000])
def test_it_fits_on_a_phone_and_in_the_dark(browser: Any, tmp_path: Path, width: int) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": width < 500},
    )
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    try:
        opened(browser, write_html([view(made(tmp_path / "run"))], tmp_path / "page.html"))
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 30)"
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_without_a_ledger_the_page_says_what_is_not_known(tmp_path: Path) -> None:
    run = view(made(tmp_path / "run", ledger=False))
    assert not run.traced
    assert [sum(step is None for step in layer.left) for layer in run.layers] == [22, 22, 43, 43, 86]


def test_a_layer_that_lost_all_its_units_is_said_and_counted_so(browser: Any, tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    first = next(iter(result["widths"]))
    kept = result["widths"][first]
    result |= {"collapsed": [first], "units": result["units"] - kept}
    (folder / "result.json").write_text(json.dumps(result))
    shown = view(folder)
    assert None not in shown.layers[0].left
    opened(browser, write_html([shown], tmp_path / "page.html"))
    assert browser.find_element("id", "headline").text == f"λ = 0.001 was too large: {first} lost all units"
    browser.execute_script(
        "const s = document.querySelector('input[type=range]'); s.value = s.max; s.dispatchEvent(new Event('input'));"
    )
    assert counted(browser) == result["units"]


def test_names_cannot_end_the_data(tmp_path: Path) -> None:
    run = made(tmp_path / "run", names={"</script><b>": 6}, ledger=False)
    text = write_html([view(run)], tmp_path / "page.html").read_text()
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert data is not None
    assert json.loads(data.group(1))["runs"][0]["layers"][0]["name"] == "</script><b>"


def test_damaged_runs_are_left_out_with_a_sentence(tmp_path: Path) -> None:
    made(tmp_path / "runs" / "good")
    broken = made(tmp_path / "runs" / "broken")
    (broken / "result.json").write_text("{")
    outcome = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--html", str(tmp_path / "page.html")])
    assert outcome.exit_code == 0
    assert "is left out: it is no JSON" in outcome.output
    assert "about 1 run" in outcome.output
    (broken / "result.json").unlink()
    (broken / "metrics.jsonl").write_text('{"epoch": 0\n{}\n')
    with pytest.raises(InputError):
        view(broken)


def test_nothing_to_show_is_an_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        outcome = CliRunner().invoke(app, ["report", str(folder), "--html", str(tmp_path / "page.html")])
        assert outcome.exit_code == 2
        assert not (tmp_path / "page.html").exists()
