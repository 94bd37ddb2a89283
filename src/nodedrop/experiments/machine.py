"""What a result was obtained on."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def machine() -> dict[str, Any]:
    """Processor and versions, as plain data."""
    return {
        "processor": _processor(),
        "vectors": torch.backends.cpu.get_cpu_capability(),  # AVX2 or AVX512: blocks of 8 or 16 units
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def processor_of(record: Mapping[str, Any]) -> str:
    """The processor in words; records of earlier versions do not tell its vectors.

    >>> processor_of({"processor": "AMD EPYC", "vectors": "AVX512"}), processor_of({"processor": "AMD EPYC"})
    ('AMD EPYC with AVX512', 'AMD EPYC')
    """
    name = str(record.get("processor", "?"))
    return f"{name} with {record['vectors']}" if record.get("vectors") else name


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()
