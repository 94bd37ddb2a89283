"""Memory that a step frees is there for the next one."""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has its own ways")

# Two tensors of 40 MB, each written once, as a layer's output and its gradient are.
FETCHED = """
import resource, torch
from nodedrop.experiments.memory import keep_memory

def fetched():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        first, second = torch.ones(10_000_000), torch.ones(10_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

fetched()
before, asked = fetched(), keep_memory()
for _ in range(3):
    fetched()
print(before, asked, fetched())
"""
PAGES = 40_000_000 // 4096
CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def pages(**chosen: str) -> tuple[int, bool, int]:
    """Pages fetched in five rounds before, whether memory is kept, and pages fetched after."""
    given = {name: value for name, value in os.environ.items() if name not in CHOSEN} | chosen
    done = subprocess.run([sys.executable, "-c", FETCHED], env=given, capture_output=True, text=True, check=True)
    before, asked, after = done.stdout.split()
    return int(before), asked == "True", int(after)


def test_pages_are_fetched_once() -> None:
    before, asked, after = pages()
    assert before > 5 * PAGES
    assert asked
    assert after < before // 4  # a tensor that does not fit where the one before it lay makes the heap grow once


@pytest.mark.parametrize("chosen", [{"MALLOC_MMAP_MAX_": "65536"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=65536"}])
def test_what_the_environment_says_stays(chosen: dict[str, str]) -> None:
    _, asked, after = pages(**chosen)
    assert not asked
    assert after > 5 * PAGES
