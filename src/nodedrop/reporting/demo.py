"""The demonstration's page: one file, nothing loaded from elsewhere."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..experiments.machine import processor_of
from ..training.atomic import replacing
from .figures.style import panels, shades, styled

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; line-height: 1.2; } .big { font-size: 1.15rem; }
table { border-collapse: collapse; width: 100%; } td, th { padding: .35rem .6rem; text-align: right; }
td:first-child, th:first-child { text-align: left; } tr + tr { border-top: 1px solid #8884; }
figure { margin: 2rem 0; background: #fff; color: #222; border-radius: 6px; padding: .6rem; }
figure svg { width: 100%; height: auto; } figcaption { font-size: .9rem; } code { font-size: .9em; }
"""


def write_page(outcome: Mapping[str, Any], folder: Path) -> Path:
    """Write `index.html`, and the outcome as JSON beside it; the page's place is returned."""
    page = folder / "index.html"
    with replacing(folder / "outcome.json") as temporary:
        temporary.write_text(json.dumps(outcome) + "\n", encoding="utf-8")
    with replacing(page) as temporary:
        temporary.write_text(_page(outcome), encoding="utf-8")
    return page


def _page(outcome: Mapping[str, Any]) -> str:
    factor = outcome["parameters_dense"] / max(outcome["parameters"], 1)
    machine, change = outcome["machine"], max(outcome["cut_change"], outcome["logit_change"])
    figures = "\n".join(
        f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>" for svg, caption in _figures(outcome)
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>nodedrop: a network that shrank</title><style>{_STYLE}</style></head><body>
<h1>{factor:.1f}× fewer parameters, {outcome["test_error"]:.2f} % test error</h1>
<p class="big">{outcome["units_dense"]} units learned to read handwritten digits; {outcome["units"]} were needed. The
others were removed while the network trained, each when it was proved that it can never fire again.</p>
{_table(outcome, factor)}
<p>None of the {outcome["cuts"]} cuts changed a logit by more than {change:.1e} of the largest,
which is rounding; the last one, tried on all test images, changed {outcome["predictions_changed"]}
predictions. Afterwards a checker that shares no code with the rest derived every certificate again, from the ledger
of the run and the weights it kept: {outcome["verdict"]["verdict"]} for {outcome["verdict"]["units"]} removed units.</p>
<p><a href="units.html">Watch every unit come and go</a>, with a slider over the run.</p>
{figures}
<p>Measured on {html.escape(processor_of(machine))}, {machine["threads"]} threads, torch
{html.escape(str(machine["torch"]))}, in {outcome["wall"]:.0f} s. <code>run/model.safetensors</code> is the network;
<code>outcome.json</code> holds every number of this page.</p>
</body></html>
"""


def _table(outcome: Mapping[str, Any], factor: float) -> str:
    reference, times = outcome.get("dense"), outcome["times"]
    dense_error = "" if reference is None else f"{reference['test_error']:.2f} %"
    rows = [
        ("", "dense", "small", ""),
        ("units", f"{outcome['units_dense']}", f"{outcome['units']}", ""),
        ("parameters", f"{outcome['parameters_dense']:,}", f"{outcome['parameters']:,}", f"{factor:.1f}× fewer"),
        ("test error", dense_error, f"{outcome['test_error']:.2f} %", ""),
        ("test error before the final cut", "", f"{outcome['test_error_before_cut']:.2f} %", ""),
    ]
    for name, title in (("step", "a training step"), ("inference", "inference, 256 images")):
        dense, small = times[name]["dense"], times[name]["small"]
        rows.append((title, f"{dense * 1e3:.0f} ms", f"{small * 1e3:.0f} ms", f"{dense / small:.1f}× faster"))
    cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    note = ""
    if reference is not None:
        words = "The dense error is that of a plain ReLU network of the same recipe, recorded; it is not trained here."
        note = f"<p><small>{words}</small></p>"
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + f"</table>{note}"


def _figures(outcome: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (_drawn(outcome, _widths), "Units in each layer, over the steps of the run."),
        (_drawn(outcome, _curves), "Parameters left, and the error on the training batches, over the steps."),
    ]


def _drawn(outcome: Mapping[str, Any], draw: Any) -> str:
    with styled():
        figure = draw(outcome)
        content = io.StringIO()
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")
    text = content.getvalue()
    return text[text.index("<svg") :]


def _widths(outcome: Mapping[str, Any]) -> Any:
    figure, (axes,) = panels(1, 1, (6.4, 3.2))
    steps = [row["step"] for row in outcome["curve"]]
    layers = list(zip(*(row["widths"] for row in outcome["curve"]), strict=True))
    colours = shades(len(layers))
    axes.stackplot(steps, layers, colors=colours, edgecolor="white", linewidth=0.4)
    axes.set_xlim(steps[0], steps[-1])
    axes.set_xlabel("step")
    axes.set_ylabel("units")
    axes.grid(False)
    from matplotlib.patches import Patch

    names = [f"{name}  {row[0]} → {row[-1]}" for name, row in zip(outcome["widths"], layers, strict=True)]
    handles = [Patch(color=colour, label=name) for colour, name in zip(colours, names, strict=True)]
    axes.legend(handles=handles[::-1], loc="upper right", handlelength=1.0)
    return figure


def _curves(outcome: Mapping[str, Any]) -> Any:
    figure, (left, right) = panels(1, 2, (3.3, 2.6))
    steps = [row["step"] for row in outcome["curve"]]
    for axes, name, title in ((left, "parameters", "parameters"), (right, "error", "error on the batches, %")):
        axes.plot(steps, [row[name] for row in outcome["curve"]], color=shades(3)[1])
        axes.set_yscale("log")
        axes.set_xlabel("step")
        axes.set_title(title)
    return figure
