"""The documentation builds as a site, without a dead link or a page that nobody finds."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_site_builds_and_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "not included in the" not in done.stderr
    page = (tmp_path / "api" / "index.html").read_text()
    assert "nodedrop.NodeDrop" in page
    assert "&gt;&gt;&gt;" in page  # doctests as code
    assert not re.findall(r'(?:src|<link[^>]*rel="stylesheet"[^>]*href)="https?://[^"]*"', page)
