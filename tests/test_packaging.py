"""What is handed out: the sdist and the wheel are whole, and the wheel works in an environment of its own."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy
import pytest

pytest.importorskip("build")
pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[1]
SMOKE = """
import torch
from torch import nn
import nodedrop as nd

net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
nn.init.constant_(net[0].bias, -9.0)
ledger = nd.compact_(net, torch.rand(4, 2), on_collapse="keep")
print(len(ledger.removed), net[0].out_features, nd.__file__)
"""


def ran(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sdist and wheel; the wheel is built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    ran(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


def test_both_hold_what_they_need(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {file.relative_to(ROOT / "src") for file in (ROOT / "src").rglob("*") if file.is_file()}
    wanted = {str(file) for file in package if "__pycache__" not in file.parts}
    assert {"nodedrop/py.typed", "nodedrop/kernels/soft_clamped_relu.c"} <= wanted
    assert wanted - names == set()
    assert not [name for name in names if not name.startswith(("nodedrop/", "nodedrop-"))]
    with tarfile.open(sdist) as file:
        source = {name.partition("/")[2] for name in file.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", "tests/oracle.py", "docs/architecture.md"} <= source


def test_the_wheel_works_in_a_fresh_environment(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    ran(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    ran(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # torch and the other dependencies are those of the environment the tests run in; nodedrop is not.
    (site / "dependencies.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")
    assert "Prove which units" in ran(python.with_name("nodedrop"), "--help")
    removed, left, file = ran(python, "-I", "-c", SMOKE).split()
    assert (removed, left) == ("2", "1")
    assert Path(file).is_relative_to(site)
