"""What an analysis says beside its numbers: what it does not know, and what it speaks of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from .bounds import Interval
from .bounds.domain import described
from .intake import fixed_inputs, too_long, uncounted
from .planning import Plan
from .planning.reach import normalises_batches
from .proof import Certificates
from .tracing import tensors_of

if TYPE_CHECKING:
    from .session import Session


def notes_of(session: Session, certificates: Sequence[Certificates], proposal: Plan) -> tuple[str, ...]:
    """What limits an analysis, and the inputs that it speaks of."""
    options, program = session.options, session.program
    notes = list(program.notes)
    nodes = [c.graph.by_name[name] for c in certificates for name in c.unknown]
    unknown = {f"{node.op}{' at ' + node.where if node.where else ''}" for node in nodes}
    notes += [f"no rule for {name}: its result is taken as unbounded" for name in sorted(unknown)]
    if options.batch_size is not None and "train" in options.modes and normalises_batches(program):
        notes.append(f"in train mode this holds for batches of at most {options.batch_size}")
    if proposal.collapsed:
        notes.append(f"one unit was kept in {', '.join(proposal.collapsed)}, where all could go")
    if not session.in_parts:
        fixed = fixed_inputs(session.module, session.example_inputs)
        notes.append(scope(session.domain.values(), options.evidence, fixed))
    if options.evidence != "observed":
        own = tensors_of(session.module)
        sums = {layer.name: own[layer.weight] for layer in session.structure.layers}
        notes += filter(None, (too_long(sums, options.dtype), uncounted(own.values())))
    return tuple(notes)


def scope(boxes: Iterable[Interval], evidence: str, fixed: Mapping[str, object]) -> str:
    """What an analysis speaks of: where the inputs lie, their shapes, and the values of those that are no tensors."""
    if evidence == "observed":
        return "holds for the samples that were given, and says nothing of others"
    shapes: dict[str, list[str]] = {}
    for box in boxes:
        shapes.setdefault(described(box), []).append(str(box.shape))
    inputs = " and ".join(f"in {box} of shape {', '.join(same)}" for box, same in shapes.items())
    values = "".join(f", with {name}={str(value)[:40]}" for name, value in fixed.items())
    return f"holds for inputs {inputs}{values}, and other batch sizes if samples are treated one by one"
