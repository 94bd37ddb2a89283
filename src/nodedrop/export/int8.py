"""Eight-bit weights and activations, by ONNX Runtime's own tool, calibrated on samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from ..surgery.check import change
from ..training.atomic import replacing
from .extras import needed
from .onnx import opened, run
from .program import quiet

CALIBRATION = 200
ROWS = 50
SUMS = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # σ between them stays in floating point, for the sake of its e^x


@dataclass(frozen=True)
class Quantized:
    """Before and after: bytes, per cent wrong where labels are known, and the largest change of an output."""

    path: Path
    bytes: int
    bytes_float: int
    difference: float
    samples: int
    error: float | None = None
    error_float: float | None = None


class _Reader:
    """Batches of samples, one by one, as the tool asks for them."""

    def __init__(self, name: str, samples: Tensor) -> None:
        self._batches: Iterator[Tensor] = iter(samples.split(ROWS))
        self._name = name

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self._batches, None)
        return None if batch is None else {self._name: batch.numpy()}


def quantize(source: Path, path: Path, samples: Tensor, labels: Tensor | None = None) -> Quantized:
    """Write an int8 form of an ONNX file, and compare both on the samples."""
    needed("onnx", "an int8 file")
    from onnxruntime.quantization import QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    plain = opened(source)
    reader = _Reader(plain.get_inputs()[0].name, samples[:CALIBRATION])
    with replacing(path) as temporary, TemporaryDirectory() as folder, quiet():
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared), str(temporary), reader, quant_format=QuantFormat.QDQ, per_channel=True,
            op_types_to_quantize=list(SUMS),
        )  # fmt: skip
        small = opened(temporary)
        ours, theirs = (_outputs(session, samples) for session in (plain, small))
    errors = (None, None) if labels is None else tuple(_error(found[0], labels) for found in (ours, theirs))
    return Quantized(
        path, path.stat().st_size, source.stat().st_size, change(ours, theirs), len(samples), errors[1], errors[0]
    )


def _outputs(session: Any, samples: Tensor) -> list[Tensor]:
    found = [run(session, [batch]) for batch in samples.split(ROWS)]
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


def _error(logits: Tensor, labels: Tensor) -> float:
    return 100 * float((logits.argmax(1) != labels).double().mean())
