"""What `import nodedrop` adds to `import torch`, each time in a new process."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

from .harness import Settings, document, figure

LIMIT = 0.3
PROGRAM = """
import time, torch
start = time.perf_counter()
import nodedrop
print(time.perf_counter() - start)
"""


def run(settings: Settings) -> dict[str, Any]:
    """After a first time that counts for nothing: it may have to compile the sources."""
    seconds = []
    for number in range(settings.rounds + 1):
        settings.tell("importing", number / (settings.rounds + 1))
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
        seconds.append(float(done.stdout))
    found = figure("`import nodedrop` after `import torch`", seconds[1:], LIMIT)
    return document("imports", settings, [replace(found, unit="s")], seconds=seconds[1:])
