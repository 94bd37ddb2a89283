"""The public edge of the package: the names it exports, and the version it reports."""

import re
import subprocess
import sys
from pathlib import Path

import nodedrop

PUBLIC_NAMES = {
    "Analysis",
    "Box",
    "Checkpoints",
    "ClampedReLU",
    "Journal",
    "Ledger",
    "NodeDrop",
    "NodeDropError",
    "SoftClampedReLU",
    "__version__",
    "analyze",
    "compact_",
    "functional",
    "load",
    "save",
    "verify",
}

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def test_exported_names_are_exactly_those_intended() -> None:
    assert len(nodedrop.__all__) == len(set(nodedrop.__all__))
    assert set(nodedrop.__all__) == PUBLIC_NAMES


def test_every_exported_name_exists() -> None:
    assert [name for name in nodedrop.__all__ if not hasattr(nodedrop, name)] == []


def test_version_is_that_of_the_project() -> None:
    declared = re.search(r'^version = "(.+)"$', PYPROJECT.read_text(encoding="utf-8"), re.MULTILINE)
    assert declared is not None
    assert nodedrop.__version__ == declared.group(1)


def test_package_is_marked_as_typed() -> None:
    assert (Path(nodedrop.__file__).parent / "py.typed").is_file()


def test_the_package_brings_nothing_heavy_along() -> None:
    """Optional parts load when they are used, not before."""
    program = "import torch, sys; before = set(sys.modules); import nodedrop; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    heavy = "typer rich matplotlib plotly onnx onnxruntime lightning transformers ray jinja2 pandas scipy"
    assert "nodedrop" in done.stdout.split()
    assert not set(heavy.split()) & set(done.stdout.split())
