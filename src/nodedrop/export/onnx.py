"""An ONNX file with a free batch axis, run with ONNX Runtime and compared before it is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..training.atomic import replacing
from .align import align
from .extras import needed
from .program import DifferenceError, Exported, cause, compared, names_of_outputs, program_of, quiet

LARGEST = 2**31 - 2**24  # a file beyond two gigabytes would need others beside it
FAST = 8  # ONNX Runtime's fast convolutions work in blocks of so many units; others may take two to three times as long


def write_onnx(model: nn.Module, example: Sequence[Tensor], path: Path, *, multiple: int = FAST) -> Exported:
    """Write an ONNX file and run it at once; a file that computes something else is not kept.

    Convolutions are filled up with units of 0 to a `multiple`, for which runtimes have faster kernels; 1 leaves widths
    as they are.
    """
    needed("onnx", "an ONNX file")
    if sum(value.numel() * value.element_size() for value in model.state_dict().values()) > LARGEST:
        raise InputError("an ONNX file holds two gigabytes at most, and the model has more; write a .pt2 file instead")
    program = program_of(model, example)
    names = [f"input{k}" if k else "input" for k in range(len(example))]
    free = tuple({0: "batch"} for _ in example)
    try:
        with quiet():
            made = torch.onnx.export(
                program, (), input_names=names, output_names=names_of_outputs(program, names), dynamic_shapes=free,
                dynamo=True, verbose=False,
            )  # fmt: skip
        assert made is not None
    except Exception as error:
        raise InputError(f"{type(model).__name__} cannot be written as ONNX: {cause(error)}") from None
    with replacing(path) as temporary:
        made.save(str(temporary))
        filled = _fill_up(temporary, multiple) if multiple > 1 else 0
        try:
            differences = _checked(model, example, temporary)
        except DifferenceError:
            if not filled:
                raise
            made.save(str(temporary))  # units of 0 that become infinite on their way to a weight of 0
            filled, differences = 0, _checked(model, example, temporary)
    return Exported(path, path.stat().st_size, differences, filled, multiple)


def _checked(model: nn.Module, example: Sequence[Tensor], path: Path) -> dict[int, float]:
    session = opened(path)
    return compared(model, example, lambda inputs: run(session, inputs), "the ONNX file")


def _fill_up(path: Path, multiple: int) -> int:
    import onnx

    proto = onnx.load(str(path))
    if filled := align(proto, multiple):
        onnx.save(proto, str(path))
    return filled


def opened(path: Path) -> Any:
    """A session of ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise InputError(f"ONNX Runtime cannot run the file: {cause(error)}") from None


def run(session: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
    """All outputs for a batch."""
    names = [item.name for item in session.get_inputs()]
    found = session.run(None, {name: value.numpy() for name, value in zip(names, inputs, strict=True)})
    return [torch.from_numpy(value) for value in found]


def operators(path: Path) -> Counter[str]:
    """The kinds of operators in a file, with the name space of those outside the standard."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    return Counter(f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in graph.node)
