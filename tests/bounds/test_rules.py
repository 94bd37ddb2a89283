"""Every rule against the oracle: no value leaves its interval, in any precision; and no rule is vacuous."""

from __future__ import annotations

import pytest
import torch

from nodedrop.bounds.registry import RULES
from tests.bounds import (  # noqa: F401
    cases_contraction,
    cases_movement,
    cases_normalisation,
    cases_other,
    cases_pointwise,
)
from tests.bounds.cases import CASES, Case
from tests.oracle import HALVES, check_graph, Tape

ALL = [
    pytest.param(case, dtype, id=f"{op.removeprefix('aten.')}-{case.name}-{str(dtype).removeprefix('torch.')}")
    for op, cases in CASES.items()
    for case in cases
    for dtype in case.dtypes
]


@pytest.mark.parametrize(("case", "dtype"), ALL)
def test_no_value_leaves_its_interval(case: Case, dtype: torch.dtype) -> None:
    tape = Tape(dtype)
    try:
        case.write(tape)
    except (RuntimeError, ValueError) as error:
        if dtype in HALVES and any(word in str(error) for word in ("not implemented", "no torch", "overflow", "reduced")):
            pytest.skip(f"no kernel or no number of this precision: {error}")
        raise
    assert any(node.op == case.op for node in tape.nodes)
    options = {"climbs": 0, "samples": 3, **case.options} if dtype in HALVES else case.options
    check_graph(tape.graph(), tape.tensors, tape.domain, given=tape.given, **options)
