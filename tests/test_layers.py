"""The order of the stages: a folder imports only from folders to its left, and the documentation says so."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "nodedrop"
ARCHITECTURE = ROOT / "docs" / "architecture.md"

# Left to right. Names on one line may import each other.
LAYERS = (
    ("verify",),  # shares no code with the rest, and nothing below the command line needs it
    ("onepage",),
    ("errors", "spelling", "functional", "activations", "kernels"),
    ("tracing",),
    ("bounds",),
    ("proof",),
    ("planning",),
    ("surgery",),
    ("analysis", "ledger", "intake", "notes", "session", "api"),
    ("training",),
    ("integrations",),
    ("export",),
    ("experiments",),
    ("benchmarks",),
    ("reporting",),
    ("cli",),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
# The package itself re-exports `api`; `python -m nodedrop` starts the command line.
RANK |= {"__init__": RANK["training"], "__main__": RANK["cli"]}

HEAVY = ("transformers", "matplotlib", "lightning", "ray", "onnx", "triton", "typer", "rich", "safetensors")


def layer_of(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_modules(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import, `from a import b` counting as `a.b`; `package` resolves dots.

    >>> list(imported_modules("from . import x\\nfrom ..bounds import Box\\nimport torch", "nodedrop.proof"))
    [(1, 'nodedrop.proof.x'), (2, 'nodedrop.bounds.Box'), (3, 'torch')]
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: -node.level + 1 or None] if node.level else []
            origin = ".".join([*parents, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def layer_imported(module: str) -> str | None:
    """The layer a dotted name belongs to, None if outside the package."""
    first, *rest = module.split(".")
    if first != "nodedrop":
        return None
    # What is no layer is a name that the package re-exports.
    return rest[0] if rest and rest[0] in RANK else "__init__"


def breaches(source: str, layer: str, package: str) -> list[str]:
    found = []
    for line, module in imported_modules(source, package):
        target = layer_imported(module)
        if target is not None and RANK[target] > RANK[layer]:
            found.append(f"line {line}: {layer} imports {module}, which lies to its right")
    return found


def test_imports_run_from_right_to_left_only() -> None:
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        assert layer_of(file) in RANK, f"{file.relative_to(ROOT)} has no place in LAYERS"
        package = ".".join(["nodedrop", *file.relative_to(PACKAGE).parts[:-1]])
        for breach in breaches(file.read_text(encoding="utf-8"), layer_of(file), package):
            found.append(f"{file.relative_to(ROOT)}, {breach}")
    assert found == [], "\n".join(found)


@pytest.mark.parametrize(
    ("source", "layer", "package", "allowed"),
    [
        ("from nodedrop.tracing.graph import Graph", "bounds", "nodedrop.bounds", True),
        ("from ..tracing import graph", "bounds", "nodedrop.bounds", True),
        ("from .rules import add", "bounds", "nodedrop.bounds", True),
        ("from nodedrop import functional", "bounds", "nodedrop.bounds", True),
        ("from nodedrop import analyze", "cli", "nodedrop.cli", True),
        ("from nodedrop.surgery import cut", "bounds", "nodedrop.bounds", False),
        ("from .. import surgery", "bounds", "nodedrop.bounds", False),
        ("from ...planning import plan", "bounds", "nodedrop.bounds.rules", False),
        ("from .tracing import graph", "functional", "nodedrop", False),
        ("import nodedrop", "bounds", "nodedrop.bounds", False),
        ("from nodedrop import analyze", "bounds", "nodedrop.bounds", False),
        ("def f():\n    import nodedrop.cli", "api", "nodedrop", False),
    ],
)
def test_the_check_tells_right_from_wrong(source: str, layer: str, package: str, allowed: bool) -> None:
    assert (breaches(source, layer, package) == []) is allowed


def section(title: str) -> str:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/architecture.md has no section '{title}'"
    return found.group(1)


def documented_stages() -> list[tuple[str, ...]]:
    """The names in backticks of the table's first column, row by row."""
    rows = [line.split("|")[1] for line in section("Stages").splitlines() if line.startswith("| `")]
    return [tuple(re.findall(r"`(\w+)`", cell)) for cell in rows]


def test_architecture_table_lists_the_layers_in_order() -> None:
    assert documented_stages() == [tuple(layer) for layer in LAYERS]


def test_every_layer_exists() -> None:
    assert {name for layer in LAYERS for name in layer} <= {layer_of(file) for file in PACKAGE.rglob("*.py")}


def test_import_pulls_in_no_optional_or_terminal_package() -> None:
    code = f"import sys, nodedrop; print([name for name in {HEAVY!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"
