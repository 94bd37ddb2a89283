"""The page itself: template, style, script, library and data in one file."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...training.atomic import make_folder, replacing
from .. import paper
from .view import RunView


def write_html(views: Sequence[RunView], path: Path) -> Path:
    """Write the page; it appears whole or not at all."""
    content = page(views)
    make_folder(path.parent)
    with replacing(path) as temporary:
        temporary.write_text(content, encoding="utf-8")
    return path


def page(views: Sequence[RunView]) -> str:
    """The page as text."""
    names = [f"{v.record.recipe.network}, λ = {v.record.recipe.lam:g}" for v in views]
    parts = {
        "title": html.escape(names[0] if len(views) == 1 else f"{len(views)} runs"),
        "style": _resource("page.css"),
        "data": _data({"runs": [v.to_json() for v in views], "paper": _paper(views)}),
        "library": _library(),
        "script": _resource("page.js"),
    }
    text = _resource("page.html")
    for name, content in parts.items():
        text = text.replace("{{" + name + "}}", content)
    return text


def _data(document: dict[str, Any]) -> str:
    """JSON that cannot end the script element it lies in."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False).replace("</", "<\\/")


def _paper(views: Sequence[RunView]) -> list[dict[str, Any]]:
    """The paper's points for the networks of these runs."""
    kinds = dict.fromkeys((v.record.recipe.data, v.record.recipe.network, v.record.recipe.batch_norm) for v in views)
    rows = [row for data, network, norm in kinds for row in paper.rows(data, network, batch_norm=norm)]
    return [{"lam": r.lam, "parameters": r.parameters, "error": r.test_error} for r in rows if r.parameters > 0]


def _library() -> str:
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]
    except ImportError:
        raise InputError("the page's figures need plotly: pip install 'nodedrop[report]'") from None
    return str(get_plotlyjs())


def _resource(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
