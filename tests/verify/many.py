"""Random networks, compacted, and every certificate derived again: `python -m tests.verify.many 10000`.

Prints how many networks were proved with their ledger and without it, what was not proved and why, and ends with 1 if
a certificate was not confirmed.
"""

from __future__ import annotations

import copy
import re
import sys
import warnings
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

import nodedrop as nd
from nodedrop.verify import Verdict, verify

from ..fuzz.generator import Description, Network, descriptions, example


def checked(description: Description, folder: Path, *, matching: bool = True) -> tuple[Verdict, Verdict | None] | None:
    """The verdicts with and without a ledger, None if nothing could be removed."""
    model = Network(description)
    inputs = example(description, torch.Generator().manual_seed(0))
    before = copy.deepcopy(model)
    path = folder / "ledger.jsonl"
    path.unlink(missing_ok=True)
    ledger = nd.compact_(model, inputs, description.domain, on_collapse="keep", ledger=path)
    if not ledger.removed:
        return None
    first = verify(before, model, inputs, description.domain, ledger=path)
    return first, verify(before, model, inputs, description.domain, tries=16) if matching else None


def run(wanted: int, start: int) -> tuple[Counter[str], list[str]]:
    """Check that many networks of which units were removed."""
    counts: Counter[str] = Counter()
    failed: list[str] = []

    @seed(start)
    @settings(
        max_examples=wanted, deadline=None, database=None, phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(descriptions())
    def each(description: Description) -> None:
        with TemporaryDirectory() as folder:
            found = checked(description, Path(folder))
        if found is None:
            counts["nothing removed"] += 1
            return
        for how, verdict in zip(("with ledger", "without ledger"), found, strict=True):
            assert verdict is not None
            counts[f"{how}: {verdict.status}"] += 1
            if verdict.status != "proved":
                counts[f"    {how}: {re.sub(r'[0-9.e+-]{2,}|[0-9]+', '#', verdict.reason)[:150]}"] += 1
        if found[0].status != "proved" or (found[1] is not None and found[1].status == "refuted"):
            failed.append(f"{description}\n{found[0]}\n{found[1]}")

    each()
    return counts, failed


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts, failed = run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    sys.stdout.write("\n".join(f"{count:6d}  {what}" for what, count in sorted(counts.items(), key=str)) + "\n")
    sys.stdout.write("\n\n".join(failed[:5]) + "\n")
    sys.exit(bool(failed))
