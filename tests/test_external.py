"""The same exactness on networks that others wrote: pytorchcv and transformers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .planted import assert_exact
from .zoo.external import external_entries, installed

ENTRIES = external_entries()


@pytest.mark.parametrize("package", ["pytorchcv", "transformers"])
def test_package_is_there(package: str) -> None:
    if not installed(package):
        message = f"{package} is not installed, so its networks are not tested; `make setup` installs it"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    assert any(name.startswith(package) for name in ENTRIES)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ENTRIES)
def test_exact(name: str, tmp_path: Path) -> None:
    # in training these drop whole layers by a branch on random data, so only their eval mode can be traced as a whole
    assert_exact(ENTRIES[name], tmp_path, "eval" if name in ("transformers_opt", "transformers_whisper") else "both")
