"""The long run: python -m tests.fuzz [NETWORKS] [WORKERS]

Chunk after chunk of random networks, each drawn from its own seed, in worker processes forked from this one, so that
all run the sources as they were at the start. What is done is recorded in results/bench/fuzz.json as it goes; the next
call with the same sources goes on from there.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import platform
import sys
import time
from pathlib import Path

import torch

from nodedrop.bounds import propagate
from nodedrop.planning import walk

from .test_random_networks import TOGETHER, outcome

Done = dict[str, tuple[int, list[str]]]  # by seed: certificates, and what failed

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "bench" / "fuzz.json"
CORE = ("tracing", "bounds", "proof", "planning", "surgery", "kernels", "[ai]*.py", "session.py", "ledger", "verify")


def fingerprint() -> str:
    """Of the sources that decide what is cut and that check it, and of what draws the networks."""
    package, here = ROOT / "src" / "nodedrop", Path(__file__).parent
    places = [package.glob(name) if name.endswith(".py") else (package / name).rglob("*.[cp]*") for name in CORE]
    files = [file for found in places for file in found]
    files += [here / "generator.py", here / "test_random_networks.py"]
    files += [here.parent / "exactness.py", here.parent / "zoo" / "blocks.py"]
    content = b"".join(f.read_bytes() for f in sorted(set(files)) if f.suffix in (".py", ".c"))
    return hashlib.sha256(content).hexdigest()[:16]


def chunk(number: int) -> tuple[int, tuple[int, list[str]]]:
    """A seed, how many certificates its networks have, and which of them fail."""
    torch.set_num_threads(1)
    propagate.STRICT = walk.STRICT = True
    return number, outcome(number)


def main(networks: int, workers: int) -> int:
    chunks, mark = -(-networks // TOGETHER), fingerprint()
    done: Done = {}
    if RECORD.exists():
        before = json.loads(RECORD.read_text(encoding="utf-8"))
        done = before["chunks"] if before["sources"] == mark else {}
    todo = [number for number in range(chunks) if str(number) not in done]
    print(f"{networks} networks in {chunks} chunks, {len(done)} done before", flush=True)
    start = time.monotonic()
    with multiprocessing.get_context("fork").Pool(workers, maxtasksperchild=40) as pool:
        for count, (number, found) in enumerate(pool.imap_unordered(chunk, todo), 1):
            done[str(number)] = found
            for line in found[1]:
                print(f"VIOLATION {line}", flush=True)
            if count % 10 == 0 or count == len(todo):
                record(done, mark)
                left = (time.monotonic() - start) / count * (len(todo) - count)
                print(f"{len(done) * TOGETHER} networks, {left / 60:.0f} minutes left", flush=True)
    certificates, violations = totals(done)
    print(f"{len(done) * TOGETHER} networks, {certificates} certificates, {violations} violations")
    return 1 if violations else 0


def totals(done: Done) -> tuple[int, int]:
    """Certificates and violations."""
    return sum(count for count, _ in done.values()), sum(len(found) for _, found in done.values())


def record(done: Done, mark: str) -> None:
    certificates, violations = totals(done)
    RECORD.parent.mkdir(exist_ok=True)
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    content = {
        "command": "make fuzz", "sources": mark, "versions": versions, "networks": len(done) * TOGETHER,
        "certificates": certificates, "violations": violations, "chunks": done,
    }  # fmt: skip
    temporary = RECORD.with_suffix(".tmp")
    temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
    temporary.replace(RECORD)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000, int(sys.argv[2]) if len(sys.argv) > 2 else 2))
