"""Code blocks of README and docs run, and say what the code prints."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(match.group(1), id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, match in enumerate(re.finditer(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M), 1)
]


@pytest.mark.parametrize("block", BLOCKS)
def test_code_block_runs(block: str) -> None:
    exec(compile(block, "<docs>", "exec"), {})


def test_readme_shows_what_analyze_prints(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text()
    block = next(b.values[0] for b in BLOCKS if "nd.analyze" in b.values[0])
    exec(compile(block, "<readme>", "exec"), {})
    printed = capsys.readouterr().out.rstrip()
    assert "\n".join(f"    {line}" for line in printed.splitlines()) in readme
