"""The module as a graph of ordinary operators with a free batch axis, and the file that torch makes of it."""

from __future__ import annotations

import inspect
import logging
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from traceback import walk_tb

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils._pytree import MappingKey, tree_flatten_with_path, tree_unflatten

from ..errors import CutError, InputError, NodeDropError
from ..surgery.check import change, outputs
from ..tracing.undisturbed import undisturbed
from ..training.atomic import replacing
from .pooling import pool_first_

TOLERANCE = 1e-5
BATCHES = (2, 5)


class DifferenceError(NodeDropError):
    """A file computes something else than its module, and was not kept."""


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how far it is from the module: relative to the largest output, by batch size.

    So many convolutions were `filled` up with units of 0 to a `multiple`.
    """

    path: Path
    bytes: int
    differences: dict[int, float]
    filled: int = 0
    multiple: int = 1

    @property
    def difference(self) -> float:
        """The largest one."""
        return max(self.differences.values())


def _soft_clamped_relu(v: Tensor, beta: float) -> Tensor:
    """σ by operators that every runtime knows, as exact at zero and at one as the original.

    σ(v) = −log(e^(−βv) + e^(−β)) / β: for v ≤ 0 the sum is at least 1, also when rounded. Runtimes have fast kernels
    for exp and log, and slow ones for softplus, which serves where the type has no e^(−β).
    """
    if math.exp(-beta) < torch.finfo(v.dtype).tiny:
        return torch.relu(1 - nn.functional.softplus(beta * (1 - v)) / beta)
    return torch.clamp(torch.log(torch.exp(v * -beta) + math.exp(-beta)) * (-1 / beta), 0, 1)


def program_of(model: nn.Module, example: Sequence[Tensor]) -> ExportedProgram:
    """The module in eval mode, for any batch size."""
    rows = {len(value) if value.dim() else 0 for value in example}
    if len(rows) != 1 or rows == {0}:
        shapes = ", ".join(str(tuple(value.shape)) for value in example)
        raise InputError(f"the first axis of every input must be the batch, and the inputs have shapes {shapes}")
    inputs, batch = of_size(example, BATCHES[0]), Dim("batch")
    try:
        outputs(model, [inputs], ("eval",))
    except CutError as error:
        shapes = ", ".join(str(tuple(value.shape)) for value in inputs)
        raise InputError(f"{type(model).__name__} does not run on inputs of shape {shapes}: {error}") from None
    try:
        with undisturbed(model), quiet():
            model.eval()
            program = torch.export.export(model, inputs, dynamic_shapes=_axes(model, len(inputs), batch), strict=False)
            _require_tensors(model, program)
            pool_first_(program)
            plain: ExportedProgram = program.run_decompositions(
                {torch.ops.nodedrop.soft_clamped_relu.default: _soft_clamped_relu}
            )
    except InputError:
        raise
    except Exception as error:
        where = f"{type(model).__name__} cannot be exported for any batch size{_place(error)}"
        advice = " (move branches that depend on data out of forward)" if "data-dependent" in str(error) else ""
        raise InputError(f"{where}: {cause(error)}{advice}") from None
    return plain


def _require_tensors(model: nn.Module, program: ExportedProgram) -> None:
    """A file's outputs are tensors."""
    tensors = {node.name for node in program.graph.nodes if isinstance(node.meta.get("val"), Tensor)}
    if any(name is not None and name not in tensors for name in program.graph_signature.user_outputs):
        name = type(model).__name__
        raise InputError(f"{name} returns numbers beside tensors, and a file's outputs are tensors; leave them out")


def names_of_outputs(program: ExportedProgram, taken: Collection[str] = ()) -> list[str] | None:
    """The keys under which the module returns its outputs; None if it returns them without keys.

    A key that is `taken`, by an input, gets a tail: names are unique in a file.
    """
    spec = program.call_spec.out_spec
    assert spec is not None
    paths = [path for path, _ in tree_flatten_with_path(tree_unflatten(range(spec.num_leaves), spec))[0]]
    if not any(isinstance(key, MappingKey) for path in paths for key in path):
        return None
    names = [".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path) for path in paths]
    return [f"{name}.output" if name in taken else name for name in names]


@contextmanager
def quiet() -> Iterator[None]:
    """The exporters tell of packages they could use and of their own old ways, and print graphs where they fail."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _axes(model: nn.Module, count: int, batch: Dim) -> tuple[object, ...]:
    """The first axis of every input is free; a forward with *args takes them as one."""
    free = tuple({0: batch} for _ in range(count))
    kinds = [item.kind for item in inspect.signature(model.forward).parameters.values()]
    return (free,) if kinds[:1] == [inspect.Parameter.VAR_POSITIONAL] else free


def of_size(example: Sequence[Tensor], rows: int) -> tuple[Tensor, ...]:
    """The example's rows, repeated or cut to a batch size."""
    return tuple(value[torch.arange(rows) % len(value)].contiguous() for value in example)


def compared(
    model: nn.Module, example: Sequence[Tensor], other: Callable[[tuple[Tensor, ...]], list[Tensor]], what: str
) -> dict[int, float]:
    """How far another form of the module is from it, for two batch sizes; an error if that is beyond rounding."""
    found = {}
    for rows in BATCHES:
        inputs = of_size(example, rows)
        theirs = other(inputs)
        ours = outputs(model, [inputs], ("eval",))[0]["eval"]
        if [value.shape for value in ours] != [value.shape for value in theirs]:
            raise DifferenceError(f"{what} gives outputs of other shapes than the module for a batch of {rows}")
        found[rows] = change(ours, theirs)
        finite = all(torch.equal(a.isfinite(), b.isfinite()) for a, b in zip(ours, theirs, strict=True))
        if not found[rows] <= TOLERANCE or not finite:
            raise DifferenceError(
                f"{what} differs from the module by {found[rows]:.1e} (relative) for a batch of {rows}, more than "
                f"{TOLERANCE:g}; nothing was written"
            )
    return found


def write_pt2(model: nn.Module, example: Sequence[Tensor], path: Path) -> Exported:
    """Write a file for `torch.export.load`, read it again and compare it with the module."""
    program = program_of(model, example)
    with replacing(path) as temporary:
        with quiet(), temporary.open("r+b") as file:
            torch.export.save(program, file)
            file.seek(0)
            module = torch.export.load(file).module()

        def run(inputs: tuple[Tensor, ...]) -> list[Tensor]:
            with torch.no_grad():
                leaves: list[Tensor] = torch.utils._pytree.tree_leaves(module(*inputs))
            return leaves

        differences = compared(model, example, run, "the .pt2 file")
    return Exported(path, path.stat().st_size, differences)


def cause(error: BaseException) -> str:
    """Where an error began, in one line; exporters wrap theirs in pages."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = (lines or ["no reason given"])[0].partition(" (unhinted:")[0]  # then come the exporter's own names for sizes
    return f"{type(error).__name__}: {said[:300]}"


def _place(error: BaseException) -> str:
    """The line of the user's own code where tracing stopped."""
    frames = [(frame.f_code.co_filename.replace("\\", "/"), line) for frame, line in walk_tb(error.__traceback__)]
    ours = Path(__file__).parents[1].as_posix()
    own = [(path, line) for path, line in frames if "/torch/" not in path and not path.startswith((ours, "<"))]
    return f" at {own[-1][0].rpartition('/')[2]}:{own[-1][1]}" if own else ""
